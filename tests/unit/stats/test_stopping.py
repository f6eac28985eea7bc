"""Stopping: the plan of looks, what a look answers, and how often looking again errs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from topo_tune.stats.intervals import paired_speedup
from topo_tune.stats.stopping import Answer, Rule, follow, look, plan_looks

NORMAL = np.random.default_rng(20260203).normal(0.0, 0.09, (10_000, 24))


@given(st.integers(2, 300), st.floats(0.8, 0.999), st.integers(1, 5))
def test_looks_rise_to_the_budget_and_share_the_error(
    budget: int, confidence: float, comparisons: int
) -> None:
    rule = plan_looks(budget, confidence=confidence, comparisons=comparisons)

    assert rule.looks[-1] == budget
    assert list(rule.looks) == sorted(set(rule.looks))
    assert sum(1 - each for each in rule.confidences) == pytest.approx((1 - confidence) / comparisons)
    assert len(rule.confidences) == len(rule.looks)


def test_the_default_looks_are_these() -> None:
    assert plan_looks().looks == (4, 6, 9, 12)


def test_a_budget_below_the_first_look_is_looked_at_once() -> None:
    assert plan_looks(3).looks == (3,)


@pytest.mark.parametrize("budget", [1, 0, -3])
def test_a_budget_of_less_than_two_blocks_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match="two blocks"):
        plan_looks(budget)


def test_a_large_gain_ends_at_the_first_look() -> None:
    found = look([0.66, 0.70, 0.68, 0.64], plan_looks())

    assert (found.answer, found.next_look) == (Answer.FASTER, None)
    assert found.speedup.low > 1.5


def test_a_loss_ends_as_slower() -> None:
    assert look([-0.66, -0.70, -0.68, -0.64], plan_looks()).answer is Answer.SLOWER


def test_a_narrow_interval_around_no_change_ends_as_alike() -> None:
    found = look([0.0005, -0.0005, 0.0004, -0.0004], plan_looks())

    assert (found.answer, found.next_look) == (Answer.ALIKE, None)
    assert found.speedup.high < 1.015


def test_a_wide_interval_goes_on_to_the_next_look() -> None:
    found = look([0.1, -0.1, 0.05, 0.0], plan_looks())

    assert (found.answer, found.next_look) == (Answer.GO_ON, 6)
    assert found.speedup.low < 1 < found.speedup.high


@pytest.mark.parametrize(("blocks", "following"), [(0, 4), (1, 4), (3, 4), (5, 6), (7, 9), (11, 12)])
def test_nobody_looks_between_looks(blocks: int, following: int) -> None:
    assert look([0.7] * blocks, plan_looks()) == (Answer.GO_ON, (1.0, 0.0, math.inf), following)


def test_a_spent_budget_ends_as_undecided() -> None:
    assert look(NORMAL[0, :12], plan_looks()).answer is Answer.UNDECIDED


def test_a_run_that_is_cut_short_is_judged_as_the_last_look_would_be() -> None:
    values = [0.10, 0.11, 0.09, 0.12, 0.10]
    expected = paired_speedup(np.exp(values), np.ones(5), plan_looks().confidences[-1])

    found = look(values, plan_looks(), is_last=True)

    assert (found.answer, found.speedup) == (Answer.FASTER, pytest.approx(expected))


@pytest.mark.parametrize("values", [[], [0.5]])
def test_a_run_that_is_cut_short_at_once_is_undecided(values: list[float]) -> None:
    assert look(values, plan_looks(), is_last=True).answer is Answer.UNDECIDED


def test_a_replay_that_repeats_one_launch_proves_nothing() -> None:
    assert look([0.1] * 12, plan_looks()).answer is Answer.UNDECIDED


def test_following_many_comparisons_ends_each_as_its_own_looks_do() -> None:
    rule = plan_looks(24)
    shifted = NORMAL[:60] / 3 + 0.012
    ended = follow(shifted, rule)

    def walked(row: np.ndarray) -> tuple[Answer, int]:
        blocks, found = 0, look([], rule)
        while found.next_look is not None:
            blocks = found.next_look
            found = look(row[:blocks], rule)
        return found.answer, blocks

    assert [walked(row) for row in shifted] == list(zip(ended.answers, ended.blocks, strict=True))
    assert len(set(ended.answers)) > 1


@pytest.mark.parametrize("budget", [4, 12, 24])
def test_alike_settings_are_called_faster_or_slower_no_more_often_than_promised(budget: int) -> None:
    ended = follow(NORMAL[:, :budget], plan_looks(budget))
    wrong = np.sum((ended.answers == Answer.FASTER) | (ended.answers == Answer.SLOWER))

    assert wrong <= scipy.stats.binom.isf(0.001, len(NORMAL), 0.01)


def test_looking_after_every_block_without_sharing_errs_far_more_often() -> None:
    # The mistake that the plan of looks is there to avoid; were it not one, the test above would prove nothing.
    every = Rule(tuple(range(4, 25)), (0.99,) * 21, 0.0)
    wrong = np.mean(follow(NORMAL, every).answers != Answer.UNDECIDED)

    assert wrong > 0.03


def test_several_looks_cost_little_power_and_save_launches() -> None:
    gain = math.log(1.1)
    planned = follow(NORMAL + gain, plan_looks(24))
    single = follow(NORMAL + gain, Rule((24,), (0.99,), 0.0))
    seen = [np.mean(each.answers == Answer.FASTER) for each in (planned, single)]

    assert seen[1] - seen[0] < 0.03
    assert planned.blocks.mean() < 20
