"""Lists of names as saved files write them, `gpu[001-064],login1`, expanded within bounds."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.errors import InputError
from topo_tune.records.nodeset import expand, is_node_name
from topo_tune.scan.facts.words import clipped

NAMES_LIMIT = 1 << 16
"""Names that one file may bring: as many as `nodeset` lets one pattern have."""

LINE_LIMIT = 1 << 17
"""Characters of one line, or one list; 4,000 nodes written out one by one take half of that."""

_LINES_LIMIT = 200_000
"""A file that writes every node it may bring on three lines of its own has fewer."""

_PROBLEMS_LIMIT = 20
"""Lines about what could not be read. More say nothing new."""


class NameLists:
    """Expands the lists of one file; once it has brought too many names, no more are let in."""

    def __init__(self) -> None:
        self._left = NAMES_LIMIT
        self._problems: list[str] = []
        self._left_out = 0

    def expand(self, pattern: str, line: int | None = None, *, of_nodes: bool = True) -> tuple[str, ...]:
        """The names of a pattern; what cannot be read is a problem, and no name.

        of_nodes: they must be host names; else anything goes as a name.
        """
        if not pattern or pattern == "(null)":
            return ()
        if self.is_full:
            return ()
        try:
            names = _names(pattern, of_nodes)
        except InputError as error:
            self.problem(clipped(error.message, 160), line)
            return ()
        kept = names[: self._left]
        self._left -= len(names)
        if self._left <= 0:
            self.problem(f"names beyond the first {NAMES_LIMIT} are left out", line)
        return kept

    @property
    def is_full(self) -> bool:
        """Whether no more names are let in: there is nothing left to look for."""
        return self._left <= 0

    def problem(self, text: str, line: int | None = None) -> None:
        """Remember what could not be read, and on which line, from 1."""
        if len(self._problems) < _PROBLEMS_LIMIT:
            self._problems.append(text if line is None else f"line {line}: {text}")
        else:
            self._left_out += 1

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read, in the file's order."""
        more = (f"and {self._left_out} more like these",) if self._left_out else ()
        return (*self._problems, *more)


def numbered_lines(text: str, lists: NameLists) -> Iterator[tuple[int, str]]:
    """Number, from 1, and text of each line, until no more names are let in; a problem where lines are left out."""
    lines = text.split("\n")
    for number, line in enumerate(lines[:_LINES_LIMIT], start=1):
        if lists.is_full:
            return
        yield number, line[:LINE_LIMIT]
        if len(line) > LINE_LIMIT:
            lists.problem(f"is longer than {LINE_LIMIT} characters, and only its beginning is read", number)
    if len(lines) > _LINES_LIMIT:
        lists.problem(f"lines beyond the first {_LINES_LIMIT} are left out")


def _names(pattern: str, of_nodes: bool) -> tuple[str, ...]:
    text = pattern.strip().strip("\"'")
    if len(text) > LINE_LIMIT:
        raise InputError(f"a list of {len(text)} characters is too long to be one of names")
    if "[" in text or "]" in text:
        _refuse_odd_brackets(text)
        return expand(text)
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    odd = next((name for name in names if not is_node_name(name)), None) if of_nodes else None
    if odd is not None:
        raise InputError(f"`{clipped(odd)}` is not a node name")
    return names


def _refuse_odd_brackets(text: str) -> None:
    is_open = False
    for bracket in (character for character in text if character in "[]"):
        if (bracket == "[") == is_open:
            raise InputError(f"the brackets of `{clipped(text)}` do not match")
        is_open = not is_open
    if is_open:
        raise InputError(f"the brackets of `{clipped(text)}` do not match")
