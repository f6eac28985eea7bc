"""The journal file, its lock, and the fold."""

from __future__ import annotations

import errno

import pytest

from topo_tune.errors import BrokenRecord, Refused
from topo_tune.records.rollout import Action, NodeStatus, WaveStatus
from topo_tune.records.verdict import Outcome, Verdict
from topo_tune.rollout.journal import fold, read_journal


@pytest.fixture
def begun(cluster):
    with cluster.journal() as journal:
        journal.append(Action.PLANNED, plan=cluster.plan())
    return cluster


def entries(cluster, *steps):
    with cluster.journal() as journal:
        for action, fields in steps:
            journal.append(action, **fields)
        return journal.entries


A_VERDICT = Verdict(Outcome.PASS, "made up", -0.03, 0.0, -0.01, 0.01, 0.95, 2, 2)
A = {"wave": "a/canary"}
A1 = {"wave": "a/canary", "node": "a1"}


def test_a_journal_without_lines_has_no_state(cluster):
    with cluster.journal() as journal:
        assert journal.state() is None


def test_a_plan_alone_leaves_every_node_untouched_and_every_wave_pending(begun):
    state = fold(entries(begun))

    assert {status for _, status in state.nodes} == {NodeStatus.UNTOUCHED}
    assert {status for _, status in state.waves} == {WaveStatus.PENDING}
    assert state.remaining() == ("a/canary", "a", "b")


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (Action.WRITE_INTENDED, NodeStatus.WRITING),
        (Action.WRITTEN, NodeStatus.WRITTEN),
        (Action.WRITE_REFUSED, NodeStatus.UNTOUCHED),
        (Action.WRITE_FAILED, NodeStatus.WRITING),
        (Action.RESTORE_INTENDED, NodeStatus.RESTORING),
        (Action.RESTORE_FAILED, NodeStatus.RESTORING),
        (Action.RESTORED, NodeStatus.RESTORED),
    ],
)
def test_the_last_line_about_a_node_gives_its_status(begun, last, status):
    assert fold(entries(begun, (Action.WRITE_INTENDED, A1), (last, A1))).node("a1") is status


def test_keeping_a_wave_keeps_its_nodes(begun):
    state = fold(entries(begun, (Action.WAVE_STARTED, A), (Action.WRITTEN, A1), (Action.WAVE_KEPT, A)))

    assert (state.node("a1"), state.node("a2")) == (NodeStatus.KEPT, NodeStatus.KEPT)
    assert state.wave("a/canary") is WaveStatus.KEPT
    assert state.remaining() == ("a", "b")


def test_a_failed_write_is_told_until_the_node_is_made_good(begun):
    failed = (Action.WRITE_FAILED, {**A1, "note": "connection lost"})

    assert fold(entries(begun, failed)).unreached == (("a1", "connection lost"),)
    assert fold(entries(begun, (Action.RESTORED, A1))).unreached == ()


def test_a_wave_that_begins_again_has_no_verdict_yet(begun):
    judged = (Action.JUDGED, {**A, "verdict": A_VERDICT})

    assert fold(entries(begun, (Action.WAVE_STARTED, A), judged)).verdicts == (("a/canary", A_VERDICT),)
    assert fold(entries(begun, (Action.WAVE_PUT_BACK, A), (Action.WAVE_STARTED, A))).verdicts == ()


def test_a_wave_that_was_put_back_may_run_again_and_one_rolled_back_may_not(begun):
    assert not fold(entries(begun, (Action.WAVE_STARTED, A), (Action.WAVE_PUT_BACK, A))).is_over
    assert fold(entries(begun, (Action.WAVE_ROLLBACK_STARTED, A))).is_over


def test_what_is_read_back_is_what_was_written(begun):
    with begun.journal() as journal:
        journal.append(Action.WAVE_STARTED, wave="b")
        written = journal.entries

    assert read_journal(begun.run_folder / "60-journal.jsonl") == written


@pytest.mark.parametrize("fields", [{"node": "nobody"}, {"wave": "none"}])
def test_a_line_about_something_that_is_not_in_the_plan_is_refused(begun, fields):
    with pytest.raises(BrokenRecord, match="not in its plan"):
        fold(entries(begun, (Action.WRITTEN, fields)))


def test_two_plans_in_one_journal_are_refused(begun):
    with pytest.raises(BrokenRecord, match="two plans"):
        fold(entries(begun, (Action.PLANNED, {"plan": begun.plan()})))


def test_a_journal_that_does_not_begin_with_a_plan_is_refused(cluster):
    with pytest.raises(BrokenRecord, match="does not begin with a plan"):
        fold(entries(cluster, (Action.STOPPED, {})))


def test_a_disk_that_is_full_is_named(cluster):
    def full(path, entry):
        raise OSError(errno.ENOSPC, "No space left on device")

    with cluster.journal(append=full) as journal, pytest.raises(BrokenRecord, match="No space left"):
        journal.append(Action.STOPPED)


def test_two_rollouts_at_once_are_refused_by_the_lock(cluster):
    with cluster.journal(), pytest.raises(Refused, match="another rollout is at work"), cluster.journal():
        pass


def test_the_lock_is_free_again_after_a_rollout(cluster):
    with cluster.journal():
        pass

    with cluster.journal() as journal:
        assert journal.entries == ()


def test_a_damaged_journal_gives_the_lock_back(cluster):
    cluster.run_folder.mkdir()
    (cluster.run_folder / "60-journal.jsonl").write_text("nonsense\n")
    with pytest.raises(BrokenRecord), cluster.journal():
        pass

    with pytest.raises(BrokenRecord), cluster.journal():
        pass
