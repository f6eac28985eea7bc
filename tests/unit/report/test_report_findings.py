"""Findings as people see them, in a terminal and in a ticket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from report_text import text_of
from scans import node_scan, scan_of

from topo_tune.records.finding import Finding, Severity
from topo_tune.records.inventory import Missing
from topo_tune.report.findings import findings_report, heading
from topo_tune.report.scan_markdown import scan_markdown

ERROR = Finding(
    rule="rdma-port-down",
    severity=Severity.ERROR,
    nodes=("gpu001", "gpu002"),
    what="a port is down while ports of its kind are up",
    why="the rails of the node are uneven, and every ring that crosses it is as slow as the rail that is left",
    evidence=("gpu001: mlx5_4 Down/Disabled", "gpu002: mlx5_7 Down/Polling"),
    fix=("`ibstat mlx5_4` shows the state", "reseat or change the cable"),
    source="https://docs.nvidia.com/networking/",
)
NOTICE = Finding(
    "gdrcopy-absent", Severity.NOTICE, ("gpu001",), "GDRCopy is not loaded", "small messages wait"
)


def finding(**changes: Any) -> Finding:
    return msgspec.structs.replace(ERROR, **changes)


def test_findings_say_where_what_why_and_how(golden: Callable[[str, str], None]) -> None:
    golden(
        "reports/findings-80.txt", text_of(findings_report((ERROR, NOTICE), ["gpu001", "gpu002", "gpu003"]))
    )


def test_every_node_is_said_as_such() -> None:
    text = text_of(findings_report((ERROR,), ["gpu001", "gpu002"]))

    assert "every node (2)" in text


def test_long_evidence_is_cut_and_said() -> None:
    many = finding(evidence=tuple(f"mlx5_{i} down" for i in range(9)))

    text = text_of(findings_report((many,), ["gpu001"]))

    assert "mlx5_3 down" in text
    assert "mlx5_4 down" not in text
    assert "and 5 more lines" in text


def test_no_finding_is_said() -> None:
    assert heading(()).startswith("[green]No findings")


def test_what_a_node_says_in_evidence_is_never_markup() -> None:
    text = text_of(findings_report((finding(evidence=("[red]x[/red] \x1b[31m",)),), []))

    assert "[red]x[/red]" in text
    assert "\x1b" not in text


def test_a_ticket_has_findings_nodes_and_who_is_missing(golden: Callable[[str, str], None]) -> None:
    scan = scan_of(
        node_scan("gpu001"),
        node_scan("gpu002"),
        findings=(ERROR, NOTICE),
        missing=(Missing("gpu003", "unreachable", "no answer within 5 s"),),
    )

    golden("reports/scan-ticket.md", scan_markdown(scan))


def test_a_ticket_obeys_nothing_that_a_node_says() -> None:
    hostile = finding(what="<img src=x> [a](b) | `c`", evidence=("````", "```sh"))

    text = scan_markdown(scan_of(findings=(hostile,)))

    assert "\\<img src=x\\> \\[a\\](b)" in text
    assert "\n`````\n````\n```sh\n`````\n" in text


def test_an_address_in_a_ticket_stays_whole() -> None:
    source = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html#a_b"

    text = scan_markdown(scan_of(findings=(finding(source=f"{source}, page_2"),)))

    assert f"({source}, page\\_2)" in text


def test_a_single_step_of_a_ticket_needs_no_list_of_its_own() -> None:
    text = scan_markdown(scan_of(findings=(finding(fix=("change the cable",)),)))

    assert "- **fix** change the cable\n" in text


def test_code_in_a_headline_of_a_ticket_is_code() -> None:
    text = scan_markdown(scan_of(findings=(finding(what="`NCCL_IB_HCA` names no_device"),)))

    assert "### error: `NCCL_IB_HCA` names no\\_device" in text


def test_runs_of_backticks_hide_no_markup() -> None:
    text = scan_markdown(scan_of(findings=(finding(what="``` <img>`` x`"),)))

    assert "\\<img\\>" in text
