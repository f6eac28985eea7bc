from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from topo_tune.errors import MeasurementFailed
from topo_tune.records.bench import Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.records.search import (
    PURPOSE_BASELINE,
    PURPOSE_CANDIDATE,
    PURPOSE_CONFIRM,
    SearchSpace,
    SearchVariable,
    TraceStep,
)
from topo_tune.search.loop import SearchEvent, confirm, run_search, search
from topo_tune.search.strategies.interface import Trial

SMALL, LARGE = 8192, 33554432
FAST, SLOW, BROKEN = (nccl_env({"NCCL_SOCKET_NTHREADS": n}) for n in (2, 4, 8))
FACTORS = {FAST: 0.5, SLOW: 2.0}
SPACE = SearchSpace(
    (
        SearchVariable(("NCCL_SOCKET_NTHREADS",), ("1", "2", "4", "8"), "test"),
        SearchVariable(("NCCL_SOCKET_INLINE",), ("0", "1024"), "test"),
        SearchVariable(("NCCL_MAX_CTAS", "NCCL_MIN_CTAS"), ("1", "2", "4", "8"), "test"),
    ),
    (),
    74,
)


class Cluster:
    """Times without noise; keeps what was launched. `drift`: how much slower each launch is than the last."""

    def __init__(
        self, *, drift: float = 1.0, default_error: Callable[[int], bool] = lambda index: False
    ) -> None:
        self.launches: list[Launch] = []
        self._drift, self._default_error = drift, default_error

    def evaluate(self, env: NcclEnv, purpose: str) -> Launch:
        index = len(self.launches)
        factor = FACTORS.get(env, 1.0) * self._drift**index
        failed = env == BROKEN or (env == DEFAULTS and self._default_error(index))
        results = tuple(
            SizeResult(size, (seconds * factor,), 1, TimingMode.EAGER, True)
            for size, seconds in ((SMALL, 50e-6), (LARGE, 10e-3))
        )
        launch = Launch(
            index=index,
            purpose=purpose,
            nodes=("n1",),
            env=env,
            backend=BackendName.GLOO,
            ranks=2,
            started_at="2026-01-01T00:00:00Z",
            wall_seconds=1.0,
            results=() if failed else results,
            error="deadline passed" if failed else None,
        )
        self.launches.append(launch)
        return launch

    def order(self) -> list[NcclEnv]:
        return [launch.env for launch in self.launches]


class Listed:
    """A strategy that suggests the rounds it was given and keeps the trials it hears."""

    def __init__(self, *rounds: tuple[NcclEnv, ...]) -> None:
        self.heard: list[tuple[Trial, ...]] = []
        self._rounds = list(rounds)

    def suggest(self) -> tuple[NcclEnv, ...]:
        return self._rounds.pop(0) if self._rounds else ()

    def update(self, trials: tuple[Trial, ...]) -> None:
        self.heard.append(trials)

    def phase(self) -> str:
        return f"screen-{len(self.heard) + 1}"

    def finalists(self, count: int) -> tuple[NcclEnv, ...]:
        return ()


def screen(
    cluster: Cluster, *rounds: tuple[NcclEnv, ...], every: int = 5
) -> tuple[tuple[TraceStep, ...], Listed]:
    listed = Listed(*rounds)
    return run_search(listed, cluster.evaluate, weights={}, baseline_every=every), listed


def test_the_default_comes_first_then_after_every_few_candidates_and_at_the_end_of_a_round() -> None:
    cluster = Cluster()
    screen(cluster, (FAST, SLOW, FAST), (SLOW,), every=2)
    assert cluster.order() == [DEFAULTS, FAST, SLOW, DEFAULTS, FAST, DEFAULTS, SLOW, DEFAULTS]


def test_a_round_that_ends_on_a_baseline_gets_no_second_one() -> None:
    cluster = Cluster()
    screen(cluster, (FAST, SLOW), every=2)
    assert cluster.order() == [DEFAULTS, FAST, SLOW, DEFAULTS]


def test_launches_say_what_they_are_for() -> None:
    cluster = Cluster()
    screen(cluster, (FAST,))
    assert [x.purpose for x in cluster.launches] == [PURPOSE_BASELINE, PURPOSE_CANDIDATE, PURPOSE_BASELINE]


def test_scores_are_log_speedups_in_the_order_of_the_suggestion() -> None:
    _, listed = screen(Cluster(), (FAST, BROKEN))
    (fast, broken) = listed.heard[0]
    assert (fast.env, fast.score) == (FAST, pytest.approx(math.log(2)))
    assert dict(fast.gains) == {SMALL: pytest.approx(math.log(2)), LARGE: pytest.approx(math.log(2))}
    assert broken == Trial(BROKEN, None)


def test_steady_drift_of_the_cluster_does_not_touch_the_scores() -> None:
    _, listed = screen(Cluster(drift=1.1), (FAST, FAST, FAST, FAST), every=2)
    assert [trial.score for trial in listed.heard[0]] == [pytest.approx(math.log(2))] * 4


def test_steps_name_launch_phase_and_why_a_setting_failed() -> None:
    steps, _ = screen(Cluster(), (BROKEN,))
    assert steps == (
        TraceStep(0, "screen-1", DEFAULTS, 0.0, "baseline"),
        TraceStep(1, "screen-1", BROKEN, None, "deadline passed"),
        TraceStep(2, "screen-1", DEFAULTS, 0.0, "baseline"),
    )


