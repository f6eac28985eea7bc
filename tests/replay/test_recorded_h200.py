"""The record of two real H200s in docs/results: opened without a GPU, and searched again as a replay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from topo_tune.cli.app import run
from topo_tune.records.bench import Probe
from topo_tune.records.envelope import load, load_lines
from topo_tune.records.recommendation import Advice, Recommendation
from topo_tune.records.rollout import NodeStatus
from topo_tune.records.run_folder import RunFolder
from topo_tune.records.verdict import Outcome
from topo_tune.rollout.journal import fold, read_journal

RECORD = Path(__file__).parents[2] / "docs" / "results" / "h200x2-two-node-tcp"
FOUND = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_SOCKET_INLINE": "65536"}

REPLAY = """\
name: again
connection: local
root: nodes/{{node}}
bench: {{backend: replay}}
replay: {{surface: {surface}}}
racks:
  - {{name: rack1, nodes: "n[1-2]"}}
"""


@pytest.fixture
def record(tmp_path: Path) -> RunFolder:
    shutil.copytree(RECORD / "run", tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def test_recommend_gives_the_recorded_answer_without_a_gpu(record: RunFolder) -> None:
    before = load(record.recommendation, Recommendation)
    fragment = record.fragment.read_text()
    assert run(["recommend", str(record.path), "--save"]) == 0

    assert load(record.recommendation, Recommendation) == before
    assert record.fragment.read_text() == fragment
    assert before.env.as_dict() == FOUND


def test_every_size_is_measured_in_at_least_five_interleaved_launches_and_none_is_slower(
    record: RunFolder,
) -> None:
    first = load(record.recommendation, Recommendation).finalists[0]
    assert all(row.launches >= 5 and row.speedup > 1 for row in first.comparisons)
    assert first.low > 1.7


def test_the_ranks_took_the_values_from_the_file_and_not_before(record: RunFolder) -> None:
    before, after = load_lines(record.proofs, Probe)
    assert not any(setting.name in FOUND for setting in before.settings)
    for name, value in FOUND.items():
        assert after.values(name) == {0: value, 1: value}
        lines = [setting.evidence for setting in after.settings if setting.name == name]
        assert lines == [f"{name} set by environment to {value}."] * 2


def test_the_rollout_was_kept_and_then_rolled_back(record: RunFolder) -> None:
    state = fold(read_journal(record.journal))
    assert state is not None
    assert dict(state.verdicts)["desk"].outcome is Outcome.IMPROVED
    assert state.node("localhost") is NodeStatus.RESTORED


def test_a_slow_setting_tripped_the_guard() -> None:
    state = fold(read_journal(RECORD / "run-bad" / "60-journal.jsonl"))
    assert state is not None
    assert dict(state.verdicts)["desk"].outcome is Outcome.REGRESSED
    assert state.node("localhost") is NodeStatus.RESTORED


def test_a_search_on_the_recorded_launches_finds_socket_threads_with_inline_sends(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        (tmp_path / "nodes" / node / "etc").mkdir(parents=True)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(REPLAY.format(surface=RECORD / "run" / "30-bench.jsonl"))

    assert run(["init", "-c", str(cluster), "-o", str(tmp_path / "run"), "--quiet"]) == 0

    answer = load(tmp_path / "run" / "50-recommendation.json", Recommendation)
    assert answer.advice is Advice.CHANGE
    assert int(answer.env.as_dict()["NCCL_SOCKET_NTHREADS"]) >= 1
    assert int(answer.env.as_dict()["NCCL_SOCKET_INLINE"]) >= 16384
    assert answer.finalists[0].mean_speedup > 1.6
    assert any("replay of" in note for note in answer.notes)
