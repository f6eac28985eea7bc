"""`mlnx_qos -i IF` and `dcb pfc show dev IF`: trust, priority flow control and DSCP map of an interface.

Neither says which interface it is about: the command's own line above it does, or the file's name.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.network import RoceSettings
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.network.interfaces import INTERFACE_NAME
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped

UNNAMED = "(unnamed interface)"
"""`netdev` of settings whose file does not say which interface they are of."""

PRIORITIES = 8
_INTERFACE_LIMIT = 256

_COMMAND = re.compile(
    rf"\b(?:mlnx_qos\s+(?:\S+\s+){{0,4}}?(?:-i|--interface)[\s=]*|dcb\s+(?:-\S+\s+){{0,3}}pfc\s+show\s+dev\s+)({INTERFACE_NAME})"
)
_TRUST = re.compile(r"\s*Priority trust (?:state|mode):\s*(pcp|dscp)\b", re.I)
_ENABLED = re.compile(r"\s*enabled:?((?:\s+[01]){8})\s*$")
_PRIO_PFC = re.compile(r"\s*prio-pfc((?:\s+[0-7]:(?:on|off)){8})")
_MAP = re.compile(r"\s*prio:\s*([0-7])\s+dscp:\s*([\d,\s]{1,400})$")
_TOOLS = {"mlnx", "qos", "mlnxqos", "dcb", "pfc"}


def parse(text: str, *, file: str | None = None) -> tuple[RoceSettings, ...]:
    """The settings of one or more interfaces. Raises InputError where there are none."""
    found: dict[str, RoceSettings] = {}
    maps: dict[str, dict[int, int]] = {}
    name = _name_of_file(file) or UNNAMED
    lines = lines_of_one_task(text).lines
    for _, line in lines:
        if command := _COMMAND.search(line[:400]):
            name = command.group(1)
            continue
        told = _line(line)
        pairs = _dscp(line)
        if (told or pairs) and (name in found or len(found) < _INTERFACE_LIMIT):
            known = found.setdefault(name, RoceSettings(name))
            fresh = {field: value for field, value in told.items() if getattr(known, field) is None}
            found[name] = msgspec.structs.replace(known, **fresh)
            maps.setdefault(name, {}).update(pairs)
    if not found:
        first = lines[0][1] if lines else ""
        raise InputError(
            f"no settings: expected lines like `Priority trust state: dscp`, found `{clipped(first)}`",
            file=file,
            hint="`mlnx_qos -i eth0` writes them",
        )
    return tuple(
        msgspec.structs.replace(settings, dscp_to_priority=tuple(sorted(maps.get(name, {}).items())))
        for name, settings in found.items()
    )


def with_settings(scan: NodeScan, told: tuple[RoceSettings, ...]) -> NodeScan:
    """The scan that knows these settings, too: what it knew before stays, what it did not know is filled in."""
    known = {settings.netdev: settings for settings in scan.roce}
    for settings in told:
        before = known.get(settings.netdev)
        known[settings.netdev] = settings if before is None else _joined(before, settings)
    return msgspec.structs.replace(scan, roce=tuple(known.values())[: 4 * _INTERFACE_LIMIT])


def tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The scan with the settings of a saved `mlnx_qos`; of an unnamed interface where the node has just one."""
    told = parse(text, file=file)
    return with_settings(scan, told)


def _line(line: str) -> dict[str, object]:
    if trust := _TRUST.match(line):
        return {"trust": trust.group(1).casefold()}
    if enabled := _ENABLED.match(line):
        return {"pfc": tuple(word == "1" for word in enabled.group(1).split())}
    if priorities := _PRIO_PFC.match(line):
        states = dict(word.split(":") for word in priorities.group(1).split())
        return {"pfc": tuple(states.get(str(number)) == "on" for number in range(PRIORITIES))}
    return {}


def _dscp(line: str) -> dict[int, int]:
    match = _MAP.match(line)
    if match is None:
        return {}
    numbers = (int(word) for word in re.findall(r"\d{1,2}", match.group(2)))
    return {number: int(match.group(1)) for number in numbers if number < 64}


def _joined(known: RoceSettings, told: RoceSettings) -> RoceSettings:
    names = ("trust", "pfc", "ecn", "traffic_class", "default_tos")
    filled = {name: getattr(told, name) for name in names if getattr(known, name) is None}
    mapped = known.dscp_to_priority or told.dscp_to_priority
    return msgspec.structs.replace(known, **filled, dscp_to_priority=mapped)


def _name_of_file(file: str | None) -> str | None:
    """`eth0` of `node1/mlnx_qos-eth0.txt`: the word beside the tool's, where it has a number as interfaces have."""
    words = re.split(r"[-_]", PurePath(file or "").name.split(".")[0])
    if not _TOOLS & set(words):
        return None
    names = [word for word in words if word not in _TOOLS and re.fullmatch(INTERFACE_NAME, word)]
    return next(
        (word for word in reversed(names) if re.match(r"(en|eth|ib|p\d|bond|net|rdma|gpu\d+rdma)", word)),
        None,
    )


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`mlnx_qos` output",
        matches(r"^[ \t]*(Priority trust (state|mode): |PFC configuration:[ \t]*$|prio-pfc 0:o)"),
        tell=tell,
        is_repeatable=True,
    ),
)
