"""The picture of launches as one HTML file: drawings in SVG, the same numbers as a table, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from topo_tune import __version__
from topo_tune.records.bench import Launch
from topo_tune.records.units import format_bytes
from topo_tune.report.curves_style import COLOURS, STYLE
from topo_tune.report.pictures import (
    CONFIDENCE,
    Curve,
    Picture,
    Point,
    apart,
    percent,
    pictures_of,
    position,
    short,
    ticks,
)
from topo_tune.report.text import visible
from topo_tune.stats.intervals import Interval

_WIDTH, _LEFT, _RIGHT = 820, 84, 24
_TOP, _BOTTOM = 16, 44
_BUSBW_HEIGHT, _GAIN_HEIGHT = 400, 260
_SIDESTEP = 7
"""units between the marks of settings at one size, so that their bars can be told apart"""

Scale = Callable[[float], float]


def busbw_page(
    launches: Sequence[Launch],
    collective: str,
    dtype: str,
    *,
    title: str = "topo-tune bench",
    notes: Sequence[str] = (),
) -> str:
    """A whole page: bus bandwidth over size and what each setting gains, for each collective that was measured.

    `collective`, `dtype`: of launches that do not say. `notes` stand above the drawings. The page loads nothing.
    """
    pictures = pictures_of(launches, collective, dtype)
    parts = [f"<h1>{_text(title)}</h1>"]
    if notes:
        parts.append(f"<ul class='notes'>{''.join(f'<li>{_text(note)}</li>' for note in notes)}</ul>")
    for number, picture in enumerate(pictures):
        parts += ["<section>", *_section(picture, number), "</section>"]
    if not pictures:
        parts.append("<p>No launch could be used, so there is nothing to show.</p>")
    parts.append(f"<footer>Made by topo-tune {_text(__version__)}.</footer>")
    body = "\n".join(parts)
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        # Whatever a name from a node might hold, this page runs and loads nothing.
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _section(picture: Picture, number: int) -> Iterable[str]:
    yield f"<h2>{_text(picture.title)}</h2>"
    yield _legend(picture.curves)
    yield "<figure>"
    yield from _busbw(picture, f"busbw-{number}")
    yield (
        f"<figcaption>Bus bandwidth over message size, both on logarithmic scales. Bars: {CONFIDENCE * 100:.0f} % "
        "intervals over launches; a mark without a bar is a single launch.</figcaption></figure>"
    )
    if picture.has_gains():
        yield "<figure>"
        yield from _gains(picture, f"gain-{number}")
        yield (
            "<figcaption>How much faster than NCCL's defaults each setting is, by time; below zero it is slower. A bar "
            "that crosses zero means that these launches cannot tell.</figcaption></figure>"
        )
    yield _numbers(picture)


def _legend(curves: Sequence[Curve]) -> str:
    rows = []
    for number, curve in enumerate(curves):
        key = (
            "<svg class='key' viewBox='0 0 36 16' aria-hidden='true'>"
            f"{_line([(2, 8), (34, 8)], number)}{_mark(18, 8, number)}</svg>"
        )
        rows.append(f"<li>{key}<span>{_text(curve.name)}</span></li>")
    return f"<ul class='legend'>{''.join(rows)}</ul>"


# --- the drawings ---


def _busbw(picture: Picture, name: str) -> Iterable[str]:
    points = [point for curve in picture.curves for point in curve.points]
    low, high = apart(min(p.busbw.low for p in points), max(p.busbw.high for p in points))
    across = _across(picture)
    up = _up(low, high, _BUSBW_HEIGHT)
    yield _svg(name, _BUSBW_HEIGHT, f"busbw of {picture.title}", _described(picture.curves))
    yield from _grid(
        picture, across, [(up(tick), short(tick)) for tick in ticks(low, high)], _BUSBW_HEIGHT, "GB/s"
    )
    for number, curve in enumerate(picture.curves):
        places = [(across(p.size_bytes), up(p.busbw.center)) for p in curve.points]
        yield _line(places, number)
        for point, (x, y) in zip(curve.points, places, strict=True):
            yield _measured(
                x, y, up(point.busbw.low), up(point.busbw.high), number, _busbw_words(curve, point)
            )
    yield "</svg>"


def _gains(picture: Picture, name: str) -> Iterable[str]:
    shown = [
        (number, curve, point, point.gain)
        for number, curve in enumerate(picture.curves)
        for point in curve.points
        if point.gain is not None
    ]
    ends = [end for _, _, _, gain in shown for end in (gain.low, gain.high)]
    low, high = apart(min(1.0, *ends), max(1.0, *ends))
    across = _across(picture)
    up = _up(low, high, _GAIN_HEIGHT)
    yield _svg(name, _GAIN_HEIGHT, f"gain over NCCL's defaults of {picture.title}", _gains_described(picture))
    marks = [
        (up(tick), f"{(tick - 1) * 100:+.3g} %")
        for tick in ticks(low, high, most=6)
        if abs(up(tick) - up(1.0)) > 14
    ]
    yield from _grid(picture, across, [*marks, (up(1.0), "0 %")], _GAIN_HEIGHT, "faster")
    yield f"<line class='zero' x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{up(1.0):.1f}' y2='{up(1.0):.1f}'/>"
    # The default, which is not drawn here, comes first.
    middle = len(picture.curves) / 2
    for number, curve, point, gain in shown:
        x = across(point.size_bytes) + (number - middle) * min(_SIDESTEP, 60 / len(picture.curves))
        words = f"{curve.name}, {format_bytes(point.size_bytes)}: {_gain_words(gain)}"
        yield _measured(x, up(gain.center), up(gain.low), up(gain.high), number, words)
    yield "</svg>"


def _svg(name: str, height: int, title: str, description: str) -> str:
    return (
        f"<svg viewBox='0 0 {_WIDTH} {height}' role='img' aria-labelledby='{name}-title {name}-text'>"
        f"<title id='{name}-title'>{_text(title)}</title><desc id='{name}-text'>{_text(description)}</desc>"
    )


def _grid(
    picture: Picture, across: Scale, marks: Sequence[tuple[float, str]], height: int, unit: str
) -> Iterable[str]:
    floor = height - _BOTTOM
    for y, label in marks:
        yield f"<line class='grid' x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>"
        yield f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'>{_text(label)}</text>"
    every = -(-len(picture.sizes_bytes()) // 16)
    for size in picture.sizes_bytes()[::every]:
        x = across(size)
        yield f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP}' y2='{floor}'/>"
        yield f"<text x='{x:.1f}' y='{floor + 18}' text-anchor='middle'>{format_bytes(size)}</text>"
    yield f"<text x='{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}' y='{height - 6}' text-anchor='middle'>message size</text>"
    middle = (_TOP + floor) / 2
    yield f"<text transform='translate(14 {middle:.0f}) rotate(-90)' text-anchor='middle'>{_text(unit)}</text>"


def _measured(x: float, y: float, low: float, high: float, number: int, words: str) -> str:
    """A mark with its bar; the words show while a pointer rests on it."""
    bar = ""
    if abs(low - high) > 0.1:
        caps = f"M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
        bar = f"<path class='bar c{number % COLOURS}' d='M{x:.1f} {low:.1f}V{high:.1f}{caps}'/>"
    return f"<g><title>{_text(words)}</title>{bar}{_mark(x, y, number)}</g>"


def _line(places: Sequence[tuple[float, float]], number: int) -> str:
    # Solid for the first, which is the default; dashes of other lengths for what is compared with it.
    dashes = "" if number == 0 else f" stroke-dasharray='{4 + 3 * (number % 4)} {3 + number // 4}'"
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f"<polyline class='line c{number % COLOURS}'{dashes} points='{points}'/>"


def _mark(x: float, y: float, number: int) -> str:
    """Settings differ by shape as well as by colour."""
    shape = _SHAPES[(number + number // COLOURS) % len(_SHAPES)]
    return f"<path class='mark c{number % COLOURS}' transform='translate({x:.1f} {y:.1f})' d='{shape}'/>"


_SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # circle
    "M-4 -4h8v8h-8z",  # square
    "M0 -5L5 4H-5z",  # triangle
    "M0 -6L5 0L0 6L-5 0z",  # diamond
    "M0 5L5 -4H-5z",  # triangle on its point
    "M-5 -2h3v-3h4v3h3v4h-3v3h-4v-3h-3z",  # plus
    "M-5 -3L-3 -5L0 -2L3 -5L5 -3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0z",  # cross
)


def _across(picture: Picture) -> Scale:
    sizes = picture.sizes_bytes()
    # Room for marks that step aside at the first and the last size.
    left, right = _LEFT + 34, _WIDTH - _RIGHT - 34
    return lambda size: left + position(size, sizes[0], sizes[-1]) * (right - left)


def _up(low: float, high: float, height: int) -> Scale:
    floor = height - _BOTTOM
    return lambda value: floor - position(value, low, high) * (floor - _TOP)


# --- the same in words ---


def _numbers(picture: Picture) -> str:
    has_gains = picture.has_gains()
    head = "<tr><th scope='col'>setting</th><th scope='col'>size</th><th scope='col'>busbw (GB/s)</th>"
    head += f"<th scope='col'>{CONFIDENCE * 100:.0f} % interval</th><th scope='col'>launches</th>"
    if has_gains:
        head += "<th scope='col'>faster than the default by</th><th scope='col'>interval</th>"
    rows = []
    for curve in picture.curves:
        for point in curve.points:
            cells = [
                format_bytes(point.size_bytes),
                short(point.busbw.center),
                _ends(point.busbw, short),
            ]
            cells.append(str(point.launches))
            if has_gains:
                cells += (
                    ["", ""]
                    if point.gain is None
                    else [percent(point.gain.center), _ends(point.gain, percent)]
                )
            rows.append(
                f"<tr><th scope='row'>{_text(curve.name)}</th>"
                + "".join(f"<td>{cell}</td>" for cell in cells)
                + "</tr>"
            )
    return (
        f"<details><summary>The numbers</summary><div class='wide'><table><thead>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _ends(interval: Interval, told: Callable[[float], str]) -> str:
    return f"{told(interval.low)} to {told(interval.high)}" if interval.low < interval.high else ""


def _described(curves: Sequence[Curve]) -> str:
    return "; ".join(
        f"{curve.name}: "
        + ", ".join(f"{format_bytes(p.size_bytes)} {short(p.busbw.center)}" for p in curve.points)
        for curve in curves
    )


def _gains_described(picture: Picture) -> str:
    return "; ".join(
        f"{curve.name}: "
        + ", ".join(
            f"{format_bytes(p.size_bytes)} {percent(p.gain.center)}"
            for p in curve.points
            if p.gain is not None
        )
        for curve in picture.curves
        if any(point.gain is not None for point in curve.points)
    )


def _busbw_words(curve: Curve, point: Point) -> str:
    ends = _ends(point.busbw, short)
    interval = f" ({ends})" if ends else ""
    return f"{curve.name}, {format_bytes(point.size_bytes)}: {short(point.busbw.center)} GB/s{interval}"


def _gain_words(gain: Interval) -> str:
    ends = _ends(gain, percent)
    return percent(gain.center) + (f" ({ends})" if ends else "")


def _text(words: str) -> str:
    return escape(visible(words))
