"""A saved file that holds nothing but a complaint: the tool was not there, or was not allowed to look."""

from __future__ import annotations

import re

from topo_tune.records.scan import Absent
from topo_tune.scan.facts.words import clipped, without_escapes

_LENGTH_LIMIT = 2000
_LINES_LIMIT = 12

_QUOTES = "`'\"\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"


def _word(name: str) -> str:
    return rf"[{_QUOTES}]?(?P<{name}>[\w./~+-]{{1,200}})[{_QUOTES}]?"


_SHELL = (
    r"(?:-?(?:/(?:usr/)?bin/)?(?:ba|da|z|k|tc|c|fi)?sh|env|sudo|nohup|timeout|exec|srun|slurmstepd|mpirun)"
)
_BEFORE = rf"(?:{_SHELL}: )?(?:[\w./-]{{1,100}}: )?(?:error: )?(?:line )?(?:\d{{1,6}}: )?(?:execve\(\): )?"
_CANNOT = r"(?:can(?:no|')t (?:access|open|stat) )?"

# What is said of a tool or a file that is not there ...
_NOT_THERE = re.compile(
    rf"{_BEFORE}{_word('tool')}: (?:command )?not found\.?"
    rf"|{_SHELL}: command not found: {_word('told_by_zsh')}"
    rf"|Command {_word('told_by_ubuntu')} not found, .{{0,100}}"
    rf"|{_BEFORE}{_CANNOT}{_word('file')}: No such file or directory"
    rf"|Unit {_word('unit')} (?:could not be found|not found)\.?"
)
# ... and of one that this user may not use.
_NOT_ALLOWED = re.compile(
    rf"{_BEFORE}{_CANNOT}{_word('what')}: (?:[a-z ]{{1,60}}: )?"
    r"(?:Permission denied|Operation not permitted|must be root|read kernel buffer failed)\.?"
)
_ADVICE = re.compile(
    r"(?:sudo )?(?:apt|apt-get|snap|dnf|yum|zypper) install .*|or|See 'snap info .*|\[sudo\].*|To .*"
)


def complaint(text: str) -> Absent | None:
    """What was not got and why, where the whole text says nothing else; None for any other text."""
    if len(text) > _LENGTH_LIMIT:
        return None
    lines = [line.strip() for line in without_escapes(text).split("\n") if line.strip()]
    if not lines or len(lines) > _LINES_LIMIT:
        return None
    told = [_told(line) for line in lines]
    first = told[0]
    if first is None or any(
        said is None and not _ADVICE.fullmatch(line) for said, line in zip(told, lines, strict=True)
    ):
        return None
    what, reason = first
    return Absent(what, f"{reason}: `{clipped(lines[0], 120)}`")


def _told(line: str) -> tuple[str, str] | None:
    """What a line is about, and what it says of it."""
    missing = _NOT_THERE.fullmatch(line)
    if missing is not None:
        what = next(word for word in missing.groups() if word)
        is_file = missing["file"] is not None and "/" in what and "bin/" not in what
        return (what, "no such file there") if is_file else (what.rsplit("/", 1)[-1], "not installed there")
    refused = _NOT_ALLOWED.fullmatch(line)
    return None if refused is None else (refused["what"], "not permitted there")
