"""The seam of search strategies: suggest settings, hear how they did, name the finalists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from topo_tune.records.nccl_env import NcclEnv


class Trial(msgspec.Struct, frozen=True):
    """One launch of one setting: its score, or None when the launch failed."""

    env: NcclEnv
    score: float | None
    """weighted mean of log speed-up over neighbouring baselines, less a penalty for slower sizes"""
    gains: tuple[tuple[int, float], ...] = ()
    """(size in bytes, log speed-up) of every size that was measured"""


Objective = Callable[[Mapping[int, float]], float]
"""Size in bytes to log speed-up -> score, as in a Trial."""


class Strategy(Protocol):
    """Decides what to launch next. Deterministic: same seed, same trials, same suggestions."""

    def suggest(self) -> tuple[NcclEnv, ...]:
        """The next settings to launch once each, in order; empty when the search is over."""

    def update(self, trials: tuple[Trial, ...]) -> None:
        """Hear the results of the last suggestion, in the same order."""

    def phase(self) -> str:
        """A short name of the phase that the last suggestion belongs to."""

    def finalists(self, count: int) -> tuple[NcclEnv, ...]:
        """The best settings so far, best first; never NCCL's default."""
