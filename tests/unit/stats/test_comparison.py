"""Comparison of settings from measured communicators: what is averaged, what is paired, and how sure the answer is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from topo_tune.stats.comparison import Design, Measured, compare, paired_differences
from topo_tune.stats.intervals import paired_speedup


def blocks_of(order: str, times: list[float], *, length: int = 2) -> list[Measured]:
    """`order`: A is the baseline, B the candidate; one set of processes each, `length` of them a block."""
    return [
        Measured(side == "B", math.log(time), processes=number, block=number // length)
        for number, (side, time) in enumerate(zip(order, times, strict=True))
    ]


def test_blocks_are_compared_pair_by_pair() -> None:
    baseline, candidate = [2.0, 2.2, 1.9], [1.0, 1.3, 1.1]
    measured = blocks_of("ABBAAB", [2.0, 1.0, 1.3, 2.2, 1.9, 1.1])

    found = compare(measured, 0.95)

    assert found.speedup == pytest.approx(paired_speedup(baseline, candidate, 0.95))
    assert (found.design, found.pairs, found.baseline_sets, found.candidate_sets) == (Design.BLOCKS, 3, 3, 3)
    assert found.chance == pytest.approx(2 / 8)


def test_a_block_may_hold_two_launches_of_each_and_a_steady_drift_cancels_in_it() -> None:
    steady = np.exp(0.05 * np.arange(12))
    measured = blocks_of("ABBA" * 3, [float(time) for time in steady], length=4)

    assert compare(measured, 0.99).speedup == pytest.approx((1.0, 1.0, 1.0))


def test_communicators_of_one_set_of_processes_count_once() -> None:
    measured = blocks_of("ABBAAB", [2.0, 1.0, 1.3, 2.2, 1.9, 1.1])
    again = [
        one._replace(log_seconds=one.log_seconds + shift) for one in measured for shift in (-0.1, 0.0, 0.1)
    ]

    assert compare(again, 0.95).speedup == pytest.approx(compare(measured, 0.95).speedup)
    assert compare(again, 0.95).baseline_sets == 3


def test_a_set_with_more_communicators_weighs_no_more_than_another_of_its_side() -> None:
    one_block = [
        Measured(False, 0.0, processes="a", block=1),
        Measured(False, 1.0, processes="b", block=1),
        Measured(False, 1.0, processes="b", block=1),
        Measured(False, 1.0, processes="b", block=1),
        Measured(True, 0.0, processes="c", block=1),
    ]

    assert paired_differences(one_block) == {1: pytest.approx(0.5)}


def test_both_settings_in_one_set_of_processes_are_a_pair_and_the_sets_noise_cancels() -> None:
    noise = [0.0, 0.3, -0.2, 0.1]
    measured = [
        Measured(side, level + (0.0 if side else 0.1), processes=number, block=number // 2)
        for number, level in enumerate(noise)
        for side in (False, True)
    ]

    found = compare(measured, 0.99)

    assert (found.design, found.pairs) == (Design.SAME_PROCESSES, 4)
    assert found.speedup == pytest.approx((math.exp(0.1),) * 3)


def test_a_block_with_one_side_only_is_left_out() -> None:
    whole = blocks_of("ABBAAB", [2.0, 1.0, 1.3, 2.2, 1.9, 1.1])
    lonely = Measured(False, math.log(40.0), processes=6, block=3)

    assert compare([*whole, lonely], 0.95) == compare(whole, 0.95)


def test_without_blocks_the_sides_are_compared_as_welch_does() -> None:
    baseline, candidate = [0.1, 0.3, 0.2], [0.0, -0.1, 0.1, 0.05]
    measured = [
        Measured(side, value, processes=(side, number))
        for side, values in ((False, baseline), (True, candidate))
        for number, value in enumerate(values)
    ]
    ends = scipy.stats.ttest_ind(baseline, candidate, equal_var=False).confidence_interval(0.95)

    found = compare(measured, 0.95)

    assert (found.design, found.pairs, found.baseline_sets, found.candidate_sets) == (
        Design.UNPAIRED,
        0,
        3,
        4,
    )
    assert (math.log(found.speedup.low), math.log(found.speedup.high)) == pytest.approx((ends.low, ends.high))


def test_pairs_that_hold_too_little_of_a_side_are_not_used() -> None:
    paired = blocks_of("ABBAAB", [2.0, 1.0, 1.3, 2.2, 1.9, 1.1])
    alone = [Measured(False, 0.7 + number / 100, processes=10 + number) for number in range(4)]

    assert compare([*paired, *alone], 0.95).design is Design.UNPAIRED


def test_two_pairs_are_too_few_to_be_used_as_pairs() -> None:
    assert compare(blocks_of("ABBA", [2.0, 1.0, 1.3, 2.2]), 0.95).design is Design.UNPAIRED


@pytest.mark.parametrize("measured", [[], blocks_of("AB", [1.0, 2.0])])
def test_too_little_to_compare_is_refused(measured: list[Measured]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        compare(measured, 0.95)


def test_the_interval_covers_the_truth_where_communicators_share_their_sets_noise() -> None:
    # Three communicators a set that agree within 1 %, sets that differ by 6 %: taken one by one, they would cover half.
    rng = np.random.default_rng(20260201)
    order = "ABBAABBAABBA"

    def covers() -> bool:
        sets = rng.normal(0.0, 0.06, len(order))
        times = [
            Measured(
                side == "B",
                level + rng.normal(0.0, 0.01) - (0.1 if side == "B" else 0.0),
                number,
                number // 2,
            )
            for number, (side, level) in enumerate(zip(order, sets, strict=True))
            for _ in range(3)
        ]
        speedup = compare(times, 0.95).speedup
        return speedup.low <= math.exp(0.1) <= speedup.high

    assert np.mean([covers() for _ in range(1500)]) == pytest.approx(0.95, abs=0.018)
