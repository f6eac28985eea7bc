"""Calls that nccl-tests timed one by one (`-I 1`), from its JSON file: formats 2 and 3 of `src/util.cu`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_MOST_CALLS = 1_000_000


def calls_us(report: Mapping[str, Any], *, in_place: bool) -> tuple[tuple[float, ...], ...]:
    """Per result of the file, in its order, the time of each call in microseconds: the slowest process' each.

    Empty for a result without such times.
    """
    results = report.get("results")
    key = "in_place_per_iter" if in_place else "out_of_place_per_iter"
    return tuple(_times(result, key) for result in results) if isinstance(results, list) else ()


def _times(result: object, key: str) -> tuple[float, ...]:
    half = result.get(key) if isinstance(result, dict) else None
    times = half.get("times_us") if isinstance(half, dict) else None
    if not isinstance(times, list):
        return ()
    # An odd one would shift all that follow against the other results' calls.
    numbers = times[:_MOST_CALLS]
    return tuple(float(one) for one in numbers) if all(map(_is_time, numbers)) else ()


def _is_time(value: object) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
