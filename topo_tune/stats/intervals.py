"""Intervals of speed-ups. Times are compared by their logs, and the launch is the unit.

Samples inside one launch share its placement, its connections and its moment, so they are correlated; so
are the sizes of one launch. Both are reduced to one number per launch first, and the interval is taken over
launches.

Logs, because noise on times is multiplicative and because a speed-up of 2 and one of 1/2 are then equally
far from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """An estimate and the two-sided interval around it."""

    center: float
    low: float
    high: float

    def exp(self) -> Interval:
        """From log ratio to ratio; an end beyond the range of a float becomes infinite."""
        return Interval(*(_exp(value) for value in self))


def student_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t distribution; `degrees` may be a fraction (Welch)."""
    # scipy.stats takes more than half a second to import; the special function is the same number.
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def two_sided(confidence: float, degrees: float) -> float:
    """How many standard errors the interval reaches to each side."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1: {confidence}")
    return student_quantile(0.5 + confidence / 2, degrees)


def per_comparison(confidence: float, comparisons: int) -> float:
    """Confidence each of several intervals needs so that all hold together with `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, comparisons)


def mean_interval(values: ArrayLike, confidence: float) -> Interval:
    """Mean of independent values with Student's interval.

    `values`: (launches or blocks,), at least two. Source: Student 1908; the same as
    `scipy.stats.ttest_1samp`.
    """
    array = one_dimension(values, at_least=2)
    mean = float(array.mean())
    half = two_sided(confidence, array.size - 1) * float(array.std(ddof=1)) / math.sqrt(array.size)
    return Interval(mean, mean - half, mean + half)


def paired_speedup(baseline_seconds: ArrayLike, candidate_seconds: ArrayLike, confidence: float) -> Interval:
    """Speed-up of the candidate, paired by block: geometric mean of baseline time over candidate time.

    Both: (blocks,), seconds, launches of one block adjacent in time, so that drift between blocks cancels.
    """
    return mean_interval(_log(baseline_seconds) - _log(candidate_seconds), confidence).exp()


def weighted_speedup(
    baseline_seconds: ArrayLike, candidate_seconds: ArrayLike, shares: Sequence[float], confidence: float
) -> Interval:
    """Speed-up over all sizes: the weighted geometric mean within each block, then an interval over blocks.

    Both: (blocks, sizes), seconds; `shares`: (sizes,), summing to 1. Averaging within the block first keeps
    the correlation between sizes of one launch where it belongs: in the spread between blocks.
    """
    logs = _log(baseline_seconds) - _log(candidate_seconds)
    return mean_interval(logs @ np.asarray(shares, dtype=float), confidence).exp()


def one_dimension(values: ArrayLike, *, at_least: int) -> np.ndarray:
    """`values` as an array of numbers. Raises ValueError unless it is a list of at least `at_least`."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size < at_least:
        raise ValueError(f"needs at least {at_least} values in one dimension, not shape {array.shape}")
    return array


class Difference(NamedTuple):
    """Difference of two means with its interval (Welch), on the scale of the values."""

    interval: Interval
    standard_error: float
    degrees: float


def welch_difference(first: ArrayLike, second: ArrayLike, confidence: float) -> Difference:
    """mean(first) - mean(second) of independent values with unequal variances.

    `first`, `second`: (launches,), at least two each. Source: Welch 1947 with Satterthwaite's degrees of
    freedom; the same as `scipy.stats.ttest_ind(equal_var=False)`.
    """
    one, two = one_dimension(first, at_least=2), one_dimension(second, at_least=2)
    part_one, part_two = float(one.var(ddof=1)) / one.size, float(two.var(ddof=1)) / two.size
    variance = part_one + part_two
    difference = float(one.mean() - two.mean())
    if variance == 0:  # identical values on both sides: nothing to estimate, and 0/0 below
        degrees = float(one.size + two.size - 2)
        return Difference(Interval(difference, difference, difference), 0.0, degrees)
    # Shares of the variance keep the squares away from underflow.
    share_one, share_two = part_one / variance, part_two / variance
    degrees = 1 / (share_one**2 / (one.size - 1) + share_two**2 / (two.size - 1))
    error = math.sqrt(variance)
    half = two_sided(confidence, degrees) * error
    return Difference(Interval(difference, difference - half, difference + half), error, degrees)


def _log(seconds: ArrayLike) -> np.ndarray:
    array = np.asarray(seconds, dtype=float)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ValueError("times must be finite and above zero")
    return np.asarray(np.log(array))


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
