"""The kernel log: which lines matter, whom they are about, and how often they came."""

from __future__ import annotations

import re
import time

import pytest
from golden_facts import FACTS, beside_the_repository, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.records.hardware import KernelEvent, KernelEventKind
from topo_tune.scan.facts.fact import Gathered, RawCommand
from topo_tune.scan.facts.gpus import fabric_manager, gpu_health, gpu_p2p, nvlinks
from topo_tune.scan.facts.host import kernel_log
from topo_tune.scan.facts.host.kernel_log import DMESG, JOURNAL, KEEP, KINDS, parse
from topo_tune.scan.facts.words import without_escapes

SEGFAULT, XID_119 = (text_of(FACTS / "health" / f"dmesg-{name}.log") for name in ("nccl-segfault", "xid-119"))
(KIND,) = KINDS

Told = tuple[str, str | None, int | None, str | None]


def only(line: str) -> KernelEvent:
    (event,) = parse(line + "\n").events
    return event


def told(event: KernelEvent) -> Told:
    return (event.kind.value, event.device, event.code, event.severity)


LINES: dict[str, Told] = {
    "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x, Timeout": ("xid", "0000:9b:00.0", 119, None),
    "NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101": ("xid", "0000:03:00.0", 31, None),
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, Contained: SM": ("xid", "0000:01:00.0", 94, None),
    "NVRM: Xid (PCI:0019:01:00): 149, NETIR_LINK_EVT  Fatal XC0 i0 Link 08 (0x0)": (
        "xid",
        "0019:01:00.0",
        149,
        "fatal",
    ),
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0)": (
        "xid",
        "0018:01:00.0",
        145,
        "nonfatal",
    ),
    "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Non-fatal, Link 44 egress": (
        "sxid",
        "0000:84:00.0",
        12028,
        "nonfatal",
    ),
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": (
        "sxid",
        "0000:c1:00.0",
        20034,
        "fatal",
    ),
    "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.": ("gpu-lost", "0000:05:00.0", None, None),
    "NVRM: GPU at 0000:06:00.0 has fallen off the bus.": ("gpu-lost", "0000:06:00.0", None, None),
    "nvme 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer": (
        "aer",
        "0000:03:00.0",
        None,
        "corrected",
    ),
    "pcieport 0000:00:07.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction": (
        "aer",
        "0000:00:07.0",
        None,
        "nonfatal",
    ),
    "pcieport 0000:00:08.0: AER: Uncorrected (Fatal) error received: 0000:00:08.0": (
        "aer",
        "0000:00:08.0",
        None,
        "fatal",
    ),
    "pci 0000:3b:00.0: 15.752 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x2 link at 0000:00:1d.0": (
        "pcie-bandwidth",
        "0000:3b:00.0",
        None,
        None,
    ),
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature": (
        "nic",
        "0000:5c:00.0",
        None,
        None,
    ),
    "mlx5_core 0000:1a:00.0: temp_warn:185:(pid 0): High temperature on sensors with bit set 0x0 0x1": (
        "nic",
        "0000:1a:00.0",
        None,
        None,
    ),
    "mlx5_core 0000:12:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W).": (
        "nic",
        "0000:12:00.0",
        None,
        None,
    ),
    "mlx5_core 0000:d2:00.0: poll_health:174: device's health compromised - reached miss count": (
        "nic",
        "0000:d2:00.0",
        None,
        None,
    ),
    "mlx5_3:dump_cqe:272:(pid 1234): dump error cqe": ("nic", "mlx5_3", None, None),
    "NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 3 timed out": ("nic", "ens1", None, None),
    "mlx5_core 0000:3b:00.0 ens1f0: Link down": ("link", "ens1f0", None, "down"),
    "bnxt_en 0000:3c:00.0 eth2: NIC Link is Down": ("link", "eth2", None, "down"),
    "igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex": ("link", "eno1", None, "up"),
    "python[12]: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2[7f+1] likely on CPU 3": (
        "segfault",
        "python",
        None,
        None,
    ),
    "traps: python3[123] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1000]": (
        "segfault",
        "python3",
        None,
        None,
    ),
    "Memory cgroup out of memory: Killed process 1235 (pt_main_thread) total-vm:1kB": (
        "out-of-memory",
        "pt_main_thread",
        None,
        None,
    ),
    "INFO: task kworker/u256:1:1234 blocked for more than 120 seconds.": (
        "hung-task",
        "kworker/u256:1",
        None,
        None,
    ),
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:123]": ("hung-task", "python", None, None),
    "DMAR: [DMA Read NO_PASID] Request device [17:00.0] fault addr 0xabc": (
        "iommu",
        "0000:17:00.0",
        None,
        "fault",
    ),
    "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001f address=0x1": (
        "iommu",
        "0000:41:00.0",
        None,
        "fault",
    ),
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x001f address=0x1": (
        "iommu",
        "0000:41:00.0",
        None,
        "fault",
    ),
    "iommu: Default domain type: Translated": ("iommu", None, None, "mode"),
    "NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x26:0x56:1474)": ("driver", "0000:41:00.0", None, None),
    "NVRM: API mismatch: the client has the version 550.54": ("driver", None, None, None),
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context": (
        "driver",
        None,
        None,
        None,
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_matters_tells_whom_it_is_about(line: str) -> None:
    assert told(only(f"[12345.678901] {line}")) == LINES[line]
    assert only(f"[12345.678901] {line}").text == line


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_matters_leaves_the_node(line: str) -> None:
    assert re.search(KEEP, line)


