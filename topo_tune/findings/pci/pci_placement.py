"""Rules about where GPUs and network cards sit: how far from each other, on which NUMA node, with which driver."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.in_force import in_force
from topo_tune.findings.machine import (
    gpu_count,
    is_grace,
    is_virtual,
    pci_gpus,
    rdma_names,
)
from topo_tune.findings.pci.pci_tree import tree_of
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import NodeScan, Scan

_NEAR = ("PIX", "PXB")
"""Below a common PCIe switch: NCCL's default limit for GPUDirect RDMA on x86."""
_TOPOLOGY = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net-gdr-level"


def _matrices(scan: Scan) -> Iterator[tuple[NodeScan, TopologyMatrix]]:
    """Matrices of GPUs and NICs of machines whose PCI tree means what it says."""
    for node in scan.nodes:
        if node.matrix is not None and node.matrix.nics and not is_virtual(node) and not is_grace(node):
            yield node, node.matrix


def _all_far(scan: Scan) -> Iterator[Sighting]:
    for node, matrix in _matrices(scan):
        words = {matrix.link(gpu, nic) for gpu in matrix.gpus for nic in matrix.nics}
        if words == {"SYS"}:
            yield Sighting(
                "every network card is on another NUMA node than every GPU (SYS)",
                node.node,
                (f"{len(matrix.gpus)} GPUs, {', '.join(matrix.nics[:8])}",),
            )


def _some_far(scan: Scan) -> Iterator[Sighting]:
    for node, matrix in _matrices(scan):
        near = [gpu for gpu in matrix.gpus if any(matrix.link(gpu, nic) in _NEAR for nic in matrix.nics)]
        far = [
            gpu
            for gpu in matrix.gpus
            if gpu not in near and all(matrix.link(gpu, nic) in ("PHB", "NODE", "SYS") for nic in matrix.nics)
        ]
        if near and far:
            yield Sighting(
                f"{len(far)} of {len(matrix.gpus)} GPUs have no network card below their PCIe switch, the others do",
                node.node,
                (f"without: {', '.join(far)}",),
            )


