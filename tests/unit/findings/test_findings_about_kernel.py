"""The kernel log: what must alarm, and what looks alike and must not."""

from __future__ import annotations

from typing import Any

import pytest
from golden_facts import FACTS, text_of
from scans import gpu, node_scan, scan_of

from topo_tune.findings.judge import find
from topo_tune.findings.kernel import RULES
from topo_tune.findings.kernel.xids import XIDS
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import KernelEvent, PciDevice
from topo_tune.records.hardware import KernelEventKind as Kind
from topo_tune.records.scan import Scan
from topo_tune.scan.facts.host.kernel_log import parse

LIMITED_NIC = (
    "mlx5_core 0000:3b:00.0: 126.016 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x16 link at 0000:3a:00.0"
    " (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)"
)
LIMITED_GPU = (
    "pci 0000:18:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x2 link at 0000:17:00.0"
    " (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
)
IDLE_GPU = (
    "pci 0000:18:00.0: 32.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x16 link at 0000:17:00.0"
    " (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)"
)


def event(kind: Kind, text: str = "", **fields: Any) -> KernelEvent:
    return KernelEvent(kind, text, **fields)


def log(*lines: str, **changes: Any) -> Scan:
    """A node whose kernel log holds these lines."""
    events = parse("".join(f"[1.0] {line}\n" for line in lines)).events
    return scan_of(node_scan(kernel_events=events, **changes))


def xid(code: int, text: str = "x") -> str:
    return f"NVRM: Xid (PCI:0000:9b:00): {code}, {text}"


SEGFAULT = "python[12]: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2[7f+1]"
AER = "nvidia 0000:18:00.0: PCIe Bus Error: severity="

FIRES: dict[str, Scan] = {
    "gpu-off-bus": log(xid(79, "GPU has fallen off the bus.")),
    "gpu-xid": log(xid(48)),
    "nvswitch-sxid": log("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    "gpu-driver-trouble": log("NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x26:0x56:1474)"),
    "pcie-errors": log(AER + "Uncorrected (Fatal), type=Transaction Layer"),
    "pcie-errors-corrected": log(*[AER + "Corrected, type=Physical Layer"] * 150),
    "pcie-bandwidth-limited": log(LIMITED_NIC),
    "nic-trouble": log(
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature"
    ),
    "nic-link-flaps": log(*["mlx5_core 0000:3b:00.0 ens1f0: Link down"] * 5),
    "iommu-fault": log("DMAR: [DMA Read] Request device [17:00.0] fault addr 0xabc"),
    "nccl-segfault": log(SEGFAULT),
    "out-of-memory": log("Out of memory: Killed process 1234 (python) total-vm:1kB"),
    "hung-tasks": log("INFO: task python:1234 blocked for more than 120 seconds."),
}

QUIET: dict[str, Scan] = {
    "gpu-off-bus": log(xid(48)),
    "gpu-xid": log(xid(79, "GPU has fallen off the bus.")),
    "nvswitch-sxid": log(xid(45)),
    "gpu-driver-trouble": log("iommu: Default domain type: Translated"),
    "pcie-errors": log(AER + "Corrected, type=Physical Layer"),
    "pcie-errors-corrected": log(*[AER + "Corrected, type=Physical Layer"] * 20),
    # a GPU that is idle at boot
    "pcie-bandwidth-limited": log(IDLE_GPU, gpus=(gpu(0),)),
    "nic-trouble": log("mlx5_core 0000:5c:00.0 ens1: Link down"),
    # a driver that starts, and a port that only came up often
    "nic-link-flaps": log(
        *["mlx5_core 0000:3b:00.0 ens1f0: Link down"] * 2, *["mlx5_core 0000:3b:00.0 ens1f0: Link up"] * 9
    ),
    "iommu-fault": log("iommu: Default domain type: Translated"),
    "nccl-segfault": log(SEGFAULT.replace("libnccl.so.2", "libc.so.6")),
    "out-of-memory": log("INFO: task python:1234 blocked for more than 120 seconds."),
    "hung-tasks": log("Out of memory: Killed process 1234 (python) total-vm:1kB"),
}


def findings(scan: Scan, rule: str | None = None) -> tuple[Finding, ...]:
    return find(scan, rules=[r for r in RULES if rule in (None, r.id)])


@pytest.mark.parametrize(
    ("code", "severity"),
    [
        (13, Severity.NOTICE),
        (31, Severity.NOTICE),
        (43, Severity.NOTICE),
        (45, Severity.NOTICE),
        (48, Severity.ERROR),
        (63, Severity.WARNING),
        (64, Severity.ERROR),
        (74, Severity.ERROR),
        (92, Severity.WARNING),
        (94, Severity.WARNING),
        (95, Severity.ERROR),
        (119, Severity.ERROR),
        (120, Severity.ERROR),
        (140, Severity.ERROR),
        (149, Severity.ERROR),
        (9999, Severity.WARNING),
    ],
)
def test_an_xid_is_as_bad_as_nvidias_catalogue_says(code: int, severity: Severity) -> None:
    (finding,) = findings(log(xid(code)))

    assert finding.severity is severity
    assert finding.what.startswith(f"Xid {code}: ")


