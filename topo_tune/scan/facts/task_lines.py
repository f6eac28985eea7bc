"""Lines of one task: what `srun --label` and `mpirun --tag-output` put in front of each line, taken off again."""

from __future__ import annotations

import io
import re

import msgspec

from topo_tune.scan.facts.words import without_escapes

LINE_LENGTH_LIMIT = 4096
"""Characters of a line that are looked at. No tool of a node writes a longer line of its own."""

LINES_LIMIT = 50_000
"""Lines that are looked at: twice what `ibv_devinfo -v` writes of 64 devices with full GID tables."""

_LABEL = re.compile(r"\[\d+(?:,\d+)*\]<std\w{3}> ?: ?|[ \t]{0,8}\d{1,6}: ")
_NUMBER = re.compile(r"[ \t]{0,8}\d{1,6}: ")


class TaskLines(msgspec.Struct, frozen=True):
    """The lines of the first task of a text, and what was left out."""

    lines: tuple[tuple[int, str], ...]
    """(line number in the text, line without its label) of every line that holds something"""
    problems: tuple[str, ...] = ()


def lines_of_one_task(text: str, *, is_numbered: bool = False) -> TaskLines:
    """The lines of a text, which is the output of one task or of several whose labels are in front of every line.

    Of several tasks only the first is kept: two nodes' devices must not become one node's.
    is_numbered: whether the tool itself begins lines with `1: `, which is then no label.
    """
    numbered: list[tuple[int, str]] = []
    problems = []
    # A line at a time: the whole list of lines of a large file would take many times its size.
    for number, line in enumerate(io.StringIO(without_escapes(text)), start=1):
        if line.isspace():
            continue
        if len(numbered) == LINES_LIMIT:
            problems.append(f"only the first {LINES_LIMIT} lines were read")
            break
        numbered.append((number, line[:LINE_LENGTH_LIMIT].rstrip("\n").replace("\0", "")))
    kept, others = _of_first_label(numbered, is_numbered)
    if others:
        problems.append(f"lines of {others} other tasks are left out")
    return TaskLines(tuple(kept), tuple(problems))


def _of_first_label(lines: list[tuple[int, str]], is_numbered: bool) -> tuple[list[tuple[int, str]], int]:
    """The lines behind the first label, and how many other labels there are; all lines where not all have one."""
    labels = [match.group() if (match := _LABEL.match(line)) else None for _, line in lines]
    if not lines or labels[0] is None or None in labels:
        return lines, 0
    if is_numbered and not _NUMBER.match(lines[0][1][len(labels[0]) :]):
        return lines, 0
    told = [(label or "").strip() for label in labels]
    kept = [
        (number, line[len(label or "") :])
        for (number, line), label, own in zip(lines, labels, told, strict=True)
        if own == told[0]
    ]
    return kept, len(set(told)) - 1
