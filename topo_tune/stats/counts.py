"""Comparisons of counts: how often something happened before, and how often after."""

from __future__ import annotations

import math


def chance_of_as_many(first: int, of_first: int, second: int, of_second: int) -> float:
    """Chance of at least `second` events out of `of_second` if both sides had the same rate.

    `first` of `of_first` is the other side. Source: Fisher 1935, one-sided; the same as
    `scipy.stats.fisher_exact(alternative="greater")`.
    """
    events = first + second
    most = min(events, of_second)
    ways = sum(math.comb(of_second, k) * math.comb(of_first, events - k) for k in range(second, most + 1))
    return ways / math.comb(of_first + of_second, events)
