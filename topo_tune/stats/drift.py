"""Drift within a run: whether the baseline's launches become slower or faster, steadily or in one step.

Both questions are asked by permutation: if launches are alike, every order of the same times is equally likely. A
machine that wanders without going anywhere has no such order either, and will sometimes be said to drift.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from topo_tune.stats.intervals import one_dimension, per_comparison

FEWEST_LAUNCHES = 6
"""Of five launches, 2 of 120 orders go all up or all down: more than one in a hundred, the chance of a false alarm that
is allowed here.
"""

CONFIDENCE = 0.99
"""That a run without drift is called one, over both questions together."""

RANDOM_ORDERS = 4_999
"""With the observed one five thousand: half of one in a hundred is then 25 of them, known to a fifth."""

EXACT_UP_TO = 5_040
"""Orders up to which all are tried: those of seven launches."""

FEWEST_OF_A_PART = 2
"""Launches on either side of a step; one that is odd is an odd launch, not a step."""

SECONDS = 600.0
"""The ten minutes that a steady drift is stated for: as long as a search of some hundred launches."""


class DriftKind(enum.Enum):
    """What the baseline's launches show."""

    TOO_FEW = "too few launches"
    NONE = "none seen"
    STEADY = "steady"
    STEP = "step"


class Drift(NamedTuple):
    """What was found. Changes are of time: above zero, launches become slower."""

    kind: DriftKind
    launches: int
    change: float = 0.0
    """steady: per ten minutes; step: after over before, less one; 0.03 is 3 %"""
    over_run: float = 0.0
    """from the first launch to the last: what a setting would be wronged by if it came last, the other first"""
    first_after: int | None = None
    """of a step: position in the list, from 0, of the first launch behind it"""
    chance: float = 1.0
    """p-value of the stronger of both questions by itself"""

    def in_words(self) -> str:
        """One line: what was found, and what it does to comparisons."""
        if self.kind is DriftKind.TOO_FEW:
            return f"too few baseline launches to see a drift: {self.launches}; {FEWEST_LAUNCHES} are needed"
        if self.kind is DriftKind.NONE:
            return f"no drift seen in {self.launches} baseline launches"
        if self.kind is DriftKind.STEADY:
            found = f"drifting: times change by {self.change:+.1%} per 10 minutes"
            cure = "blocks cancel it"
        else:
            found = (
                f"a step: times change by {self.change:+.1%} at baseline launch {(self.first_after or 0) + 1}"
            )
            cure = "blocks confine it to one block"
        return f"{found}; {cure}, settings measured one after the other could be off by up to {abs(self.over_run):.1%}"


def find_drift(
    log_seconds: ArrayLike,
    at_seconds: ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    rng: np.random.Generator | None = None,
) -> Drift:
    """Drift of the baseline's launches. Both: (launches,), in order of time; the log of a time, and when it was.

    Steady: Mann and Kendall's count of pairs that went up, its size by Theil and Sen's slope. A step: the largest
    t statistic of a split into before and after. Each is given half of the error. When both are seen, the one that
    leaves less of the spread is named, the step paying for its second number (place and height) by Akaike's rule.
    Sources: Mann 1945, Sen 1968, Hawkins 1977.
    """
    values = one_dimension(log_seconds, at_least=0)
    times = one_dimension(at_seconds, at_least=0)
    if values.size != times.size or (np.diff(times) < 0).any():
        raise ValueError("needs one time for each launch, in order")
    if values.size < FEWEST_LAUNCHES or times[0] == times[-1]:
        return Drift(DriftKind.TOO_FEW, values.size)
    orders = _orders(values, np.random.default_rng(0) if rng is None else rng)
    trend, step = _chance(_trends, orders), _chance(_largest_steps, orders)
    allowed = 1 - per_comparison(confidence, 2)
    if min(trend, step) > allowed:
        return Drift(DriftKind.NONE, values.size, chance=min(trend, step))
    slope, first_after = (
        theil_sen_slope(values, times),
        int(_steps(values[None, :]).argmax()) + FEWEST_OF_A_PART,
    )
    height = float(values[first_after:].mean() - values[:first_after].mean())
    if step <= allowed and (
        trend > allowed or _left_by_step(values, first_after) < _left_by_slope(values, times)
    ):
        return Drift(DriftKind.STEP, values.size, math.expm1(height), math.expm1(height), first_after, step)
    over_run = math.expm1(slope * (times[-1] - times[0]))
    return Drift(DriftKind.STEADY, values.size, math.expm1(slope * SECONDS), over_run, None, trend)


def theil_sen_slope(values: ArrayLike, at: ArrayLike) -> float:
    """Median slope of all pairs of launches at different times: one odd launch in four does not move it far.

    Both: (launches,). The same as `scipy.stats.theilslopes`.
    """
    y, x = one_dimension(values, at_least=2), one_dimension(at, at_least=2)
    rise, run = (each[None, :] - each[:, None] for each in (y, x))
    return float(np.median(rise[run > 0] / run[run > 0]))


def _orders(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The observed order first, then all others or random ones. (orders, launches)"""
    if math.factorial(values.size) <= EXACT_UP_TO:
        return np.array(list(itertools.permutations(values)))
    return np.vstack([values, rng.permuted(np.tile(values, (RANDOM_ORDERS, 1)), axis=1)])


def _chance(statistic: Callable[[np.ndarray], np.ndarray], orders: np.ndarray) -> float:
    found = statistic(orders)
    return float(np.mean(found >= found[0] - 1e-9 * abs(found[0])))


def _trends(orders: np.ndarray) -> np.ndarray:
    """Pairs that went up less pairs that went down, without its sign."""
    total = np.zeros(len(orders))
    for gap in range(1, orders.shape[1]):
        total += np.sign(orders[:, gap:] - orders[:, :-gap]).sum(axis=1)
    return np.abs(total)


def _largest_steps(orders: np.ndarray) -> np.ndarray:
    return np.asarray(_steps(orders).max(axis=1))


def _steps(orders: np.ndarray) -> np.ndarray:
    """Per split, from the first allowed one on, how much of the sum of squares it explains. (orders, splits)"""
    count = orders.shape[1]
    before = np.arange(FEWEST_OF_A_PART, count - FEWEST_OF_A_PART + 1)
    sums = np.cumsum(orders - orders.mean(axis=1, keepdims=True), axis=1)[:, before - 1]
    return np.asarray(sums**2 * count / (before * (count - before)))


def _left_by_step(values: np.ndarray, first_after: int) -> float:
    left = sum(
        float(((part - part.mean()) ** 2).sum()) for part in (values[:first_after], values[first_after:])
    )
    return _akaike(left, values.size, numbers=3)


def _left_by_slope(values: np.ndarray, times: np.ndarray) -> float:
    design = np.column_stack([np.ones_like(times), times - times[0]])
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return _akaike(float(((values - fitted) ** 2).sum()), values.size, numbers=2)


def _akaike(squares: float, count: int, *, numbers: int) -> float:
    return count * math.log(max(squares, 1e-300)) + 2 * numbers
