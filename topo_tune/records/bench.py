"""Measurements. The launch is the independent unit: one set of processes, one set of NCCL variables, some sizes."""

from __future__ import annotations

import enum
import statistics

import msgspec

from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import NcclEnv


class Collective(enum.Enum):
    """A collective by nccl-tests' name for it; `size` means what nccl-tests means by it."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    """size: what every rank ends up with; a rank sends its part of it"""
    REDUCE_SCATTER = "reduce_scatter"
    """size: what every rank brings; it ends up with its part"""
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "alltoall"
    """size: what every rank sends to all together, itself included"""
    SEND_RECV = "sendrecv"
    """every rank sends to the next one and receives from the one before"""


class Layout(enum.Enum):
    """Which ranks form a communicator. All communicators of a layout run at the same time."""

    WORLD = "world"
    """every rank"""
    WITHIN_NODE = "node"
    """the ranks of one node"""
    RAILS = "rails"
    """the ranks of one number, one of each node: what a rail-aligned network carries"""
    PAIRS = "pairs"
    """rank 0 and 1, 2 and 3, ..."""


class BenchPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a launch measures."""

    backend: BackendName
    collective: str
    """a value of `Collective`"""
    dtype: str
    """torch's name: bfloat16, float16, float32, int8, float8_e4m3fn, float8_e5m2"""
    sizes_bytes: tuple[int, ...]
    repeats: int = 5
    """samples per size and launch; each sample is the mean over many calls"""
    deadline_seconds: float = 60.0
    """a launch, or one setting of several in a launch, that is still running then is killed"""
    notes: tuple[str, ...] = ()
    """what every reader of numbers made by this plan must be told"""
    layout: Layout = Layout.WORLD
    in_place: bool = True
    single_calls: int = 0
    """calls timed one by one, for P99; 0: none"""
    overlap: bool = False
    """also measure under a matrix product that keeps the GPU busy"""
    slowest_seconds: tuple[tuple[int, float], ...] = ()
    """(size in bytes, seconds): a setting whose warm-up call takes longer is cut off there"""


class TimingMode(enum.Enum):
    """How the calls of a sample were issued."""

    GRAPH = "graph"
    """captured in a CUDA graph, so that the host's launch cost is not in the number"""
    EAGER = "eager"
    """issued one after the other by the host"""
    REPLAY = "replay"
    """drawn from a recorded surface"""
    NCCL_TESTS = "nccl-tests"
    """as the nccl-tests binary measured it"""


class Overlap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collective and a matrix product beside each other: what each costs the other."""

    compute_alone_seconds: float
    """one product, nothing beside it"""
    compute_beside_seconds: float
    """one product while collectives run"""
    collective_beside_seconds: float
    """one call while products run"""


class SizeResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message size of one launch: raw samples, the slowest rank's time each."""

    size_bytes: int
    samples_seconds: tuple[float, ...]
    """per repeat the mean time of one call on the slowest rank; empty where it was cut off"""
    calls_per_sample: int
    mode: TimingMode
    is_correct: bool | None
    """whether every rank saw the exact result; None: not checked by this back end"""
    warmup_seconds: tuple[float, ...] = ()
    """calls before the first sample, left out of every number"""
    single_seconds: tuple[float, ...] = ()
    """calls timed one by one, the slowest rank's time each"""
    slower_than_seconds: float | None = None
    """a warm-up call took longer than this, and nothing more was measured"""
    overlap: Overlap | None = None


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
    collective: str = "all_reduce"
    dtype: str = ""
    """empty in records before it was kept"""
    layout: Layout = Layout.WORLD
    in_place: bool = True
    processes: int | None = None
    """number of the set of processes it ran in; settings that share one are communicators made one after the other.
    None: it had processes of its own"""
    in_force: tuple[tuple[str, str], ...] = ()
    """NCCL variables in the ranks' own environment during the measurement, read after the communicator was made"""
    communicator_ranks: int | None = None
    """ranks of one communicator of the layout, on which bus bandwidth depends; None: all of them"""

    @property
    def is_usable(self) -> bool:
        """Whether it finished and every checked sum was right."""
        return (
            self.error is None
            and bool(self.results)
            and all(r.is_correct is not False and bool(r.samples_seconds) for r in self.results)
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
