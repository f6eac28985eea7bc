"""The controller is killed around every journal line in turn; resume or rollback ends in the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from topo_tune.records.envelope import append_line
from topo_tune.records.verdict import Outcome
from topo_tune.rollout.execute import Policy, rollback

KEEP_NOTHING = Policy(launches=2, keep_earlier=False)
LINES = 27
"""lines of a whole rollout of the `cluster` fixture"""
LINES_WITH_A_TRIP = 42
"""lines of a rollout whose second rack regresses and takes the first along"""


class Killed(BaseException):
    """Ends the program without any clean-up, as SIGKILL does: nothing in topo-tune catches it."""


class KillAt:
    """Appends journal lines and dies before, in the middle of, or right after one of them is on disk."""

    def __init__(self, line: int, moment: str) -> None:
        self.line, self.moment, self.seen = line, moment, 0

    def __call__(self, path: Path, entry: Any) -> None:
        self.seen += 1
        if self.seen < self.line:
            append_line(path, entry)
            return
        if self.moment == "after":
            append_line(path, entry)
        if self.moment == "in the middle":
            with path.open("ab") as file:
                file.write(b'{"at":"2026-01-01T00:00:00","act')
        raise Killed


@pytest.fixture(params=["before", "in the middle", "after"])
def moment(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def killed(cluster, plan, line, moment, **options):
    with pytest.raises(Killed):
        cluster.execute(plan, append=KillAt(line, moment), **options)


def test_the_numbers_of_lines_above_are_right(make_cluster, tmp_path):
    cluster = make_cluster()
    cluster.execute(cluster.plan())
    good = len(cluster.events)
    cluster.rollback()
    cluster.home = tmp_path / "other"
    cluster.home.mkdir()
    (tmp_path / "nodes").rename(cluster.home / "nodes")
    cluster.events.clear()
    cluster.refused = {"b1": Outcome.REGRESSED}

    cluster.execute(cluster.plan(), policy=KEEP_NOTHING)

    assert (good, len(cluster.events)) == (LINES, LINES_WITH_A_TRIP)


@pytest.mark.parametrize("line", range(1, LINES + 1))
def test_killed_and_resumed_a_rollout_ends_in_the_bytes_of_one_that_was_not(cluster, line, moment):
    plan = cluster.plan()
    killed(cluster, plan, line, moment)

    result = cluster.execute(plan)

    assert cluster.bytes_of() == wanted_bytes(cluster, plan)
    assert (result.exit_code, result.untouched, result.unsettled) == (0, (), ())


@pytest.mark.parametrize("line", range(1, LINES + 1))
def test_killed_and_rolled_back_a_rollout_leaves_the_exact_old_bytes(cluster, line, moment):
    plan = cluster.plan()
    before = cluster.bytes_of()
    killed(cluster, plan, line, moment)

    first = rollback_if_planned(cluster)
    second = rollback_if_planned(cluster)

    assert cluster.bytes_of() == before
    assert {first, second} <= {0, "no plan"}


@pytest.mark.parametrize("line", range(1, LINES_WITH_A_TRIP + 1))
def test_killed_anywhere_a_regression_in_the_last_rack_still_ends_in_the_old_bytes(cluster, line, moment):
    cluster.refused = {"b1": Outcome.REGRESSED}
    plan = cluster.plan()
    before = cluster.bytes_of()
    killed(cluster, plan, line, moment, policy=KEEP_NOTHING)

    result = cluster.execute(plan, policy=KEEP_NOTHING)

    assert cluster.bytes_of() == before
    assert (result.exit_code, result.kept) == (1, ())


@pytest.mark.parametrize("line", range(2, LINES + 1, 3))
@pytest.mark.parametrize("again", [1, 4, 7])
def test_killed_a_second_time_during_the_resume_it_ends_in_the_same_bytes(cluster, line, again, moment):
    plan = cluster.plan()
    killed(cluster, plan, line, moment)
    kill_or_finish(cluster, plan, again, moment)

    result = cluster.execute(plan)

    assert cluster.bytes_of() == wanted_bytes(cluster, plan)
    assert result.exit_code == 0


@pytest.mark.parametrize("line", range(1, 15))
def test_a_rollback_that_is_killed_can_be_run_again(cluster, line, moment):
    before = cluster.bytes_of()
    cluster.execute(cluster.plan())
    kill_rollback(cluster, line, moment)

    result = cluster.rollback()

    assert cluster.bytes_of() == before
    assert (result.exit_code, result.kept, result.unsettled) == (0, (), ())


@pytest.mark.parametrize("line", range(2, 14))
def test_a_rollback_that_is_killed_is_not_turned_round_by_a_resume(cluster, line):
    before = cluster.bytes_of("b1", "b2")
    plan = cluster.plan()
    cluster.execute(plan)
    kill_rollback(cluster, line, "before")

    cluster.execute(plan)

    assert cluster.bytes_of("b1", "b2") == before


def wanted_bytes(cluster, plan):
    """The bytes of an undisturbed run: every node is put back, and written by a writer that may refuse."""
    for node in plan.nodes:
        cluster.restore(node)
        cluster.write(node)
    return cluster.bytes_of()


def rollback_if_planned(cluster):
    with cluster.journal() as journal:
        is_planned = journal.state() is not None
    return cluster.rollback().exit_code if is_planned else "no plan"


def kill_or_finish(cluster, plan, line, moment):
    try:
        cluster.execute(plan, append=KillAt(line, moment))
    except Killed:
        return


def kill_rollback(cluster, line, moment):
    try:
        with cluster.journal(append=KillAt(line, moment)) as journal:
            rollback(
                journal,
                restore=cluster.restore,
                on_event=lambda entry: None,
                wait_out=cluster.wait_out,
            )
    except Killed:
        return