def _without_numa_node(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        sockets = sum(1 for one in node.numa if one.cpus)
        if sockets < 2 or _has_topology_file(node):
            continue
        devices = [device for device in node.pci if device.kind in ("gpu", "nic", "bridge")]
        # -1 and "not told" look alike: only where some devices know theirs is it told.
        is_told = any(device.numa_node is not None for device in devices)
        tree = tree_of(node)
        lost = [
            device
            for device in devices
            # NCCL asks the topmost bridge. The service processor's screen is no GPU of anybody's.
            if device.kind == "nic" or (device.kind == "gpu" and device.is_of("10de", "NVIDIA"))
            if all(one.numa_node is None for one in (device, *tree.above(device)))
        ]
        if is_told and lost:
            kinds = sorted({"GPUs" if device.kind == "gpu" else "network cards" for device in lost})
            yield Sighting(
                f"{' and '.join(kinds)} without a NUMA node on a machine of several",
                node.node,
                tuple(device.address for device in lost),
                severity=Severity.NOTICE if is_virtual(node) else None,
            )


def _has_topology_file(node: NodeScan) -> bool:
    return in_force(node, "NCCL_TOPO_FILE") is not None or node.host.has_virtual_topology is True


def _no_topology_in_guest(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if not is_virtual(node) or gpu_count(node) < 2 or _has_topology_file(node) or is_grace(node):
            continue
        if rdma_names(node) and not _sees_neighbours(node):
            yield Sighting(
                "a virtual machine shows no PCI tree between its GPUs and network cards, and NCCL is given no "
                "topology file",
                node.node,
                (f"hypervisor: {node.host.hypervisor or 'not named'}",),
            )


def _sees_neighbours(node: NodeScan) -> bool:
    """Whether GPUs and cards can be told near from far; also where nothing was told about that."""
    if node.matrix is not None and node.matrix.nics:
        words = {node.matrix.link(gpu, nic) for gpu in node.matrix.gpus for nic in node.matrix.nics}
        return bool(words & set(_NEAR))
    gpus, nics = pci_gpus(node), [device for device in node.pci if device.kind == "nic"]
    if not gpus or not nics:
        return True
    tree = tree_of(node)
    bridges = {bridge.address for gpu in gpus for bridge in tree.above(gpu)}
    return any(bridge.address in bridges for nic in nics for bridge in tree.above(nic))


def _without_driver(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        gpus = [gpu for gpu in pci_gpus(node) if not gpu.is_dead]
        # A driver that was not told is no missing driver, unless its neighbours' were.
        is_told = any(gpu.driver == "nvidia" for gpu in gpus)
        lost = [gpu for gpu in gpus if gpu.driver != "nvidia" and (is_told or gpu.driver is not None)]
        if lost and len(lost) < len(gpus):
            drivers = sorted({gpu.driver or "no driver" for gpu in lost})
            yield Sighting(
                f"some of the node's GPUs are not bound to NVIDIA's driver: {', '.join(drivers)}",
                node.node,
                tuple(f"{gpu.address}: {gpu.driver or 'no driver'}" for gpu in lost),
            )


RULES: tuple[Rule, ...] = (
    Rule(
        id="nic-far-from-every-gpu",
        title="no GPU has a network card on its own NUMA node",
        severity=Severity.WARNING,
        why="GPUDirect RDMA stays off by default over this distance: data goes through the CPU's memory and "
        "the link between the sockets, which all GPUs share",
        fix=(
            "move network cards to slots of the sockets that the GPUs are on, best below the same PCIe switch",
            "measure whether `NCCL_NET_GDR_LEVEL=SYS` is faster on this machine; on many it is slower",
        ),
        source=_TOPOLOGY,
        look=_all_far,
    ),
    Rule(
        id="gpu-without-near-nic",
        title="some GPUs have no network card near them",
        severity=Severity.NOTICE,
        why="these GPUs send through another GPU's card (PXN over NVLink) or through the CPU's memory: with "
        "few cards that is meant, with as many cards as GPUs it is a card in the wrong slot or one that is "
        "missing",
        fix=(
            "`nvidia-smi topo -m`: compare with another node of the same model",
            "`lspci -tv`: look for a card in the wrong slot",
        ),
        source=_TOPOLOGY,
        look=_some_far,
    ),
    Rule(
        id="pci-without-numa-node",
        title="devices without a NUMA node on a machine with several",
        severity=Severity.WARNING,
        why="NCCL puts such a device below a CPU of its own, numbered -1: every path to it looks like one "
        "between sockets, and its threads are pinned nowhere",
        fix=(
            "update the BIOS: it does not tell the proximity of these slots (_PXM)",
            "until then tell NCCL by a topology file: write it with `NCCL_TOPO_DUMP_FILE`, correct `numaid`, "
            "set `NCCL_TOPO_FILE`",
        ),
        source="NVIDIA/nccl: src/graph/xml.cc (ncclTopoGetXmlFromSys reads numa_node)",
        look=_without_numa_node,
    ),
    Rule(
        id="vm-without-topology-file",
        title="a virtual machine without a topology file for NCCL",
        severity=Severity.NOTICE,
        why="NCCL detects the topology from /sys, and a flat virtual PCI bus makes every card look equally "
        "far from every GPU; cloud providers ship a file for machines like this",
        fix=(
            "look for the provider's file, such as `/opt/microsoft/ndv5-topo.xml`, and set `NCCL_TOPO_FILE` "
            "to it in `/etc/nccl.conf`",
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file",
        look=_no_topology_in_guest,
    ),
    Rule(
        id="gpu-without-driver",
        title="a GPU is not bound to NVIDIA's driver",
        severity=Severity.WARNING,
        why="jobs that count on all GPUs of the node fail or use fewer; the ring that NCCL finds has a hole",
        fix=(
            "`lspci -nnk -d 10de:` names the driver in use; `vfio-pci` means that it is reserved for a guest",
            "`dmesg | grep -iE 'nvrm|xid'`: a GPU that failed to start is named there",
        ),
        source="oracle-quickstart/oci-hpc: playbooks/roles/healthchecks/files/check_gpu_setup.py",
        look=_without_driver,
    ),
)
