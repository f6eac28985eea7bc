"""Successive halving: launch everything once, keep the better part, launch that again, until a few are left.

A launch is dear and noisy, and most settings are clearly worse than the default. So one launch is enough to
drop most of them, and the launches saved go to the few that look alike. Source: Jamieson and Talwalkar 2016,
"Non-stochastic best arm identification" (arXiv:1502.07943), with rounds of one launch each.
"""

from __future__ import annotations

import math
import random

from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.search import SearchSpace
from topo_tune.search.candidates import starting_candidates
from topo_tune.search.space import CanMeasure
from topo_tune.search.strategies.interface import Objective, Trial

LAST_ROUND = 4
"""Candidates in the last round, and rounds: each of the last ones has been launched four times."""


class Halving:
    """Rounds of one launch each over fewer and fewer candidates. A candidate that fails once is out."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        budget: int,
        can_measure: CanMeasure | None = None,
        objective: Objective | None = None,
    ) -> None:
        self._rng = random.Random(f"rounds {seed}")
        self._alive = starting_candidates(space, seed=seed, count=budget, can_measure=can_measure)
        self._sizes = round_sizes(len(self._alive))
        self._round = 0
        self._scores: dict[NcclEnv, list[float]] = {}

    def suggest(self) -> tuple[NcclEnv, ...]:
        """Those still in, each once, in a new random order."""
        if self._round == len(self._sizes):
            return ()
        best = self._ranked(self._alive)[: self._sizes[self._round]] if self._round else self._alive
        self._round += 1
        self._alive = tuple(self._rng.sample(best, len(best)))
        return self._alive

    def update(self, trials: tuple[Trial, ...]) -> None:
        """Add the scores; a failure takes the candidate out for good."""
        for trial in trials:
            if trial.score is None:
                self._alive = tuple(env for env in self._alive if env != trial.env)
                self._scores.pop(trial.env, None)
            else:
                self._scores.setdefault(trial.env, []).append(trial.score)

    def phase(self) -> str:
        """`screen-1`, `screen-2`, ..."""
        return f"screen-{max(1, self._round)}"

    def finalists(self, count: int) -> tuple[NcclEnv, ...]:
        """Those launched most often, and among them the best mean score; never one that failed."""
        return self._ranked(tuple(self._scores))[:count]

    def _ranked(self, envs: tuple[NcclEnv, ...]) -> tuple[NcclEnv, ...]:
        # The setting itself breaks ties, so that the order never hangs on the order of arrival.
        def key(env: NcclEnv) -> tuple[int, float, NcclEnv]:
            scores = self._scores[env]
            return (-len(scores), -math.fsum(scores) / len(scores), env)

        return tuple(sorted(envs, key=key))


def round_sizes(candidates: int) -> tuple[int, ...]:
    """How many candidates each round launches: all, a third, a sixth, four. Empty when there are none."""
    if candidates == 0:
        return ()
    shrinking = (candidates, math.ceil(candidates / 3), math.ceil(candidates / 6), LAST_ROUND)
    return tuple(min(candidates, max(LAST_ROUND, size)) for size in shrinking)
