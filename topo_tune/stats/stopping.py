"""When to stop measuring: the answer is clear, the interval is narrow enough, or the budget is spent.

Whoever looks at the interval after each launch and stops at the first that excludes "no change" is wrong far more
often than the interval promises. So the looks are planned before, and share the error that one look would be allowed.
By the union bound the promise then holds for any dependence between the looks.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from topo_tune.stats.intervals import Interval, per_comparison, two_sided

FIRST_LOOK = 4
"""Blocks before the first look: with three, the interval that is left for a first look is more than ten standard
errors wide to each side.
"""

GROWTH = 1.5
"""Blocks at a look over blocks at the look before it. Half more launches narrow an interval by a fifth: less would
spend error on looks that show the same again.
"""

CONFIDENCE = 0.99
"""Of all looks together, two-sided: half a per cent of equal settings would be called faster, if launches differed by
the normal distribution. The promise is one per cent; the other half is for launches that do not.
"""

BUDGET = 12
"""Blocks at most: 24 launches. A gain of 10 % over TCP is then seen more often than not, and one of 5 % over NVLink
nine times in ten (docs/results/false-wins.md).
"""

SPENDING = 2.0
"""Power of the share of the budget by which error is spent."""

NARROW_ENOUGH = 0.015
"""Half of the three per cent that the smallest gain worth a change has (`recommend`'s `--minimum-gain`): a true gain of
that size is then seen, as a rule, before the interval is this narrow.
"""

NO_SPREAD = 1e-9
"""Spread of log ratios below which they repeat one another, as a replay of one launch does. Measurements do not, and a
repeated launch is no evidence of precision: such an interval is taken as endless.
"""


class Answer(enum.Enum):
    """What a look says."""

    FASTER = "faster"
    """the candidate's interval lies above no change"""
    SLOWER = "slower"
    """it lies below"""
    ALIKE = "alike"
    """it holds no change, and is narrow enough to stop"""
    UNDECIDED = "undecided"
    """it holds no change, is wide, and the budget is spent"""
    GO_ON = "go on"
    """measure up to the next look"""


class Rule(NamedTuple):
    """A plan of looks. `confidences` belong to `looks` one by one."""

    looks: tuple[int, ...]
    """blocks after which the interval is looked at; the last is the budget"""
    confidences: tuple[float, ...]
    """two-sided, of the interval at each look"""
    narrow_enough: float
    """half-width of the speed-up's interval at which no more is measured; 0.015 is 1.5 %"""


class Look(NamedTuple):
    """One look at the blocks so far."""

    answer: Answer
    speedup: Interval
    """endless before the first look"""
    next_look: int | None
    """blocks to have before looking again; None: stop"""


def plan_looks(
    budget: int = BUDGET,
    *,
    confidence: float = CONFIDENCE,
    comparisons: int = 1,
    narrow_enough: float = NARROW_ENOUGH,
    first_look: int = FIRST_LOOK,
) -> Rule:
    """Looks that end at `budget` blocks and together keep `confidence`. Raises ValueError for fewer than two blocks.

    `comparisons`: candidates that are judged beside this one; they share the error (Bonferroni). Up to a look, error is
    spent by the square of the share of the budget: late looks, where most launches were spent, keep nearly the power
    that a single look has, and a large gain is still seen early. Spending over time: Lan and DeMets 1983; by a power
    of it: Kim and DeMets 1987. Why the square: docs/explanation/how-numbers-are-compared.md.
    """
    if budget < 2:
        raise ValueError(f"needs at least two blocks to look at, not {budget}")
    looks = [min(first_look, budget)]
    while looks[-1] < budget:
        following = math.ceil(GROWTH * looks[-1])
        # A last look just behind another one would cost error and show the same.
        looks.append(budget if following * (1 + GROWTH) / 2 > budget else following)
    error = 1 - per_comparison(confidence, comparisons)
    shares = np.diff([0.0, *((count / budget) ** SPENDING for count in looks)])
    return Rule(tuple(looks), tuple(float(1 - error * share) for share in shares), narrow_enough)


def look(differences: ArrayLike, rule: Rule, *, is_last: bool = False) -> Look:
    """What the blocks so far say. `differences`: (blocks,), each the log of a speed-up, in order of time.

    Between two planned looks, and before the first, the answer is to go on. `is_last`: nothing more can be measured,
    so what is there is judged as the last look would be, whatever its number.
    """
    values = np.asarray(differences, dtype=float)
    endless = Interval(1.0, 0.0, math.inf)
    if is_last or values.size >= rule.looks[-1]:
        if values.size < 2:
            return Look(Answer.UNDECIDED, endless, None)
        low, high = _ends(values[None, :], rule.confidences[-1])
        answer = _answers(low, high, rule, is_last=True)[0]
        return Look(answer, _interval(values, low, high), None)
    following = next(blocks for blocks in rule.looks if blocks > values.size)
    if values.size not in rule.looks:
        return Look(Answer.GO_ON, endless, following)
    low, high = _ends(values[None, :], rule.confidences[rule.looks.index(values.size)])
    answer = _answers(low, high, rule, is_last=False)[0]
    return Look(answer, _interval(values, low, high), following if answer is Answer.GO_ON else None)


class Ended(NamedTuple):
    """Many comparisons, each followed until it stopped. Both: (comparisons,)."""

    answers: np.ndarray
    """of `Answer`"""
    blocks: np.ndarray
    """used, of each side one launch"""


def follow(differences: ArrayLike, rule: Rule) -> Ended:
    """What `look` says in the end, for many comparisons at once. `differences`: (comparisons, blocks of the budget)."""
    values = np.asarray(differences, dtype=float)
    answers = np.full(len(values), Answer.GO_ON, dtype=object)
    blocks = np.zeros(len(values), dtype=int)
    for count, confidence in zip(rule.looks, rule.confidences, strict=True):
        open_ones = np.flatnonzero(answers == Answer.GO_ON)
        low, high = _ends(values[open_ones, :count], confidence)
        answers[open_ones] = _answers(low, high, rule, is_last=count == rule.looks[-1])
        blocks[open_ones] = count
    return Ended(answers, blocks)


def _ends(values: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Student's interval of each row's mean; endless where the row repeats one value."""
    count = values.shape[1]
    mean, spread = values.mean(axis=1), values.std(axis=1, ddof=1)
    half = np.where(
        spread > NO_SPREAD, two_sided(confidence, count - 1) * spread / math.sqrt(count), math.inf
    )
    return mean - half, mean + half


def _answers(low: np.ndarray, high: np.ndarray, rule: Rule, *, is_last: bool) -> np.ndarray:
    is_narrow = (high - low) / 2 <= math.log1p(rule.narrow_enough)
    otherwise = Answer.UNDECIDED if is_last else Answer.GO_ON
    answers = np.full(low.shape, otherwise, dtype=object)
    answers[is_narrow] = Answer.ALIKE
    answers[low > 0] = Answer.FASTER
    answers[high < 0] = Answer.SLOWER
    return answers


def _interval(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> Interval:
    return Interval(float(values.mean()), float(low[0]), float(high[0])).exp()
