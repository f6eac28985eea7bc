"""What changed between two scans: facts that were there and are not, that are new, or that have another value.

Records are compared as they are written, so that a new fact is compared from the day on which it is collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from topo_tune.records.finding import Finding
from topo_tune.records.scan import NodeScan, Scan

# Values that differ between any two scans of a healthy node say nothing about a change.
_ALWAYS_DIFFERENT = frozenset(
    {
        "collected_in_seconds",
        "sm_clock_mhz",
        "temperature_celsius",
        "performance_state",
        "throttle_reasons",
        "shm_free_bytes",
        "counters",
        "first_at",
        "last_at",
        "count",
        "pcie_replays",
        "is_up_since",
    }
)
# An idle GPU slows its link down: only the maximum and the width are facts about the machine.
_OF_IDLE_GPUS = frozenset({"gpu_health.link.speed_gt_per_s"})

# What tells one member of a list from another, in order of preference.
_KEYS = (
    "name",
    "address",
    "path",
    "index",
    "gpu",
    "pci_bus_id",
    "netdev",
    "what",
    "port",
    "line",
    "rule",
    "kind",
)

_VALUE_LIMIT = 160


class Change(msgspec.Struct, frozen=True):
    """One fact that is not as it was, and the nodes of which that is true."""

    fact: str
    """its place in the record: `gpu_health[0000:18:00.0].vbios`"""
    before: str | None
    """None: it was not there"""
    after: str | None
    nodes: tuple[str, ...] = ()


class Difference(msgspec.Struct, frozen=True):
    """All that differs between two scans."""

    nodes_gone: tuple[str, ...] = ()
    nodes_new: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    findings_gone: tuple[Finding, ...] = ()
    findings_new: tuple[Finding, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return self == Difference()


def difference(old: Scan, new: Scan) -> Difference:
    """What is different in `new`; equal changes of several nodes are one, in the order of the first node."""
    before, after = ({node.node: node for node in scan.nodes} for scan in (old, new))
    found: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in after:
        if name in before:
            for change in _changes(before[name], after[name]):
                found.setdefault(change, []).append(name)
    said_before, said_now = ({_said(f): f for f in scan.findings} for scan in (old, new))
    return Difference(
        nodes_gone=tuple(name for name in before if name not in after),
        nodes_new=tuple(name for name in after if name not in before),
        changes=tuple(Change(*change, tuple(nodes)) for change, nodes in found.items()),
        findings_gone=tuple(finding for said, finding in said_before.items() if said not in said_now),
        findings_new=tuple(finding for said, finding in said_now.items() if said not in said_before),
    )


def _said(finding: Finding) -> tuple[str, str, tuple[str, ...]]:
    return finding.rule, finding.what, finding.nodes


def _changes(old: NodeScan, new: NodeScan) -> Iterator[tuple[str, str | None, str | None]]:
    before, after = (dict(_facts("", msgspec.to_builtins(node))) for node in (old, new))
    for fact in dict.fromkeys((*before, *after)):
        if before.get(fact) != after.get(fact):
            yield fact, before.get(fact), after.get(fact)


def _facts(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every leaf as (place, value); members of lists are placed by what names them, so that order means nothing."""
    if isinstance(value, dict):
        for name, part in value.items():
            inner = f"{place}.{name}" if place else name
            if name not in _ALWAYS_DIFFERENT and _without_keys(inner) not in _OF_IDLE_GPUS:
                yield from _facts(inner, part)
    elif isinstance(value, (list, tuple)):
        if all(not isinstance(part, (dict, list, tuple)) for part in value):
            if value:
                yield place, _clipped(" ".join(str(part) for part in value))
            return
        for key, part in _named_members(value):
            yield from _facts(f"{place}[{key}]", part)
    elif value is not None:
        yield place, _clipped(str(value))


def _named_members(members: Any) -> Iterator[tuple[str, Any]]:
    """Each member with its name; the second of the same name gets a number behind it."""
    seen: dict[str, int] = {}
    for position, member in enumerate(members):
        name = _name(member, position)
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), _rest(member)


def _name(member: Any, position: int) -> str:
    if isinstance(member, dict):
        given = [str(member[key]) for key in _KEYS if member.get(key) is not None]
        return given[0] if given else str(position)
    if isinstance(member, (list, tuple)) and len(member) == 2 and isinstance(member[0], str):
        return member[0]  # a pair: (name, value)
    return str(position)


def _rest(member: Any) -> Any:
    is_pair = isinstance(member, (list, tuple)) and len(member) == 2 and isinstance(member[0], str)
    return member[1] if is_pair else member


def _without_keys(place: str) -> str:
    kept, depth = [], 0
    for character in place:
        depth += (character == "[") - (character == "]")
        if depth == 0 and character != "]":
            kept.append(character)
    return "".join(kept)


def _clipped(text: str) -> str:
    return text if len(text) <= _VALUE_LIMIT else text[: _VALUE_LIMIT - 3] + "..."
