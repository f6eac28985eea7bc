"""`scan --output` replaces an earlier scan and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from topo_tune.cli.app import run
from topo_tune.records.envelope import load
from topo_tune.records.scan import Scan

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-3\t0\nGPU1\tNV4\t X \t0-3\t0\n"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "n1.txt"
    path.write_text(MATRIX)
    return path


def test_another_file_is_left_as_it_is(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "--from", str(dump), "--output", str(dump)]) == 2

    assert dump.read_text() == MATRIX
    assert "exists and is no scan" in capsys.readouterr().err


def test_an_earlier_scan_is_replaced(dump: Path, tmp_path: Path) -> None:
    output = tmp_path / "scan.json"
    assert run(["scan", "--from", str(dump), "--output", str(output)]) == 0
    assert run(["scan", "--from", str(dump), "--output", str(output)]) == 0
    assert load(output, Scan).nodes[0].matrix is not None
