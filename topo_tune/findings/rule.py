"""A rule: a pure function of the scan that says where something is wrong, with all that an operator needs beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from topo_tune.records.finding import Severity
from topo_tune.records.scan import Scan


class Sighting(msgspec.Struct, frozen=True):
    """One place where a rule holds. Sightings of one rule that say the same `what` become one finding."""

    what: str
    """one sentence with what was found and what was expected, without the node's name; numbers that differ from
    node to node belong into `evidence`, so that a thousand nodes with the same trouble stay one finding"""
    node: str | None = None
    """name of the node; None when it is about the whole cluster"""
    evidence: tuple[str, ...] = ()
    """lines that show it: devices, values, places in files"""
    fix: tuple[str, ...] | None = None
    """instead of the rule's own, where the case allows a better one"""
    why: str | None = None
    """instead of the rule's own"""
    severity: Severity | None = None
    """instead of the rule's own"""


class Rule(msgspec.Struct, frozen=True):
    """One thing that can be wrong."""

    id: str
    """`gpu-link-narrow`: never reused for another meaning, since operators silence rules by it"""
    title: str
    """what is wrong, in a few words: `a GPU's PCIe link is narrower than it could be`"""
    severity: Severity
    why: str
    """what it does to NCCL, one or two sentences"""
    fix: tuple[str, ...]
    """steps, commands in backticks; the most likely cure first"""
    source: str
    """where the rule comes from: a manual's address, a file of NCCL's source, a public issue"""
    look: Callable[[Scan], Iterable[Sighting]]
