"""One row of an nccl-tests table: told apart by the header's columns, by its shape where there is no header.

Four layouts were printed over the years: with and without `root`, with `error` or `#wrong`, with per-iteration times
(`-I`), with a time stamp in front or at the end (`-S`). A reduction is left blank where there is none.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import NamedTuple

from topo_tune.records.nccl_documents import MeasuredRow, MeasuredTime

_HEAD = re.compile(
    r"\s*(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s+)?(\d{1,18})\s+(\d{1,18})\s+([a-z][\w.]{0,15})(?=\s|$)"
)
_STAMP = re.compile(r"\s*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_WORD = re.compile(r"(?!nan$|inf$)[a-z][a-z_]{1,15}$")
_NUMBER = re.compile(r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,4})?|nan|inf)\*{0,3}$|N/A$", re.I)
_MOST_NUMBERS = 40
"""Numbers behind the type in one row: a root, and two halves of eight columns, with room to spare."""
_COLUMNS_OF_A_HALF = ("time", "algbw", "busbw", "wrong")


class Layout(NamedTuple):
    """What a header says of the columns behind `type`."""

    has_root: bool
    width: int = 4
    """columns of one half: 8 with per-iteration times"""
    halves: int = 2


class PartialRow(NamedTuple):
    """A row that has begun: what it is about, and the numbers that came so far."""

    size_bytes: int
    elements: int
    type: str
    redop: str | None
    numbers: tuple[str, ...]


def layout(line: str) -> Layout | None:
    """The columns of a header line, or None for any other."""
    words = line.replace("#wrong", "wrong").replace("#", " ").split()
    if "size" not in words[:2] or "busbw" not in words or "type" not in words:
        return None
    times = [index for index, word in enumerate(words) if word in ("time", "cputime")]
    stamps = words.count("timestamp") if words[-1] == "timestamp" else 0
    width = (times[1] - times[0]) if len(times) > 1 else len(words) - stamps - times[0] if times else 4
    return Layout("root" in words, max(4, min(width, 16)), max(1, min(len(times), 2)))


def begun(text: str) -> PartialRow | None:
    """The row that begins on this line, complete or not, or None."""
    head = _HEAD.match(text)
    if head is None:
        return None
    words = _words(text[head.end() : head.end() + 400])
    redop = words.pop(0) if words and _WORD.match(words[0]) else None
    numbers = tuple(itertools.takewhile(_NUMBER.match, words))
    return PartialRow(int(head[1]), int(head[2]), head[3], redop, numbers)


def continued(partial: PartialRow, text: str) -> PartialRow | None:
    """The row with what this line adds, where it holds nothing but numbers; None where it does not.

    That is what is left of a row that other output cut in two.
    """
    words = _words(text[:400]) if len(partial.numbers) < _MOST_NUMBERS else []
    if not words or not all(_NUMBER.match(word) for word in words):
        return None
    return partial._replace(numbers=(*partial.numbers, *words))


def missing(partial: PartialRow, columns: Layout | None) -> int:
    """How many numbers the row still lacks; at least one half of two is expected where no header tells."""
    expected = 2 * 4 if columns is None else columns.width * columns.halves + columns.has_root
    return max(0, expected - len(partial.numbers))


def row(partial: PartialRow, columns: Layout | None) -> MeasuredRow | None:
    """The row, with whatever halves are there; None where not even one is."""
    numbers = list(partial.numbers)
    width = columns.width if columns is not None else (8 if len(numbers) in (16, 17) else 4)
    has_root = columns.has_root if columns is not None else len(numbers) % width == 1
    root = _value(numbers.pop(0)) if has_root and numbers else None
    first, second = (_half(numbers[start : start + width]) for start in (0, width))
    if first is None:
        return None
    return MeasuredRow(
        size_bytes=partial.size_bytes,
        count=partial.elements,
        type=partial.type,
        redop=partial.redop,
        root=None if root is None else int(root),
        out_of_place=first,
        in_place=second,
    )


def _words(text: str) -> list[str]:
    return (_STAMP.sub("", text) if ":" in text else text).split()


def _half(words: list[str]) -> MeasuredTime | None:
    if len(words) < len(_COLUMNS_OF_A_HALF):
        return None
    time, algbw, busbw, wrong = (_value(word) for word in words[:4])
    return MeasuredTime(time, algbw, busbw, wrong)


def _value(word: str) -> float | None:
    try:
        value = float(word.rstrip("*"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