def test_a_default_that_fails_once_is_launched_again() -> None:
    cluster = Cluster(default_error=lambda index: index == 0)
    steps, listed = screen(cluster, (FAST,))
    assert cluster.order() == [DEFAULTS, DEFAULTS, FAST, DEFAULTS]
    assert steps[0].note == "baseline: deadline passed"
    assert listed.heard[0][0].score == pytest.approx(math.log(2))


def test_a_default_that_fails_twice_ends_the_search_before_any_candidate() -> None:
    cluster = Cluster(default_error=lambda index: True)
    with pytest.raises(MeasurementFailed, match="deadline passed"):
        screen(cluster, (FAST,))
    assert cluster.order() == [DEFAULTS, DEFAULTS]


def test_a_default_that_fails_in_between_leaves_the_score_to_its_other_neighbours() -> None:
    _, listed = screen(Cluster(default_error=lambda index: index == 2), (FAST, FAST), every=1)
    assert [trial.score for trial in listed.heard[0]] == [pytest.approx(math.log(2))] * 2


def test_a_weighted_size_that_is_not_measured_fails_the_default() -> None:
    with pytest.raises(MeasurementFailed, match="a weighted size was not measured"):
        run_search(Listed((FAST,)), Cluster().evaluate, weights={1024: 1.0})


def test_weights_that_weigh_nothing_are_refused_with_a_hint() -> None:
    with pytest.raises(MeasurementFailed, match="hint: give at least one size"):
        run_search(Listed((FAST,)), Cluster().evaluate, weights={SMALL: 0.0})


def test_progress_counts_up_to_what_was_planned() -> None:
    events: list[SearchEvent] = []
    listed = Listed((FAST, SLOW, FAST))
    run_search(listed, Cluster().evaluate, weights={}, baseline_every=2, on_event=events.append)
    assert [(event.done, event.planned) for event in events] == [(n, 6) for n in range(1, 7)]


def test_the_order_of_a_confirmation_turns_round_from_block_to_block() -> None:
    cluster = Cluster()
    confirm((FAST, SLOW), cluster.evaluate, weights={}, blocks=2)
    assert cluster.order() == [DEFAULTS, FAST, SLOW, SLOW, FAST, DEFAULTS]
    assert {launch.purpose for launch in cluster.launches} == {PURPOSE_CONFIRM}


def test_confirmation_steps_carry_their_block_and_the_log_speedup_within_it() -> None:
    steps = confirm((FAST,), Cluster().evaluate, weights={}, blocks=2)
    assert [(step.env, step.block) for step in steps] == [(DEFAULTS, 1), (FAST, 1), (FAST, 2), (DEFAULTS, 2)]
    assert [step.score for step in steps] == [0.0, *[pytest.approx(math.log(2))] * 2, 0.0]


def test_a_finalist_that_fails_is_not_launched_again() -> None:
    cluster = Cluster()
    confirm((BROKEN, FAST), cluster.evaluate, weights={}, blocks=3)
    assert (cluster.order().count(BROKEN), cluster.order().count(FAST)) == (1, 3)


def test_a_confirmation_ends_when_every_finalist_has_failed() -> None:
    cluster = Cluster()
    confirm((BROKEN,), cluster.evaluate, weights={}, blocks=6)
    assert cluster.order() == [DEFAULTS, BROKEN]


def test_a_failed_default_does_not_count_against_the_finalist() -> None:
    cluster = Cluster(default_error=lambda index: index == 0)
    steps = confirm((FAST,), cluster.evaluate, weights={}, blocks=2)
    assert cluster.order() == [DEFAULTS, FAST, FAST, DEFAULTS]
    assert steps[1].note == "the default failed in this block"


def test_no_finalists_need_no_confirmation() -> None:
    cluster = Cluster()
    assert confirm((), cluster.evaluate, weights={}) == ()
    assert cluster.launches == []


def test_a_whole_search_finds_the_fast_setting_and_confirms_it() -> None:
    cluster = Cluster()
    trace = search(SPACE, cluster.evaluate, seed=0, weights={}, budget=32, strategy_name="halving")
    assert trace.finalists[0] == FAST
    assert [step.launch for step in trace.steps] == list(range(len(cluster.launches)))
    assert sum(step.env == FAST and step.block is not None for step in trace.steps) == 6
    assert len(trace.candidates) == len({*trace.candidates} - {DEFAULTS}) == 32
    assert BROKEN in trace.candidates
    assert BROKEN not in trace.finalists


def test_a_search_that_hears_the_recorded_launches_goes_the_same_way() -> None:
    first, again = Cluster(), Cluster()
    trace = search(SPACE, first.evaluate, seed=5, weights={}, budget=32)
    recorded = iter(first.launches[:40])

    def resume(env: NcclEnv, purpose: str) -> Launch:
        fresh = again.evaluate(env, purpose)
        return next(recorded, fresh)

    assert search(SPACE, resume, seed=5, weights={}, budget=32) == trace


def test_a_space_with_nothing_in_it_launches_nothing() -> None:
    cluster = Cluster()
    trace = search(SearchSpace((), (), 0), cluster.evaluate, seed=0, weights={})
    assert (trace.steps, trace.finalists, cluster.launches) == ((), (), [])
