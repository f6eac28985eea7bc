"""What lint says: one message about a line, all messages of a file, all files of a run."""

from __future__ import annotations

import enum

import msgspec

from topo_tune.lint.rules import RULES
from topo_tune.records.finding import Severity

_LONGEST_QUOTE = 80
"""A value may be as long as the file; a message is for people."""


class Format(enum.Enum):
    """How a text of settings is written."""

    CONF = "nccl.conf"
    SHELL = "shell"
    ENV_FILE = "env-file"
    ARGS = "args"
    YAML = "yaml"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing to know about one place."""

    rule: str
    """ID of the rule, a key of `rules.RULES`"""
    severity: Severity
    line: int
    """from 1; 0 when it is about the whole file"""
    column: int | None
    """from 1"""
    name: str | None
    """the variable it is about"""
    text: str
    hint: str | None = None
    """the next step"""


class LintedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One text and what was found in it."""

    path: str
    """`-` for standard input"""
    format: Format
    settings: int
    """how many settings were read"""
    messages: tuple[Message, ...]
    left_out: int = 0
    """messages beyond the limit that are not listed"""


class LintReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of one run, and the NCCL they were checked against."""

    nccl: str
    nccl_from: str
    """who says so: the option, the library or the catalogue"""
    files: tuple[LintedFile, ...]
    library: str | None = None

    def count(self, severity: Severity) -> int:
        """How many messages are this bad."""
        return sum(message.severity is severity for file in self.files for message in file.messages)


def message(
    rule: str,
    text: str,
    *,
    line: int = 0,
    column: int | None = None,
    name: str | None = None,
    hint: str | None = None,
    severity: Severity | None = None,
) -> Message:
    """A message of a known rule, as bad as the rule says unless it is milder here."""
    return Message(rule, severity or RULES[rule].severity, line, column, name, text, hint)


def quoted(text: str) -> str:
    """Text from a file in backticks: cut where long, and without characters that could drive a terminal."""
    shown = text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
    return "`" + "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown) + "`"
