"""Lines of a recorded surface: a head with the facts of the machine, then one row a communicator.

docs/reference/surface-format.md describes them for whoever writes or reads such files by other means.
"""

from __future__ import annotations

import msgspec

from topo_tune.records.bench import Launch, Layout, SizeResult

VERSION = 2
"""1 knew one collective a file, and minimum, median and maximum of samples only; its lines are lines of 2 as well"""

MICROSECOND = 1e-6
_DIGITS = 3
"""of a time in microseconds: clocks on GPUs tick in steps of 0.5 us to 0.03 us"""


class SurfaceHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line: what was measured on."""

    surface: str
    version: int
    facts: dict[str, str]
    collective: str = "all_reduce"
    """of rows that name none"""


class RowOverlap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collective and a matrix product beside each other, in microseconds."""

    compute_alone_us: float
    compute_beside_us: float
    collective_beside_us: float


class RowSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message size of a row, in microseconds: samples, or of samples that were not kept their summary."""

    size_bytes: int
    timing: str
    """how the calls of a sample were issued: graph, eager (`loop` in older files), 1shot, nccl-tests"""
    times_us: tuple[float, ...] = ()
    """samples in the order in which they were taken, each the mean of `calls` calls on the slowest rank"""
    median_us: float | None = None
    min_us: float | None = None
    max_us: float | None = None
    calls: int = 0
    warmup_us: tuple[float, ...] = ()
    single_us: tuple[float, ...] = ()
    slower_than_us: float | None = None
    correct: bool | None = None
    overlap: RowOverlap | None = None

    def seconds(self) -> tuple[float, ...]:
        """The samples in seconds; of a summary, five that have its minimum, median and maximum."""
        if self.times_us or self.min_us is None or self.median_us is None or self.max_us is None:
            return tuple(time * MICROSECOND for time in self.times_us)
        low, middle, high = self.min_us, self.median_us, self.max_us
        five = (low, (low + middle) / 2, middle, (middle + high) / 2, high)
        return tuple(time * MICROSECOND for time in five)


class SurfaceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One communicator of one launch."""

    launch: int
    """number of the set of processes, counting up in time"""
    env: dict[str, str]
    ok: bool
    communicator: int = 0
    """number within the launch; 0 is the one that the processes made first"""
    error: str | None = None
    at: str = ""
    """UTC, ISO 8601"""
    purpose: str = ""
    collective: str = ""
    """empty: the head's"""
    dtype: str = ""
    """empty: that of the head's facts"""
    layout: Layout = Layout.WORLD
    in_place: bool = True
    ranks: int | None = None
    communicator_ranks: int | None = None
    in_force: dict[str, str] = {}
    """NCCL variables in the ranks' own environment during the measurement"""
    launch_wall_seconds: float | None = None
    """of the whole set of processes"""
    wall_seconds: float | None = None
    """of this row alone"""
    setup_seconds: dict[str, float] | None = None
    """parts of the set-up; of a launch, its first row has them"""
    samples: tuple[RowSample, ...] = ()


def row_of(launch: Launch, number: int, communicator: int) -> SurfaceRow:
    """The row of a launch that is number `number` in its file."""
    return SurfaceRow(
        launch=number,
        communicator=communicator,
        env=launch.env.as_dict(),
        ok=launch.error is None,
        error=launch.error,
        at=launch.started_at,
        purpose=launch.purpose,
        collective=launch.collective,
        dtype=launch.dtype,
        layout=launch.layout,
        in_place=launch.in_place,
        ranks=launch.ranks,
        communicator_ranks=launch.communicator_ranks,
        in_force=dict(launch.in_force),
        wall_seconds=launch.wall_seconds,
        setup_seconds=dict(launch.setup_seconds) or None,
        samples=tuple(_sample(result) for result in launch.results),
    )


def _sample(result: SizeResult) -> RowSample:
    return RowSample(
        size_bytes=result.size_bytes,
        timing=result.mode.value,
        times_us=_microseconds(result.samples_seconds),
        calls=result.calls_per_sample,
        warmup_us=_microseconds(result.warmup_seconds),
        single_us=_microseconds(result.single_seconds),
        slower_than_us=_microsecond(result.slower_than_seconds),
        correct=result.is_correct,
        overlap=None
        if result.overlap is None
        else RowOverlap(*(round(s / MICROSECOND, _DIGITS) for s in msgspec.structs.astuple(result.overlap))),
    )


def _microseconds(seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(round(one / MICROSECOND, _DIGITS) for one in seconds)


def _microsecond(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / MICROSECOND, _DIGITS)
