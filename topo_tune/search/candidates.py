"""The candidates that a search starts from: every single change, and random combinations besides."""

from __future__ import annotations

import random

from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.search import SearchSpace
from topo_tune.search.space import CanMeasure, draw, single_changes

FEWEST_CANDIDATES = 32
"""A search over fewer settings than this could miss what any of the dimensions has to give."""

DRAWS_PER_CANDIDATE = 500
"""Random settings drawn in vain before one gives up looking for another that can be measured."""


def starting_candidates(
    space: SearchSpace, *, seed: int, count: int, can_measure: CanMeasure | None = None
) -> tuple[NcclEnv, ...]:
    """Every single change and random combinations, `count` in all, shuffled; never the default, none twice.

    At least a quarter of `count` are combinations, so many dimensions make it a few more than `count`.
    Fewer only where the back end can measure no more. The same arguments give the same candidates.
    """
    rng = random.Random(f"candidates {seed}")
    singles = tuple(env for env in single_changes(space) if can_measure is None or can_measure(env))
    wanted = max(FEWEST_CANDIDATES, count, len(singles) + count // 4)
    candidates = [*singles, *random_settings(space, rng, wanted - len(singles), can_measure, besides=singles)]
    rng.shuffle(candidates)
    return tuple(candidates)


def random_settings(
    space: SearchSpace,
    rng: random.Random,
    count: int,
    can_measure: CanMeasure | None = None,
    *,
    besides: tuple[NcclEnv, ...] = (),
) -> tuple[NcclEnv, ...]:
    """`count` different random settings that can be measured, other than the default and `besides`."""
    known = {DEFAULTS, *besides}
    found: list[NcclEnv] = []
    draws_left = DRAWS_PER_CANDIDATE * count
    while len(found) < count and draws_left > 0 and space.variables:
        draws_left -= 1
        env = draw(space, rng)
        if env not in known and (can_measure is None or can_measure(env)):
            known.add(env)
            found.append(env)
    return tuple(found)
