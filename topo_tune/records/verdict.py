"""A verdict: new samples against a baseline."""

from __future__ import annotations

import enum

import msgspec


class Outcome(enum.Enum):
    """What the numbers say. Only `pass` and `improved` let a rollout go on."""

    PASS = "pass"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    NO_DATA = "no-data"


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The judgement on throughput: after over before, as a change."""

    outcome: Outcome
    reason: str
    edge: float
    """the lowest change that still passes: -0.03 is three per cent slower"""
    change: float | None
    """weighted mean change of throughput: +0.1 is ten per cent faster; None: no data"""
    low: float | None
    high: float | None
    """interval of `change`"""
    confidence: float
    launches_before: int
    launches_after: int
    per_size: tuple[tuple[int, float], ...] = ()
    """(size in bytes, change of throughput)"""

    @property
    def lets_go_on(self) -> bool:
        """Whether a rollout may go on to the next wave."""
        return self.outcome in (Outcome.PASS, Outcome.IMPROVED)
