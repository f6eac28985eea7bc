"""Comparison of two settings from measured communicators: sets of processes are the unit, pairs where there are pairs.

Communicators of one set of processes share its placement and its moment, so they are averaged first. Sets that stand
side by side in time form a block; a block of four in the order ABBA is one, too. What is compared is one difference a
block, or a set of processes that held both settings, and a steady drift cancels in it.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from topo_tune.stats.intervals import Interval, mean_interval, welch_difference
from topo_tune.stats.resampling import relabel_chance, sign_flip_chance

FEWEST_PAIRS = 3
"""Pairs below which sides are compared as a whole: with two, Student's interval is 64 standard errors wide to each
side at 99 %.
"""


class Measured(NamedTuple):
    """One communicator's time."""

    is_candidate: bool
    log_seconds: float
    """of one size, or the weighted mean over sizes (`objective.mean_log_seconds`)"""
    processes: Hashable
    """which set of processes it ran in"""
    block: Hashable = None
    """which sets stood side by side in time; None: no plan says so"""


class Design(enum.Enum):
    """What the sides have in common, and so what is compared with what."""

    SAME_PROCESSES = "same processes"
    """both settings in one set of processes, one difference a set"""
    BLOCKS = "blocks"
    """sets of processes side by side in time, one difference a block"""
    UNPAIRED = "unpaired"
    """two heaps of sets of processes; drift between them counts as a difference"""


class Comparison(NamedTuple):
    """The candidate against the baseline."""

    speedup: Interval
    """baseline time over candidate time: above 1, the candidate is faster"""
    design: Design
    pairs: int
    """differences behind the interval; 0 if unpaired"""
    baseline_sets: int
    candidate_sets: int
    """sets of processes that the interval rests on"""
    chance: float
    """two-sided p-value by permutation: a second opinion that assumes no distribution"""


def compare(measured: Sequence[Measured], confidence: float) -> Comparison:
    """Speed-up of the candidate with its interval: Student's over pairs, or Welch's where there are too few pairs.

    Sets of processes that held both settings are pairs before blocks are. Pairs are used from `FEWEST_PAIRS` on,
    when they hold at least half of the sets of each side; the other sets are left out then. Raises ValueError with
    fewer than two sets on a side of an unpaired comparison.
    """
    in_same_processes = [one._replace(block=one.processes) for one in measured]
    for design, blocked in ((Design.SAME_PROCESSES, in_same_processes), (Design.BLOCKS, measured)):
        pairs = paired_differences(blocked)
        held = [one for one in blocked if one.block in pairs]
        if len(pairs) >= FEWEST_PAIRS and all(
            2 * had >= has for had, has in zip(_sets(held), _sets(measured), strict=True)
        ):
            interval = mean_interval(list(pairs.values()), confidence).exp()
            return Comparison(
                interval, design, len(pairs), *_sets(held), sign_flip_chance(list(pairs.values()))
            )
    baseline, candidate = (_means_of_sets(_side(measured, side)) for side in (False, True))
    interval = welch_difference(baseline, candidate, confidence).interval.exp()
    chance = relabel_chance(baseline, candidate)
    return Comparison(interval, Design.UNPAIRED, 0, len(baseline), len(candidate), chance)


def paired_differences(measured: Iterable[Measured]) -> dict[Hashable, float]:
    """Block to baseline less candidate, in the order of the blocks: each the log of a speed-up.

    A side of a block is the mean over its sets of processes, and a set the mean over its communicators. Blocks that
    hold one side only are left out.
    """
    blocks: dict[Hashable, list[Measured]] = {}
    for one in measured:
        if one.block is not None:
            blocks.setdefault(one.block, []).append(one)
    sides = {
        block: [_means_of_sets(_side(held, side)) for side in (False, True)] for block, held in blocks.items()
    }
    return {
        block: float(np.mean(baseline) - np.mean(candidate))
        for block, (baseline, candidate) in sides.items()
        if baseline and candidate
    }


def _means_of_sets(measured: Iterable[Measured]) -> list[float]:
    sets: dict[Hashable, list[float]] = {}
    for one in measured:
        sets.setdefault(one.processes, []).append(one.log_seconds)
    return [float(np.mean(values)) for values in sets.values()]


def _side(measured: Iterable[Measured], is_candidate: bool) -> list[Measured]:
    return [one for one in measured if one.is_candidate is is_candidate]


def _sets(measured: Iterable[Measured]) -> tuple[int, int]:
    """How many sets of processes measured the baseline, and the candidate."""
    sets = {(one.is_candidate, one.processes) for one in measured}
    candidates = sum(is_candidate for is_candidate, _ in sets)
    return len(sets) - candidates, candidates
