"""The fabric manager: its unit, its process, its version and its log."""

from __future__ import annotations

import pytest
from golden_facts import FACTS, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.hardware import FabricManager
from topo_tune.scan.facts.fact import Gathered, RawCommand, RawText
from topo_tune.scan.facts.gpus import fabric_manager
from topo_tune.scan.facts.gpus.fabric_manager import KINDS, LOG, PROCESS, STATE, VERSION, parse

A100 = text_of(FACTS / "health" / "fabricmanager-a100.log")
NVSWITCH_ERROR = (
    "detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0"
    " physical id 3 port 61"
)
FATAL = (
    "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id"
    " 00000000:86:00.0 physical id 3 port 33\n"
)
(KIND,) = KINDS


def told(*commands: RawCommand, log: RawText | None = None) -> FabricManager | None:
    gathered = Gathered(commands=commands, files=(log,) if log else ())
    return fabric_manager.FACTS[0].tell(node_scan(), gathered).fabric_manager


def test_a_real_log_has_one_error_among_its_messages() -> None:
    assert parse(A100) == FabricManager(problems=(NVSWITCH_ERROR,))


def test_an_error_that_repeats_is_told_once_and_the_latest_stands_last() -> None:
    problems = parse(FATAL + A100 + FATAL).problems

    assert len(problems) == 2
    assert problems[-1].startswith("detected NVSwitch fatal error 20034")


def test_the_version_stands_where_the_manager_starts() -> None:
    start = "Fabric Manager Log initializing at: 2/26/2025\n[Feb 26 2025 10:11:12] [INFO] [tid 1] "
    start += "Fabric Manager version 550.127.05 is running with the following configuration options\n"

    assert parse(start).version == "550.127.05"


def test_that_there_is_no_switch_is_no_error() -> None:
    line = "[Feb 25 2025 13:59:45] [ERROR] [tid 1] request to query NVSwitch device information from NVSwitch"
    line += " driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n"

    assert parse(line).problems == ()


@pytest.mark.parametrize(
    ("state", "process", "is_running"),
    [
        (RawCommand(STATE, 0, "active\n"), RawCommand(PROCESS, 1), True),
        (RawCommand(STATE, 3, "inactive\n"), RawCommand(PROCESS, 1), False),
        (RawCommand(STATE, 3, "failed\n"), RawCommand(PROCESS, absent="not installed"), False),
        # it runs in the driver's container
        (RawCommand(STATE, 4, "inactive\n"), RawCommand(PROCESS, 0, "4711\n"), True),
        (RawCommand(STATE, absent="`systemctl` is not installed here"), RawCommand(PROCESS, 1), None),
        (RawCommand(STATE, 1, "", "System has not been booted with systemd"), RawCommand(PROCESS, 1), None),
    ],
)
def test_it_runs_by_its_unit_or_by_its_process(
    state: RawCommand, process: RawCommand, is_running: bool | None
) -> None:
    version = RawCommand(VERSION, 0, "Fabric Manager version is : 535.161.08\n")

    assert told(state, process, version) == FabricManager(is_running=is_running, version="535.161.08")


def test_of_a_log_on_the_node_only_errors_travel() -> None:
    (files,) = fabric_manager.FACTS[0].files
    import re

    kept = [line for line in A100.split("\n") if re.search(files.keep or "", line)]

    assert kept == [line for line in A100.split("\n") if "[ERROR]" in line]
    found = told(RawCommand(STATE, 0, "active"), log=RawText(LOG, LOG, "\n".join(kept)))
    assert found == FabricManager(is_running=True, problems=(NVSWITCH_ERROR,))


def test_a_node_that_tells_nothing_says_so() -> None:
    scan = fabric_manager.FACTS[0].tell(node_scan(), Gathered())

    assert (scan.fabric_manager, scan.absent[0].what) == (None, "fabric manager")


def test_a_saved_log_is_recognised_and_added_to_what_is_known() -> None:
    assert KIND.recognise(A100)
    assert not KIND.recognise(text_of(FACTS / "health" / "dmesg-xid-119.log"))
    assert KIND.tell is not None

    scan = KIND.tell(node_scan(fabric_manager=FabricManager(True, "580.95.05", ("x",))), A100, "fm.log")

    assert scan.fabric_manager == FabricManager(True, "580.95.05", ("x", NVSWITCH_ERROR))


def test_a_text_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="no line of a fabric manager's log"):
        parse("nothing\n", file="fm.log")


@settings(deadline=None, max_examples=40)
@given(
    text=st.sampled_from([A100, FATAL]) | st.text(max_size=200),
    cut=st.tuples(st.integers(0, 5000), st.integers(0, 5000)),
    inserted=st.text(max_size=20)
    | st.sampled_from(["] [ERROR] [", "[", "fabric manager version 9" + "9" * 5000]),
)
def test_a_damaged_log_is_read_or_refused(text: str, cut: tuple[int, int], inserted: str) -> None:
    try:
        found = parse(text[: cut[0]] + inserted + text[cut[1] :])
    except InputError:
        return

    assert all(len(problem) <= 300 for problem in found.problems)
