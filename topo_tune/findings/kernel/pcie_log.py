"""Rules about what the kernel log says of PCI Express, network cards and the IOMMU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.findings.kernel.kernel_events import Verdict, line_of, on_each_event
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import KernelEvent, KernelEventKind
from topo_tune.records.scan import NodeScan, Scan

CORRECTED_ERRORS_THAT_COST = 100
"""Of one device in the log. Some are normal; the kernel limits how many it prints, so a hundred lines are a flood."""

LINK_LOSSES_THAT_ARE_A_FLAP = 4
"""Of one interface in the log: drivers take links down once or twice while they start."""

_AER = "https://docs.kernel.org/PCI/pcieaer-howto.html"
_PCI_SOURCE = "torvalds/linux: drivers/pci/pci.c (__pcie_print_link_status)"
_MLX5_SOURCE = "torvalds/linux: drivers/net/ethernet/mellanox/mlx5/core/events.c, health.c"
_LIMITED = re.compile(
    r"limited by ([\d.]{1,6}) GT/s.{0,20} x(\d{1,2}) link .{0,40}\(capable of .{0,20} with ([\d.]{1,6}) GT/s.{0,20}"
    r" x(\d{1,2}) link"
)


def _uncorrected(node: NodeScan, event: KernelEvent) -> Verdict | None:
    if event.severity not in ("nonfatal", "fatal"):
        return None
    what = f"{event.severity} errors on a PCIe link"
    # A disk's or an unknown device's link is none of NCCL's; a bridge that recovered may lead to anything.
    matters = {"gpu", "nic", "nvswitch"} | ({"bridge"} if event.severity == "fatal" else set())
    return Verdict(what, Severity.ERROR if _kind(node, event) in matters else Severity.WARNING)


def _corrected(_: NodeScan, event: KernelEvent) -> Verdict | None:
    if event.severity != "corrected" or event.count < CORRECTED_ERRORS_THAT_COST:
        return None
    return Verdict("a flood of corrected errors on a PCIe link")


def _kind(node: NodeScan, event: KernelEvent) -> str:
    if any(gpu.pci_bus_id == event.device for gpu in node.gpus):
        return "gpu"
    # Where the log is all there is: only a GPU has Xids.
    if any(one.kind is KernelEventKind.XID and one.device == event.device for one in node.kernel_events):
        return "gpu"
    if any(nic.pci_bus_id == event.device for nic in node.nics):
        return "nic"
    return next((device.kind for device in node.pci if device.address == event.device), "unknown")


def _limited(node: NodeScan, event: KernelEvent) -> Verdict | None:
    """Network cards and GPUs only. A GPU that is idle at boot has a slow link: only missing lanes count for it."""
    if _kind(node, event) == "gpu":
        match = _LIMITED.search(event.text)
        if match is None or int(match.group(2)) >= int(match.group(4)):
            return None
        return Verdict("a GPU has fewer PCIe lanes than it could use, says the kernel")
    if _kind(node, event) != "nic" and not event.text.startswith(
        ("mlx5_core", "mlx4_core", "bnxt_en", "ice ")
    ):
        return None
    return Verdict("a network card's PCIe link carries less than the card could use, says the kernel")


_NIC_WORDS = (
    ("health compromised", "a network card's firmware has stopped or is in trouble", Severity.ERROR),
    ("atal error", "a network card's firmware has stopped or is in trouble", Severity.ERROR),
    ("Will cause a leak", "a network card's firmware does not answer commands", Severity.ERROR),
    ("insufficient power", "a network card gets too little power from its slot", Severity.WARNING),
    ("High temperature on sensors", "a network card is too hot", Severity.WARNING),
    ("High Temperature", "a network port's cable or transceiver is too hot", Severity.WARNING),
    ("Port module event[error]", "a network port's cable or transceiver is in trouble", Severity.WARNING),
    ("timed out", "a network interface's queue got stuck", Severity.WARNING),
    ("dump error cqe", "RDMA operations ended with an error", Severity.NOTICE),
)


def _nic(_: NodeScan, event: KernelEvent) -> Verdict | None:
    return next(
        (Verdict(what, severity) for words, what, severity in _NIC_WORDS if words in event.text),
        Verdict("a network card's driver reports trouble"),
    )


def _flaps(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        lines = [
            f"{event.device}: {line_of(event)}"
            for event in node.kernel_events
            if event.kind is KernelEventKind.LINK
            and event.severity == "down"
            and event.count >= LINK_LOSSES_THAT_ARE_A_FLAP
        ]
        if lines:
            yield Sighting("a network link went down again and again", node.node, evidence=tuple(lines))


def _dma_fault(node: NodeScan, event: KernelEvent) -> Verdict | None:
    if event.severity != "fault":
        return None
    matters = _kind(node, event) in {"gpu", "nic", "nvswitch"}
    return Verdict("the IOMMU refused a device's access to memory", None if matters else Severity.WARNING)


RULES: tuple[Rule, ...] = (
    Rule(
        id="pcie-errors",
        title="uncorrected errors on a PCIe link",
        severity=Severity.ERROR,
        why="a packet between GPU, NIC and host was lost: the driver resets the device, or data is missing; "
        "NCCL jobs hang or end",
        fix=(
            "`lspci -vv -s ADDRESS` (UESta), `dmesg | grep -A 4 'PCIe Bus Error'`",
            "reseat the card and its riser; update firmware; replace what it moves with",
        ),
        source=_AER,
        look=on_each_event(KernelEventKind.AER, _uncorrected),
    ),
    Rule(
        id="pcie-errors-corrected",
        title="many corrected errors on a PCIe link",
        severity=Severity.WARNING,
        why="each one is a packet sent again; a flood of them slows the link and comes before uncorrected "
        "ones",
        fix=("reseat the card and its riser, clean contacts; look whether the count grows under load",),
        source=_AER,
        look=on_each_event(KernelEventKind.AER, _corrected),
    ),
    Rule(
        id="pcie-bandwidth-limited",
        title="the kernel finds a PCIe link below the device's bandwidth",
        severity=Severity.WARNING,
        why="the narrowest link between GPU and network is the bandwidth of NCCL's network transport",
        fix=(
            "the line names the bridge that limits it: `lspci -vv -s ADDRESS`, compare LnkCap and LnkSta",
            "use a slot with more lanes or a newer generation; check the firmware's bifurcation and link speed",
        ),
        source=_PCI_SOURCE,
        look=on_each_event(KernelEventKind.PCIE_BANDWIDTH, _limited),
    ),
    Rule(
        id="nic-trouble",
        title="a network card reports trouble",
        severity=Severity.WARNING,
        why="NCCL does not go on without a NIC that it has chosen: its operations time out and the job ends",
        fix=(
            "`dmesg | grep mlx5`, `mlxlink -d DEVICE -m`, `ibstat`, `rdma link`",
            "cable or transceiver: clean, reseat, swap; firmware: update, then cold-boot; power: check the slot",
        ),
        source=_MLX5_SOURCE,
        look=on_each_event(KernelEventKind.NIC, _nic),
    ),
    Rule(
        id="nic-link-flaps",
        title="a network link flaps",
        severity=Severity.WARNING,
        why="while a link is down its RDMA operations are retried, `NCCL_IB_TIMEOUT` and `NCCL_IB_RETRY_CNT` "
        "long, and then the job ends; short losses show as outliers",
        fix=(
            "`dmesg -T | grep -i 'link down'`, `ethtool -S IF | grep -i -E 'link_down|symbol|crc'`",
            "clean or swap cable and transceiver, then look at the switch port",
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        look=_flaps,
    ),
    Rule(
        id="iommu-fault",
        title="the IOMMU refuses a device's DMA",
        severity=Severity.ERROR,
        why="traffic between GPUs, or between NIC and GPU, went to an address that the IOMMU does not let through: the "
        "data is lost, and NCCL hangs or computes wrong sums",
        fix=(
            "on bare metal: `iommu=pt` or IOMMU off (`intel_iommu=off`, `amd_iommu=off`), and ACS off on the bridges",
            "in a virtual machine: the hypervisor's mapping of the device is at fault",
        ),
        source="NVIDIA/nccl: docs/userguide/source/troubleshooting/gpu_troubleshooting.rst",
        look=on_each_event(KernelEventKind.IOMMU, _dma_fault),
    ),
)