@pytest.mark.parametrize(
    ("prefix", "at"),
    [
        ("", None),
        ("[    2.123456] ", "2.123456"),
        ("[    2.123456] [ T1234] ", "2.123456"),
        ("<4>[    2.123456] ", "2.123456"),
        ("[Sun Feb 23 16:24:18 2025] ", "Sun Feb 23 16:24:18 2025"),
        ("[Feb23 16:24] ", "Feb23 16:24"),
        ("[  +0.000005] ", "+0.000005"),
        ("2025-01-21T04:41:44,285060+00:00 ", "2025-01-21T04:41:44,285060+00:00"),
        ("kern  :err   : 2025-01-25T10:34:54,859532+00:00 ", "2025-01-25T10:34:54,859532+00:00"),
        ("kern  :warn  : [    2.123456] ", "2.123456"),
        ("2025-01-17T17:10:43+0000 host-1.cluster kernel: ", "2025-01-17T17:10:43+0000"),
        ("Feb 23 16:24:18 gpu001 kernel: ", "Feb 23 16:24:18"),
        ("Feb  3 16:24:18 gpu001 kernel: [12345.678901] ", "Feb  3 16:24:18"),
        ("6,3973,227996636,-;", "227996636"),
        ("kernel: ", None),
        ("gpu001 kernel: ", None),
    ],
)
def test_every_way_to_write_the_time_is_read(prefix: str, at: str | None) -> None:
    event = only(prefix + "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\r")

    assert (event.code, event.first_at, event.text[:9]) == (79, at, "NVRM: Xid")


@pytest.mark.parametrize("prefix", ["kernel: ", "gpu001 kernel: ", "", "               "])
def test_errors_of_a_gpu_whose_time_was_cut_off_are_still_of_a_kernel_log(prefix: str) -> None:
    text = f"{prefix}NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)\n"

    assert KINDS[0].recognise(text)
    assert told(only(text)) == ("xid", "0018:01:00.0", 145, "nonfatal")


FALLEN = """\
[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
"""


def test_a_message_of_three_lines_is_about_the_gpu_of_its_first() -> None:
    event = only(FALLEN)

    assert told(event) == ("gpu-lost", "0000:b3:00.0", None, None)
    assert event.first_at == "1843.308145"
    assert event.text == (
        "NVRM: The NVIDIA GPU 0000:b3:00.0 ... fallen off the bus and is not responding to commands."
    )
    assert all(re.search(KEEP, line) for line in FALLEN.splitlines()[::2])


def test_a_gpu_that_was_named_long_before_is_not_the_one_that_fell_off_the_bus() -> None:
    first, _, last = FALLEN.splitlines()

    event = only("\n".join([first, *["[ 1850.000000] systemd[1]: Started a unit."] * 5, last]))

    assert told(event) == ("gpu-lost", None, None, None)


