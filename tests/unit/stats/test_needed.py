from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from topo_tune.stats.intervals import paired_speedup
from topo_tune.stats.needed import (
    EXPECTED_CVS,
    blocks_to_see,
    launch_noise,
    launches_to_decide,
    smallest_visible_change,
    visible_change,
)


def test_more_blocks_see_smaller_changes() -> None:
    changes = [smallest_visible_change(blocks, 0.05, confidence=0.95) for blocks in (3, 6, 12, 50)]
    assert changes == sorted(changes, reverse=True)


def test_one_block_sees_nothing() -> None:
    assert smallest_visible_change(1, 0.05, confidence=0.95) == math.inf


def test_a_change_of_the_promised_size_is_seen_as_often_as_promised() -> None:
    rng = np.random.default_rng(20260104)
    change = smallest_visible_change(6, 0.05, confidence=0.95, power=0.8)
    noise = np.exp(rng.normal(0.0, 0.05, (3000, 2, 6)))
    seen = np.mean([paired_speedup((1 + change) * base, cand, 0.95).low > 1 for base, cand in noise])
    assert seen == pytest.approx(0.8, abs=0.04)


def test_a_distant_edge_needs_few_launches_and_a_near_one_many() -> None:
    near = launches_to_decide(0.05, 0.01, confidence=0.95)
    far = launches_to_decide(0.05, 0.3, confidence=0.95)
    assert (far, near) == (2, 194)


def test_an_estimate_on_the_edge_is_never_decided() -> None:
    assert launches_to_decide(0.05, 0.0, confidence=0.95) is None


def test_the_direction_of_the_edge_does_not_matter() -> None:
    up, down = (launches_to_decide(0.05, distance, confidence=0.95) for distance in (0.05, -0.05))
    assert up == down


def test_without_launches_the_noise_is_what_is_expected_and_known_to_a_factor_of_three() -> None:
    noise = launch_noise([], expected_cv=0.06)

    assert (noise.cv, noise.launches) == (pytest.approx(0.06), 0)
    assert noise.low == pytest.approx(0.06 * math.sqrt(3 / scipy.stats.chi2.ppf(0.95, 3)))
    assert noise.high == pytest.approx(0.06 * math.sqrt(3 / scipy.stats.chi2.ppf(0.05, 3)))


def test_one_launch_says_nothing_of_the_noise() -> None:
    assert launch_noise([1.0], expected_cv=0.06)[:3] == launch_noise([], expected_cv=0.06)[:3]


def test_many_launches_outweigh_what_is_expected() -> None:
    values = np.random.default_rng(20260105).normal(0.0, 0.02, 400)

    noise = launch_noise(values, expected_cv=0.2)

    assert noise.cv == pytest.approx(0.026, abs=0.003)
    assert noise.high / noise.low < 1.2


def test_the_range_of_the_noise_holds_the_true_one_nine_times_in_ten() -> None:
    rng = np.random.default_rng(20260106)
    # True deviations as they are expected: 0.05, good to three degrees of freedom.
    true = 0.05 * np.sqrt(3 / rng.chisquare(3, 2000))
    noises = [launch_noise(rng.normal(0.0, deviation, 5), expected_cv=0.05) for deviation in true]

    held = np.mean(
        [noise.low <= deviation <= noise.high for noise, deviation in zip(noises, true, strict=True)]
    )
    assert held == pytest.approx(0.9, abs=0.025)


def test_what_a_plan_will_show_is_said_with_its_range_before_a_run() -> None:
    seen = visible_change(12, launch_noise([], expected_cv=0.065), confidence=0.99)

    assert seen.low < seen.change < seen.high
    assert seen.change == pytest.approx(smallest_visible_change(12, 0.065, confidence=0.99))
    assert seen.in_words() == (
        f"12 blocks show a change of {seen.change:.1%} four times in five ({seen.low:.1%} to {seen.high:.1%}); "
        "launches differ by 6.5%, from an expectation"
    )


def test_baseline_launches_behind_a_plan_are_counted() -> None:
    seen = visible_change(6, launch_noise([0.0, 0.05, -0.03, 0.02]), confidence=0.99)

    assert seen.in_words().endswith("from 4 baseline launches")


def test_a_change_beyond_every_setting_is_not_told_to_the_digit() -> None:
    hopeless = visible_change(2, launch_noise([]), confidence=0.999)
    wide = visible_change(2, launch_noise([], expected_cv=0.025), confidence=0.99)

    assert (
        hopeless.in_words()
        == "2 blocks show no change below 1000%; launches differ by 5.0%, from an expectation"
    )
    assert "to more than 1000%); launches" in wide.in_words()


def test_a_noise_that_is_too_large_for_words_makes_an_endless_change_not_an_error() -> None:
    assert visible_change(2, launch_noise([], expected_cv=50.0), confidence=0.99).high == math.inf


@pytest.mark.parametrize(("change", "cv"), [(0.03, 0.025), (0.1, 0.065), (0.05, 0.01)])
def test_the_blocks_that_a_change_needs_are_the_fewest(change: float, cv: float) -> None:
    blocks = blocks_to_see(change, cv, confidence=0.99)

    assert blocks is not None
    assert smallest_visible_change(blocks, cv, confidence=0.99) <= change
    assert smallest_visible_change(blocks - 1, cv, confidence=0.99) > change


def test_a_change_far_below_the_noise_needs_more_blocks_than_anyone_has() -> None:
    assert blocks_to_see(0.001, 0.2, confidence=0.99) is None


@pytest.mark.parametrize("fabric", ["nvlink", "pcie", "infiniband", "roce", "socket"])
def test_every_fabric_has_an_expected_noise(fabric: str) -> None:
    assert 0.01 <= EXPECTED_CVS[fabric] <= 0.1
