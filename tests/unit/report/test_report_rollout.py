"""What a rollout looks like to people: before, meanwhile, afterwards, and at any later time."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from report_text import text_of

from topo_tune.records.inventory import BackendName, Missing
from topo_tune.records.nccl_env import nccl_env
from topo_tune.records.rollout import (
    Action,
    FileState,
    JournalEntry,
    NodePlan,
    NodeStatus,
    RolloutPlan,
    RolloutResult,
    RolloutState,
    Wave,
    WaveStatus,
)
from topo_tune.records.verdict import Outcome, Verdict
from topo_tune.report.rollout import (
    as_journal_says,
    entry_line,
    plan_report,
    result_report,
    status_report,
    verdict_line,
)
from topo_tune.rollout.diff import folded_diffs

CONF = "/etc/nccl.conf"
BLOCK = b"# topo-tune begin\nNCCL_SOCKET_NTHREADS=2\n# topo-tune end\n"
GONE = Missing("n5", "unreachable", "no answer within 5 s")

IMPROVED = Verdict(Outcome.IMPROVED, "above", -0.03, 0.122, 0.1, 0.147, 0.95, 5, 5)
REGRESSED = Verdict(Outcome.REGRESSED, "below the edge", -0.03, -0.165, -0.258, -0.061, 0.95, 5, 10)
NO_DATA = Verdict(Outcome.NO_DATA, "no usable launch", -0.03, None, None, None, 0.95, 0, 0)


def state_of(content: bytes | None) -> FileState:
    if content is None:
        return FileState(CONF, False)
    digest = hashlib.sha256(content).hexdigest()
    return FileState(CONF, True, base64.b64encode(content).decode(), digest, 0o644, 0, 0)


def node(name: str, rack: str, before: bytes | None) -> NodePlan:
    return NodePlan(name, rack, (state_of(before),), (state_of((before or b"") + BLOCK),))


def plan(**changes: Any) -> RolloutPlan:
    fields: dict[str, Any] = {
        "cluster": "lab",
        "env": nccl_env({"NCCL_SOCKET_NTHREADS": 2}),
        "backend": BackendName.NCCL,
        "nodes": (
            node("n1", "rack1", b"NCCL_DEBUG=WARN\n"),
            node("n2", "rack1", None),
            node("n3", "rack2", None),
            node("n4", "rack2", None),
        ),
        "waves": (
            Wave("rack1", "rack1", ("n1", "n2"), ("n1", "n2")),
            Wave("rack2", "rack2", ("n3", "n4"), ("n3", "n4")),
        ),
        "missing": (GONE,),
        "notes": ("n5: left out, keeps what it has: no answer within 5 s",),
    }
    return RolloutPlan(**(fields | changes))


def state(**changes: Any) -> RolloutState:
    fields: dict[str, Any] = {
        "plan": plan(),
        "nodes": (
            ("n1", NodeStatus.KEPT),
            ("n2", NodeStatus.KEPT),
            ("n3", NodeStatus.RESTORED),
            ("n4", NodeStatus.RESTORED),
        ),
        "waves": (("rack1", WaveStatus.KEPT), ("rack2", WaveStatus.ROLLED_BACK)),
        "verdicts": (("rack1", IMPROVED), ("rack2", REGRESSED)),
    }
    return RolloutState(**(fields | changes))


AS_TOLD = {"n1": "new", "n2": "new", "n3": "old", "n4": "old"}


def result(**changes: Any) -> RolloutResult:
    fields: dict[str, Any] = {
        "kept": ("rack1",),
        "rolled_back": ("rack2",),
        "untouched": (),
        "unsettled": (),
        "reason": "wave rack2 was rolled back: regressed: below the edge",
        "exit_code": 1,
        "verdicts": (("rack1", IMPROVED), ("rack2", REGRESSED)),
    }
    return RolloutResult(**(fields | changes))


def entry(action: Action, **fields: Any) -> JournalEntry:
    return JournalEntry("2026-01-02T03:04:05+00:00", action, **fields)


def test_a_plan_with_its_diff_and_a_node_left_out(golden: Callable[[str, str], None]) -> None:
    found = plan()

    golden("reports/plan-80.txt", text_of(plan_report(found, folded_diffs(found.nodes))))


def test_how_a_rollout_ended(golden: Callable[[str, str], None]) -> None:
    golden("reports/result-80.txt", text_of(result_report(result(), BackendName.NCCL, (GONE,))))


def test_where_a_rollout_stands(golden: Callable[[str, str], None]) -> None:
    found = AS_TOLD | {"n2": "other"}
    del found["n4"]

    text = text_of(status_report(state(), found, (Missing("n4", "login refused", "no key"),), asked=True))

    golden("reports/status-80.txt", text)


def test_a_wave_that_was_broken_off_says_what_to_do(golden: Callable[[str, str], None]) -> None:
    broken_off = state(
        nodes=(
            ("n1", NodeStatus.WRITTEN),
            ("n2", NodeStatus.WRITING),
            ("n3", NodeStatus.UNTOUCHED),
            ("n4", NodeStatus.UNTOUCHED),
        ),
        waves=(("rack1", WaveStatus.IN_PROGRESS), ("rack2", WaveStatus.PENDING)),
        verdicts=(),
    )

    golden("reports/status-broken-off-80.txt", text_of(status_report(broken_off, {}, (), asked=False)))


def test_a_node_that_needs_a_hand_is_a_row_of_its_own() -> None:
    left = result(unsettled=(Missing("n3", "restoring", "connection lost"),))

    text = text_of(result_report(left, BackendName.NCCL), width=200)

    assert "needs a hand  n3     restoring; connection lost" in text


def test_every_screen_of_a_replay_says_so() -> None:
    replay = plan(backend=BackendName.REPLAY)

    screens = [
        text_of(plan_report(replay, ())),
        text_of(status_report(state(plan=replay), AS_TOLD, (), asked=True)),
        text_of(result_report(result(), BackendName.REPLAY)),
        str(entry_line(entry(Action.JUDGED, wave="rack1", verdict=IMPROVED), BackendName.REPLAY)),
        verdict_line(REGRESSED, BackendName.REPLAY),
    ]

    assert [("replay" in screen) for screen in screens] == [True] * len(screens)


def test_no_screen_of_real_numbers_speaks_of_a_replay() -> None:
    screens = [
        text_of(plan_report(plan(), ())),
        text_of(status_report(state(), AS_TOLD, (), asked=True)),
        text_of(result_report(result(), BackendName.NCCL)),
        verdict_line(IMPROVED, BackendName.NCCL),
    ]

    assert [("replay" in screen) for screen in screens] == [False] * len(screens)


def test_a_verdict_has_its_interval_its_launches_and_its_edge() -> None:
    assert verdict_line(REGRESSED, BackendName.NCCL) == (
        "regressed: throughput -16.5 % (-25.8 % to -6.1 %, 95 %), 5 launches before and 10 after; edge -3 %"
    )


def test_a_verdict_without_numbers_gives_its_reason() -> None:
    assert verdict_line(NO_DATA, BackendName.NCCL) == "no-data: no usable launch"


def test_a_wave_that_passed_and_was_rolled_back_later_is_not_blamed_on_its_verdict() -> None:
    asked_for = result(kept=(), rolled_back=("rack1", "rack2"), reason="rolled back as asked for")

    lines = text_of(result_report(asked_for, BackendName.NCCL), width=200).splitlines()

    assert lines[0] == "rolled back  rack1"


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (Action.WAVE_STARTED, "rack1: begins; measuring as the nodes are"),
        (Action.WRITTEN, "rack1: n1 written"),
        (Action.RESTORE_FAILED, "rack1: n1 was NOT restored: why"),
        (Action.WAVE_KEPT, "rack1: kept"),
        (Action.WRITE_INTENDED, None),
        (Action.MEASURED_BEFORE, None),
    ],
)
def test_journal_lines_are_told_where_they_mean_something(action: Action, line: str | None) -> None:
    assert entry_line(entry(action, wave="rack1", node="n1", note="why"), BackendName.NCCL) == line


def test_the_reason_of_a_regression_is_not_told_twice() -> None:
    note = "regressed: throughput -16.5% (-25.8% to -6.1%): all of it below the edge of -3%"

    line = entry_line(entry(Action.WAVE_ROLLED_BACK, wave="rack2", note=note), BackendName.NCCL)

    assert line == "rack2: rolled back (regressed)"


@pytest.mark.parametrize(
    ("status", "found", "is_as_told"),
    [
        (NodeStatus.KEPT, "new", True),
        (NodeStatus.KEPT, "old", False),
        (NodeStatus.RESTORED, "old", True),
        (NodeStatus.UNTOUCHED, "new", False),
        (NodeStatus.WRITING, "old", True),
        (NodeStatus.WRITING, "new", True),
        (NodeStatus.RESTORING, "other", False),
    ],
)
def test_what_the_journal_expects_of_a_node(status: NodeStatus, found: str, is_as_told: bool) -> None:
    assert as_journal_says(status, found) is is_as_told


def test_reasons_from_nodes_are_never_markup() -> None:
    left = result(unsettled=(Missing("n3", "failed", "[bold]x[/] [/red]"),), reason="[green]fine[/green]")
    hostile = plan(cluster="[red]", notes=("[/red]",), missing=(Missing("n5", "failed", "[/]"),))

    text = text_of(result_report(left, BackendName.NCCL), width=200)
    shown = text_of(plan_report(hostile, (("n1", "+NCCL_X=[bold]"),)), width=200)

    assert "[bold]x[/] [/red]" in text
    assert "[green]fine[/green]" in text
    assert "+NCCL_X=[bold]" in shown
