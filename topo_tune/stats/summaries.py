"""Summaries of samples: middle, tail and spread."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def median(samples: ArrayLike) -> float:
    """The middle sample, or the mean of the two middle ones. `samples`: (samples,), any unit."""
    return float(np.median(_filled(samples)))


def p99(samples: ArrayLike) -> float:
    """The 99th percentile by nearest rank: a value that was seen, never one in between.

    `samples`: (samples,), any unit. With fewer than 100 samples this is the largest one, so it says little.
    """
    ordered = np.sort(_filled(samples))
    return float(ordered[math.ceil(0.99 * ordered.size) - 1])


def spread(samples: ArrayLike) -> float:
    """Largest over smallest, less one: 0.1 is ten per cent. `samples`: (samples,), all above zero."""
    values = _filled(samples)
    return float(values.max() / values.min() - 1)


def coefficient_of_variation(samples: ArrayLike) -> float:
    """Standard deviation over mean, with n - 1 in the variance. `samples`: (samples,), at least two."""
    values = _filled(samples)
    if values.size < 2:
        raise ValueError("a coefficient of variation needs at least two samples")
    return float(values.std(ddof=1) / values.mean())


def _filled(samples: ArrayLike) -> np.ndarray:
    values = np.asarray(samples, dtype=float)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"needs samples in one dimension, not shape {values.shape}")
    return values
