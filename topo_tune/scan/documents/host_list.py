"""Host files of mpirun, pdsh and DeepSpeed: one node or node set a line, with slots or without.

Open MPI counts a host that is written N times without slots as N slots: open-mpi/ompi#12574
"""

from __future__ import annotations

import re
from collections import Counter

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import HostList
from topo_tune.scan.documents import ansible_inventory
from topo_tune.scan.documents.name_lists import NameLists, numbered_lines
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped, without_escapes

_RECOGNISE_LIMIT = 250_000
"""Characters beyond which the last line that `recognise` sees may be cut."""

_COMMENT = re.compile(r"(?:^|[ \t])[#;].*")
_ENTRY = re.compile(
    r"(?:[a-z_][a-z0-9_-]{0,31}@)?"
    r"(?P<names>[A-Za-z0-9](?:[A-Za-z0-9._-]|\[[0-9,-]+\]|,(?=[A-Za-z0-9]))*)"
    r"(?::(?P<slots>[0-9]{1,5}))?"
    r"(?P<options>(?:[ \t]+[A-Za-z_-]{2,20}[ \t]?=[ \t]?[^\s=]{1,64})*)"
)
_SLOTS = re.compile(r"\b(?:slots|cpus?|count|np|ppn)[ \t]?=[ \t]?([0-9]{1,5})(?!\S)")
_MAX_SLOTS = re.compile(r"\bmax[_-]slots[ \t]?=")

_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_NO_HOST = re.compile(
    # device names, device nodes, numbers and files, all of which could be host names
    r"(?:mlx\d|bnxt|irdma|hfi1|rocep|ibp|ibs|ib\d$|eth\d|en[opsx]\w*\d|wl|lo$|docker|br-|veth|cali|bond|tun|virbr"
    r"|nvidia\d|nvidiactl|card\d|renderD|lib\w|GPU\b|GPU\d+$|NIC\d+$|0x|v?\d+[.\d]*$|\d+\.\d)"
    r"|.*\.(?:so(?:\.[\d.]+)?|txt|log|py|sh|conf|cfg|xml|json|ya?ml|csv|gz|tar|zip|md|out|err|ini|env|rpm|deb|ko)$"
)


def recognise(text: str) -> bool:
    """Whether every line is a host, in a text that says little else: tried after all other kinds."""
    lines = text.split("\n")
    if len(text) > _RECOGNISE_LIMIT:
        lines = lines[:-1]
    entries = []
    for line in lines:
        written = _COMMENT.sub("", line).strip()
        if not written:
            continue
        entry = _ENTRY.fullmatch(written)
        if entry is None or not _may_be_hosts(entry["names"]):
            return False
        entries.append(entry)
    if not entries:
        return False
    if any(_SLOTS.search(entry["options"]) or entry["slots"] or "[" in entry["names"] for entry in entries):
        return True
    if any(entry["options"] or "_" in entry["names"] for entry in entries):
        return False
    # Words alone: several, different, and most with a number or a domain, as names of nodes have them.
    names = {name for entry in entries for name in entry["names"].split(",")}
    return len(names) > 1 and 2 * sum(_looks_numbered(name) for name in names) >= len(names)


def parse(text: str, file: str | None = None) -> tuple[HostList, tuple[str, ...]]:
    """The hosts, and how many ranks each takes. Raises InputError where no line is a host."""
    names = NameLists()
    lines: Counter[str] = Counter()
    slots: Counter[str] = Counter()
    with_slots: set[str] = set()
    for number, line in numbered_lines(without_escapes(text), names):
        written = _COMMENT.sub("", line).strip()
        if not written:
            continue
        entry = _ENTRY.fullmatch(written)
        if entry is None:
            names.problem(f"`{clipped(written[:80])}` is not a host", number)
            continue
        given = entry["slots"] or _slots(entry["options"])
        for name in names.expand(entry["names"], number):
            lines[name] += 1
            slots[name] += int(given) if given else 1
            if given:
                with_slots.add(name)
    if not lines:
        raise InputError("names no host", file=file, hint="a host file has one host a line: `gpu001 slots=8`")
    repeated = tuple((name, count) for name, count in lines.items() if count > 1)
    says_slots = bool(with_slots) or bool(repeated)
    return (
        HostList(
            "host file", tuple(lines), slots=tuple(slots.items()) if says_slots else (), repeated=repeated
        ),
        names.problems,
    )


def _slots(options: str) -> str | None:
    found = _SLOTS.search(_MAX_SLOTS.sub("", options))
    return found.group(1) if found else None


def _may_be_hosts(names: str) -> bool:
    return all(
        _ADDRESS.fullmatch(name) is not None or _NO_HOST.match(name) is None
        for name in names.split("[", 1)[0].split(",")
    )


def _looks_numbered(name: str) -> bool:
    return "." in name or any(character.isdigit() for character in name)


KINDS: tuple[SavedKind, ...] = (
    *ansible_inventory.KINDS,
    SavedKind("host file", recognise, document=parse),
)