def test_labels_of_srun_are_no_part_of_a_line() -> None:
    log = "".join("0: [ 1.000000] NVRM: Xid (PCI:0000:9b:00): 79, x\n" for _ in range(2))

    assert [(event.count, event.last_at) for event in parse(log).events] == [(2, "1.000000")]


def test_a_crash_in_nccl_of_a_real_log_is_counted() -> None:
    (event,) = parse(SEGFAULT).events

    assert (event.kind, event.device, event.count) == (KernelEventKind.SEGFAULT, "pt_main_thread", 2)
    assert "in libnccl.so.2[" in event.text
    assert event.first_at == "2025-01-21T04:41:44,285060+00:00"
    assert event.last_at == "2025-01-21T04:42:44,285060+00:00"


def test_a_gpu_of_a_real_log_that_does_not_answer_is_one_event() -> None:
    events = parse(XID_119).events

    assert [(told(event), event.count) for event in events] == [
        (("xid", "0000:9b:00.0", 119, None), 5),
        (("driver", "0000:9b:00.0", None, None), 1),
    ]
    assert events[0].last_at == "Sun Feb 23 16:30:13 2025"


def test_an_error_on_a_link_has_several_lines_and_is_counted_once() -> None:
    log = (
        "[1.0] pcieport 0000:00:1c.5: AER: Multiple Corrected error received: 0000:03:00.0\n"
        "[1.0] nvme 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
        "[1.0] nvme 0000:03:00.0:   device [8086:a115] error status/mask=00000001/00002000\n"
        "[1.0] nvme 0000:03:00.0:    [ 0] RxErr                  (First)\n"
    )

    assert [(told(event), event.count) for event in parse(log * 3).events] == [
        (("aer", "0000:03:00.0", None, "corrected"), 3)
    ]


def test_the_lines_behind_an_sxid_belong_to_it() -> None:
    sxid = "[1.0] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, "
    log = sxid + "Non-fatal, Link 44 Minion Link DLREQ interrupt\n" + sxid + "Severity 0 Engine instance 44\n"

    assert [event.count for event in parse(log + sxid + "Data {0x0000002b, 0x0}\n").events] == [1]


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0001:00:00.0: 0.000 Gb/s available PCIe bandwidth, limited by Unknown x0 link at 0001:00:00.0",
        "mlx5_core 0000:3b:00.0: 126.016 Gb/s available PCIe bandwidth (8.0 GT/s PCIe x16 link)",
        "mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
        "NVRM: GPU at PCI:0000:9b:00: GPU-00000000-0000-0000-0000-000000000001",
        "DMAR: DRHD: handling fault status reg 2",
        "gpu-monitor[12]: saw NVRM: Xid (PCI:0000:9b:00): 79, somewhere",
    ],
)
def test_a_line_that_only_looks_alike_is_no_event(line: str) -> None:
    assert parse(f"[1.0] {line}\n").events == ()


def test_crashes_in_different_libraries_are_different_events() -> None:
    log = "".join(
        f"[1.0] python[1]: segfault at 0 ip 0 sp 0 error 4 in lib{name}.so[7f+1]\n" for name in "abab"
    )

    assert [event.count for event in parse(log).events] == [2, 2]


def test_a_flood_of_different_devices_is_bounded_and_said() -> None:
    log = "".join(f"[1.0] NVRM: Xid (PCI:{n:04x}:00:00): 13, x\n" for n in range(600))

    found = parse(log)

    assert len(found.events) == 500
    assert found.problems == ("100 lines of more than 500 kinds are left out",)


def test_a_node_is_asked_for_dmesg_and_where_that_is_forbidden_for_the_journal() -> None:
    forbidden = RawCommand(DMESG, 1, stderr="dmesg: read kernel buffer failed: Operation not permitted")
    line = "2025-01-17T17:10:43+0000 n kernel: NVRM: Xid (PCI:0000:9b:00): 79, x\n"

    scan = kernel_log.FACTS[0].tell(node_scan(), Gathered(commands=(forbidden, RawCommand(JOURNAL, 0, line))))

    assert [event.code for event in scan.kernel_events] == [79]
    assert scan.absent == ()


