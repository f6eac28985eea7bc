"""Words from nodes and files, safe to show; and the two layouts that every report is made of."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from topo_tune.records.inventory import BackendName
from topo_tune.records.nodeset import fold, is_node_name


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


def table(*titles: str, right: Iterable[str] = ()) -> Table:
    """A table without lines; columns named in `right` hold numbers. Its cells are markup: see `told`."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in right else "left", overflow="fold")
    return made


def listed(title: str, rows: Iterable[tuple[str, ...]]) -> RenderableType:
    """A title above indented rows, whose columns wrap within themselves. Everything is shown as it is."""
    return Group(told(title), Padding(_grid(rows, gap=2), (0, 0, 0, 2)))


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
