"""How much evidence a question needs: the smallest visible change, and the launches that would decide.

How launches differ is known from baseline launches, and from few of them badly: of five, the deviation may be more than
twice what they show. So what is expected of a machine counts as some launches more, and every answer has its range.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numpy.typing import ArrayLike

from topo_tune.stats.intervals import one_dimension, student_quantile, two_sided

USUAL_POWER = 0.8
"""Chance of seeing a change that is really there; four in five is the convention (Cohen 1988)."""

EXPECTED_CVS = {"nvlink": 0.025, "pcie": 0.04, "infiniband": 0.04, "roce": 0.04, "socket": 0.065}
"""Slowest fabric in use to the coefficient of variation that launches are expected to have, of the mean over sizes,
before any was made. Measured for NVLink and sockets (docs/results/false-wins.md); the others are taken to lie between.
"""

USUAL_CV = 0.05
"""Expected where nothing is known of the fabric."""

EXPECTED_COUNTS_AS = 3.0
"""Degrees of freedom of what is expected: that many launches outweigh it. Alone, it is good to a factor of three."""

LARGEST_TOLD = 10.0
"""No setting is eleven times as fast: of a larger change it is only told that it is larger."""

RANGE_CONFIDENCE = 0.9
"""Of the range that is stated for a deviation."""


class LaunchNoise(NamedTuple):
    """How much launches of one setting differ: coefficients of variation, 0.08 is eight per cent."""

    cv: float
    low: float
    high: float
    """the true one lies between `low` and `high` with 90 %"""
    launches: int
    """baseline launches behind it; 0: nothing but what is expected"""


def launch_noise(log_seconds: ArrayLike, *, expected_cv: float = USUAL_CV) -> LaunchNoise:
    """Coefficient of variation between launches, from baseline launches and what is expected.

    `log_seconds`: (launches,), the log of one time each; none is enough. The variance has the scaled inverse
    chi-squared distribution: expectation and launches are averaged by their degrees of freedom (Gelman et al. 2013,
    section 2.6).
    """
    from scipy.special import chdtri

    values = one_dimension(log_seconds, at_least=0)
    measured = max(0, values.size - 1)
    squares = EXPECTED_COUNTS_AS * expected_cv**2 + (
        measured * float(values.var(ddof=1)) if measured else 0.0
    )
    degrees = EXPECTED_COUNTS_AS + measured
    tail = (1 - RANGE_CONFIDENCE) / 2
    # The larger the quantile of chi-squared, the smaller the deviation that goes with it.
    low, high = (math.sqrt(squares / float(chdtri(degrees, above))) for above in (tail, 1 - tail))
    return LaunchNoise(math.sqrt(squares / degrees), low, high, values.size)


class VisibleChange(NamedTuple):
    """The smallest speed-up, less one, that a plan shows with `USUAL_POWER`; 0.03 is 3 %."""

    change: float
    low: float
    high: float
    """what it would be at either end of the range of the noise"""
    blocks: int
    noise: LaunchNoise

    def in_words(self) -> str:
        """One line, to be printed before a run."""
        known = "an expectation" if self.noise.launches == 0 else f"{self.noise.launches} baseline launches"
        noise = f"launches differ by {self.noise.cv:.1%}, from {known}"
        if self.change > LARGEST_TOLD:
            return f"{self.blocks} blocks show no change below {LARGEST_TOLD:.0%}; {noise}"
        high = f"more than {LARGEST_TOLD:.0%}" if self.high > LARGEST_TOLD else f"{self.high:.1%}"
        return (
            f"{self.blocks} blocks show a change of {self.change:.1%} four times in five ({self.low:.1%} to "
            f"{high}); {noise}"
        )


def visible_change(blocks: int, noise: LaunchNoise, *, confidence: float) -> VisibleChange:
    """What `blocks` paired blocks will show. `confidence`: of the interval at the last look (`Rule.confidences`)."""
    change, low, high = (
        smallest_visible_change(blocks, cv, confidence=confidence) for cv in (noise.cv, noise.low, noise.high)
    )
    return VisibleChange(change, low, high, blocks, noise)


def blocks_to_see(change: float, launch_cv: float, *, confidence: float, at_most: int = 1000) -> int | None:
    """Fewest blocks that show a speed-up of 1 + `change` with `USUAL_POWER`; None when `at_most` would not do."""
    for blocks in range(2, at_most + 1):
        if smallest_visible_change(blocks, launch_cv, confidence=confidence) <= change:
            return blocks
    return None


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
    try:
        return math.expm1(reach * launch_cv * math.sqrt(2 / blocks))
    except OverflowError:
        return math.inf


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
