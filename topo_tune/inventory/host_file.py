"""A host file as an inventory: one node or node set a line, as mpirun and pdsh take them.

    # comment
    gpu[001-016] slots=8
    gpu017:8

It says which nodes there are and how many ranks each takes; everything else is the cluster file's default.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from topo_tune.errors import InputError, did_you_mean
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions
from topo_tune.records.nodeset import expand, fold, repeated

RACK_NAME = "all"

_SLOTS = re.compile(r"slots=([0-9]{1,9})")
_COLON_SLOTS = re.compile(r"([^:]+):([0-9]{1,9})")
_COMMENT = re.compile(r"(^|\s)#.*")


class _Line(NamedTuple):
    number: int
    names: tuple[str, ...]
    slots: int | None


def read_host_file(text: str, file: str, *, default_name: str) -> Inventory:
    """The Inventory of a host file: one rack, reached by ssh. Raises InputError with file and line."""
    lines = [_line(number, words, file) for number, words in _words(text)]
    if not lines:
        raise InputError(
            "names no nodes", file=file, hint="write one node or node set a line, such as `gpu[001-016]`"
        )
    _refuse_duplicates(lines, file)
    nodes = tuple(
        Node(name=name, rack=RACK_NAME, address=name, connection=ConnectionKind.SSH)
        for line in lines
        for name in line.names
    )
    return Inventory(
        name=default_name,
        racks=(Rack(name=RACK_NAME, nodes=nodes),),
        ssh=SshOptions(),
        backend=BackendName.NCCL,
        ranks_per_node=_ranks_per_node(lines, file),
    )


def _words(text: str) -> list[tuple[int, list[str]]]:
    """Line numbers and words of the lines that say something."""
    numbered = (
        (number, _COMMENT.sub("", line).split()) for number, line in enumerate(text.split("\n"), start=1)
    )
    return [(number, words) for number, words in numbered if words]


def _line(number: int, words: list[str], file: str) -> _Line:
    pattern, slots = words[0], None
    if match := _COLON_SLOTS.fullmatch(pattern):
        pattern, slots = match[1], int(match[2])
    for word in words[1:]:
        match = _SLOTS.fullmatch(word)
        if match is None or slots is not None:
            raise _not_read(word, number, file)
        slots = int(match[1])
    if slots == 0:
        raise InputError("a node with 0 slots takes no ranks", file=file, line=number, hint="remove the line")
    try:
        names = expand(pattern)
    except InputError as exc:
        raise InputError(exc.message, file=file, line=number, hint=exc.hint) from exc
    if twice := repeated(pattern):
        raise InputError(f"`{pattern}` names {fold(twice)} twice", file=file, line=number)
    return _Line(number, names, slots)


def _not_read(word: str, number: int, file: str) -> InputError:
    key, separator, _ = word.partition("=")
    if separator:
        hint = did_you_mean(key, ["slots"])
    else:
        hint = "one node or node set a line; a comment begins with `#`"
    return InputError(f"`{word}` is not understood here", file=file, line=number, hint=hint)


def _refuse_duplicates(lines: list[_Line], file: str) -> None:
    seen: dict[str, int] = {}
    for line in lines:
        for name in line.names:
            if name in seen:
                raise InputError(
                    f"the node `{name}` is written twice, on lines {seen[name]} and {line.number}",
                    file=file,
                    line=line.number,
                    hint=f"for several ranks on one node write `{name} slots=N`",
                )
            seen[name] = line.number


def _ranks_per_node(lines: list[_Line], file: str) -> int | None:
    first = lines[0]
    for line in lines:
        if line.slots != first.slots:
            raise InputError(
                f"line {first.number} has {_slots(first)} and line {line.number} has {_slots(line)}; "
                "topo-tune starts the same number of ranks on every node",
                file=file,
                line=line.number,
                hint="give every line the same slots, or none",
            )
    return first.slots


def _slots(line: _Line) -> str:
    return "no slots" if line.slots is None else f"slots={line.slots}"
