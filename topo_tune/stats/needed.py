"""How much evidence a question needs: the smallest visible change, and the launches that would decide."""

from __future__ import annotations

import math

from topo_tune.stats.intervals import student_quantile, two_sided

USUAL_POWER = 0.8
"""Chance of seeing a change that is really there; four in five is the convention (Cohen 1988)."""


def smallest_visible_change(
    blocks: int, launch_cv: float, *, confidence: float, power: float = USUAL_POWER
) -> float:
    """Smallest speed-up, less one, that `blocks` paired blocks show with probability `power`.

    `launch_cv`: coefficient of variation between launches of one setting (0.08 is eight per cent). A block
    holds one launch of each side, so its log ratio has sqrt(2) times that deviation. The usual
    approximation adds the two t quantiles; it is good to a few per cent of the answer from about five
    blocks on. Source: Lachin 1981.
    """
    if blocks < 2:
        return math.inf
    reach = two_sided(confidence, blocks - 1) + student_quantile(power, blocks - 1)
    return math.expm1(reach * launch_cv * math.sqrt(2 / blocks))


def launches_to_decide(
    deviation: float, distance: float, *, confidence: float, at_most: int = 1000
) -> int | None:
    """Launches on each side after which an unpaired interval is probably shorter than `distance`.

    `deviation`: standard deviation of one launch's log time; `distance`: from the estimate, as a log ratio,
    to the edge that decides. None when `at_most` launches would not do, as when the estimate lies on the
    edge.
    """
    for launches in range(2, at_most + 1):
        if two_sided(confidence, 2 * launches - 2) * deviation * math.sqrt(2 / launches) < abs(distance):
            return launches
    return None
