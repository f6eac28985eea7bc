"""Rules about what NVIDIA's driver writes into the kernel log: Xid, SXid, lost GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.kernel.kernel_events import Verdict, line_of, on_each_event
from topo_tune.findings.kernel.xids import (
    CATALOGUE,
    NVLINK_5,
    OFF_THE_BUS,
    RECOVERY_ACTION,
    RESET,
    UNKNOWN,
    XIDS,
)
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import KernelEvent, KernelEventKind
from topo_tune.records.scan import NodeScan, Scan

_FABRIC_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"


def _xid(node: NodeScan, event: KernelEvent) -> Verdict | None:
    if event.code is None or event.code == OFF_THE_BUS:
        return None
    xid, severity = XIDS.get(event.code, UNKNOWN), None
    if event.code in NVLINK_5 and event.severity == "nonfatal":
        severity = Severity.WARNING
    elif event.code == RECOVERY_ACTION and event.text.rstrip().endswith("(None)"):
        severity = Severity.NOTICE
    severity = severity or xid.severity
    if severity is Severity.ERROR and _is_over(node, event):
        severity = Severity.WARNING
    return Verdict(f"Xid {event.code}: {xid.meaning}", severity, (xid.fix,))


def _is_over(node: NodeScan, event: KernelEvent) -> bool:
    """Whether the driver says of the GPU that nothing needs to be done: it was reset since the line was written."""
    return any(
        health.pci_bus_id is not None
        and health.pci_bus_id == event.device
        and health.recovery_action == "None"
        and not health.reset_required
        for health in node.gpu_health
    )


def _off_the_bus(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        lines = [
            line_of(event)
            for event in node.kernel_events
            if event.kind is KernelEventKind.GPU_LOST
            or (event.kind is KernelEventKind.XID and event.code == OFF_THE_BUS)
        ]
        if lines:
            yield Sighting("a GPU has fallen off the PCI bus", node.node, evidence=tuple(lines))


def _sxid(_: NodeScan, event: KernelEvent) -> Verdict | None:
    if event.severity == "fatal":
        return Verdict(f"SXid {event.code}: fatal error of an NVSwitch", Severity.ERROR)
    return Verdict(f"SXid {event.code}: error of an NVSwitch", Severity.WARNING)


_DRIVER_WORDS = (
    ("RmInitAdapter failed", "the driver could not start a GPU", Severity.ERROR),
    ("probe routine failed", "the driver could not start a GPU", Severity.ERROR),
    (
        "API mismatch",
        "kernel module and user libraries of the driver are of different versions",
        Severity.ERROR,
    ),
    ("Rate limiting GSP RPC", "a GPU's system processor does not answer", Severity.ERROR),
    ("needs to be reset", "the driver asks for a GPU to be reset", Severity.ERROR),
    (
        "nv_get_p2p_free_callback",
        "nvidia-peermem met memory of a process that had ended",
        Severity.NOTICE,
    ),
)


def _driver(node: NodeScan, event: KernelEvent) -> Verdict | None:
    if "API mismatch" in event.text and _is_mismatch_told(node):
        return None
    return next(
        (Verdict(what, severity) for words, what, severity in _DRIVER_WORDS if words in event.text), None
    )


def _is_mismatch_told(node: NodeScan) -> bool:
    """Whether the tools say so themselves, in a finding about the driver, or work again."""
    said = (*node.driver_trouble, *(one.reason for one in node.absent))
    return bool(node.gpus) or any("version mismatch" in one.casefold() for one in said)


RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-off-bus",
        title="a GPU has fallen off the bus",
        severity=Severity.ERROR,
        why="the GPU is gone for CUDA until the node was power-cycled; ranks on it hang their communicators",
        fix=(
            "drain the node, power it off and on, look at `dmesg` for AER errors of the bridge before the fault",
            "if it comes back: reseat or replace riser, cables and GPU; check the power supply",
        ),
        source=CATALOGUE,
        look=_off_the_bus,
    ),
    Rule(
        id="gpu-xid",
        title="the driver reported a GPU fault (Xid)",
        severity=Severity.WARNING,
        why="a fault ends at least the process on that GPU, and with it the NCCL job; hardware faults come "
        "back and make measuring over them worthless",
        fix=(RESET,),
        source=CATALOGUE,
        look=on_each_event(KernelEventKind.XID, _xid),
    ),
    Rule(
        id="nvswitch-sxid",
        title="an NVSwitch reported an error (SXid)",
        severity=Severity.WARNING,
        why="a fatal one stops NVLink traffic of the GPUs behind it until they are reset; others cost "
        "retries, and come before worse",
        fix=(
            "`grep -E 'ERROR|FATAL' /var/log/fabricmanager.log`, `nvidia-smi nvlink -s`",
            "fatal: drain the node, stop the fabric manager, reset all GPUs, start it again; if it comes back: service",
        ),
        source=_FABRIC_GUIDE,
        look=on_each_event(KernelEventKind.SXID, _sxid),
    ),
    Rule(
        id="gpu-driver-trouble",
        title="the NVIDIA driver reports trouble",
        severity=Severity.WARNING,
        why="a GPU that did not start or a driver of two versions is not there for NCCL; the job fails at "
        "its start",
        fix=(
            "`nvidia-smi -L`, `cat /proc/driver/nvidia/version`, `dmesg | grep NVRM`",
            "versions differ: reboot, or reload the modules after the update; a GPU that does not start: power-cycle",
        ),
        source="https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html",
        look=on_each_event(KernelEventKind.DRIVER, _driver),
    ),
)
