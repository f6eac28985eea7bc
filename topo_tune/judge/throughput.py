"""The judgement on throughput: launches before a change, launches after it -> Verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topo_tune.records.bench import Launch
from topo_tune.records.units import format_bytes
from topo_tune.records.verdict import Outcome, Verdict
from topo_tune.stats.counts import chance_of_as_many
from topo_tune.stats.intervals import Difference, Interval, per_comparison, welch_difference
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
    looks: int = 1,
) -> Verdict:
    """Whether throughput after a change is still that of before.

    The change is before time over after time, less one, of the weighted geometric mean over sizes; each
    launch counts as one value, and the two-sided interval is Welch's, on logs. `weights`: size in bytes to
    weight; empty weighs every size that all launches measured the same. `looks`: how often the same change
    may be judged while launches are added; each look gets its share of what may go wrong (Bonferroni).

    In this order: a wrong sum after is a regression, and so is a launch that fails after when none did
    before, or a share of failures that is larger after by Fisher's exact test; no usable launch on a side is
    no data; fewer than three is inconclusive; then the intervals decide. A regression is an interval below
    the edge, of all sizes together or of one size that weighs anything. Nothing passes after a failed
    launch, nor with a size whose estimate lies beyond twice the edge.

    Over all looks, data without a change regresses by its times in fewer than (1 - confidence) / 2 of all
    rollouts: one half of that is for all sizes together, the other is shared by the sizes. A change that
    sits exactly on the edge passes in at most about (1 - confidence) / 2.
    """
    old, new = _side(before, after, weights)
    counts = _Counts(edge, per_comparison(confidence, looks), len(old.logs), len(new.logs))
    wrong = [launch for launch in after if any(result.is_correct is False for result in launch.results)]
    if wrong:
        return counts.verdict(Outcome.REGRESSED, f"wrong sums in {_launches(len(wrong))} after the change")
    worse = _more_failures(old, new, counts)
    if worse is not None:
        return counts.verdict(Outcome.REGRESSED, worse)
    if not old.logs or not new.logs:
        return counts.verdict(Outcome.NO_DATA, _nothing_usable(old, new))
    per_size = _change_per_size(old.seconds, new.seconds)
    change = math.exp(_mean(old.logs) - _mean(new.logs)) - 1
    if min(len(old.logs), len(new.logs)) < FEWEST_LAUNCHES:
        have = f"{len(old.logs)} usable before the change and {len(new.logs)} after"
        reason = f"too few launches: {have}; {FEWEST_LAUNCHES} of each are needed"
        return counts.verdict(Outcome.INCONCLUSIVE, reason, change=change, per_size=per_size)
    difference = welch_difference(old.logs, new.logs, counts.confidence)
    outcome, reason = _decide(old, new, difference, counts)
    return counts.verdict(outcome, reason, change=change, difference=difference, per_size=per_size)


class _Side(NamedTuple):
    seconds: tuple[dict[int, float], ...]
    """of usable launches: size to seconds"""
    logs: tuple[float, ...]
    """of usable launches: weighted mean log seconds"""
    unusable: tuple[str, ...]
    """why each of the others does not count"""
    failed: tuple[str, ...]
    """why each of those failed that did fail"""
    weighted: tuple[int, ...]
    """sizes that weigh anything"""


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
    seconds, logs, unusable, failed = [], [], [], []
    share = shares(wanted, weights) if wanted else {}
    for launch in launches:
        times = launch.median_seconds() if launch.is_usable else {}
        log = mean_log_seconds(times, share) if share and times else None
        if log is None:
            unusable.append(_why_unusable(launch))
            if not launch.is_usable:
                failed.append(unusable[-1])
        else:
            seconds.append(times)
            logs.append(log)
    return _Side(tuple(seconds), tuple(logs), tuple(unusable), tuple(failed), tuple(share))


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


def _more_failures(old: _Side, new: _Side, counts: _Counts) -> str | None:
    """Why launches fail more often after the change; None when nothing shows that they do."""
    if not new.unusable or not old.logs:
        return None
    why = new.unusable[0]
    if not old.unusable:
        return f"{_launches(len(new.unusable))} failed after the change, none before it: {why}"
    old_count, new_count = len(old.unusable) + len(old.logs), len(new.unusable) + len(new.logs)
    chance = chance_of_as_many(len(old.unusable), old_count, len(new.unusable), new_count)
    if chance >= 1 - counts.confidence:
        return None
    return (
        f"{len(new.unusable)} of {_launches(new_count)} failed after the change, "
        f"{len(old.unusable)} of {old_count} before it: {why}"
    )


def _decide(old: _Side, new: _Side, difference: Difference, counts: _Counts) -> tuple[Outcome, str]:
    numbers = _numbers(difference)
    edge = f"the edge of {counts.edge:+.0%}"
    is_one = len(new.weighted) == 1
    # One size is all sizes together, so nothing is shared.
    decisive = welch_difference(old.logs, new.logs, per_comparison(counts.confidence, 1 if is_one else 2))
    if _change(decisive).high < counts.edge:
        return Outcome.REGRESSED, f"{numbers}: all of it below {edge}"
    sizes = {} if is_one else _difference_per_size(old, new, counts.confidence)
    slowest = min(sizes, key=lambda size: _change(sizes[size]).high, default=0)
    if sizes and _change(sizes[slowest]).high < counts.edge:
        found = _numbers(sizes[slowest])
        return Outcome.REGRESSED, f"at {format_bytes(slowest)}, {found}: all of it below {edge}"
    if _change(difference).low <= counts.edge:
        where = "inside" if _change(difference).high >= counts.edge else "just outside, too close to decide"
        return Outcome.INCONCLUSIVE, f"{numbers}: {edge} lies {where}; {_more_launches(difference, counts)}"
    if new.failed:
        reason = f"{_launches(len(new.failed))} failed after the change, so nothing passes: {new.failed[0]}"
        return Outcome.INCONCLUSIVE, reason
    # Below the default edge in any case: an estimate alone says nothing about a few per cent.
    floor = min(2 * counts.edge, EDGE)
    slowest = min(sizes, key=lambda size: sizes[size].interval.center, default=0)
    if sizes and _change(sizes[slowest]).center < floor:
        found = _numbers(sizes[slowest])
        reason = f"{numbers}, but at {format_bytes(slowest)}, {found}: the estimate is beyond {floor:+.0%}"
        return Outcome.INCONCLUSIVE, reason
    if _change(difference).low > IMPROVED_EDGE:
        return Outcome.IMPROVED, f"{numbers}: all of it above {IMPROVED_EDGE:+.0%}"
    return Outcome.PASS, f"{numbers}: all of it above {edge}"


def _difference_per_size(old: _Side, new: _Side, confidence: float) -> dict[int, Difference]:
    share = per_comparison(confidence, 2 * len(new.weighted))
    return {
        size: welch_difference(
            [math.log(times[size]) for times in old.seconds],
            [math.log(times[size]) for times in new.seconds],
            share,
        )
        for size in new.weighted
    }


def _change(difference: Difference) -> Interval:
    """The interval of the change of throughput."""
    return Interval(*(value - 1 for value in difference.interval.exp()))


def _numbers(difference: Difference) -> str:
    change = _change(difference)
    return f"throughput {change.center:+.1%} ({change.low:+.1%} to {change.high:+.1%})"


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
