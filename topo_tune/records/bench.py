"""Measurements. The launch is the independent unit: one set of processes, one set of NCCL variables, some sizes."""

from __future__ import annotations

import enum
import statistics

import msgspec

from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import NcclEnv


class BenchPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a launch measures."""

    backend: BackendName
    collective: str
    """all_reduce"""
    dtype: str
    sizes_bytes: tuple[int, ...]
    repeats: int = 5
    """samples per size and launch; each sample is the mean over many calls"""
    deadline_seconds: float = 60.0
    """a launch that is still running then is killed"""
    notes: tuple[str, ...] = ()
    """what every reader of numbers made by this plan must be told"""


class TimingMode(enum.Enum):
    """How the calls of a sample were issued."""

    GRAPH = "graph"
    """captured in a CUDA graph, so that the host's launch cost is not in the number"""
    EAGER = "eager"
    """issued one after the other by the host"""
    REPLAY = "replay"
    """drawn from a recorded surface"""


class SizeResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message size of one launch: raw samples, the slowest rank's time each."""

    size_bytes: int
    samples_seconds: tuple[float, ...]
    """per repeat the mean time of one call on the slowest rank"""
    calls_per_sample: int
    mode: TimingMode
    is_correct: bool | None
    """whether every rank saw the exact sum; None: not checked by this back end"""
    warmup_seconds: tuple[float, ...] = ()
    """calls before the first sample, left out of every number"""


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One launch: fresh processes on some nodes with one environment."""

    index: int
    """position in its file, from 0; later launches are later in time"""
    purpose: str
    """baseline, candidate, confirmation, guard-before, guard-after, ..."""
    nodes: tuple[str, ...]
    env: NcclEnv
    """what was put into the launch environment, besides the inventory's own variables"""
    backend: BackendName
    ranks: int
    started_at: str
    """UTC, ISO 8601"""
    wall_seconds: float
    results: tuple[SizeResult, ...] = ()
    error: str | None = None
    """why there is no result: deadline, crash, wrong sum, ..."""
    setup_seconds: tuple[tuple[str, float], ...] = ()
    """(part, seconds) of rank 0's set-up"""
    notes: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether it finished and every checked sum was right."""
        return (
            self.error is None and all(r.is_correct is not False for r in self.results) and bool(self.results)
        )

    def median_seconds(self) -> dict[int, float]:
        """Size in bytes to the median of its samples."""
        return {result.size_bytes: statistics.median(result.samples_seconds) for result in self.results}


class SettingInForce(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NCCL variable as one rank really had it."""

    rank: int
    node: str
    name: str
    value: str
    evidence: str
    """the line of NCCL's log that says so, or the file and line it was read from (replay)"""


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An untimed launch that only asks which NCCL variables reached the ranks."""

    nodes: tuple[str, ...]
    at: str
    """UTC, ISO 8601"""
    ranks: int
    source: str
    """who says so: `nccl log`, `nccl's reading rules (replay)`, or `nobody (gloo)`"""
    settings: tuple[SettingInForce, ...]
    error: str | None = None
    log_of_rank_0: tuple[str, ...] = ()
    """the lines of rank 0's NCCL log about settings, choices and channels; empty unless NCCL itself was asked"""

    def values(self, name: str) -> dict[int, str]:
        """Rank to the value it had; ranks on which the variable was not set are absent."""
        return {setting.rank: setting.value for setting in self.settings if setting.name == name}
