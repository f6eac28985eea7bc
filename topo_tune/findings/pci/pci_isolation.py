"""Rules about ACS and the IOMMU: what sends traffic between devices through the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.in_force import in_force, number
from topo_tune.findings.machine import (
    gpu_count,
    is_grace,
    is_virtual,
    pci_gpus,
    rdma_names,
)
from topo_tune.findings.pci.pci_tree import PciTree, tree_of
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import PciDevice
from topo_tune.records.scan import NodeScan, Scan

_REDIRECTING = ("ReqRedir", "CmpltRedir", "UpstreamFwd")
"""The controls that send packets between devices upwards. Source validation and blocking redirect nothing."""

_USER_GUIDE = "NVIDIA/nccl: docs/userguide/source/troubleshooting/gpu_troubleshooting.rst"


def _redirects(device: PciDevice) -> tuple[str, ...]:
    return tuple(control for control in _REDIRECTING if control in (device.acs or ()))


def _isolating(scan: Scan) -> Iterator[tuple[NodeScan, PciTree, PciDevice]]:
    """Bridges that redirect on bare metal. Guests need ACS; Grace's direct links count on it."""
    for node in scan.nodes:
        if is_virtual(node) or is_grace(node) or len(_talkers(node)) < 2:
            continue
        tree = tree_of(node)
        for device in node.pci:
            if device.kind == "bridge" and _redirects(device):
                yield node, tree, device


def _on_switches(scan: Scan) -> Iterator[Sighting]:
    for node, tree, bridge in _isolating(scan):
        is_between = _is_between(tree, bridge)
        # Without a tree there is no telling what is below; GPUs beside such bridges are then enough.
        if is_between or not tree.is_known:
            yield Sighting(
                "ACS sends traffic between GPUs and network cards through the CPU: redirection is on at PCIe "
                + ("switch ports" if is_between else "bridges"),
                node.node,
                (f"{bridge.address}: {', '.join(f'{control}+' for control in _redirects(bridge))}",),
            )


def _is_between(tree: PciTree, port: PciDevice) -> bool:
    """Whether a port leads to a GPU or card, and the switch that it belongs to to others, one of them a GPU."""
    switch = next(iter(tree.above(port)), None)
    peers = () if switch is None else tree.below(switch)
    return bool(tree.below(port)) and len(peers) > 1 and any(peer.kind == "gpu" for peer in peers)


def _on_root_ports(scan: Scan) -> Iterator[Sighting]:
    for node, tree, bridge in _isolating(scan):
        devices = tree.below(bridge)
        cards = {device.address[:-1] for device in devices}
        if bridge.parent is None and len(cards) == 1:
            yield Sighting(
                "ACS redirection is on at root ports that lead to GPUs or network cards",
                node.node,
                (f"{bridge.address} above {devices[0].address}",),
            )


def _talkers(node: NodeScan) -> list[PciDevice]:
    """GPUs and RDMA cards: what exchanges data directly. None where there is no GPU."""
    gpus = pci_gpus(node)
    nics = [
        device
        for device in node.pci
        if device.kind == "nic" and (rdma_names(node) or device.vendor_id == "15b3")
    ]
    return [*gpus, *nics] if gpus else []


def _translated(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        is_direct = gpu_count(node) > 1 or (gpu_count(node) > 0 and bool(rdma_names(node)))
        if node.host.iommu == "translated" and is_direct and not is_virtual(node) and not is_grace(node):
            yield Sighting(
                "the IOMMU translates the addresses of GPUs and network cards on bare metal; expected: off or "
                "passthrough",
                node.node,
                tuple(option for option in node.host.kernel_options if "iommu" in option),
            )


def _strict_ordering(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = in_force(node, "NCCL_IB_PCI_RELAXED_ORDERING")
        if number(setting) == 0 and is_virtual(node) and rdma_names(node):
            what = "`NCCL_IB_PCI_RELAXED_ORDERING=0` in a virtual machine with RDMA devices"
            yield Sighting(what, node.node, (str(setting),))


RULES: tuple[Rule, ...] = (
    Rule(
        id="acs-on-switch",
        title="ACS is on at PCIe switches between GPUs and network cards",
        severity=Severity.WARNING,
        why="packets between two devices below a switch go up to the CPU and back in place of straight "
        "across: GPUDirect loses up to half of its bandwidth, and on some machines NCCL hangs in its first "
        "collective",
        fix=(
            "switch IO virtualisation (VT-d, AMD-Vi) or ACS off in the BIOS, unless guests need it",
            "until the next boot: `setpci -s ADDRESS ECAP_ACS+0x6.w=0000` for each port named above",
        ),
        source=_USER_GUIDE + " (PCI Access Control Services)",
        look=_on_switches,
    ),
    Rule(
        id="acs-on-root-port",
        title="ACS is on at root ports above GPUs",
        severity=Severity.NOTICE,
        why="traffic between devices of different root ports crosses the CPU anyway; with ACS it is also "
        "translated there where the IOMMU is on, which costs speed and on some machines peer-to-peer "
        "altogether",
        fix=(
            "if `nvidia-smi topo -p2p r` or nccl-tests show trouble: `setpci -s ADDRESS ECAP_ACS+0x6.w=0000` "
            "for each port",
        ),
        source=_USER_GUIDE + " (PCI Access Control Services)",
        look=_on_root_ports,
    ),
    Rule(
        id="iommu-translated",
        title="the IOMMU translates on bare metal",
        severity=Severity.WARNING,
        why="NVIDIA does not support peer-to-peer copies between GPUs over PCIe in this mode, and GPUDirect "
        "RDMA is redirected to the CPU's root ports: slow at best, hanging or wrong data at worst",
        fix=(
            "add `iommu=pt` to the kernel's command line (GRUB_CMDLINE_LINUX), run `update-grub` and reboot",
            "or switch it off: `intel_iommu=off` or `amd_iommu=off`, or VT-d / AMD-Vi in the BIOS",
        ),
        source="https://docs.nvidia.com/nim/maxine/lipsync/latest/advanced-usage/multi-gpu.html",
        look=_translated,
    ),
    Rule(
        id="relaxed-ordering-off-in-vm",
        title="relaxed ordering on PCIe is switched off in a virtual machine",
        severity=Severity.WARNING,
        why="relaxed ordering is what lets InfiniBand reach its rate in virtual machines; NCCL uses it by "
        "itself where it can",
        fix=("remove `NCCL_IB_PCI_RELAXED_ORDERING=0`",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-pci-relaxed-ordering",
        look=_strict_ordering,
    ),
)
