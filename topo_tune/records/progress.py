"""How far a long stage is: what leaves a stage through its `on_event`, for whoever shows it."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a stage."""

    stage: str
    """scan, screen-1, confirm, guard, ..."""
    done: int
    total: int | None
    """None: not known"""
    text: str
    """what just happened, in one line"""


class NodeProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one node of a fan-out stands."""

    stage: str
    node: str
    state: str
    """waiting, connecting, running, retrying, done or failed"""
    reason: str = ""
