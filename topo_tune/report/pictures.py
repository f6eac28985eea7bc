"""What a picture of launches shows: bus bandwidth over message size, with intervals, and what a setting gains."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from topo_tune.records.bench import Launch, Layout
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.units import algbw_gb_per_s, busbw_factor
from topo_tune.report.launches import communicator_ranks, is_shown
from topo_tune.stats.comparison import Measured, compare
from topo_tune.stats.intervals import Interval, mean_interval
from topo_tune.stats.summaries import median

CONFIDENCE = 0.95
"""of each interval by itself; a decision over several sizes needs more, and is not made by looking"""


class Point(NamedTuple):
    """One size of one setting."""

    size_bytes: int
    busbw: Interval
    """GB/s; its ends are the estimate itself where there is one launch only"""
    gain: Interval | None
    """the default's time over this setting's time, with ends as above; None for the default, and without a default"""
    launches: int
    """independent ones: settings that shared processes in one launch count once"""


class Curve(NamedTuple):
    """One setting over all sizes."""

    name: str
    is_default: bool
    points: tuple[Point, ...]


class Picture(NamedTuple):
    """The settings of one collective: what may be compared with each other."""

    title: str
    curves: tuple[Curve, ...]
    """the default first, if it was measured"""

    def sizes_bytes(self) -> tuple[int, ...]:
        """Every size that some curve has, ascending."""
        return tuple(sorted({point.size_bytes for curve in self.curves for point in curve.points}))

    def has_gains(self) -> bool:
        """Whether any setting can be compared with the default."""
        return any(point.gain is not None for curve in self.curves for point in curve.points)


class _Kind(NamedTuple):
    collective: str
    dtype: str
    layout: Layout
    in_place: bool


def pictures_of(launches: Sequence[Launch], collective: str, dtype: str) -> tuple[Picture, ...]:
    """One picture for each collective, type, layout and place of these launches; none where nothing was measured.

    `collective`, `dtype`: of launches that do not say.
    """
    kinds: dict[_Kind, list[Launch]] = defaultdict(list)
    for launch in launches:
        if is_shown(launch):
            own = launch.collective if launch.dtype else collective
            kinds[_Kind(own, launch.dtype or dtype, launch.layout, launch.in_place)].append(launch)
    return tuple(
        Picture(_title(kind, found[0]), _curves(kind.collective, found)) for kind, found in kinds.items()
    )


def _title(kind: _Kind, first: Launch) -> str:
    layout = "" if kind.layout is Layout.WORLD else f", layout {kind.layout.value}"
    source = f"{first.backend.value}{' (recorded times)' if first.backend is BackendName.REPLAY else ''}"
    place = "in place" if kind.in_place else "out of place"
    return f"{kind.collective}, {kind.dtype}, {first.ranks} ranks{layout}, {place}, back end {source}"


def _curves(collective: str, launches: list[Launch]) -> tuple[Curve, ...]:
    by_env: dict[NcclEnv, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_env[launch.env].append(launch)
    times = {env: _times(found, is_candidate=env != DEFAULTS) for env, found in by_env.items()}
    factor = busbw_factor(collective, communicator_ranks(launches[0]))
    return tuple(
        Curve(str(env), env == DEFAULTS, tuple(_points(times[env], times.get(DEFAULTS, {}), factor)))
        for env in sorted(by_env, key=lambda env: env != DEFAULTS)
    )


def _times(launches: list[Launch], *, is_candidate: bool) -> dict[int, list[Measured]]:
    """Size to the log time of each launch, ascending."""
    found: dict[int, list[Measured]] = defaultdict(list)
    for launch in launches:
        own = ("launch", launch.index)
        processes = own if launch.processes is None else ("processes", launch.processes)
        for result in launch.results:
            if result.samples_seconds:
                log = math.log(median(result.samples_seconds))
                found[result.size_bytes].append(Measured(is_candidate, log, processes))
    return dict(sorted(found.items()))


def _points(
    times: dict[int, list[Measured]], default: dict[int, list[Measured]], factor: float
) -> Iterable[Point]:
    for size, measured in times.items():
        logs = _of_each_set(measured)
        mean = mean_interval(logs, CONFIDENCE) if len(logs) > 1 else _exactly(logs[0])
        # The longest time is the lowest bandwidth.
        seconds = Interval(mean.center, mean.high, mean.low).exp()
        busbw = Interval(*(algbw_gb_per_s(size, one) * factor for one in seconds))
        against = default.get(size, []) if measured[0].is_candidate else []
        yield Point(size, busbw, _gain(against, measured) if against else None, len(logs))


def _gain(default: list[Measured], candidate: list[Measured]) -> Interval:
    one, other = _of_each_set(default), _of_each_set(candidate)
    if len(one) > 1 and len(other) > 1:
        return compare([*default, *candidate], CONFIDENCE).speedup
    return _exactly(sum(one) / len(one) - sum(other) / len(other)).exp()


def _of_each_set(measured: list[Measured]) -> list[float]:
    """One log time for each set of processes: the mean over the communicators that shared it."""
    sets: dict[Hashable, list[float]] = defaultdict(list)
    for one in measured:
        sets[one.processes].append(one.log_seconds)
    return [sum(logs) / len(logs) for logs in sets.values()]


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)


# --- scales and words that every picture needs ---


def apart(low: float, high: float) -> tuple[float, float]:
    """The ends of a logarithmic axis: some room on both sides, and never the same value twice."""
    room = max((high / low) ** 0.04, 1.02)
    return low / room, high * room


def position(value: float, low: float, high: float) -> float:
    """Where a value lies on a logarithmic axis: 0 at its low end, 1 at its high end."""
    return 0.5 if high <= low else (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))


def ticks(low: float, high: float, *, most: int = 8) -> list[float]:
    """Round values on a logarithmic axis: 1, 2 and 5 of each power of ten, or fewer, or closer ones."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(x / 10 for x in range(10, 100, 2))):
        found = [
            s * 10.0**power
            for power in range(first, last + 1)
            for s in steps
            if low <= s * 10.0**power <= high
        ]
        if len(found) >= min(most // 2, 3):
            return found[:: math.ceil(len(found) / most)]
    return [low, high]


def short(value: float) -> str:
    """A number to three digits: `0.15`, `1.5`, `150`, `1500`."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def percent(ratio: float) -> str:
    """A ratio as what it adds: `+3.1 %` of 1.031."""
    added = round((ratio - 1) * 100, 1)
    return f"{added or 0.0:+.1f} %"
