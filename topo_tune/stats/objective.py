"""The objective: one number per launch from its times at several message sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


def shares(sizes_bytes: Iterable[int], weights: Mapping[int, float]) -> dict[int, float]:
    """Size to its share of the objective; shares sum to 1, sizes of weight zero are left out.

    `weights`: size in bytes to weight, any scale; empty means that every size weighs the same. A size that
    `weights` does not name weighs nothing. Raises ValueError when a weight is negative or nothing is left
    to weigh.
    """
    if any(not math.isfinite(weight) or weight < 0 for weight in weights.values()):
        raise ValueError("weights must be finite and not negative")
    raw = {size: weights.get(size, 0.0) if weights else 1.0 for size in sorted(set(sizes_bytes))}
    total = sum(raw.values())
    if total <= 0:
        raise ValueError("no measured size has a weight above zero")
    return {size: weight / total for size, weight in raw.items() if weight > 0}


def mean_log_seconds(seconds: Mapping[int, float], shares: Mapping[int, float]) -> float | None:
    """Weighted mean over sizes of log time: the log of the weighted geometric mean of `seconds`.

    Differences of this number between launches are log speed-ups. None when a weighted size is not there,
    or its time is not a positive number.
    """
    if any(not _is_time(seconds.get(size)) for size in shares):
        return None
    return math.fsum(share * math.log(seconds[size]) for size, share in shares.items())


def _is_time(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
