"""Words from nodes and files, safe to show; and the layouts that every report is made of."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from topo_tune.records.inventory import BackendName
from topo_tune.records.nodeset import fold, is_node_name

_LABEL_LIMIT = 32
"""Characters of a label that leave room for a text beside it in 80 columns."""


def visible(text: str) -> str:
    """The text without characters that could drive a terminal; line ends and tabs stay."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def told(text: str) -> str:
    """Text from a node or a file, to put into markup: shown as it is, never obeyed."""
    return escape(visible(text))


def folded(names: Iterable[str]) -> str:
    """The shortest spelling of some nodes. A name that is none (a saved file's, `a&b`) stands as it is."""
    names = list(names)
    odd = [name for name in names if not is_node_name(name)]
    plain = [fold(name for name in names if is_node_name(name))] if len(odd) < len(names) else []
    return ", ".join([*plain, *odd])


def wrappable(names: str) -> str:
    """`n[1,3],m5` as `n[1,3], m5`: a terminal can wrap it between two names."""
    return re.sub(r"(\[[^\[\]]*\])|,(?=\S)", lambda found: found.group(1) or ", ", names)


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 node`, `2 nodes`"""
    return f"{count} {one if count == 1 else many or one + 's'}"


def table(*titles: str, right: Iterable[str] = ()) -> Table:
    """A table without lines; columns named in `right` hold numbers. Its cells are markup: see `told`."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in right else "left", overflow="fold")
    return made


def listed(title: str, rows: Iterable[tuple[str, ...]]) -> RenderableType:
    """A title above indented rows, whose columns wrap within themselves. Everything is shown as it is."""
    return Group(told(title), _indented(_grid(rows, gap=2), 2))


def labelled(title: str, rows: Iterable[tuple[str, str]]) -> RenderableType:
    """A title above labels with their texts beside them; below a label that is too long for that.

    So one long list of nodes, or one long file name, does not push every text to the right margin.
    """
    found = list(rows)
    column = max((len(label) for label, _ in found if len(label) <= _LABEL_LIMIT), default=0)
    parts: list[RenderableType] = [told(title)]
    for is_long, group in itertools.groupby(found, key=lambda row: len(row[0]) > _LABEL_LIMIT):
        if is_long:
            for label, text in group:
                parts += [_indented(told(wrappable(label)), 2), _indented(told(text), 4)]
        else:
            grid = _grid(group, gap=2)
            grid.columns[0].min_width = column
            parts.append(_indented(grid, 2))
    return Group(*parts)


def notes(lines: Iterable[str]) -> RenderableType:
    """`note:` beside each line, which wraps beside it. Everything is shown as it is."""
    return _grid((("note:", line) for line in lines), gap=1)


def replayed(backend: BackendName) -> str:
    """What every screen with numbers of a replay says behind its title, as markup; empty for real numbers."""
    return " [yellow](replay: recorded times)[/yellow]" if backend is BackendName.REPLAY else ""


def _grid(rows: Iterable[tuple[str, ...]], *, gap: int) -> Table:
    made = Table.grid(padding=(0, gap))
    for row in rows:
        made.add_row(*(told(cell) for cell in row))
    for column in made.columns:
        column.overflow = "fold"
    return made


def _indented(part: RenderableType, columns: int) -> RenderableType:
    return Padding(part, (0, 0, 0, columns))
