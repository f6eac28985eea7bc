"""What a scan looks like to people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from raw_answers import MATRIX, raw_answer
from report_text import coloured, text_of
from scans import gpu, node_scan, scan_of

from topo_tune.findings import drift
from topo_tune.findings.judge import find
from topo_tune.records.document import Document
from topo_tune.records.inventory import Missing
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.nccl_documents import NcclLog
from topo_tune.records.scan import Absent, Cpu, NodeScan, Scan
from topo_tune.records.topology import Fabric, Topology
from topo_tune.report.scan import scan_report, summary_line
from topo_tune.report.scan_markdown import scan_markdown
from topo_tune.scan.answer import node_scan_from_raw
from topo_tune.scan.facts.gpus import nvidia_topology

GONE = Missing("gpu4", "unreachable", "no answer from 192.0.2.4:22 within 5 s")


def node(name: str, **changes: Any) -> NodeScan:
    return node_scan_from_raw(name, raw_answer(**changes))


def bare_node(name: str, matrix: TopologyMatrix | None) -> NodeScan:
    return msgspec.structs.replace(node(name), gpus=(), driver=None, nics=(), matrix=matrix, absent=())


def topology(**changes: Any) -> Topology:
    facts: dict[str, Any] = {
        "node_count": 3,
        "ranks_per_host": 2,
        "intra_fabric": Fabric.NVLINK,
        "inter_fabric": Fabric.INFINIBAND,
        "nccl_version": "2.28.9",
        "gpu_model": "NVIDIA H200",
        "compute_capability": "9.0",
        "driver": "580.159",
        "cpu_vendor": "GenuineIntel",
        "reasons": ("gpu4 did not answer and is not counted", "NCCL 2.28.9: torch brings it on every node"),
    }
    return Topology(**(facts | changes))


def mixed_cluster() -> Scan:
    other = msgspec.structs.replace(node("gpu3"), kernel="5.15.0", driver="570.86")
    return Scan("mixed", (node("gpu1"), node("gpu2"), other), (GONE,))


def test_two_kinds_of_nodes_and_a_missing_one_are_three_rows(golden: Callable[[str, str], None]) -> None:
    mixed = mixed_cluster()
    parts = scan_report(msgspec.structs.replace(mixed, findings=find(mixed, rules=drift.RULES)), topology())

    golden("reports/scan-mixed-80.txt", text_of(parts))


def test_a_pipe_gets_whole_lines(golden: Callable[[str, str], None]) -> None:
    golden("reports/scan-mixed-pipe.txt", text_of(scan_report(mixed_cluster(), topology()), width=4096))


def test_a_node_known_by_its_matrix_alone_shows_as_many_gpus_as_that_has() -> None:
    scan = Scan("saved", (bare_node("dgx", nvidia_topology.parse(MATRIX)),))

    text = text_of(scan_report(scan, None), width=200)

    assert "2 (by the topology matrix)" in text
    assert "none" not in text


def test_a_node_that_was_asked_and_has_no_gpus_says_none() -> None:
    text = text_of(scan_report(Scan("live", (bare_node("login", None),)), None), width=200)

    assert text.splitlines()[3].split()[:2] == ["login", "none"]


def test_a_column_in_which_nobody_told_anything_is_left_out() -> None:
    saved = node_scan("n1", kernel="unknown", gpus=(gpu(0),))

    text = text_of(scan_report(scan_of(saved), None), width=200)

    assert text.splitlines()[2].split() == ["nodes", "GPUs", "CPU"]


LONG = tuple(f"node-of-rack-{letter}.example.com" for letter in "abcdefgh")


def test_a_long_list_of_nodes_stands_above_its_text_and_wraps_between_names() -> None:
    nodes = tuple(node_scan(name, absent=(Absent("NVML", "no pynvml"),)) for name in LONG)

    text = text_of(scan_report(scan_of(*nodes, node_scan("n1")), None))

    lines = text.split("Not seen:\n")[1].splitlines()
    assert lines[0] == "  node-of-rack-a.example.com, node-of-rack-b.example.com,"
    assert lines[-1] == "    NVML: no pynvml"
    assert max(map(len, text.splitlines())) <= 80


def test_what_the_saved_files_do_not_tell_is_one_line() -> None:
    first, second = (Absent(what, "not in the saved files") for what in ("GPU names, driver", "NICs"))
    nodes = (node_scan("n1", absent=(first, second)), node_scan("n2", absent=(second,)))

    text = text_of(scan_report(scan_of(*nodes), None), width=200)

    assert text.split("Not seen:\n")[1] == (
        "  every node  not in the saved files: GPU names, driver (n1); NICs\n"
    )


def test_a_long_file_name_is_not_broken() -> None:
    name = "fail-nvls-invalid-argument-of-a-very-long-name-indeed.log"
    document = Document(
        name, "n1", "NCCL log", NcclLog("NCCL", "2.28.9", (), None, None, None), ("line 3: cut",)
    )

    text = text_of(scan_report(Scan("saved", (), documents=(document,)), None))

    assert text.split("cluster:\n")[1].splitlines() == [
        f"  {name}",
        "    NCCL log: NCCL 2.28.9",
        "    not read: line 3: cut",
    ]


def test_a_scan_is_one_line_of_counts() -> None:
    mixed = mixed_cluster()
    findings = find(mixed, rules=drift.RULES)

    assert summary_line(mixed) == "3 nodes, 1 missing; no findings"
    assert summary_line(msgspec.structs.replace(mixed, findings=findings, missing=())) == (
        "3 nodes; 1 warning, 1 notice"
    )


def test_what_a_node_says_is_never_markup() -> None:
    hostile = msgspec.structs.replace(node("n1"), driver="[bold red]580[/bold red]", kernel="[/]")
    scan = Scan("[red]x", (hostile,), (Missing("n2", "failed", "[link=http://evil]here[/link] [/red]"),))
    loud = topology(reasons=("[blink]a reason[/blink]",))

    text = text_of(scan_report(scan, loud), width=400)

    assert "[bold red]580[/bold red]" in text
    assert "[link=http://evil]here[/link] [/red]" in text
    assert "[blink]a reason[/blink]" in text


def test_what_a_node_says_never_drives_the_terminal() -> None:
    scan = Scan("c", (node("n1"),), (Missing("n2", "failed", "gone\x1b[2J\x1b]0;title\x07\rback"),))

    text = coloured(scan_report(scan, None))

    assert "\x1b[2J" not in text
    assert "\x1b]0" not in text
    assert "\r" not in text


def test_settings_that_nodes_share_are_one_line() -> None:
    scan = Scan("c", (node("n1"), node("n2")))

    text = text_of(scan_report(scan, None), width=200)

    assert text.count("NCCL_DEBUG=WARN") == 1
    assert "every node  NCCL_DEBUG=WARN  (environment)" in text


def test_a_saved_file_with_an_odd_name_is_a_node_like_any_other() -> None:
    names = ("n1", "n2", "a&b", "x[1]", "n@g")

    text = text_of(scan_report(Scan("saved", tuple(node(name) for name in names)), None), width=200)

    assert text.splitlines()[3].startswith("n[1-2], a&b, x[1], n@g ")


def test_what_to_do_about_a_missing_node_is_said_once_for_each_kind() -> None:
    missing = tuple(
        Missing(f"n{number}", "host key refused", "unknown", f"ssh-keyscan n{number}") for number in (7, 8)
    )

    text = text_of(scan_report(Scan("lab", (), missing), None), width=100)

    assert "What to do:" in text
    assert "host key refused:  ssh-keyscan n7" in text
    assert "ssh-keyscan n8" not in text


def test_files_that_were_not_read_are_named_with_their_reason() -> None:
    scan = scan_of(node_scan("n1"), unread=(Absent("core.7", "binary data"),))

    assert "Files not read:\n  core.7  binary data\n" in text_of(scan_report(scan, None))
    assert "### Files not read\n\n- core.7: binary data\n" in scan_markdown(scan)


def test_nodes_of_which_nothing_is_known_but_the_name_need_no_table() -> None:
    unknown = Cpu(None, None, "unknown", None, None, 0)

    text = text_of(scan_report(scan_of(node_scan("n1", kernel="unknown", cpu=unknown)), None))

    assert "nodes" not in text
