"""The judgement on throughput: launches before a change, launches after it -> Verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topo_tune.records.bench import Launch
from topo_tune.records.verdict import Outcome, Verdict
from topo_tune.stats.intervals import Difference, welch_difference
from topo_tune.stats.needed import launches_to_decide
from topo_tune.stats.objective import mean_log_seconds, shares

EDGE = -0.03
"""Lowest change of throughput that still passes: three per cent slower, the band a rollout promises."""

IMPROVED_EDGE = 0.03
"""A change whose whole interval lies above this is called an improvement: the other edge of the same band."""

FEWEST_LAUNCHES = 3
"""Usable launches that each side needs for a verdict: of two, one odd launch is half of the evidence."""


def judge_throughput(
    before: Sequence[Launch],
    after: Sequence[Launch],
    *,
    weights: Mapping[int, float],
    edge: float = EDGE,
    confidence: float = 0.95,
) -> Verdict:
    """Whether throughput after a change is still that of before.

    The change is before time over after time, less one, of the weighted geometric mean over sizes; each
    launch counts as one value, and the two-sided interval of `confidence` is Welch's, on logs. `weights`:
    size in bytes to weight; empty weighs every size that all launches measured the same.

    In this order: a wrong sum after is a regression, and so is a launch that fails after when none did
    before; no usable launch on a side is no data; fewer than three is inconclusive; then the interval
    decides against the edges. So data without a change regresses in fewer than (1 - confidence) / 2 of all
    judgements, and a change that sits exactly on the edge in at most about that many.
    """
    old, new = _side(before, after, weights)
    counts = _Counts(edge, confidence, len(old.logs), len(new.logs))
    wrong = [launch for launch in after if any(result.is_correct is False for result in launch.results)]
    if wrong:
        return counts.verdict(Outcome.REGRESSED, f"wrong sums in {_launches(len(wrong))} after the change")
    if new.unusable and old.logs and not old.unusable:
        reason = f"{_launches(len(new.unusable))} failed after the change, none before it: {new.unusable[0]}"
        return counts.verdict(Outcome.REGRESSED, reason)
    if not old.logs or not new.logs:
        return counts.verdict(Outcome.NO_DATA, _nothing_usable(old, new))
    per_size = _change_per_size(old.seconds, new.seconds)
    change = math.exp(_mean(old.logs) - _mean(new.logs)) - 1
    if min(len(old.logs), len(new.logs)) < FEWEST_LAUNCHES:
        have = f"{len(old.logs)} usable before the change and {len(new.logs)} after"
        reason = f"too few launches: {have}; {FEWEST_LAUNCHES} of each are needed"
        return counts.verdict(Outcome.INCONCLUSIVE, reason, change=change, per_size=per_size)
    difference = welch_difference(old.logs, new.logs, confidence)
    outcome = _outcome(difference, edge)
    return counts.verdict(
        outcome, _reason(outcome, difference, counts), change=change, difference=difference, per_size=per_size
    )


class _Side(NamedTuple):
    seconds: tuple[dict[int, float], ...]
    """of usable launches: size to seconds"""
    logs: tuple[float, ...]
    """of usable launches: weighted mean log seconds"""
    unusable: tuple[str, ...]
    """why each of the others does not count"""


class _Counts(NamedTuple):
    edge: float
    confidence: float
    before: int
    after: int

    def verdict(
        self,
        outcome: Outcome,
        reason: str,
        *,
        change: float | None = None,
        difference: Difference | None = None,
        per_size: tuple[tuple[int, float], ...] = (),
    ) -> Verdict:
        return Verdict(
            outcome=outcome,
            reason=reason,
            edge=self.edge,
            change=change,
            low=None if difference is None else difference.interval.exp().low - 1,
            high=None if difference is None else difference.interval.exp().high - 1,
            confidence=self.confidence,
            launches_before=self.before,
            launches_after=self.after,
            per_size=per_size,
        )


def _side(
    before: Sequence[Launch], after: Sequence[Launch], weights: Mapping[int, float]
) -> tuple[_Side, _Side]:
    measured = [set(launch.median_seconds()) for launch in (*before, *after) if launch.is_usable]
    wanted = {size for size, weight in weights.items() if weight > 0} or set.intersection(
        *measured or [set()]
    )
    return _reduce(before, wanted, weights), _reduce(after, wanted, weights)


def _reduce(launches: Sequence[Launch], wanted: set[int], weights: Mapping[int, float]) -> _Side:
    seconds, logs, unusable = [], [], []
    share = shares(wanted, weights) if wanted else {}
    for launch in launches:
        times = launch.median_seconds() if launch.is_usable else {}
        log = mean_log_seconds(times, share) if share and times else None
        if log is None:
            unusable.append(_why_unusable(launch))
        else:
            seconds.append(times)
            logs.append(log)
    return _Side(tuple(seconds), tuple(logs), tuple(unusable))


def _why_unusable(launch: Launch) -> str:
    if launch.error is not None:
        return launch.error
    if not launch.results:
        return "it measured nothing"
    if not launch.is_usable:
        return "wrong sums"
    return "a weighted size was not measured"


def _nothing_usable(old: _Side, new: _Side) -> str:
    sides = [
        f"{name} the change: {side.unusable[0] if side.unusable else 'nothing was launched'}"
        for name, side in (("before", old), ("after", new))
        if not side.logs
    ]
    return "no usable launch " + ", and none ".join(sides)


def _outcome(difference: Difference, edge: float) -> Outcome:
    change = difference.interval.exp()
    low, high = change.low - 1, change.high - 1
    if high < edge:
        return Outcome.REGRESSED
    if low > IMPROVED_EDGE:
        return Outcome.IMPROVED
    return Outcome.PASS if low > edge else Outcome.INCONCLUSIVE


def _reason(outcome: Outcome, difference: Difference, counts: _Counts) -> str:
    change = difference.interval.exp()
    numbers = f"throughput {change.center - 1:+.1%} ({change.low - 1:+.1%} to {change.high - 1:+.1%})"
    if outcome is Outcome.REGRESSED:
        return f"{numbers}: all of it below the edge of {counts.edge:+.0%}"
    if outcome is Outcome.IMPROVED:
        return f"{numbers}: all of it above {IMPROVED_EDGE:+.0%}"
    if outcome is Outcome.PASS:
        return f"{numbers}: all of it above the edge of {counts.edge:+.0%}"
    return f"{numbers}: the edge of {counts.edge:+.0%} lies inside; {_more_launches(difference, counts)}"


def _more_launches(difference: Difference, counts: _Counts) -> str:
    # The deviation of one launch that gives this standard error if both sides share it.
    deviation = difference.standard_error / math.sqrt(1 / counts.before + 1 / counts.after)
    distance = difference.interval.center - math.log1p(counts.edge)
    needed = launches_to_decide(deviation, distance, confidence=counts.confidence, at_most=200)
    if needed is None:
        return "more than 200 launches on each side would be needed: it sits on the edge"
    more = max(1, needed - min(counts.before, counts.after))
    return f"about {more} more on each side would probably decide"


def _change_per_size(
    before: Sequence[Mapping[int, float]], after: Sequence[Mapping[int, float]]
) -> tuple[tuple[int, float], ...]:
    sizes = sorted(set.intersection(*(set(times) for times in (*before, *after))))
    return tuple(
        (
            size,
            math.exp(_mean([math.log(t[size]) for t in before]) - _mean([math.log(t[size]) for t in after]))
            - 1,
        )
        for size in sizes
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _launches(count: int) -> str:
    return f"{count} launch" if count == 1 else f"{count} launches"
