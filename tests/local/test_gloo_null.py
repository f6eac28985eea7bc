"""The null test: NCCL variables do nothing in gloo, so whoever recommends one has been fooled by noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from topo_tune.cli.app import run
from topo_tune.records.bench import Launch
from topo_tune.records.envelope import load, load_lines
from topo_tune.records.recommendation import Advice, Recommendation

pytestmark = pytest.mark.gloo

TWO_NODES = """\
name: laptop
connection: local
root: nodes/{node}
ranks_per_node: 1
bench:
  backend: gloo
  sizes: [8K, 64K]
racks:
  - name: rack1
    nodes: n[1-2]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    for node in ("n1", "n2"):
        (tmp_path / "nodes" / node / "etc").mkdir(parents=True)
    path = tmp_path / "cluster.yaml"
    path.write_text(TWO_NODES)
    return path


def test_a_search_over_settings_without_effect_ends_in_change_nothing(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    quick = ("--strategy", "halving", "--candidates", "8", "--blocks", "4")

    assert run(["init", "-c", str(cluster), "-o", str(run_dir), *quick]) == 0

    said = capsys.readouterr().out
    launches = load_lines(run_dir / "30-bench.jsonl", Launch)
    assert load(run_dir / "50-recommendation.json", Recommendation).advice is Advice.CHANGE_NOTHING
    assert said.startswith("Change nothing on laptop\n")
    assert [launch.error for launch in launches if not launch.is_usable] == []
    assert {result.is_correct for launch in launches for result in launch.results} == {True}
    assert run(["apply", str(run_dir), "--yes"]) == 0
    assert list((tmp_path / "nodes").rglob("*.conf")) == []


def test_a_bench_checks_every_sum(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "-c", str(cluster), "-n", "2", "--sizes", "8K..32K"]) == 0

    rows = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [row[0] for row in rows if row] == ["8192", "16384", "32768"]
    assert {row[8] for row in rows if row} == {"0"}
