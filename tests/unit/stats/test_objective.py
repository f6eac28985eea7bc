from __future__ import annotations

import math

import pytest

from topo_tune.stats.objective import mean_log_seconds, shares


def test_no_weights_weigh_every_size_the_same() -> None:
    assert shares((8192, 131072), {}) == {8192: 0.5, 131072: 0.5}


def test_shares_sum_to_one_whatever_the_scale_of_the_weights() -> None:
    assert shares((1, 2, 4), {1: 3.0, 2: 1.0, 4: 0.0}) == {1: 0.75, 2: 0.25}


def test_a_size_that_the_weights_do_not_name_weighs_nothing() -> None:
    assert shares((1, 2), {2: 5.0}) == {2: 1.0}


@pytest.mark.parametrize("weights", [{1: -1.0, 2: 2.0}, {1: math.nan}, {1: math.inf}, {1: 0.0}, {7: 1.0}])
def test_weights_that_weigh_nothing_or_less_are_refused(weights: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        shares((1, 2), weights)


def test_the_mean_is_the_log_of_the_weighted_geometric_mean() -> None:
    assert mean_log_seconds({1: 2.0, 2: 8.0}, {1: 0.5, 2: 0.5}) == pytest.approx(math.log(4.0))


def test_a_size_outside_the_shares_does_not_count() -> None:
    assert mean_log_seconds({1: 1.0, 2: 99.0}, {1: 1.0}) == 0.0


@pytest.mark.parametrize("seconds", [{}, {1: 0.0}, {1: -1.0}, {1: math.nan}, {1: math.inf}])
def test_a_launch_without_a_time_at_a_weighted_size_has_no_mean(seconds: dict[int, float]) -> None:
    assert mean_log_seconds(seconds, {1: 1.0}) is None
