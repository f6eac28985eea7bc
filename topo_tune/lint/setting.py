"""One setting as its author meant it, where it stands, and what it is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from topo_tune.lint.message import Format, Message, message, quoted
from topo_tune.lint.number import read_number
from topo_tune.records.finding import Severity

LONGEST_PART = 1023
"""Characters of a name or a value that NCCL takes from a file."""


class Setting(msgspec.Struct, frozen=True):
    """A name and a value as a process would get them, once the words around them are right."""

    name: str
    value: str
    line: int
    column: int
    """where the name begins, from 1"""
    value_column: int
    is_plain: bool = True
    """False when the value holds a variable, so that nobody can tell it from the text"""
    is_passed: bool = True
    """False for a shell variable that is not exported"""
    scope: int = 0
    """settings of different scopes reach different processes"""
    is_read: bool = True
    """False where the reader takes a space, a quote or a word for a part of the name, so that the line has no effect"""

    def about(
        self, rule: str, text: str, hint: str | None = None, *, severity: Severity | None = None
    ) -> Message:
        """A message about the value."""
        return message(
            rule,
            text,
            line=self.line,
            column=self.value_column,
            name=self.name,
            hint=hint,
            severity=severity,
        )

    def about_name(
        self, rule: str, text: str, hint: str | None = None, *, severity: Severity | None = None
    ) -> Message:
        """A message about the name."""
        return message(
            rule, text, line=self.line, column=self.column, name=self.name, hint=hint, severity=severity
        )


class Target(msgspec.Struct, frozen=True):
    """The NCCL that is to read the settings."""

    version: tuple[int, ...]
    """(2, 28, 9)"""
    library_names: frozenset[str] | None = None
    """every NCCL_ name in the library's own bytes, where a library is given"""

    @property
    def nccl(self) -> str:
        """`NCCL 2.28.9`"""
        return "NCCL " + ".".join(str(part) for part in self.version)


class Listing(msgspec.Struct, frozen=True):
    """The settings of one text, and what reading it has shown."""

    format: Format
    settings: tuple[Setting, ...]
    messages: tuple[Message, ...] = ()

    def effective(self) -> list[Effective]:
        """Each name with the setting that wins, for each scope: the first in nccl.conf, the last elsewhere."""
        read = [setting for setting in self.settings if setting.is_read]
        ordered: Iterable[Setting] = reversed(read) if self.format is Format.CONF else read
        scopes: dict[int, Effective] = {}
        for setting in ordered:
            scopes.setdefault(setting.scope, Effective())[setting.name] = setting
        return list(scopes.values())


class Effective(dict[str, Setting]):
    """The settings that win, by name."""

    def number(self, name: str) -> int | None:
        """The number that NCCL reads, or None where the name is not set or its value is not known."""
        setting = self.get(name)
        if setting is None or not setting.is_plain or not setting.value.strip():
            return None
        return read_number(setting.value).value

    def word(self, name: str) -> str | None:
        """The value in lower case, or None where the name is not set or its value is not known."""
        setting = self.get(name)
        return (
            setting.value[:LONGEST_PART].strip().lower() if setting is not None and setting.is_plain else None
        )

    def starting(self, *prefixes: str) -> list[Setting]:
        """The settings whose names begin so, in the order of the text."""
        return sorted((s for n, s in self.items() if n.startswith(prefixes)), key=lambda s: s.line)


def listed(settings: Sequence[Setting], most: int = 4) -> str:
    """`A`, `B` and 3 more: the names of some settings, each once."""
    names = list(dict.fromkeys(setting.name for setting in settings))
    shown = [quoted(name) for name in names[: most if len(names) > most + 1 else len(names)]]
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
