"""The picture of launches for a terminal: plain text, each setting by a mark of its own, no colour."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence

from topo_tune.records.bench import Launch
from topo_tune.records.units import format_bytes
from topo_tune.report.braille import Canvas
from topo_tune.report.pictures import (
    CONFIDENCE,
    Curve,
    Picture,
    apart,
    percent,
    pictures_of,
    position,
    short,
    ticks,
)
from topo_tune.report.text import visible
from topo_tune.stats.intervals import Interval

Scale = Callable[[float], int]
"""from a value to a column or a row"""

_MARKS = "ox+*#%&=$"
_SEVERAL = "@"
_LABELS = 8
"""columns left of the drawing: a number and the axis"""
_ROWS = 16
_SHORTEST, _SHORTEST_BAR = 40, 20
"""columns, below which nothing can be told apart"""


def busbw_plot(launches: Sequence[Launch], collective: str, dtype: str, *, width: int = 80) -> list[str]:
    """Bus bandwidth over size and what each setting gains, in `width` columns; empty where nothing was measured."""
    lines: list[str] = []
    for picture in pictures_of(launches, collective, dtype):
        lines += ["", *_drawn(picture, width)]
    return [visible(line).rstrip() for line in lines[1:]]


def _drawn(picture: Picture, width: int) -> list[str]:
    width = max(width, _SHORTEST)
    curves = picture.curves[: len(_MARKS)]
    lines = textwrap.wrap(f"busbw of {picture.title}", width)
    lines += _busbw(curves, picture.sizes_bytes(), width)
    lines += [
        line for mark, curve in zip(_MARKS, curves, strict=False) for line in _legend(mark, curve, width)
    ]
    hidden = len(picture.curves) - len(curves)
    if hidden:
        lines.append(f"  {hidden} more setting{'s' * (hidden > 1)} in the table only")
    if picture.has_gains():
        lines += ["", *_gains(curves, width)]
    return lines


def _legend(mark: str, curve: Curve, width: int) -> list[str]:
    most = max((point.launches for point in curve.points), default=0)
    text = f"{curve.name} ({most} launch{'' if most == 1 else 'es'})"
    return textwrap.wrap(text, width, initial_indent=f"  {mark} ", subsequent_indent="    ")


def _busbw(curves: Sequence[Curve], sizes: Sequence[int], width: int) -> list[str]:
    ends = [end for curve in curves for p in curve.points for end in (p.busbw.low, p.busbw.high)]
    low, high = apart(min(ends), max(ends))
    canvas = Canvas(width - _LABELS, _ROWS)
    across = _scale(sizes[0], sizes[-1], canvas.dots_across - 3)
    up = _scale(low, high, canvas.dots_up - 1)
    for mark, curve in zip(_MARKS, curves, strict=False):
        places = [(1 + across(p.size_bytes), up(p.busbw.center)) for p in curve.points]
        # Solid for the default, dotted for what is compared with it.
        canvas.line(places, every=1 if curve.is_default else 3)
        for point, (column, row) in zip(curve.points, places, strict=True):
            canvas.line([(column, up(point.busbw.low)), (column, up(point.busbw.high))], every=1)
            canvas.mark(column, row, mark, several=_SEVERAL)
    labels = {canvas.cell_row(up(tick)): short(tick) for tick in ticks(low, high)}
    lines = [
        f"{'GB/s':>{_LABELS - 2}}  on a logarithmic scale; bars: {CONFIDENCE * 100:.0f} % intervals over launches"
    ]
    for number, drawn in enumerate(canvas.rows()):
        label = labels.get(number)
        lines.append(f"{label or '':>{_LABELS - 2}} {'┤' if label else '│'}{drawn}")
    lines.append(" " * (_LABELS - 1) + "└" + "─" * canvas.cells_across)
    names = {canvas.cell_column(1 + across(size)): format_bytes(size) for size in sizes}
    lines.append(" " * _LABELS + _row_of_words(names, canvas.cells_across))
    return lines + ([f"  {_SEVERAL} several at one place"] if canvas.has_several else [])


def _gains(curves: Sequence[Curve], width: int) -> list[str]:
    """Each size of each setting against the default, as an interval around its estimate."""
    found = [
        (point.size_bytes, mark, point.gain)
        for mark, curve in zip(_MARKS, curves, strict=False)
        for point in curve.points
        if point.gain is not None
    ]
    shown = sorted(found, key=lambda one: (one[0], _MARKS.index(one[1])))
    words = [f"{format_bytes(size):>6} {mark} {_told(gain)}" for size, mark, gain in shown]
    title = "faster than the default by"
    left = max(len(title), *map(len, words)) + 2
    bar = max(width - left, _SHORTEST_BAR)
    ends = [end for _, _, gain in shown for end in (gain.low, gain.high)]
    low, high = apart(min(1.0, *ends), max(1.0, *ends))
    lines = [f"{title:<{left}}{percent(low)}{percent(high):>{bar - len(percent(low))}}"]
    for told, (_, mark, gain) in zip(words, shown, strict=True):
        lines.append(f"{told:<{left}}{_bar(gain, mark, _scale(low, high, bar - 1), bar)}")
    return lines


def _told(gain: Interval) -> str:
    ends = f"({percent(gain.low)} to {percent(gain.high)})" if gain.low < gain.high else "(one launch)"
    return f"{percent(gain.center):>9}  {ends}"


def _bar(gain: Interval, mark: str, across: Scale, width: int) -> str:
    cells = [" "] * width
    cells[across(1.0)] = "│"
    first, middle, last = across(gain.low), across(gain.center), across(gain.high)
    for column in range(first, last + 1):
        cells[column] = "┼" if cells[column] == "│" else "─"
    if last > first:
        cells[first], cells[last] = "├", "┤"
    cells[middle] = mark
    return "".join(cells)


# --- places ---


def _scale(low: float, high: float, last: int) -> Scale:
    """From a value on a logarithmic axis to one of the places 0 to `last`."""
    return lambda value: round(position(value, low, high) * last)


def _row_of_words(words: Mapping[int, str], width: int) -> str:
    """Words centred at their columns; one that would touch another is left out."""
    cells = [" "] * width
    taken = -1
    for column, word in sorted(words.items()):
        start = min(max(0, column - len(word) // 2), width - len(word))
        if start > taken:
            cells[start : start + len(word)] = word
            taken = start + len(word)
    return "".join(cells)
