"""The search: screen candidates with the default interleaved, prune the best, confirm in fresh launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from topo_tune.errors import MeasurementFailed
from topo_tune.records.bench import Launch
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.search import (
    PURPOSE_BASELINE,
    PURPOSE_CANDIDATE,
    PURPOSE_CONFIRM,
    SearchSpace,
    SearchTrace,
    TraceStep,
)
from topo_tune.search.prune import Pruned, prune
from topo_tune.search.score import BaselineLaunch, baseline_log_seconds, log_speedups, score, score_of_gains
from topo_tune.search.space import CanMeasure
from topo_tune.search.strategies import DEFAULT_BUDGET, DEFAULT_STRATEGY, strategy
from topo_tune.search.strategies.interface import Strategy, Trial
from topo_tune.stats.objective import mean_log_seconds, shares

Evaluate = Callable[[NcclEnv, str], Launch]
"""One launch of a setting for a purpose. Failures come back as a Launch with an error."""

BASELINE_EVERY = 5
"""Candidates between two launches of the default: a sixth of all launches follows the cluster's drift."""
FINALISTS = 3
BLOCKS = 6
TOLERANCE = 0.03


class SearchEvent(msgspec.Struct, frozen=True):
    """One launch has ended."""

    phase: str
    done: int
    """launches of this phase so far"""
    planned: int
    """launches of this phase in all"""
    launch: Launch


OnEvent = Callable[[SearchEvent], None]


def search(
    space: SearchSpace,
    evaluate: Evaluate,
    *,
    seed: int,
    weights: Mapping[int, float],
    strategy_name: str = DEFAULT_STRATEGY,
    budget: int = DEFAULT_BUDGET,
    can_measure: CanMeasure | None = None,
    tolerance: float = TOLERANCE,
    baseline_every: int = BASELINE_EVERY,
    finalists: int = FINALISTS,
    blocks: int = BLOCKS,
    on_event: OnEvent | None = None,
) -> SearchTrace:
    """Screen, prune, confirm; the whole search as a trace.

    Deterministic given the seed and the launches, so an interrupted search goes on when `evaluate` first
    hands back the launches that were recorded, in order. `weights`: size in bytes to weight, empty for all
    the same. `budget`: candidates of the first round. Raises MeasurementFailed when the default itself
    cannot be measured.
    """

    def objective(gains: Mapping[int, float]) -> float:
        return score_of_gains(gains, shares(gains, weights), tolerance=tolerance)

    chosen = strategy(
        strategy_name, space, seed=seed, budget=budget, can_measure=can_measure, objective=objective
    )
    screened = run_search(
        chosen,
        evaluate,
        weights=weights,
        tolerance=tolerance,
        baseline_every=baseline_every,
        on_event=on_event,
    )
    best = chosen.finalists(finalists)
    pruned = Pruned(DEFAULTS, (), ())
    if best:

        def tell(phase: str, done: int, planned: int, launch: Launch) -> None:
            _tell(on_event, phase, done, planned, launch)

        pruned = prune(
            best[0], space, evaluate, weights=weights, tolerance=tolerance, can_measure=can_measure, tell=tell
        )
        # What is left of the best comes first, the best as it was found stays in the race.
        best = tuple(dict.fromkeys((pruned.env, *best)))[:finalists]
    confirmed = confirm(best, evaluate, weights=weights, blocks=blocks, on_event=on_event)
    return SearchTrace(
        strategy=strategy_name,
        seed=seed,
        space=space,
        candidates=tuple(dict.fromkeys(step.env for step in screened if step.env != DEFAULTS)),
        steps=(*screened, *pruned.steps, *confirmed),
        finalists=best,
        effects=pruned.effects,
    )


def run_search(
    strategy: Strategy,
    evaluate: Evaluate,
    *,
    weights: Mapping[int, float],
    tolerance: float = TOLERANCE,
    baseline_every: int = BASELINE_EVERY,
    on_event: OnEvent | None = None,
) -> tuple[TraceStep, ...]:
    """Launch what the strategy suggests until it has enough; the steps in order of launch.

    The default is launched first, after every `baseline_every` candidates and at the end of each round; a
    round is scored when it is over, so that each candidate has a launch of the default on either side.
    """
    screening = _Screening(evaluate, weights, tolerance, baseline_every, on_event)
    while candidates := strategy.suggest():
        strategy.update(screening.round(candidates, strategy.phase()))
    return tuple(screening.steps)


def confirm(
    finalists: tuple[NcclEnv, ...],
    evaluate: Evaluate,
    *,
    weights: Mapping[int, float],
    blocks: int = BLOCKS,
    on_event: OnEvent | None = None,
) -> tuple[TraceStep, ...]:
    """Fresh launches of the default and the finalists, in blocks; the steps in order of launch.

    The order turns round from block to block (ABBA), so that a steady drift favours nobody. A finalist that
    fails is not launched again: it is out, and a setting that hangs costs a whole deadline each time.
    """
    steps: list[TraceStep] = []
    failed: set[NcclEnv] = set()
    for block in range(1, blocks + 1):
        alive = tuple(env for env in finalists if env not in failed)
        if not alive:
            break
        order = (DEFAULTS, *alive) if block % 2 else (*reversed(alive), DEFAULTS)
        launches = []
        for env in order:
            launches.append(evaluate(env, PURPOSE_CONFIRM))
            planned = len(steps) + len(order) * (blocks - block + 1)
            _tell(on_event, "confirm", len(steps) + len(launches), planned, launches[-1])
        scored = _block_steps(block, order, tuple(launches), weights)
        failed.update(step.env for step in scored if step.score is None)
        steps += scored
    return tuple(steps)


