"""Settings against NCCL's default: speed-up for each size with its interval, and whether the default itself drifted."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence

from topo_tune.records.bench import Launch
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.units import format_bytes
from topo_tune.report.text import visible
from topo_tune.stats.comparison import Comparison, Measured, compare
from topo_tune.stats.drift import find_drift

CONFIDENCE = 0.99
"""of each interval by itself"""

_LARGEST_TOLD = 100

_TITLES = "#     size  speed-up        interval  launches  so it is"


def comparisons_report(launches: Sequence[Launch]) -> list[str]:
    """A table for each setting and collective; empty where nothing is compared. Plain text, no markup.

    The n-th launch of a setting is compared with the n-th of the default: they stood side by side in time.
    """
    usable = [(launch, block) for launch, block in _with_blocks(launches) if launch.is_usable]
    lines: list[str] = []
    for collective in dict.fromkeys(launch.collective for launch in launches):
        own = [(launch, block) for launch, block in usable if launch.collective == collective]
        for env in dict.fromkeys(launch.env for launch, _ in own if launch.env != DEFAULTS):
            lines += ["", *_against_default(own, env, collective)]
        if lines and (told := _drift([launch for launch, _ in own if launch.env == DEFAULTS])):
            lines.append(f"# the default of {collective} over time: {told}")
    return [visible(line) for line in lines[1:]]


def _with_blocks(launches: Sequence[Launch]) -> list[tuple[Launch, int]]:
    seen: Counter[tuple[NcclEnv, str]] = Counter()
    found = []
    for launch in launches:
        found.append((launch, seen[launch.env, launch.collective]))
        seen[launch.env, launch.collective] += 1
    return found


def _against_default(launches: Sequence[tuple[Launch, int]], env: NcclEnv, collective: str) -> list[str]:
    sides = [(launch, block) for launch, block in launches if launch.env in (DEFAULTS, env)]
    counts = [sum(launch.env == side for launch, _ in sides) for side in (DEFAULTS, env)]
    lines = [f"# {env} against NCCL's defaults, {collective}; {CONFIDENCE * 100:g} % intervals"]
    if min(counts) < 2:
        return [*lines, f"# {counts[0]}+{counts[1]} usable launches: too few to compare"]
    shared = set.intersection(*(set(launch.median_seconds()) for launch, _ in sides))
    lines.append(_TITLES)
    for size in sorted(shared):
        compared = compare(_measured(sides, env, (size,)), CONFIDENCE)
        lines.append(_row(format_bytes(size), compared))
    if len(shared) > 1:
        compared = compare(_measured(sides, env, tuple(sorted(shared))), CONFIDENCE)
        lines.append(_row("mean", compared))
    return lines


def _measured(sides: Sequence[tuple[Launch, int]], env: NcclEnv, sizes: tuple[int, ...]) -> list[Measured]:
    """One value a launch: the mean over sizes of the log of its median."""
    return [
        Measured(
            launch.env == env,
            math.fsum(math.log(launch.median_seconds()[size]) for size in sizes) / len(sizes),
            launch.index if launch.processes is None else f"set {launch.processes}",
            block,
        )
        for launch, block in sides
    ]


def _row(size: str, compared: Comparison) -> str:
    speedup = compared.speedup
    # Two launches a side may leave room for a million times as fast, of which no digit says anything.
    high = f"{speedup.high:.2f}" if speedup.high < _LARGEST_TOLD else f"over {_LARGEST_TOLD}"
    interval = f"{speedup.low:.2f} to {high}" if math.isfinite(speedup.high) else "unbounded"
    answer = "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else "not told apart"
    launches = f"{compared.baseline_sets}+{compared.candidate_sets}"
    return f"{size:>10}  {speedup.center:7.2f}x  {interval:>14}  {launches:>8}  {answer}"


def _drift(defaults: Sequence[Launch]) -> str | None:
    """The drift of the default's launches in words; None where there are too few to ask."""
    if len(defaults) < 2:
        return None
    began = [datetime.datetime.fromisoformat(launch.started_at).timestamp() for launch in defaults]
    ordered = sorted(zip(began, defaults, strict=True), key=lambda pair: pair[0])
    values = [
        math.fsum(math.log(value) for value in launch.median_seconds().values()) / len(launch.results)
        for _, launch in ordered
    ]
    return find_drift(values, [at - ordered[0][0] for at, _ in ordered]).in_words()
