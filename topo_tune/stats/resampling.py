"""Tests and intervals that assume no distribution: permutations and two bootstraps of a mean.

They are second opinions beside Student's interval. What each is worth at 4 to 12 launches was measured:
docs/results/false-wins.md.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike

from topo_tune.stats.intervals import Interval, one_dimension

EXACT_UP_TO = 1 << 14
"""Rearrangements up to which all are counted: 14 blocks, or 8 launches against 8, in some milliseconds."""

RANDOM_REARRANGEMENTS = 9_999
"""Random ones where all are too many. With the observed one they are ten thousand, so one in a hundred is known to a
tenth of itself.
"""

RESAMPLES = 1_999
"""Of a bootstrap: the ends of a 99 % interval are then the tenth from either side."""

SAME = 1e-9
"""Relative difference below which two statistics are the same rearrangement in another order of summing."""


def sign_flip_chance(differences: ArrayLike, rng: np.random.Generator | None = None) -> float:
    """Two-sided p-value of a mean of zero: the share of sign patterns whose mean lies at least as far out.

    `differences`: (blocks,), each symmetric around zero if the sides are alike. All 2**n patterns are counted up to
    14 blocks, random ones beyond. With n blocks it cannot be below 2 / 2**n. Source: Fisher 1935; the same as
    `scipy.stats.permutation_test(permutation_type="samples")`.
    """
    values = one_dimension(differences, at_least=1)
    if 2**values.size <= EXACT_UP_TO:
        bits = np.arange(2**values.size)[:, None] >> np.arange(values.size) & 1
        return _share_as_far((1 - 2 * bits) @ values, float(values.sum()))
    signs = _generator(rng).choice((-1.0, 1.0), (RANDOM_REARRANGEMENTS, values.size))
    return _share_as_far(np.append(signs @ values, values.sum()), float(values.sum()))


def relabel_chance(first: ArrayLike, second: ArrayLike, rng: np.random.Generator | None = None) -> float:
    """Two-sided p-value of equal means: the share of ways to deal the values to the sides that differ as much.

    `first`, `second`: (launches,). All ways are counted up to `EXACT_UP_TO`, random ones beyond. Source: Pitman 1937;
    the same as `scipy.stats.permutation_test(permutation_type="independent")` where sides are equally large.
    """
    one, two = one_dimension(first, at_least=1), one_dimension(second, at_least=1)
    pooled = np.concatenate([one, two])
    pooled = pooled - pooled.mean()  # then the sum over one side says all about the difference of the means
    observed = float(pooled[: one.size].sum())
    if math.comb(pooled.size, one.size) <= EXACT_UP_TO:
        ways = np.array(list(itertools.combinations(range(pooled.size), one.size)))
        return _share_as_far(pooled[ways].sum(axis=1), observed)
    dealt = _generator(rng).permuted(np.tile(pooled, (RANDOM_REARRANGEMENTS, 1)), axis=1)
    return _share_as_far(np.append(dealt[:, : one.size].sum(axis=1), observed), observed)


def percentile_t_interval(
    values: ArrayLike, confidence: float, rng: np.random.Generator | None = None
) -> Interval:
    """Mean with the bootstrap interval of its t statistic (Efron and Tibshirani 1993, section 12.5).

    `values`: (launches or blocks,), at least two. Resamples of identical values have no t statistic; they count as
    infinitely far out, on the side of their mean, so that very few values give a very wide interval.
    """
    array = one_dimension(values, at_least=2)
    mean, error = float(array.mean()), float(array.std(ddof=1)) / math.sqrt(array.size)
    if error == 0:
        return Interval(mean, mean, mean)
    drawn = _resampled(array, rng)
    spread = drawn.std(axis=1, ddof=1) / math.sqrt(array.size)
    shift = drawn.mean(axis=1) - mean
    is_spread = spread > SAME * error  # what rounding leaves of identical values is none
    statistic = np.sort(np.where(is_spread, shift / np.where(is_spread, spread, 1.0), _endless(shift)))
    return Interval(
        mean,
        mean - error * _ranked(statistic, 0.5 + confidence / 2),
        mean - error * _ranked(statistic, 0.5 - confidence / 2),
    )


def bca_interval(values: ArrayLike, confidence: float, rng: np.random.Generator | None = None) -> Interval:
    """Mean with the bias-corrected and accelerated bootstrap interval (Efron 1987).

    `values`: (launches or blocks,), at least two. The same as `scipy.stats.bootstrap(method="BCa")`.
    """
    from scipy.special import ndtr, ndtri

    array = one_dimension(values, at_least=2)
    mean = float(array.mean())
    if array.std() == 0:
        return Interval(mean, mean, mean)
    means = np.sort(_resampled(array, rng).mean(axis=1))
    below = (np.sum(means < mean) + np.sum(means <= mean)) / (2 * means.size)
    bias = float(ndtri(below))
    # The jackknife of a mean: leaving one value out moves the mean against that value.
    pull = array - mean
    acceleration = float((pull**3).sum() / (6 * (pull**2).sum() ** 1.5))
    ends = []
    for probability in (0.5 - confidence / 2, 0.5 + confidence / 2):
        normal = bias + float(ndtri(probability))
        ends.append(float(ndtr(bias + normal / (1 - acceleration * normal))))
    return Interval(mean, float(np.quantile(means, ends[0])), float(np.quantile(means, ends[1])))


def _endless(shift: np.ndarray) -> np.ndarray:
    return np.where(shift == 0, 0.0, np.copysign(math.inf, shift))


def _resampled(array: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    return np.asarray(_generator(rng).choice(array, (RESAMPLES, array.size)))


def _ranked(ordered: np.ndarray, probability: float) -> float:
    """The value of rank probability * (n + 1): a percentile that is never between a number and infinity."""
    rank = round(probability * (ordered.size + 1)) - 1
    return float(ordered[min(max(rank, 0), ordered.size - 1)])


def _share_as_far(statistics: np.ndarray, observed: float) -> float:
    slack = SAME * max(float(np.abs(statistics).max()), 1e-300)
    return float(np.mean(np.abs(statistics) >= abs(observed) - slack))


def _generator(rng: np.random.Generator | None) -> np.random.Generator:
    """A fixed seed unless one is given: the same launches must give the same answer."""
    return np.random.default_rng(0) if rng is None else rng
