"""The recommendation: what to set, what it gives with its interval, and what it holds for."""

from __future__ import annotations

import enum

import msgspec

from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.search import Comparison, SettingEffect


class Advice(enum.Enum):
    """The two answers."""

    CHANGE = "change"
    CHANGE_NOTHING = "change nothing"


class Finalist(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One setting that met the default in fresh, interleaved launches."""

    env: NcclEnv
    mean_speedup: float
    """weighted geometric mean over the sizes"""
    low: float
    high: float
    comparisons: tuple[Comparison, ...]
    is_accepted: bool
    reason: str


class Recommendation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What topo-tune advises, with the evidence."""

    cluster: str
    advice: Advice
    reason: str
    env: NcclEnv
    """the settings to write; empty for `change nothing`"""
    backend: BackendName
    ranks: int
    collective: str
    dtype: str
    confidence: float
    """of every interval in `finalists`, for each single comparison"""
    finalists: tuple[Finalist, ...]
    """everything that was confirmed or refuted, the recommended one first"""
    launches_total: int
    tolerance: float
    """how much slower than the default a weighted size may look and still count as noise: 0.03"""
    fingerprint: tuple[tuple[str, str], ...]
    """what it holds for; void when one of them changes"""
    notes: tuple[str, ...] = ()
    """what a reader must know: replayed numbers, faults put in, what is not done yet"""
    effects: tuple[SettingEffect, ...] = ()
    """what each dimension of `env` brings, beside the same setting without it; empty when that was not measured"""
