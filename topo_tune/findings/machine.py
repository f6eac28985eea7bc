"""What kind of machine a node is, from whatever was told of it: rules keep silent on machines that they do not fit."""

from __future__ import annotations

import re

from topo_tune.findings.remembered import remembered
from topo_tune.records.hardware import PciDevice
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice
from topo_tune.records.scan import NodeScan

_VIRTUAL_VENDORS = ("1af4", "1b36", "1414", "15ad", "1ae0", "5853")
"""Red Hat (virtio, QEMU), Microsoft, VMware, Google, Xen: devices that only hypervisors have."""

_GRACE_NAMES = re.compile(r"\b(GH200|GB200|GB300|GB10|Grace)\b")
_RACK_NAMES = re.compile(r"\b(GB200|GB300)\b")
_CONSUMER_NAMES = re.compile(r"GeForce|TITAN|\bRTX [2-5]0[5-9]0\b|\bGTX\b")

RDMA_KINDS = ("infiniband", "roce")


@remembered
def is_virtual(node: NodeScan) -> bool:
    """Whether it is a virtual machine, as far as is known: PCI trees, ACS and IOMMU are then the hypervisor's."""
    if node.host.hypervisor is not None:
        return node.host.hypervisor != "none"
    return any(device.vendor_id in _VIRTUAL_VENDORS for device in node.pci)


@remembered
def is_grace(node: NodeScan) -> bool:
    """Whether GPUs hang at NVIDIA CPUs by C2C, where PCIe is not their way and the IOMMU belongs to the design."""
    cpu = node.cpu
    if cpu.vendor == "NVIDIA" or (cpu.model or "").startswith("Neoverse-V2"):
        return True
    if any(_GRACE_NAMES.search(gpu.name) for gpu in node.gpus):
        return True
    if node.matrix is not None and any(number is not None for number in node.matrix.gpu_numa_ids):
        return True
    # Its root ports are NVIDIA's own; no x86 machine has such.
    bridges = (device for device in node.pci if device.kind == "bridge")
    return any(one.vendor_id == "10de" or (one.name or "").startswith("NVIDIA") for one in bridges)


def is_rack_scale(node: NodeScan) -> bool:
    """Whether its NVLinks go on to other nodes."""
    return any(_RACK_NAMES.search(gpu.name) for gpu in node.gpus)


def has_data_center_gpus(node: NodeScan) -> bool:
    """Whether its GPUs can do GPUDirect RDMA at all; consumer cards cannot."""
    return any(not _CONSUMER_NAMES.search(gpu.name) for gpu in node.gpus)


def gpu_count(node: NodeScan) -> int:
    """GPUs by the best that is known: the driver's list, the matrix, the PCI bus."""
    if node.gpus:
        return len(node.gpus)
    if node.matrix is not None:
        return len(node.matrix.gpus)
    return len(pci_gpus(node))


@remembered
def pci_gpus(node: NodeScan) -> tuple[PciDevice, ...]:
    """NVIDIA GPUs on the PCI bus."""
    return tuple(device for device in node.pci if device.kind == "gpu" and device.is_of("10de", "NVIDIA"))


@remembered
def rdma_names(node: NodeScan) -> tuple[str, ...]:
    """RDMA devices that NCCL's own transport can use."""
    names = [device.name for device in node.rdma if device.driver != "efa"]
    names += [nic.name for nic in node.nics if nic.kind in RDMA_KINDS]
    return tuple(dict.fromkeys(names))


_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")


def lacks_direct_rdma(node: NodeScan) -> bool:
    """Whether RDMA devices have no known way into GPU memory; False where the loaded modules were not told."""
    modules = dict(node.host.modules)
    has_way = any(name in modules for name in _PEER_MEMORY) or node.host.dma_buf is True
    # The NVIDIA module in the list shows that modules were told at all.
    return "nvidia" in modules and not has_way and bool(rdma_names(node)) and has_data_center_gpus(node)


def joins_all_by_nvlink(matrix: TopologyMatrix | None) -> bool | None:
    """Whether NVLink joins every two GPUs; None where the matrix does not tell."""
    if matrix is None or len(matrix.gpus) < 2:
        return None
    count = len(matrix.gpus)
    words = [matrix.links[i][j] for i in range(count) for j in range(count) if i != j]
    return None if "?" in words else all(word.startswith("NV") for word in words)


def rate_gbit_per_s(node: NodeScan, device: PciDevice) -> float | None:
    """What a card's active ports carry together; None where no port of this function is known."""
    rdma = next((one for one in node.rdma if one.pci_bus_id == device.address), None)
    if rdma is not None:
        rates = _active_rates(rdma)
        if rates:
            return sum(rates)
    speeds = [
        nic.speed_gbit_per_s
        for nic in node.nics
        if nic.pci_bus_id == device.address and nic.is_up and nic.speed_gbit_per_s and not nic.is_virtual
    ]
    # The same port may appear as a network interface and as an RDMA device.
    return max(speeds) if speeds else None


def nccl_version(node: NodeScan) -> tuple[int, ...] | None:
    """The NCCL that jobs would load: torch's, else the oldest that was found."""
    words = [node.torch_nccl] if node.torch_nccl else [library.version for library in node.nccl_libraries]
    versions = [tuple(int(part) for part in re.findall(r"\d{1,6}", word)[:3]) for word in words if word]
    return min((version for version in versions if version), default=None)


def numbers_in(ranges: str) -> int:
    """How many CPUs `0-55,112-167` names."""
    count = 0
    for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", ranges):
        count += max(int(last or first) - int(first) + 1, 0)
    return count


def size(count: int) -> str:
    """Bytes as people write them: `64 MiB`."""
    for unit, word in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {word}"
    return f"{count} bytes"


def _active_rates(device: RdmaDevice) -> list[float]:
    return [
        port.rate_gbit_per_s
        for port in device.ports
        if port.rate_gbit_per_s and (port.state or "").casefold() == "active"
    ]
