"""`scan`: findings decide the exit code; what is shown and how; what changed between two scans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_facts import FACTS
from scans import node_scan, scan_of

from topo_tune.cli.app import run
from topo_tune.records.envelope import save
from topo_tune.records.scan import Scan

DOWN = FACTS / "ib/ibstat-h100-2-of-8-down.txt"
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-3\t0\nGPU1\tNV4\t X \t0-3\t0\n"


def test_an_error_finding_is_exit_code_1_and_stands_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "--from", str(DOWN)]) == 1

    text = capsys.readouterr().out
    assert text.startswith("Findings: 1 error")
    assert "rule rdma-port-down" in text
    assert text.index("rdma-port-down") < text.index("nodes  ")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--fail-on", "never"], 0),
        (["--ignore", "rdma-port-down"], 0),
        (["--ignore", "rdma-port-down", "--fail-on", "notice"], 1),
        (["--fail-on", "warning"], 1),
    ],
)
def test_the_severity_that_fails_can_be_chosen(options: list[str], code: int) -> None:
    assert run(["scan", "--from", str(DOWN), *options]) == code


def test_a_rule_that_does_not_exist_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "--from", str(DOWN), "--ignore", "rdma-port-dwn"]) == 2
    assert "did you mean `rdma-port-down`?" in capsys.readouterr().err


def test_json_is_the_record_with_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    run(["scan", "--from", str(DOWN), "--json"])

    record = json.loads(capsys.readouterr().out)
    assert {finding["rule"] for finding in record["findings"]} >= {"rdma-port-down"}
    assert len(record["nodes"][0]["rdma"]) == 12


def test_markdown_is_for_a_ticket(capsys: pytest.CaptureFixture[str]) -> None:
    run(["scan", "--from", str(DOWN), "--markdown"])

    assert capsys.readouterr().out.startswith("## topo-tune scan of ")


def test_one_node_from_near(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n1.txt").write_text(MATRIX)
    (tmp_path / "n2.txt").write_text(MATRIX)

    assert run(["scan", "--from", str(tmp_path), "--node", "n2"]) == 0

    text = capsys.readouterr().out
    assert "n2: how devices are joined" in text
    assert "n1" not in text


def test_a_diff_tells_what_changed_and_is_1_like_diff(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    save(old, scan_of(node_scan("n1", driver="570.86")))
    save(new, scan_of(node_scan("n1", driver="580.95")))

    assert run(["scan", "--diff", str(old), str(old)]) == 0
    assert run(["scan", "--diff", str(old), str(new)]) == 1

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["n1", "driver", "570.86", "580.95"] in rows


def test_a_diff_needs_scans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "--diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "holds no scan" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--from", "x", "--diff", "a", "b"], ["-c", "x", "--from", "y"]])
def test_one_source_is_needed_and_no_more(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", *options]) == 2
    assert "give one of --cluster-config, --from and --diff" in capsys.readouterr().err


def test_a_missing_node_is_exit_code_3_whatever_was_found(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(DOWN.read_text())
    (tmp_path / "n2").mkdir()

    assert run(["scan", "--from", str(tmp_path)]) == 3


def test_a_file_that_is_no_dump_does_not_fail_the_scan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "n1.txt").write_text(MATRIX)
    (tmp_path / "minutes.txt").write_text("nothing of use\n")

    assert run(["scan", "--from", str(tmp_path)]) == 0
    assert "minutes.txt" in capsys.readouterr().out


def test_the_kinds_that_are_read_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "--kinds"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a collector's answer"
    assert {"`ibstat` output", "NCCL log", "host file"} <= set(lines)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (["--limit", "n[1-2]"], ["n1", "n2"]),
        (["--exclude", "n2"], ["n1", "n3"]),
        (["--limit", "n[1-2]", "--exclude", "n1"], ["n2"]),
    ],
)
def test_some_nodes_of_a_dump_can_be_chosen(
    options: list[str], nodes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("n1", "n2", "n3"):
        (tmp_path / f"{name}.txt").write_text(MATRIX)
    (tmp_path / "hosts").write_text("n1 slots=2\nn2 slots=2\nn3 slots=2\n")

    run(["scan", "--from", str(tmp_path), "--json", *options])

    record = json.loads(capsys.readouterr().out)
    assert [node["node"] for node in record["nodes"]] == nodes
    assert [document["file"] for document in record["documents"]] == ["hosts"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "n7"], "the saved files have no node `n7`\nhint: they have n[1-2]"),
        (["--exclude", "n[2-3]"], "the saved files have no node `n3`"),
        (["--exclude", "n[1-2]"], "no node is left"),
    ],
)
def test_a_choice_that_matches_nothing_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("n1", "n2"):
        (tmp_path / f"{name}.txt").write_text(MATRIX)

    assert run(["scan", "--from", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


def test_the_record_type_is_what_scan_writes(tmp_path: Path) -> None:
    assert run(["scan", "--from", str(DOWN), "--output", str(tmp_path / "scan.json")]) == 1
    assert run(["scan", "--diff", str(tmp_path / "scan.json"), str(tmp_path / "scan.json")]) == 0
    assert isinstance(scan_of(), Scan)
