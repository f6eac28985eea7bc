"""A drawing of dots in a terminal: each character cell is two dots wide and four high, in Braille patterns.

Marks are ordinary characters on top of the dots, so that a drawing can be read without colour.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

_FIRST_PATTERN = 0x2800
# Bit of a dot by its column and its row from the top, as Unicode numbers the dots of a Braille cell.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_DOTS_ACROSS, _DOTS_UP = 2, 4


class Canvas:
    """Dots by column from the left and row from the bottom, both from 0; what lies outside is not drawn."""

    def __init__(self, cells_across: int, cells_up: int) -> None:
        self.cells_across, self.cells_up = cells_across, cells_up
        self.dots_across, self.dots_up = cells_across * _DOTS_ACROSS, cells_up * _DOTS_UP
        self.has_several = False
        """whether two marks met in one cell"""
        self._cells = [[0] * cells_across for _ in range(cells_up)]
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, places: Sequence[tuple[int, int]], *, every: int) -> None:
        """Straight lines from place to place, of every dot or of every n-th."""
        drawn = 0
        for (x, y), (to_x, to_y) in itertools.pairwise(places):
            steps = max(abs(to_x - x), abs(to_y - y), 1)
            for step in range(steps + 1):
                if drawn % every == 0:
                    self._dot(x + round((to_x - x) * step / steps), y + round((to_y - y) * step / steps))
                drawn += 1

    def mark(self, x: int, y: int, mark: str, *, several: str) -> None:
        """A character in the dot's cell; `several` where another one stands already."""
        place = (self.cell_row(y), self.cell_column(x))
        if self._marks.get(place, mark) != mark:
            mark, self.has_several = several, True
        self._marks[place] = mark

    def cell_row(self, y: int) -> int:
        """The row of cells, from the top, that a row of dots lies in."""
        return self.cells_up - 1 - y // _DOTS_UP

    def cell_column(self, x: int) -> int:
        """The column of cells that a column of dots lies in."""
        return x // _DOTS_ACROSS

    def rows(self) -> list[str]:
        """The drawing, line by line from the top."""
        return [
            "".join(self._marks.get((row, column), _character(bits)) for column, bits in enumerate(cells))
            for row, cells in enumerate(self._cells)
        ]

    def _dot(self, x: int, y: int) -> None:
        if 0 <= x < self.dots_across and 0 <= y < self.dots_up:
            column, row = divmod(x, _DOTS_ACROSS), self.dots_up - 1 - y
            self._cells[row // _DOTS_UP][column[0]] |= _BITS[column[1]][row % _DOTS_UP]


def _character(bits: int) -> str:
    return chr(_FIRST_PATTERN + bits) if bits else " "
