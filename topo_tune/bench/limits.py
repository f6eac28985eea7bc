"""How long a setting may take, from what the default took: a share of it is fair, more would show nothing of use."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from topo_tune.records.bench import Launch
from topo_tune.records.units import format_bytes, format_seconds

FAIR_SHARE = 8
"""a setting that takes this many times as long as the default is of no use, whatever else it would show"""

SHORTEST_DEADLINE_SECONDS = 15.0

SHORTEST_CALL_SECONDS = 2e-3
"""Below it a call costs no time worth saving, and a host that was busy for a moment makes it as long."""


def fair_deadline(deadline_seconds: float, defaults: Sequence[Launch]) -> float:
    """The deadline of a setting: the plan's, or less once `defaults` tell what a launch takes."""
    if not defaults:
        return deadline_seconds
    fair = FAIR_SHARE * max(launch.wall_seconds for launch in defaults)
    return min(deadline_seconds, max(SHORTEST_DEADLINE_SECONDS, float(round(fair))))


def slowest_calls(defaults: Sequence[Launch], sizes_bytes: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """(size in bytes, seconds): a setting whose call takes longer is cut off. Nothing while no default is known.

    `sizes_bytes`: as they were asked for; what is measured may be a little less, where ranks share a size evenly.
    Calls before the samples count as well: they are issued by the host, where samples of small sizes are not.
    """
    slowest: dict[int, float] = {}
    for launch in defaults:
        for size, result in zip(sizes_bytes, launch.results, strict=False):
            usual = max(statistics.median(result.samples_seconds), min(result.warmup_seconds, default=0.0))
            limit = max(FAIR_SHARE * usual, SHORTEST_CALL_SECONDS)
            slowest[size] = max(limit, slowest.get(size, 0.0))
    return tuple(slowest.items())


def cut_off(launch: Launch, defaults: Sequence[Launch]) -> str | None:
    """Why a launch that was cut off has no more results; None where it was not."""
    usual = _default_seconds(defaults)
    for result in launch.results:
        limit = result.slower_than_seconds
        if limit is not None:
            size = result.size_bytes
            share = f", {limit / usual[size]:.0f} times the default's" if size in usual else ""
            return f"cut off at {format_bytes(size)}: a call took longer than {format_seconds(limit)}{share}"
    return None


def _default_seconds(defaults: Sequence[Launch]) -> dict[int, float]:
    """Size to the slowest of the launches' medians."""
    slowest: dict[int, float] = {}
    for launch in defaults:
        for size, seconds in launch.median_seconds().items():
            slowest[size] = max(seconds, slowest.get(size, 0.0))
    return slowest