class _Made(NamedTuple):
    position: int
    purpose: str
    launch: Launch


class _Screening:
    """The launches so far and the steps made of them."""

    def __init__(
        self,
        evaluate: Evaluate,
        weights: Mapping[int, float],
        tolerance: float,
        baseline_every: int,
        on_event: OnEvent | None,
    ) -> None:
        self.steps: list[TraceStep] = []
        self._evaluate, self._weights, self._tolerance = evaluate, weights, tolerance
        self._every = max(1, baseline_every)
        self._on_event = on_event
        self._baselines: list[BaselineLaunch] = []
        self._shares: dict[int, float] = {}
        self._position = 0

    def round(self, candidates: tuple[NcclEnv, ...], phase: str) -> tuple[Trial, ...]:
        """Launch each candidate once with the default in between; their scores, in the same order."""
        begun = self._position
        planned = len(candidates) + -(-len(candidates) // self._every) + (not self._baselines)
        made: list[_Made] = []

        def launch(env: NcclEnv, purpose: str) -> Launch:
            result = self._evaluate(env, purpose)
            made.append(_Made(self._position, purpose, result))
            self._position += 1
            _tell(self._on_event, phase, self._position - begun, planned, result)
            return result

        if not self._baselines:
            self._first_baseline(launch)
        for number, env in enumerate(candidates, start=1):
            launch(env, PURPOSE_CANDIDATE)
            if number % self._every == 0 or number == len(candidates):
                self._add_baseline(launch)
        steps = [self._step(item, phase) for item in made]
        self.steps += steps
        scored = zip(made, steps, strict=True)
        return tuple(
            Trial(step.env, step.score, self._gains(item))
            for item, step in scored
            if item.purpose == PURPOSE_CANDIDATE
        )

    def _gains(self, made: _Made) -> tuple[tuple[int, float], ...]:
        log = baseline_log_seconds(self._baselines, made.position)
        return tuple(sorted(log_speedups(_usable_seconds(made.launch), log).items()))

    def _first_baseline(self, launch: Evaluate) -> None:
        first = self._add_baseline(launch)
        again = first if self._baselines else self._add_baseline(launch)
        if not self._baselines:
            raise MeasurementFailed(
                f"NCCL's default could not be measured, twice: {_failure(again)}",
                hint="nothing can be compared without it; try `topo-tune bench` on these nodes first",
            )

    def _add_baseline(self, launch: Evaluate) -> Launch:
        result = launch(DEFAULTS, PURPOSE_BASELINE)
        seconds = _usable_seconds(result)
        if not self._shares and seconds:
            self._shares = _shares_or_fail(seconds, self._weights)
        if seconds and mean_log_seconds(seconds, self._shares) is not None:
            self._baselines.append(BaselineLaunch(self._position - 1, seconds))
        return result

    def _step(self, made: _Made, phase: str) -> TraceStep:
        seconds = _usable_seconds(made.launch)
        is_baseline = made.purpose == PURPOSE_BASELINE
        value: float | None = None
        if mean_log_seconds(seconds, self._shares) is not None:
            log = baseline_log_seconds(self._baselines, made.position)
            value = 0.0 if is_baseline else score(seconds, log, self._shares, tolerance=self._tolerance)
        why = [PURPOSE_BASELINE] if is_baseline else []
        note = ": ".join(why if value is not None else [*why, _failure(made.launch)])
        return TraceStep(made.launch.index, phase, made.launch.env, value, note)


def _block_steps(
    block: int, order: tuple[NcclEnv, ...], launches: tuple[Launch, ...], weights: Mapping[int, float]
) -> tuple[TraceStep, ...]:
    times = [_usable_seconds(launch) for launch in launches]
    default = times[order.index(DEFAULTS)]
    share = _shares_or_fail(default, weights) if default else {}
    base = mean_log_seconds(default, share) if default else None
    steps = []
    for env, launch, seconds in zip(order, launches, times, strict=True):
        if base is None:  # no comparison in this block, but a finalist that finished has not failed
            value = 0.0 if seconds and env != DEFAULTS else None
            note = "the default failed in this block" if value == 0.0 else _failure(launch)
        else:
            log = mean_log_seconds(seconds, share)
            value = None if log is None else base - log
            note = "" if value is not None else _failure(launch)
        steps.append(TraceStep(launch.index, "confirm", env, value, note, block))
    return tuple(steps)


def _usable_seconds(launch: Launch) -> dict[int, float]:
    return launch.median_seconds() if launch.is_usable else {}


def _shares_or_fail(seconds: Mapping[int, float], weights: Mapping[int, float]) -> dict[int, float]:
    try:
        return shares({*seconds, *(size for size, weight in weights.items() if weight > 0)}, weights)
    except ValueError as exc:
        raise MeasurementFailed(
            f"the objective weighs none of the measured sizes: {exc}",
            hint="give at least one size of the sweep a weight above zero",
        ) from exc


def _failure(launch: Launch) -> str:
    if launch.error is not None:
        return launch.error
    if launch.results and not launch.is_usable:
        return "wrong sums"
    return "a weighted size was not measured"


def _tell(on_event: OnEvent | None, phase: str, done: int, planned: int, launch: Launch) -> None:
    if on_event is not None:
        on_event(SearchEvent(phase, done, planned, launch))
