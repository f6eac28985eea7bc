from __future__ import annotations

import math

import numpy as np
import pytest

from topo_tune.stats.intervals import paired_speedup
from topo_tune.stats.needed import launches_to_decide, smallest_visible_change


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
