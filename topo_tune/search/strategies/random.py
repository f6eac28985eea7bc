"""Plain random search: as many launches as halving spends, each on another setting. For comparison."""

from __future__ import annotations

import random

from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.search import SearchSpace
from topo_tune.search.candidates import random_settings
from topo_tune.search.space import CanMeasure
from topo_tune.search.strategies.halving import round_sizes
from topo_tune.search.strategies.interface import Objective, Trial


class Random:
    """One round of random settings, each launched once."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        budget: int,
        can_measure: CanMeasure | None = None,
        objective: Objective | None = None,
    ) -> None:
        rng = random.Random(f"random {seed}")
        self._waiting = random_settings(space, rng, sum(round_sizes(budget)), can_measure)
        self._scores: dict[NcclEnv, float] = {}

    def suggest(self) -> tuple[NcclEnv, ...]:
        """All of them at once, then nothing."""
        suggestion, self._waiting = self._waiting, ()
        return suggestion

    def update(self, trials: tuple[Trial, ...]) -> None:
        """Remember the scores of those that finished."""
        self._scores.update({trial.env: trial.score for trial in trials if trial.score is not None})

    def phase(self) -> str:
        """Always `screen-1`."""
        return "screen-1"

    def finalists(self, count: int) -> tuple[NcclEnv, ...]:
        """The best scores of one launch each."""
        return tuple(sorted(self._scores, key=lambda env: (-self._scores[env], env))[:count])
