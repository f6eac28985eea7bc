"""Tables of NCCL's example tuner plugin (CSV): which algorithm to take for which message size.

Read as the plugin reads them, and what it misreads in silence is told: NVIDIA/nccl, plugins/tuner/example/plugin.c
(ext-tuner/example/ up to 2.28). Real ones are in tests/golden/facts/config.
"""

from __future__ import annotations

import re

from topo_tune.errors import InputError, nearest
from topo_tune.records.document import DocumentBody
from topo_tune.records.nccl_documents import ANY_SIZE, TUNER_DEFAULTS, TUNER_WORDS, TunerRule, TunerTable
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.words import clipped, without_escapes

_FIELDS = ("collective", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nodes", "ranks")
_MOST_FIELDS = 10
_LINE_LENGTH = 255
"""The plugin's buffer; what is longer continues as another line."""
_LINES_LIMIT = 50_000
_RULES_LIMIT = 5_000
_PROBLEMS_LIMIT = 40
_LOOKED_AT = 4096
_HINT = "a rule is `allreduce,0,65536,tree,ll,4,2,16`: collective, least and most bytes, " + (
    "algorithm, protocol, channels, nodes, ranks"
)
_NUMBER = re.compile(r"\s*([+-]?[0-9]{1,19})")

# Up to the channels: tables without nodes and ranks are in use, and the plugin skips all of their lines.
recognise = matches(
    r"^[ \t]{0,8}(?i:all_?reduce|broadcast|all_?gather|reduce_?scatter|reduce)"
    r"(?:[ \t]{0,8},[ \t]{0,8}-?[0-9]{1,20}){2}(?:[ \t]{0,8},[ \t]{0,8}(?:-1|(?i:[a-z][a-z0-9_]{0,30}))){2}"
    r"[ \t]{0,8},[ \t]{0,8}-?[0-9]{1,9}[ \t\r]{0,8}(?:,|$)"
)


def parse(text: str, *, file: str | None = None) -> tuple[TunerTable, tuple[str, ...]]:
    """The rules in their order, words as written, and what the plugin skips or takes for something else.

    Raises InputError where no line is a rule.
    """
    lines = without_escapes(text.removeprefix("\ufeff")).split("\n", _LINES_LIMIT)
    reading = _Reading()
    for number, line in enumerate(lines[:_LINES_LIMIT], start=1):
        reading.read(number, line)
        if len(reading.rules) == _RULES_LIMIT:
            reading.problems.append(f"line {number}: more than {_RULES_LIMIT} rules, the rest is left out")
            break
    if not reading.rules:
        first = next((line for line in lines[:200] if line.strip() and not line.startswith("#")), "nothing")
        found = reading.problems[0] if recognise(text[:_LOOKED_AT]) else f"found `{clipped(first)}`"
        raise InputError(f"no tuner rule: {found}", file=file, hint=_HINT)
    return TunerTable(tuple(reading.rules)), tuple(reading.told())


def document(text: str, file: str) -> tuple[DocumentBody, tuple[str, ...]]:
    """The same, as a `SavedKind` wants it."""
    return parse(text, file=file)


KINDS: tuple[SavedKind, ...] = (SavedKind("NCCL tuner table (CSV)", recognise, document=document),)


class _Reading:
    """Rules and problems so far."""

    def __init__(self) -> None:
        self.rules: list[TunerRule] = []
        self.problems: list[str] = []
        self._unknown: dict[tuple[str, str], list[int]] = {}
        """(field, word) -> lines"""

    def read(self, number: int, line: str) -> None:
        if len(line) > _LINE_LENGTH:
            self.problems.append(
                f"line {number}: {len(line)} characters, of which the plugin reads {_LINE_LENGTH}; the rest is"
                " another line to it"
            )
        line = line[:_LINE_LENGTH]
        if line.startswith("#") or not line.strip():
            return
        # The plugin's split takes several commas in a row for one.
        cells = [cell.strip(" \t") for cell in line.split(",") if cell]
        if len(cells) < len(_FIELDS):
            if not line.lstrip().startswith("#"):
                self.problems.append(
                    f"line {number}: {len(cells)} fields, and the plugin skips what has fewer than {len(_FIELDS)}"
                )
            return
        if not any(character.isdigit() for cell in cells for character in cell):
            self.problems.append(
                f"line {number}: column names, which the plugin takes for a rule about 0 bytes"
            )
            return
        if len(cells) > _MOST_FIELDS:
            self.problems.append(
                f"line {number}: {len(cells)} fields, of which the plugin reads {_MOST_FIELDS}"
            )
        rule = self._rule(number, cells)
        self.rules.append(rule)
        for field, word in rule.words.items():
            if word not in TUNER_WORDS[field]:
                self._unknown.setdefault((field, word), []).append(number)

    def _rule(self, number: int, cells: list[str]) -> TunerRule:
        least, most = (self._number(number, cells[index]) for index in (1, 2))
        if (most < 0 and least >= 0) or most > ANY_SIZE:
            most = ANY_SIZE
        if most < least:
            self.problems.append(
                f"line {number}: from {least} to {most} bytes is no range, so it never holds"
            )
        channels, nodes, ranks = (self._number(number, cells[index]) for index in (5, 6, 7))
        return TunerRule(
            line=number,
            collective=clipped(cells[0], 30),
            min_bytes=max(0, min(least, ANY_SIZE)),
            max_bytes=max(0, most),
            algorithm=clipped(cells[3], 30),
            protocol=clipped(cells[4], 30),
            channels=_bounded(channels),
            nodes=_bounded(nodes),
            ranks=_bounded(ranks),
            pipe_ops=_bounded(self._number(number, cells[8])) if len(cells) > 8 else None,
            registered=_bounded(self._number(number, cells[9])) if len(cells) > 9 else None,
        )

    def _number(self, line: int, cell: str) -> int:
        """As C reads it: what follows the digits is dropped, and a word is 0."""
        match = _NUMBER.match(cell)
        value = int(match.group(1)) if match else 0
        if match is None or match.end() != len(cell):
            self.problems.append(f"line {line}: `{clipped(cell, 20)}` is read as {value}")
        return value

    def told(self) -> list[str]:
        """Problems, with unknown words once each."""
        found = list(self.problems[:_PROBLEMS_LIMIT])
        if len(self.problems) > _PROBLEMS_LIMIT:
            found.append(f"and {len(self.problems) - _PROBLEMS_LIMIT} more lines like these")
        for (field, word), lines in list(self._unknown.items())[:_PROBLEMS_LIMIT]:
            meant = nearest(word, TUNER_WORDS[field])
            advice = f"; did you mean `{meant}`?" if meant is not None else ""
            where = f"line {lines[0]}" + (f" and {len(lines) - 1} more" if len(lines) > 1 else "")
            found.append(f"{where}: `{word}` is no {field} and is taken for {TUNER_DEFAULTS[field]}{advice}")
        return found


def _bounded(value: int) -> int:
    """Within the range of a C int."""
    return max(-(1 << 31), min(value, (1 << 31) - 1))
