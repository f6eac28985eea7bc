"""The score of one launch of a candidate against NCCL's default as it was just then."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PENALTY = 3.0
"""How much a size beyond the tolerance counts against the mean gain.

A recommendation may slow no weighted size, so a fast mean must not carry a setting with a slow size into
the confirmation. On the recorded TCP surface the fastest settings gain 0.57 in log time on average and lose
0.2 at one size; three times the loss brings them down to what settings without a loss gain.
"""


class BaselineLaunch(NamedTuple):
    """The default's times at one moment of the search."""

    position: int
    """how many launches the search had made before"""
    seconds: Mapping[int, float]


def baseline_log_seconds(baselines: Sequence[BaselineLaunch], position: int) -> dict[int, float]:
    """Log time of the default per size at a moment, on a straight line between its neighbouring launches.

    `baselines`: at least one, in order of position. Outside of them the nearest one holds. The line follows
    slow drift of the cluster, and between two launches of the default their noise partly averages out.
    """
    after = bisect.bisect_left([baseline.position for baseline in baselines], position)
    left, right = baselines[max(0, after - 1)], baselines[min(after, len(baselines) - 1)]
    width = right.position - left.position
    share = (position - left.position) / width if width else 0.0
    return {
        size: (1 - share) * math.log(left.seconds[size]) + share * math.log(right.seconds[size])
        for size in left.seconds
        if size in right.seconds
    }


def score(
    seconds: Mapping[int, float],
    baseline_log: Mapping[int, float],
    shares: Mapping[int, float],
    *,
    tolerance: float,
) -> float:
    """Weighted mean over sizes of log speed-up, less the penalty for weighted sizes slower than `tolerance`.

    `seconds`: the candidate's times; `shares`: size to share of the objective; sizes without a share count in
    neither part. `tolerance`: 0.03 lets a size take three per cent longer before it costs anything.
    """
    return score_of_gains(log_speedups(seconds, baseline_log), shares, tolerance=tolerance)


def log_speedups(seconds: Mapping[int, float], baseline_log: Mapping[int, float]) -> dict[int, float]:
    """Size to log(default / candidate), for every size that both have."""
    return {s: baseline_log[s] - math.log(t) for s, t in seconds.items() if s in baseline_log}


def score_of_gains(log_gains: Mapping[int, float], shares: Mapping[int, float], *, tolerance: float) -> float:
    """The score of measured or predicted log speed-ups; see `score`."""
    gains = {size: log_gains[size] for size in shares}
    mean = math.fsum(shares[size] * gain for size, gain in gains.items())
    beyond = math.fsum(max(0.0, -gain - math.log1p(tolerance)) for gain in gains.values())
    return mean - PENALTY * beyond
