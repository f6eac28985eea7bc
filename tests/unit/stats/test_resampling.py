"""Permutations and bootstraps: scipy's numbers, exact small cases, and how often intervals of few values cover."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.stats.resampling import (
    bca_interval,
    percentile_t_interval,
    relabel_chance,
    sign_flip_chance,
)

VALUES = st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=8)
SKEWED = np.array([0.2, 0.5, 0.9, 1.4, 2.2, 3.1, 4.8, 7.7])


@settings(max_examples=40)
@given(VALUES)
def test_flipping_signs_gives_scipys_chance(values: list[float]) -> None:
    expected = scipy.stats.permutation_test((values,), np.sum, permutation_type="samples", vectorized=False)

    # scipy doubles the smaller tail; sign patterns come in pairs, so that is the same, up to its limit of one.
    assert sign_flip_chance(values) == pytest.approx(min(1.0, expected.pvalue))


@settings(max_examples=40)
@given(st.integers(2, 5), st.data())
def test_dealing_anew_gives_scipys_chance(count: int, data: st.DataObject) -> None:
    sides = st.lists(st.floats(-5, 5, width=16), min_size=count, max_size=count)
    first, second = data.draw(sides), data.draw(sides)

    def difference(one: np.ndarray, two: np.ndarray, axis: int) -> np.ndarray:
        return np.mean(one, axis=axis) - np.mean(two, axis=axis)

    expected = scipy.stats.permutation_test((first, second), difference, vectorized=True)

    assert relabel_chance(first, second) == pytest.approx(min(1.0, expected.pvalue))


@pytest.mark.parametrize(("blocks", "least"), [(4, 2 / 16), (6, 2 / 64), (8, 2 / 256), (12, 2 / 4096)])
def test_no_chance_lies_below_that_of_all_signs_alike(blocks: int, least: float) -> None:
    assert sign_flip_chance(np.linspace(1, 2, blocks)) == pytest.approx(least)


def test_four_against_four_that_do_not_overlap_are_two_of_seventy() -> None:
    assert relabel_chance([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]) == pytest.approx(2 / 70)


def test_values_that_are_all_alike_differ_from_nothing() -> None:
    assert (sign_flip_chance([0.0] * 4), relabel_chance([0.1] * 3, [0.1] * 3)) == (1.0, 1.0)


def test_many_values_are_rearranged_at_random_and_give_the_same_chance_again() -> None:
    values = np.random.default_rng(1).normal(0.4, 1.0, 40)
    by_t = scipy.stats.ttest_1samp(values, 0.0).pvalue

    assert sign_flip_chance(values) == sign_flip_chance(values) == pytest.approx(by_t, abs=0.01)


def test_many_values_are_dealt_at_random_and_give_nearly_welchs_chance() -> None:
    first, second = np.random.default_rng(2).normal([[0.0], [0.6]], 1.0, (2, 40))
    by_t = scipy.stats.ttest_ind(first, second, equal_var=False).pvalue

    assert relabel_chance(first, second) == pytest.approx(by_t, abs=0.01)


def test_flipped_signs_of_alike_settings_err_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    chances = np.array([sign_flip_chance(row) for row in rng.standard_t(3, (2000, 8))])

    assert np.mean(chances <= 0.05) == pytest.approx(0.05, abs=0.015)


def test_the_corrected_bootstrap_is_scipys() -> None:
    # Its seed is called by another name from one version to the next; what chance leaves is far below the tolerance.
    expected = scipy.stats.bootstrap(
        (SKEWED,), np.mean, confidence_level=0.9, method="BCa", n_resamples=20_000
    ).confidence_interval
    found = bca_interval(SKEWED, 0.9)

    assert found.center == pytest.approx(SKEWED.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.15)


def test_the_bootstrap_of_t_leans_to_the_side_of_the_tail() -> None:
    found = percentile_t_interval(SKEWED, 0.9)

    assert found.high - found.center > 1.3 * (found.center - found.low)


@pytest.mark.parametrize("method", [percentile_t_interval, bca_interval])
def test_identical_values_have_an_interval_without_width(method: object) -> None:
    assert method([0.5, 0.5, 0.5], 0.99) == (0.5, 0.5, 0.5)  # type: ignore[operator]


@pytest.mark.parametrize("method", [percentile_t_interval, bca_interval])
def test_moving_and_stretching_the_values_moves_and_stretches_the_interval(method: object) -> None:
    one = np.array(method(SKEWED, 0.95))  # type: ignore[operator]
    other = np.array(method(3 + 2 * SKEWED, 0.95))  # type: ignore[operator]

    assert other == pytest.approx(3 + 2 * one)


def test_of_six_values_the_corrected_bootstrap_misses_far_too_often_and_that_of_t_does_not() -> None:
    # The reason why neither it nor any plain percentile decides anything: at 99 % it misses eight in a hundred.
    rng = np.random.default_rng(5)
    rows = rng.normal(0.0, 1.0, (1000, 6))
    missed = {
        method: np.mean([not (ends := method(row, 0.99, rng)).low <= 0 <= ends.high for row in rows])
        for method in (bca_interval, percentile_t_interval)
    }

    assert missed[bca_interval] > 0.05
    assert missed[percentile_t_interval] < 0.025
