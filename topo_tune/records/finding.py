"""What is wrong on the nodes, or likely to be: findings, folded over the nodes that show the same."""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.Enum):
    """How bad it is, worst first."""

    ERROR = "error"
    """broken, or so far below what the hardware can do that measuring over it would mislead"""
    WARNING = "warning"
    """costs speed or safety, or will when something else changes"""
    NOTICE = "notice"
    """worth knowing; may be meant"""

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return list(Severity).index(self)


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule that fired, on the nodes where the same was seen."""

    rule: str
    """ID of the rule: `gpu-link-narrow`"""
    severity: Severity
    nodes: tuple[str, ...]
    """names of nodes; empty when it is about files of the whole cluster"""
    what: str
    """one sentence with the numbers that were seen"""
    why: str
    """why it matters for NCCL"""
    evidence: tuple[str, ...] = ()
    """lines that show it: values, devices, places in files"""
    fix: tuple[str, ...] = ()
    """what to do, commands first"""
    source: str | None = None
    """where the rule comes from"""
