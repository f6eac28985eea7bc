from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from topo_tune.stats.intervals import (
    Interval,
    mean_interval,
    paired_speedup,
    per_comparison,
    student_quantile,
    weighted_speedup,
    welch_difference,
)

VALUES = st.lists(st.floats(-5, 5), min_size=2, max_size=12).filter(lambda v: np.std(v) > 1e-6)


@given(probability=st.floats(0.001, 0.999), degrees=st.floats(1, 60))
def test_the_quantile_is_scipys(probability: float, degrees: float) -> None:
    expected = scipy.stats.t.ppf(probability, degrees)
    assert student_quantile(probability, degrees) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(values=VALUES, confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_of_a_mean_is_scipys(values: list[float], confidence: float) -> None:
    expected = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    interval = mean_interval(values, confidence)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)


@given(first=VALUES, second=VALUES)
def test_the_difference_of_means_is_welchs(first: list[float], second: list[float]) -> None:
    expected = scipy.stats.ttest_ind(first, second, equal_var=False)
    ends = expected.confidence_interval(0.95)
    difference = welch_difference(first, second, 0.95)
    assert difference.degrees == pytest.approx(expected.df, rel=1e-6)
    assert difference.interval[1:] == pytest.approx((ends.low, ends.high), rel=1e-6, abs=1e-9)


def test_identical_values_on_both_sides_give_an_interval_without_width() -> None:
    assert welch_difference([2.0, 2.0], [1.0, 1.0, 1.0], 0.95).interval == Interval(1.0, 1.0, 1.0)


def test_drift_between_blocks_cancels_in_a_paired_comparison() -> None:
    drift = np.array([1.0, 1.5, 2.0, 4.0])
    assert paired_speedup(2e-3 * drift, 1e-3 * drift, 0.99) == pytest.approx((2.0, 2.0, 2.0))


def test_swapping_the_sides_turns_a_speedup_into_its_inverse() -> None:
    one, two = [1.0, 1.2, 1.1], [2.0, 2.1, 2.6]
    forth, back = paired_speedup(one, two, 0.95), paired_speedup(two, one, 0.95)
    assert (1 / back.center, 1 / back.high, 1 / back.low) == pytest.approx(tuple(forth))


def test_the_weighted_speedup_averages_sizes_within_each_block_first() -> None:
    baseline = np.array([[1.0, 4.0], [1.0, 4.0], [1.0, 4.0]])
    # Size one and size two move against each other inside a block: the block's mean does not move at all.
    candidate = np.array([[1.0, 1.0], [2.0, 0.5], [0.5, 2.0]])
    assert weighted_speedup(baseline, candidate, [0.5, 0.5], 0.99) == pytest.approx((2.0, 2.0, 2.0))


def test_a_weighted_speedup_over_one_size_is_the_paired_one() -> None:
    one, two = np.array([1.0, 1.3, 0.9]), np.array([0.8, 1.0, 0.9])
    assert weighted_speedup(one[:, None], two[:, None], [1.0], 0.9) == pytest.approx(
        paired_speedup(one, two, 0.9)
    )


def test_several_comparisons_share_the_allowed_error() -> None:
    assert per_comparison(0.99, 4) == pytest.approx(0.9975)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_that_is_no_probability_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        mean_interval([1.0, 2.0], confidence)


@pytest.mark.parametrize("values", [[], [1.0], [[1.0, 2.0]]])
def test_fewer_than_two_values_have_no_interval(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        mean_interval(values, 0.95)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="times"):
        paired_speedup([1.0, bad], [1.0, 1.0], 0.95)


def test_an_end_beyond_the_range_of_a_float_becomes_infinite() -> None:
    assert Interval(0.0, -1000.0, 1000.0).exp() == (1.0, 0.0, math.inf)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    # 4000 experiments of six blocks, launches with a coefficient of variation of eight per cent, truth 1.2.
    rng = np.random.default_rng(20260101)
    noise = np.exp(rng.normal(0.0, 0.08, (4000, 2, 6)))
    intervals = [paired_speedup(1.2 * base, cand, 0.95) for base, cand in noise]
    covered = np.mean([interval.low <= 1.2 <= interval.high for interval in intervals])
    assert covered == pytest.approx(0.95, abs=0.012)


def test_correlated_sizes_do_not_narrow_the_interval_below_its_promise() -> None:
    # Four sizes that move together inside a launch: taken as independent they would cover far less.
    rng = np.random.default_rng(20260102)
    shared = rng.normal(0.0, 0.08, (4000, 2, 6, 1))
    noise = np.exp(shared + rng.normal(0.0, 0.02, (4000, 2, 6, 4)))
    intervals = [weighted_speedup(base, cand, [0.25] * 4, 0.95) for base, cand in noise]
    covered = np.mean([interval.low <= 1.0 <= interval.high for interval in intervals])
    assert covered == pytest.approx(0.95, abs=0.012)


def test_heavy_tails_do_not_break_the_promise() -> None:
    rng = np.random.default_rng(20260103)
    noise = np.exp(0.08 * rng.standard_t(2.5, (4000, 2, 6)))
    intervals = [paired_speedup(base, cand, 0.95) for base, cand in noise]
    assert np.mean([interval.low <= 1.0 <= interval.high for interval in intervals]) >= 0.94
