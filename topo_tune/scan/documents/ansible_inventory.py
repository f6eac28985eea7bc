"""Ansible inventories, as INI and as YAML.

The forms: https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import HostList
from topo_tune.scan.documents import yaml_text
from topo_tune.scan.documents.name_lists import NameLists, numbered_lines
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped, without_escapes

_HINT = "`ansible-inventory --list --yaml` prints what Ansible makes of one"

_COMMENT = re.compile(r"(?:^|[ \t])[#;].*")
_HEADER = re.compile(r"\[([A-Za-z_][\w.-]{0,127})(?::(children|vars|hosts))?\]")
_HOST_LINE = re.compile(r"([\w.:@-]+(?:\[[\w:,-]+\][\w.-]*)*)((?:\s+[A-Za-z_]\w*\s?=\s?\S.*)?)")
_RANGE = re.compile(r"\[(\w{1,9}):(\w{1,9})(?::(\d{1,4}))?\]")
_YAML_GROUPS = re.compile(r"^[ \t]+(?:hosts|children)[ \t]*:", re.M)
_YAML_INVENTORY = re.compile(r"^(?:all|ungrouped)[ \t]*:[ \t]*$|^[ \t]+ansible_\w+[ \t]*:", re.M)

_GROUPS_LIMIT = 2000


def recognise(text: str) -> bool:
    """Whether a text is an inventory of one of the two forms."""
    return _is_yaml(text) or _is_ini(text)


def parse(text: str, file: str | None = None) -> tuple[HostList, tuple[str, ...]]:
    """Hosts and groups; hosts that are commented out are none. Raises InputError where there is no group."""
    plain = without_escapes(text)
    names = NameLists()
    if _is_yaml(plain):
        groups = _yaml_groups(plain, file, names)
    else:
        groups = _ini_groups(plain, names)
    if not groups:
        raise InputError("no group of hosts in it", file=file, hint=_HINT)
    hosts = tuple(dict.fromkeys(host for group in groups.values() for host in group.hosts))
    listed = tuple((name, (*group.hosts, *group.children)) for name, group in groups.items() if name)
    return HostList("ansible inventory", hosts, groups=listed), names.problems


class _Group(msgspec.Struct):
    """What one group has; the dicts keep the order and have no values."""

    hosts: dict[str, None] = {}
    children: dict[str, None] = {}


_Groups = dict[str, _Group]
"""Hosts before any group's header stand under ``."""


# --- INI ----------------------------------------------------------------------------------------------------


def _is_ini(text: str) -> bool:
    has_group = has_mark = has_host = False
    section = "hosts"
    for line in text.split("\n"):
        written = _COMMENT.sub("", line).strip()
        if not written:
            continue
        if (header := _HEADER.fullmatch(written)) is not None:
            has_group = True
            section = header.group(2) or "hosts"
            has_mark = has_mark or section in ("children", "vars")
        elif section == "vars":
            continue
        elif _HOST_LINE.fullmatch(written) is None:
            return False
        else:
            has_host = True
            has_mark = has_mark or " ansible_" in written
    return has_group and (has_mark or has_host)


def _ini_groups(text: str, names: NameLists) -> _Groups:
    groups: _Groups = {}
    group, section = "", "hosts"
    for number, line in numbered_lines(text, names):
        written = _COMMENT.sub("", line).strip()
        if not written:
            continue
        if (header := _HEADER.fullmatch(written)) is not None:
            group, section = header.group(1), header.group(2) or "hosts"
            if len(groups) > _GROUPS_LIMIT:
                names.problem(f"groups beyond the first {_GROUPS_LIMIT} are left out", number)
                break
            if section != "vars":
                groups.setdefault(group, _Group())
        elif section == "vars":
            continue
        elif (host := _HOST_LINE.fullmatch(written)) is None:
            names.problem(f"`{clipped(written[:80])}` is not a host", number)
        elif section == "children":
            groups.setdefault(group, _Group()).children[host.group(1)[:128]] = None
        else:
            members = names.expand(_with_dashes(host.group(1)), number)
            groups.setdefault(group, _Group()).hosts.update(dict.fromkeys(members))
    return groups


def _with_dashes(pattern: str) -> str:
    """Ansible's `gpu[01:10]` as `gpu[01-10]`; letters and steps are written out."""

    def dashed(match: re.Match[str]) -> str:
        first, last, step = match.groups()
        if first.isdigit() and last.isdigit():
            return f"[{first}-{last}" + (f"/{step}]" if step else "]")
        if len(first) == len(last) == 1 and first <= last:
            return "[" + ",".join(chr(code) for code in range(ord(first), ord(last) + 1)) + "]"
        return match.group(0)

    return _letters_apart(_RANGE.sub(dashed, pattern))


def _letters_apart(pattern: str) -> str:
    """`n[a,b]` as `na,nb`: a node set has only numbers in its brackets."""
    match = re.search(r"\[((?:[A-Za-z],)*[A-Za-z])\]", pattern)
    if match is None:
        return pattern
    before, after = pattern[: match.start()], pattern[match.end() :]
    return ",".join(f"{before}{letter}{after}" for letter in match.group(1).split(","))


# --- YAML ---------------------------------------------------------------------------------------------------


def _is_yaml(text: str) -> bool:
    return _YAML_GROUPS.search(text) is not None and _YAML_INVENTORY.search(text) is not None


def _yaml_groups(text: str, file: str | None, names: NameLists) -> _Groups:
    groups: _Groups = {}
    for name, body in _walk(yaml_text.read(text, file=file)):
        group = groups.setdefault(name, _Group())
        for host in body.get("hosts") or ():
            group.hosts.update(dict.fromkeys(names.expand(_with_dashes(host))))
        group.children.update(dict.fromkeys(child[:128] for child in body.get("children") or ()))
    return groups


def _walk(documents: tuple[Any, ...]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Every group with its hosts and children, outer before inner; bounded, since aliases can repeat a branch."""
    waiting = deque(item for document in documents if isinstance(document, dict) for item in document.items())
    for _ in range(_GROUPS_LIMIT):
        if not waiting:
            return
        name, body = waiting.popleft()
        parts = body if isinstance(body, dict) else {}
        body = {key: parts[key] for key in ("hosts", "children") if isinstance(parts.get(key), dict)}
        yield name[:128], body
        waiting.extend(itertools.islice(body.get("children", {}).items(), _GROUPS_LIMIT))


KINDS: tuple[SavedKind, ...] = (SavedKind("Ansible inventory", recognise, document=parse),)
