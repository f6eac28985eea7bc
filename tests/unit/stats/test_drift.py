"""Drift of the baseline: steady, in a step, or none, and what is said about it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.stats.drift import DriftKind, find_drift, theil_sen_slope

MINUTES = 60.0


def noise(launches: int, seed: int = 1, spread: float = 0.02) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, spread, launches)


def test_a_steady_drift_is_found_with_its_size() -> None:
    at = np.arange(20) * MINUTES
    found = find_drift(noise(20) + math.log(1.08) * at / (10 * MINUTES), at)

    assert found.kind is DriftKind.STEADY
    assert found.change == pytest.approx(0.08, abs=0.02)
    assert found.over_run == pytest.approx(1.08**1.9 - 1, abs=0.04)
    assert found.in_words().startswith(
        f"drifting: times change by {found.change:+.1%} per 10 minutes; blocks cancel it"
    )


def test_launches_that_become_faster_drift_downwards() -> None:
    at = np.arange(12) * MINUTES

    assert find_drift(noise(12, spread=0.01) - 0.02 * np.arange(12), at).change < 0


def test_a_step_is_found_with_its_height_and_place() -> None:
    at = np.arange(20) * MINUTES
    found = find_drift(noise(20) + np.where(np.arange(20) >= 13, math.log(1.1), 0.0), at)

    assert (found.kind, found.first_after) == (DriftKind.STEP, 13)
    assert found.change == pytest.approx(0.1, abs=0.03)
    assert "a step: times change by" in found.in_words()
    assert "at baseline launch 14; blocks confine it to one block" in found.in_words()


def test_no_drift_is_said_to_be_none() -> None:
    found = find_drift(noise(20), np.arange(20) * MINUTES)

    assert found.kind is DriftKind.NONE
    assert found.in_words() == "no drift seen in 20 baseline launches"


@pytest.mark.parametrize("launches", [0, 1, 5])
def test_few_launches_say_nothing(launches: int) -> None:
    found = find_drift(np.arange(launches), np.arange(launches))

    assert found.kind is DriftKind.TOO_FEW
    assert found.in_words() == f"too few baseline launches to see a drift: {launches}; 6 are needed"


def test_six_launches_that_only_rise_are_enough() -> None:
    assert find_drift([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], np.arange(6) * MINUTES).kind is DriftKind.STEADY


def test_launches_of_one_moment_have_no_course() -> None:
    assert find_drift(np.arange(8.0), np.zeros(8)).kind is DriftKind.TOO_FEW


def test_identical_times_do_not_drift() -> None:
    assert find_drift(np.ones(9), np.arange(9.0)).kind is DriftKind.NONE


def test_one_odd_launch_is_neither_a_drift_nor_a_step() -> None:
    values = noise(20)
    values[11] += 0.5

    assert find_drift(values, np.arange(20) * MINUTES).kind is DriftKind.NONE


def test_the_same_launches_give_the_same_answer() -> None:
    values, at = noise(15), np.arange(15.0)

    assert find_drift(values, at) == find_drift(values, at)


@pytest.mark.parametrize(("values", "at"), [([1.0, 2.0], [1.0]), ([1.0, 2.0], [2.0, 1.0])])
def test_times_that_do_not_belong_to_launches_are_refused(values: list[float], at: list[float]) -> None:
    with pytest.raises(ValueError, match="one time for each launch"):
        find_drift(values, at)


@settings(max_examples=40)
@given(st.lists(st.floats(-5, 5), min_size=3, max_size=15))
def test_the_slope_is_scipys(values: list[float]) -> None:
    at = np.cumsum(1 + np.arange(len(values)) % 3)

    assert theil_sen_slope(values, at) == pytest.approx(scipy.stats.theilslopes(values, at).slope)


def test_the_order_of_alike_launches_raises_the_alarm_as_seldom_as_promised() -> None:
    # 600 runs of 10 launches, heavy tails: one in a hundred may be said to drift.
    rng = np.random.default_rng(20260202)
    at = np.arange(10.0)
    alarms = sum(find_drift(row, at).kind is not DriftKind.NONE for row in rng.standard_t(3, (600, 10)))

    assert alarms <= scipy.stats.binom.isf(0.001, 600, 0.01)