@pytest.mark.parametrize(
    "journal",
    [
        RawCommand(JOURNAL, absent="`journalctl` is not installed here"),
        RawCommand(JOURNAL, 0, "-- No entries --\n"),
        RawCommand(JOURNAL, 0, "", "Hint: You are currently not seeing messages from other users"),
    ],
)
def test_a_log_that_nobody_may_read_is_absent_and_not_clean(journal: RawCommand) -> None:
    forbidden = RawCommand(DMESG, 1, stderr="dmesg: read kernel buffer failed: Operation not permitted")

    scan = kernel_log.FACTS[0].tell(node_scan(), Gathered(commands=(forbidden, journal)))

    assert (scan.kernel_events, scan.absent[0].what) == ((), "kernel log")
    assert "Operation not permitted" in scan.absent[0].reason


def test_an_event_that_two_logs_have_is_not_counted_twice() -> None:
    assert KIND.tell is not None
    once = KIND.tell(node_scan(), XID_119, "dmesg.txt")

    assert KIND.tell(once, XID_119, "kern.log").kernel_events == once.kernel_events


def test_real_logs_are_recognised_whether_they_hold_trouble_or_not() -> None:
    quiet = "[    0.000000] Linux version 6.8.0-45-generic\n[    0.5] pci 0000:00:06.0: [10de:2335] type 00\n"

    assert [KIND.recognise(text) for text in (SEGFAULT, XID_119, quiet)] == [True, True, True]
    assert KIND.recognise("NVRM: Xid (PCI:0000:9b:00): 79, x\n")
    assert not KIND.recognise(SEGFAULT + "host:1:2 [0] NCCL INFO Bootstrap\n")
    assert not KIND.recognise("[Feb 25 2025 13:59:45] [INFO] [tid 1803] NVRM: no\n")


OURS = {
    "ib/nvlink-status-a100.txt": "`nvidia-smi nvlink -s` output",
    "ib/nvlink-status-v100-6-inactive.txt": "`nvidia-smi nvlink -s` output",
    "health/fabricmanager-a100.log": "fabric manager log",
    "health/dmesg-nccl-segfault.log": "kernel log",
    "health/dmesg-xid-119.log": "kernel log",
}
OUR_FOLDERS = {"smi-q": "nvidia-smi", "p2p": "nvidia-smi topo -p2p", "nvlink": "nvidia-smi nvlink"}
"""golden texts that only these readers have"""


@pytest.mark.parametrize(
    "file", beside_the_repository("."), ids=lambda file: f"{file.parent.name}/{file.name}"
)
def test_no_file_of_another_kind_is_taken_for_one_of_a_gpu(file: object) -> None:
    from pathlib import Path

    assert isinstance(file, Path)
    text = without_escapes("\n".join(line[:400] for line in text_of(file)[: 256 << 10].split("\n")))
    modules = (gpu_health, gpu_p2p, nvlinks, fabric_manager, kernel_log)

    taken = [kind.name for module in modules for kind in module.KINDS if kind.recognise(text)]

    own = OURS.get(f"{file.parent.name}/{file.name}", OUR_FOLDERS.get(file.parent.name))
    assert bool(taken) == bool(own)
    assert own is None or own in taken[0]


def test_five_megabytes_are_read_in_a_moment() -> None:
    hard = "[ 1.1] pcieport " + "0000:00:00.0 " * 60 + "PCIe Bus Error segfault at error received\n"
    started = time.process_time()

    parse(hard * ((5 << 20) // len(hard)))
    parse("[ 1.1] task " + "x:1 " * (5 << 18) + "blocked")

    assert time.process_time() - started < 3.0


@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from([SEGFAULT, XID_119, *(f"[1.0] {line}\n" for line in LINES)]) | st.text(max_size=300),
    cut=st.tuples(st.integers(0, 2500), st.integers(0, 2500)),
    inserted=st.text(max_size=20)
    | st.sampled_from(["NVRM: Xid (PCI:", "9" * 5000, "[", "\0", " PCIe Bus Error: severity="]),
)
def test_a_damaged_log_gives_events_and_nothing_else(text: str, cut: tuple[int, int], inserted: str) -> None:
    damaged = text[: cut[0]] + inserted + text[cut[1] :]
    KIND.recognise(damaged)

    for event in parse(damaged).events:
        assert event.count >= 1
        assert len(event.text) <= 300
        assert event.code is None or event.code < 10**6
