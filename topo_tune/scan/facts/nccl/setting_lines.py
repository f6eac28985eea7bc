"""NCCL variables in the lines of scripts, environment files, units and images: line, name and value, nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Setting = tuple[int, str, str]
"""Line number, name, value as it is written, without quotes around it."""

_LINE_LIMIT = 4096
_SETTINGS_LIMIT = 500
_VALUE_LIMIT = 1023
"""What NCCL itself keeps of a value."""

_NUMBERED = re.compile(r"(\d{1,9}):")
_VALUE = r"\"([^\"]*)\"|'([^']*)'|([^\s;&|()\"'`]*)"
_ASSIGNMENT = re.compile(rf"(?<![A-Za-z0-9_$\{{])(NCCL_[A-Z0-9_]{{2,64}})=(?:{_VALUE})")
_SETENV = re.compile(rf"\bsetenv[ \t]+(NCCL_[A-Z0-9_]{{2,64}})[ \t]+(?:{_VALUE})")
_PAM = re.compile(r"[ \t]*(NCCL_[A-Z0-9_]{2,64})[ \t]+(.*)")
_PAM_VALUE = re.compile(rf"\b(DEFAULT|OVERRIDE)=(?:{_VALUE})")
_UNIT_WORD = re.compile(
    r"\"(NCCL_[A-Z0-9_]{2,64})=([^\"]*)\"|'(NCCL_[A-Z0-9_]{2,64})=([^']*)'|(NCCL_[A-Z0-9_]{2,64})=(\S*)"
)


def in_shell(numbered: str) -> list[Setting]:
    """Assignments in a shell script: `export NCCL_A=1`, several on a line, `setenv NCCL_A 1`, `echo export NCCL_A=1`.

    Whether a condition around them holds is not known. Values are not expanded.
    """
    return _found(numbered, lambda line: [*_ASSIGNMENT.finditer(line), *_SETENV.finditer(line)])


def in_environment_file(numbered: str) -> list[Setting]:
    """`NAME=VALUE` lines as pam_env and systemd's EnvironmentFile read them: the value is the rest of the line."""
    found = []
    for number, line in _lines(numbered):
        name, equals, value = line.strip().removeprefix("export ").strip().partition("=")
        if equals and re.fullmatch(r"NCCL_[A-Z0-9_]{2,64}", name):
            found.append((number, name, _unquoted(value.strip())[:_VALUE_LIMIT]))
    return found[:_SETTINGS_LIMIT]


def in_pam_conf(numbered: str) -> list[Setting]:
    """`NAME DEFAULT=VALUE OVERRIDE=VALUE` lines of pam_env.conf; OVERRIDE goes before DEFAULT."""
    found = []
    for number, line in _lines(numbered):
        variable = _PAM.match(line)
        values = {m.group(1): _value_of(m.groups()[1:]) for m in _PAM_VALUE.finditer(line)}
        value = values.get("OVERRIDE") or values.get("DEFAULT")
        if variable is not None and value is not None:
            found.append((number, variable.group(1), value))
    return found[:_SETTINGS_LIMIT]


def in_unit(numbered: str) -> list[Setting]:
    """`Environment=` lines of a systemd unit, with or without quotes around each assignment."""
    found = []
    for number, line in _lines(numbered):
        if not re.match(r"[ \t]*(Default)?Environment[ \t]*=", line):
            continue
        for match in _UNIT_WORD.finditer(line):
            name, value = (part for part in match.groups() if part is not None)
            found.append((number, name, value[:_VALUE_LIMIT]))
    return found[:_SETTINGS_LIMIT]


def _found(numbered: str, find: Callable[[str], Iterable[re.Match[str]]]) -> list[Setting]:
    found: list[Setting] = []
    for number, line in _lines(numbered):
        for match in find(line):
            found.append((number, match.group(1), _value_of(match.groups()[1:])))
        if len(found) >= _SETTINGS_LIMIT:
            break
    return found[:_SETTINGS_LIMIT]


def _lines(numbered: str) -> list[tuple[int, str]]:
    """Number and text of each line that is no comment; lines without a number are counted."""
    found = []
    for count, line in enumerate(numbered.replace("\r", "").split("\n"), start=1):
        match = _NUMBERED.match(line)
        number, text = (int(match.group(1)), line[match.end() :]) if match else (count, line)
        if "NCCL_" in text and not text.lstrip().startswith(("#", ";")):
            found.append((number, text[:_LINE_LIMIT]))
    return found


def _value_of(parts: tuple[str | None, ...]) -> str:
    return next((part for part in parts if part is not None), "")[:_VALUE_LIMIT]


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value
