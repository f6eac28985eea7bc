"""Rules about NCCL topology files by themselves: what they make NCCL believe."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.findings.gpus.nvlinks import missing_links
from topo_tune.findings.machine import lacks_direct_rdma
from topo_tune.findings.pci.pci_tree import tree_of
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import listed, node_of, of_kind
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import PcieLink
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.nccl_documents import TopologyFile, XmlGpu, XmlNet
from topo_tune.records.scan import Scan

_TOPOLOGY_SOURCE = "NVIDIA/nccl: src/graph/topo.cc"
_CONTAINER_NET = re.compile(
    r"veth|cali|docker|br-|virbr|tunl|tun\d|tap\d|vxlan|flannel|cni|lxc|cilium|kube|podman"
)
_MOST_NVLINKS = {60: 4, 70: 6, 80: 12, 90: 18, 100: 18, 103: 18}
"""By compute capability: P100, V100, A100, H100, B200, B300 (NVIDIA's architecture papers)."""
_NEAR = {"PIX", "PXB"}


def _virtual_nets(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, TopologyFile):
        made_up = [net for net in body.nets if net.is_virtual and _CONTAINER_NET.match(net.name or "")]
        fastest = max((_speed(net) for net in body.nets if not net.is_virtual), default=0)
        faster = [net for net in made_up if _speed(net) > fastest > 0]
        if faster:
            nics = [net for net in body.nets if not net.is_virtual and net.name]
            real = [f"{net.name} {_speed(net)}" for net in nics]
            names = ",".join(dict.fromkeys(net.name or "" for net in nics))
            yield Sighting(
                "NCCL's topology lists virtual interfaces that look faster than the real network card",
                document.node,
                (
                    f"{document.file}: virtual, in Mb/s: {listed([f'{n.name} {_speed(n)}' for n in faster], 4)}",
                    f"{document.file}: real, in Mb/s: {listed(real, 4)}",
                ),
                fix=(
                    f"name the real one: `NCCL_SOCKET_IFNAME=={names}` in `/etc/nccl.conf`",
                    _LEAVE_OUT_VIRTUAL,
                ),
            )


def _management_nics(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, TopologyFile):
        if body.paths is None:
            continue
        nets = list(zip(body.nets, body.paths.nics, strict=True))
        near = [net for net, name in nets if _NEAR & set(_words(body.paths, name))]
        odd = [
            (net, name)
            for net, name in nets
            if net not in near and not net.is_virtual and net.port and _is_like(net, near)
        ]
        if odd and len(near) > len(odd):
            yield Sighting(
                "a NIC at the speed of the compute NICs shares no PCI bridge with any GPU, as all others do",
                document.node,
                tuple(
                    f"{document.file}: {name} is at best {_best(body.paths, name)} to a GPU"
                    for _, name in odd
                ),
                fix=_leave_out([net for net, _ in odd], near),
            )


def _leave_out(odd: list[XmlNet], near: list[XmlNet]) -> tuple[str, ...] | None:
    """How to use the near NICs alone; None, the rule's own words, where the file has no names."""
    if not all(net.name for net in (*odd, *near)):
        return None
    meant, left_out = (",".join(dict.fromkeys(net.name or "" for net in nets)) for nets in (near, odd))
    return (
        f"name the compute NICs: `NCCL_IB_HCA=={meant}`",
        f"or leave the far one out: `NCCL_IB_HCA=^={left_out}`",
    )


def _gdr_off(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, TopologyFile):
        # Sockets have port 0 and never GPUDirect.
        told = [net for net in body.nets if net.port and net.gdr is not None]
        able = [gpu for gpu in body.gpus if gpu.gdr]
        node = node_of(scan, document)
        if node is not None and lacks_direct_rdma(node):  # told there, with the reason
            continue
        if body.vendor == "nvidia" and told and able and not any(net.gdr for net in told):
            names = [net.name or "?" for net in told]
            yield Sighting(
                "GPUDirect RDMA is off on every NIC although the GPUs can do it",
                document.node,
                (f'{document.file}: gdr="0" on {listed(names)}, gdr="1" on {len(able)} GPUs',),
            )


def _too_many_nvlinks(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, TopologyFile):
        over = [
            (gpu, total, most)
            for gpu in body.gpus
            if (most := _MOST_NVLINKS.get(gpu.compute_capability or 0)) is not None
            and (total := sum(link.count for link in gpu.links)) > most
        ]
        if over:
            gpu, total, most = over[0]
            yield Sighting(
                "the topology file gives GPUs more NVLinks than their generation has",
                document.node,
                (f"{document.file}: {len(over)} GPUs, {gpu.pci_bus_id} has {total} and may have {most}",),
            )


def _uneven_nvlinks(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, TopologyFile):
        # Where NVSwitches join all GPUs each has the same; bridges between pairs may leave a GPU out.
        counts = {
            gpu.pci_bus_id: sum(link.count for link in gpu.links if link.is_switch) for gpu in body.gpus
        }
        most = max(counts.values(), default=0)
        fewer = [f"{address} has {count}" for address, count in counts.items() if count < most]
        node = node_of(scan, document)
        is_told = node is not None and bool(missing_links(node))
        if fewer and len(fewer) * 2 < len(counts) and not is_told:
            yield Sighting(
                "in NCCL's topology some GPUs have fewer NVLinks to the switches than the others",
                document.node,
                (f"{document.file}: {listed(fewer)}, the others {most}",),
            )


def _narrow_gpu_paths(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, TopologyFile):
        node = node_of(scan, document)
        if node is not None and tree_of(node).is_known:  # the rules about PCI links have looked at it
            continue
        narrow = [gpu for gpu in body.gpus if _is_narrowed(gpu)]
        # AMD's GPUs sit behind a bridge of their own, whose inner link says nothing of the slot.
        if narrow and body.vendor != "amd":
            by_links = dict.fromkeys(f"{_told(gpu.slowest_link)} above {_told(gpu.link)}" for gpu in narrow)
            yield Sighting(
                "in NCCL's topology a bridge above a GPU has a slower PCIe link than the GPU itself",
                document.node,
                (
                    f"{document.file}: {listed(list(by_links), 3)}, on {len(narrow)} of {len(body.gpus)} GPUs,"
                    f" {narrow[0].pci_bus_id} first",
                ),
            )


def _unknown_numa(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, TopologyFile):
        node = node_of(scan, document)
        several = len({cpu.numa_id for cpu in body.cpus} - {None}) > 1 or (node and len(node.numa) > 1)
        # The rules about where devices sit have looked at a node's own devices.
        is_told = node is not None and any(device.numa_node is not None for device in node.pci)
        lost = [] if is_told else [gpu.pci_bus_id for gpu in body.gpus if gpu.numa_id is None]
        if lost and several:
            yield Sighting(
                "GPUs hang below no NUMA node in NCCL's topology, on a machine that has several",
                document.node,
                (f"{document.file}: {listed(lost)}",),
            )
        empty = {cpu.numa_id for cpu in body.cpus if cpu.cpus == ""}
        without = [gpu.pci_bus_id for gpu in body.gpus if gpu.numa_id in empty]
        if without:
            yield Sighting(
                "the NUMA node of GPUs has an empty CPU mask in NCCL's topology",
                document.node,
                (f"{document.file}: {listed(without)}",),
            )


def _unknown_speeds(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, TopologyFile):
        if body.unknown_speeds:
            yield Sighting(
                "the topology file spells link speeds in a way that NCCL does not know",
                document.node,
                tuple(f'{document.file}: link_speed="{speed}"' for speed in body.unknown_speeds[:8]),
            )


def _speed(net: XmlNet) -> int:
    return net.speed_mbit_per_s or 0


def _words(paths: TopologyMatrix, nic: str) -> list[str]:
    return [paths.link(gpu, nic) for gpu in paths.gpus]


def _best(paths: TopologyMatrix, nic: str) -> str:
    return "PHB" if "PHB" in _words(paths, nic) else "SYS"


def _is_like(net: XmlNet, near: list[XmlNet]) -> bool:
    return bool(near) and net.pci_bus_id is not None and _speed(net) >= max(map(_speed, near)) > 0


def _is_narrowed(gpu: XmlGpu) -> bool:
    return gpu.link is not None and gpu.slowest_link is not None and _rate(gpu.slowest_link) < _rate(gpu.link)


def _rate(link: PcieLink) -> float:
    return (link.speed_gt_per_s or 0) * (link.width or 16)


def _told(link: PcieLink | None) -> str:
    return "?" if link is None else f"{link.speed_gt_per_s:g} GT/s x{link.width or '?'}"


_LEAVE_OUT_VIRTUAL = "or leave the virtual ones out: `NCCL_SOCKET_IFNAME=^lo,docker,veth,cali,br-,tunl`"

RULES: tuple[Rule, ...] = (
    Rule(
        id="topology-virtual-nets",
        title="a virtual interface looks faster than the real network card",
        severity=Severity.WARNING,
        why="the kernel claims 10 Gb/s for interfaces that have no hardware; NCCL's sockets believe it, and "
        "traffic takes a bridge or a tunnel, or never arrives",
        fix=(
            "name the real interface: `NCCL_SOCKET_IFNAME==IF` in `/etc/nccl.conf` (`=`: this very name)",
            _LEAVE_OUT_VIRTUAL,
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname",
        look=_virtual_nets,
    ),
    Rule(
        id="topology-gdr-off",
        title="no NIC has GPUDirect RDMA",
        severity=Severity.WARNING,
        why="every byte between nodes goes through the memory of the CPU instead of straight from GPU to "
        "NIC, which costs bandwidth on each node's PCIe and memory",
        fix=(
            "load the module: `modprobe nvidia_peermem`, and `lsmod | grep nvidia_peermem` must show it",
            "or use DMA-BUF: open kernel modules of the driver, kernel 5.12 or newer, CUDA 11.7 or newer",
            "if the file is given by `NCCL_TOPO_FILE`, take `gdr` out of its `<net>`: what it says beats "
            "what NCCL sees",
        ),
        source="NVIDIA/nccl: docs/userguide/source/troubleshooting/gpu_troubleshooting.rst",
        look=_gdr_off,
    ),
    Rule(
        id="topology-nvlinks-uneven",
        title="a GPU has fewer NVLinks than the others",
        severity=Severity.WARNING,
        why="NCCL plans every channel for the GPU with the fewest links; one without any keeps NVLS and "
        "NVLink out of the whole communicator",
        fix=(
            "look at the GPU's links: `nvidia-smi nvlink -s -i INDEX`, `nvidia-smi nvlink -e -i INDEX` and "
            "`dmesg | grep -i nvlink`",
            "reset it with the others idle (`nvidia-smi --gpu-reset`), or restart the node and its fabric "
            "manager; take the node out where links stay down",
        ),
        source="https://github.com/NVIDIA/nccl/issues/1182",
        look=_uneven_nvlinks,
    ),
    Rule(
        id="topology-gpu-path-narrow",
        title="a bridge above a GPU is slower than the GPU's own PCIe link",
        severity=Severity.WARNING,
        why="NCCL counts a path as fast as its slowest link, so it plans fewer channels across the CPU, even "
        "where the bridge only reports a wrong speed",
        fix=(
            "see what the link runs at: `lspci -vv -s ADDRESS | grep -E 'LnkCap|LnkSta'` for the bridge",
            "if it is slow in truth: reseat the riser, set the slot's speed in the BIOS, update the switch's firmware",
            "if it only reports so: correct `link_speed` of the bridge in a copy and name it by "
            "`NCCL_TOPO_FILE`",
        ),
        source="https://github.com/NVIDIA/nccl/issues/439",
        look=_narrow_gpu_paths,
    ),
    Rule(
        id="topology-link-speed-unknown",
        title="a link speed is spelt in a way that NCCL does not know",
        severity=Severity.WARNING,
        why="NCCL compares the text with its own table and counts what is not in it as 8 GT/s, a quarter of "
        "PCIe 5",
        fix=("write speeds as the kernel does: `32.0 GT/s PCIe` or `32 GT/s`",),
        source=_TOPOLOGY_SOURCE,
        look=_unknown_speeds,
    ),
    Rule(
        id="topology-numa-unknown",
        title="a GPU hangs below no NUMA node, or below one without CPUs",
        severity=Severity.WARNING,
        why="NCCL then takes GPUs and NICs of different sockets for neighbours and binds its threads to no "
        "CPU near them",
        fix=(
            "see what the kernel knows: `cat /sys/bus/pci/devices/ADDRESS/numa_node`; -1 comes from the BIOS "
            "or the virtual machine",
            "in a virtual machine give NCCL the provider's topology file with `NCCL_TOPO_FILE`",
        ),
        source="NVIDIA/nccl: src/graph/xml.cc",
        look=_unknown_numa,
    ),
    Rule(
        id="topology-nvlinks-impossible",
        title="a topology file gives GPUs more NVLinks than there are",
        severity=Severity.NOTICE,
        why="the file was written by hand; NCCL multiplies the number by the speed of one link and plans "
        "with a bandwidth that is not there",
        fix=(
            'write one `<nvlink>` with `tclass="0x068000"` and the GPU\'s real number of links where GPUs '
            "share NVSwitches",
            "compare with `nvidia-smi nvlink -s`",
        ),
        source=_TOPOLOGY_SOURCE,
        look=_too_many_nvlinks,
    ),
    Rule(
        id="topology-management-nic",
        title="a NIC far from every GPU is listed with the compute NICs",
        severity=Severity.NOTICE,
        why="a management or storage NIC that reports the same speed may carry NCCL's channels, over the CPU "
        "and perhaps over a network that does not reach the other nodes' compute NICs",
        fix=(
            "name the compute NICs by `NCCL_IB_HCA==DEVICE,...`, or leave the far one out: `NCCL_IB_HCA=^=DEVICE`",
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca",
        look=_management_nics,
    ),
)
