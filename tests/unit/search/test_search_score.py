from __future__ import annotations

import math

import pytest

from topo_tune.search.score import PENALTY, BaselineLaunch, baseline_log_seconds, score

HALVES = {1: 0.5, 2: 0.5}


def scored(first: float, second: float, shares: dict[int, float] = HALVES) -> float:
    """Score of a candidate whose times are these multiples of the default's."""
    return score({1: first, 2: second}, {1: 0.0, 2: 0.0}, shares, tolerance=0.03)


def test_the_default_itself_scores_nothing() -> None:
    assert scored(1.0, 1.0) == 0.0


def test_half_the_time_scores_the_log_of_two() -> None:
    assert scored(0.5, 0.5) == pytest.approx(math.log(2))


def test_a_size_within_the_tolerance_costs_no_penalty() -> None:
    assert scored(0.5, 1.03) == pytest.approx((math.log(2) - math.log(1.03)) / 2)


def test_a_size_beyond_the_tolerance_costs_a_multiple_of_what_is_beyond() -> None:
    plain = (math.log(2) - math.log(1.2)) / 2
    assert scored(0.5, 1.2) == pytest.approx(plain - PENALTY * math.log(1.2 / 1.03))


def test_a_size_without_a_share_counts_in_neither_part() -> None:
    assert scored(0.5, 9.0, {1: 1.0}) == pytest.approx(math.log(2))


BASELINES = [BaselineLaunch(0, {1: 1.0}), BaselineLaunch(4, {1: math.e}), BaselineLaunch(6, {1: math.e**3})]


@pytest.mark.parametrize(
    ("position", "expected"), [(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (5, 2.0), (6, 3.0), (9, 3.0)]
)
def test_the_baseline_lies_on_the_line_between_its_neighbours(position: int, expected: float) -> None:
    assert baseline_log_seconds(BASELINES, position)[1] == pytest.approx(expected)


def test_before_the_first_baseline_the_first_one_holds() -> None:
    assert baseline_log_seconds(BASELINES[1:], 0)[1] == pytest.approx(1.0)


def test_a_single_baseline_holds_everywhere() -> None:
    assert [baseline_log_seconds(BASELINES[:1], position)[1] for position in (0, 5)] == [0.0, 0.0]
