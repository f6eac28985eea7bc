"""How each pair of GPUs and NICs of a node is joined, as a matrix that fits the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from topo_tune.records.matrix import TopologyMatrix
from topo_tune.report.text import told

_STYLES = {"X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}
_NOT_READ = "?"
_GAP = 2
"""blanks between two columns"""


class MatrixView:
    """The matrix of `topo -m`, GPUs first, coloured from near (green) to far (red).

    Columns that do not fit beside each other stand below each other in blocks. Rows and columns of which nothing was
    read are left out.
    """

    def __init__(self, matrix: TopologyMatrix) -> None:
        self.names = (*matrix.gpus, *matrix.nics)
        self.links = matrix.links
        everything = range(len(self.names))
        self.rows = [row for row in everything if self._is_read((row, column) for column in everything)]
        self.columns = [column for column in everything if self._is_read((row, column) for row in everything)]

    def _is_read(self, places: Iterator[tuple[int, int]]) -> bool:
        return any(row != column and self.links[row][column] != _NOT_READ for row, column in places)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for position, block in enumerate(self._blocks(options.max_width)):
            if position:
                yield ""
            yield self._table(block)

    def _blocks(self, width: int) -> Iterator[list[int]]:
        label = max((len(self.names[row]) for row in self.rows), default=0)
        block: list[int] = []
        used = label
        for column in self.columns:
            words = (self.names[column], *(self.links[row][column] for row in self.rows))
            needed = _GAP + max(map(len, words))
            if block and used + needed > width:
                yield block
                block, used = [], label
            block.append(column)
            used += needed
        if block:
            yield block

    def _table(self, columns: Sequence[int]) -> Table:
        made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1), collapse_padding=False)
        made.add_column("", no_wrap=True)
        for column in columns:
            made.add_column(told(self.names[column]), justify="center", no_wrap=True)
        for row in self.rows:
            cells = (_link(self.links[row][column]) for column in columns)
            made.add_row(f"[bold]{told(self.names[row])}[/bold]", *cells)
        return made


def _link(word: str) -> str:
    style = "green" if word.startswith("NV") else _STYLES.get(word)
    return told(word) if style is None else f"[{style}]{told(word)}[/{style}]"
