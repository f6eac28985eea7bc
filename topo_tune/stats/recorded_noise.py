"""The noise of recorded baseline launches, drawn again for comparisons of settings that are known to be alike.

What a launch adds to the machine's course is drawn with all its sizes, so sizes stay as correlated as they were, and in
stretches of launches that followed each other, so neighbours stay as alike as they were. The course itself, a straight
line through the recording, is walked to and fro from a random place.

Draws are smoothed (Silverman and Young 1987): to a recorded stretch, a random mixture of all stretches is added, which
has their covariances, and the sum is shrunk to the old spread. Without that, comparisons of few launches are made of
repeats: of seven launches one drawn block in seven is the block before it once more, and repeats look like precision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

STRETCH = 4
"""Launches that are drawn together: those of two blocks, ABBA."""

STRETCHES_FROM = 12
"""Recorded launches from which stretches are drawn. A correlation of neighbours has a standard error of 1 / sqrt(n): of
fewer launches it says nothing, and they are drawn one by one.
"""

FEWEST_LAUNCHES = 6
"""Recorded launches below which a spread is known too badly to promise anything by it."""


class RecordedNoise(NamedTuple):
    """Baseline launches of one recording, taken apart."""

    name: str
    sizes_bytes: tuple[int, ...]
    positions: np.ndarray
    """(launches,): which launch of the recording it was; other settings stand between"""
    logs: np.ndarray
    """(launches, sizes): log seconds"""
    slopes: np.ndarray
    """(sizes,): course of the log seconds, per launch of the recording"""
    residuals: np.ndarray
    """(launches, sizes): what is left, widened to the spread that the launches had before two numbers were fitted"""

    @property
    def stretch(self) -> int:
        """Launches that are drawn together."""
        return STRETCH if len(self.positions) >= STRETCHES_FROM else 1

    def cv(self) -> np.ndarray:
        """Coefficient of variation between launches by size, drift included. (sizes,)"""
        return np.asarray(self.logs.std(axis=0, ddof=1))

    def mean_cv(self) -> float:
        """The same of the mean over sizes."""
        return float(self.logs.mean(axis=1).std(ddof=1))


def take_apart(
    name: str, sizes_bytes: tuple[int, ...], positions: ArrayLike, log_seconds: ArrayLike
) -> RecordedNoise:
    """Course and residuals of baseline launches. `positions`: (launches,), rising; `log_seconds`: (launches, sizes).

    Raises ValueError for fewer than `FEWEST_LAUNCHES`.
    """
    at, logs = np.asarray(positions, dtype=float), np.asarray(log_seconds, dtype=float)
    if len(at) < FEWEST_LAUNCHES or logs.shape != (len(at), len(sizes_bytes)) or (np.diff(at) <= 0).any():
        raise ValueError(
            f"needs {FEWEST_LAUNCHES} launches in order, each with every size: {len(at)} of {logs.shape}"
        )
    design = np.column_stack([np.ones_like(at), at])
    fit = np.linalg.lstsq(design, logs, rcond=None)[0]
    widened = np.sqrt(len(at) / (len(at) - 2))
    return RecordedNoise(name, sizes_bytes, at, logs, fit[1], (logs - design @ fit) * widened)


def draw(
    noise: RecordedNoise,
    comparisons: int,
    launches: int,
    rng: np.random.Generator,
    *,
    stretch: int | None = None,
    is_smoothed: bool = True,
) -> np.ndarray:
    """Launches of one setting, in order of time: log seconds around zero. (comparisons, launches, sizes)

    `stretch`: launches that are drawn together; the recording's own unless given.
    """
    recorded, stretch = len(noise.positions), stretch or noise.stretch
    # Round the end of the recording, so that each launch is drawn as often as the next.
    stretches = noise.residuals[(np.arange(recorded)[:, None] + np.arange(stretch)) % recorded]
    count = -(-launches // stretch)
    chosen = stretches[rng.integers(0, recorded, (comparisons, count))]
    mixed = np.tensordot(rng.normal(0, recorded**-0.5, (comparisons, count, recorded)), stretches, axes=1)
    width = _smoothing(recorded) if is_smoothed else 0.0
    residuals = ((chosen + width * mixed) / np.hypot(1, width)).reshape(comparisons, count * stretch, -1)
    return np.asarray(
        residuals[:, :launches] + _course(noise, comparisons, launches, rng)[:, :, None] * noise.slopes
    )


def alternating(logs: np.ndarray, log_speedup: float = 0.0) -> np.ndarray:
    """Differences of blocks, baseline less candidate: (comparisons, launches, ...) to (comparisons, blocks, ...).

    Launches are dealt as the search deals them, the order turning round from block to block: AB, BA, AB, ... Every
    other comparison begins with the candidate. `log_speedup`: what the candidate gains.
    """
    pairs = logs.reshape(len(logs), -1, 2, *logs.shape[2:])
    signs = np.where(np.add.outer(np.arange(len(logs)), np.arange(pairs.shape[1])) % 2 == 0, 1.0, -1.0)
    differences = pairs[:, :, 0] - pairs[:, :, 1]
    return np.asarray(differences * signs.reshape(*signs.shape, *(1,) * (logs.ndim - 2)) + log_speedup)


def one_after_the_other(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same launches dealt without blocks: the first half to the baseline, the second to the candidate."""
    half = logs.shape[1] // 2
    return logs[:, :half], logs[:, half : 2 * half]


def _smoothing(recorded: int) -> float:
    """Weight of the mixture, in standard deviations: Silverman's rule for one dimension (1986, equation 3.28)."""
    return float((4 / (3 * recorded)) ** 0.2)


def _course(noise: RecordedNoise, comparisons: int, launches: int, rng: np.random.Generator) -> np.ndarray:
    """Where on the recording's line each launch stands: from a random place to and fro. (comparisons, launches)"""
    span = float(noise.positions[-1] - noise.positions[0])
    walked = rng.uniform(0, 2 * span, (comparisons, 1)) + np.arange(launches)
    return np.asarray(np.abs(walked % (2 * span) - span) - span / 2)