def test_a_fault_of_nvlink_5_that_is_not_fatal_costs_and_does_not_break() -> None:
    nonfatal = log(xid(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)"))
    fatal = log(xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)"))

    assert [finding.severity for finding in findings(nonfatal)] == [Severity.WARNING]
    assert [finding.severity for finding in findings(fatal)] == [Severity.ERROR]


def test_a_recovery_action_that_was_taken_back_is_worth_knowing_only() -> None:
    action = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"

    assert findings(log(xid(154, action)))[0].severity is Severity.WARNING
    assert (
        findings(log(xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")))[
            0
        ].severity
        is Severity.NOTICE
    )


def test_every_xid_says_what_to_do() -> None:
    assert all(xid.meaning and xid.fix for xid in XIDS.values())


def test_a_gpu_that_fell_off_the_bus_is_one_finding_however_it_is_logged() -> None:
    (finding,) = findings(
        log("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.", xid(79, "GPU has fallen off the bus."))
    )

    assert (finding.rule, finding.severity, len(finding.evidence)) == ("gpu-off-bus", Severity.ERROR, 2)


def test_a_real_log_of_a_gpu_that_does_not_answer() -> None:
    events = parse(text_of(FACTS / "health" / "dmesg-xid-119.log")).events

    found = findings(scan_of(node_scan(kernel_events=events)))

    assert [finding.rule for finding in found] == ["gpu-xid", "gpu-driver-trouble"]
    assert found[0].what == "Xid 119: the GPU's system processor (GSP) does not answer"
    assert found[0].evidence[0].startswith("5 times, last at Sun Feb 23 16:30:13 2025: NVRM: Xid")


def test_a_real_log_of_a_crash_in_nccl() -> None:
    events = parse(text_of(FACTS / "health" / "dmesg-nccl-segfault.log")).events

    (finding,) = findings(scan_of(node_scan(kernel_events=events)))

    assert (finding.rule, finding.what) == ("nccl-segfault", "a process crashed inside libnccl")


def test_the_same_xid_on_several_nodes_is_one_finding() -> None:
    events = parse("[1.0] " + xid(48)).events
    nodes = (node_scan("gpu001", kernel_events=events), node_scan("gpu002", kernel_events=events))

    (finding,) = findings(scan_of(*nodes))

    assert finding.nodes == ("gpu001", "gpu002")


def test_an_sxid_that_is_not_fatal_is_a_warning() -> None:
    (finding,) = findings(
        log(
            "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Non-fatal, Link 44 egress non-posted PRIV error"
        )
    )

    assert (finding.severity, finding.what) == (Severity.WARNING, "SXid 12028: error of an NVSwitch")


def test_an_uncorrected_error_of_a_disk_is_no_reason_not_to_measure() -> None:
    disk = PciDevice("0000:18:00.0", class_code="0108", vendor_id="144d")

    (finding,) = findings(log(AER + "Uncorrected (Non-Fatal), type=x", pci=(disk,)))

    assert finding.severity is Severity.WARNING


def test_a_device_with_an_xid_is_a_gpu_where_the_log_is_all_there_is() -> None:
    known = log(LIMITED_GPU, "NVRM: Xid (PCI:0000:18:00): 43, pid=1, name=x, channel 0x8")

    assert [finding.rule for finding in findings(known)] == ["pcie-bandwidth-limited", "gpu-xid"]
    assert not findings(log(LIMITED_GPU))


def test_a_hot_card_is_told_apart_from_a_hot_cable() -> None:
    hot = log("mlx5_core 0000:1a:00.0: temp_warn:185:(pid 0): High temperature on sensors with bit set 0 1")
    (finding,) = findings(hot)

    assert finding.what == "a network card is too hot"


def test_a_gpu_with_too_few_lanes_alarms_though_it_was_idle_at_boot() -> None:
    (finding,) = findings(log(LIMITED_GPU, gpus=(gpu(0),)))

    assert finding.what == "a GPU has fewer PCIe lanes than it could use, says the kernel"


def test_the_narrow_link_of_something_else_is_silent() -> None:
    assert findings(log(IDLE_GPU.replace("0000:18", "0000:01"))) == ()


def test_a_network_cards_firmware_that_stopped_is_an_error() -> None:
    line = "mlx5_core 0000:d2:00.0: poll_health:174: device's health compromised - reached miss count"

    assert findings(log(line))[0].severity is Severity.ERROR


def test_a_service_that_ran_out_of_memory_is_worth_knowing_only() -> None:
    line = "Memory cgroup out of memory: Killed process 12 (fluentd) total-vm:1kB"

    (finding,) = findings(log(line))

    assert (finding.severity, finding.what) == (
        Severity.NOTICE,
        "the kernel ended a process that went over its control group's limit",
    )


def test_a_quiet_log_is_silent() -> None:
    assert (
        findings(log("iommu: Default domain type: Passthrough", "mlx5_core 0000:3b:00.0 ens1: Link up")) == ()
    )
