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

# What nobody could see is no fact of the machine: it changes with the tools and rights of whoever looks.
_NO_FACTS = frozenset({"absent"})

# Lists whose members have a name that others have too.
_KEY_OF = {"gpus": "index", "gpu_health": "pci_bus_id", "nvlinks": "gpu"}

# What tells one member of any other list from another, in order of preference.
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
    said_before, said_now = (_said(scan) for scan in (old, new))
    return Difference(
        nodes_gone=tuple(name for name in before if name not in after),
        nodes_new=tuple(name for name in after if name not in before),
        changes=tuple(Change(*change, tuple(nodes)) for change, nodes in found.items()),
        # A finding about a node that is gone has gone with it: nothing was mended.
        findings_gone=_only_in(said_before, said_now, {name for name in before if name not in after}),
        findings_new=_only_in(said_now, said_before, set()),
    )


_Said = dict[tuple[str, str], dict[str | None, Finding]]
"""(rule, what) to each node of which that is said, None for a finding about no node"""


def _said(scan: Scan) -> _Said:
    found: _Said = {}
    for finding in scan.findings:
        for node in finding.nodes or (None,):
            found.setdefault((finding.rule, finding.what), {})[node] = finding
    return found


def _only_in(said: _Said, other: _Said, left_out: set[str]) -> tuple[Finding, ...]:
    """The findings of `said` that `other` does not have, each with those of its nodes of which that is true."""
    found = []
    for what, by_node in said.items():
        alone = [node for node in by_node if node not in other.get(what, {}) and node not in left_out]
        if alone:
            nodes = tuple(node for node in alone if node is not None)
            found.append(msgspec.structs.replace(by_node[alone[0]], nodes=nodes))
    return tuple(found)


def _changes(old: NodeScan, new: NodeScan) -> Iterator[tuple[str, str | None, str | None]]:
    if old == new:
        return
    before, after = (dict(_facts("", _compared(*pair))) for pair in ((old, new), (new, old)))
    before_alone, after_alone = _members_alone(before, after), _members_alone(after, before)
    told = set()
    for fact in dict.fromkeys((*before, *after)):
        if before.get(fact) == after.get(fact):
            continue
        member = before_alone.get(fact) or after_alone.get(fact)
        if member is None:
            yield fact, before.get(fact), after.get(fact)
        elif member not in told:
            told.add(member)
            yield member, _whole(member, before, before_alone), _whole(member, after, after_alone)


def _compared(node: NodeScan, other: NodeScan) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(node)
    if node.matrix is not None:
        devices = (*node.matrix.gpus, *node.matrix.nics)
        facts["matrix"] |= {"links": dict(zip(devices, node.matrix.links, strict=False))}
        if other.matrix is None:
            # Row by row it would bury what else differs.
            facts["matrix"] = f"{len(node.matrix.gpus)} GPUs, {len(node.matrix.nics)} NICs"
    return {name: value for name, value in facts.items() if name not in _NO_FACTS}


def _members_alone(facts: dict[str, str], others: dict[str, str]) -> dict[str, str]:
    """Facts to the outermost member of a list that holds them, where the other side has no such member."""
    alone = [fact for fact in facts if fact not in others]
    known = {member for fact in others for member in _members_around(fact)} if alone else set()
    found = {}
    for fact in alone:
        member = next((member for member in _members_around(fact) if member not in known), None)
        if member is not None:
            found[fact] = member
    return found


def _members_around(fact: str) -> Iterator[str]:
    """`a[x]` and `a[x].b[y]` of `a[x].b[y].c`, outermost first."""
    depth = 0
    for position, character in enumerate(fact):
        depth += (character == "[") - (character == "]")
        if character == "]" and depth == 0:
            yield fact[: position + 1]


def _whole(member: str, facts: dict[str, str], alone: dict[str, str]) -> str | None:
    """A member of a list that only one side has, in one text."""
    values = [facts[fact] for fact in facts if alone.get(fact) == member]
    return _clipped(", ".join(values)) if values else None


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
        for key, part in _named_members(value, _KEY_OF.get(place)):
            yield from _facts(f"{place}[{key}]", part)
    elif value is not None:
        yield place, _clipped(str(value))


def _named_members(members: Any, key: str | None) -> Iterator[tuple[str, Any]]:
    """Each member with its name, of `key` where it has that; the second of the same name gets a number behind it."""
    seen: dict[str, int] = {}
    for position, member in enumerate(members):
        name = _name(member, position, (key, *_KEYS) if key else _KEYS)
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), _rest(member)


def _name(member: Any, position: int, keys: tuple[str, ...]) -> str:
    if isinstance(member, dict):
        given = [str(member[key]) for key in keys if member.get(key) is not None]
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
