"""Readings that several facts share: numbers as the kernel writes them, and the ways of saying nothing."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NOTHING = {"", "n/a", "[n/a]", "[not supported]", "not supported", "[unknown error]", "none", "[not found]"}


def without_escapes(text: str) -> str:
    """The text without terminal escape codes and without carriage returns."""
    return _ANSI.sub("", text).replace("\r", "")


def said(text: str | None) -> str | None:
    """The text without outer spaces, or None where a tool says in one of its ways that it does not know."""
    stripped = (text or "").strip()
    return None if stripped.casefold() in _NOTHING else stripped


def whole_number(text: str | None) -> int | None:
    """A number of at most 18 digits in front of its unit (`143771 MiB`), or None."""
    match = re.match(r"\s*([0-9]{1,18})(?![0-9.])", text or "")
    return int(match.group(1)) if match else None


def numa_index(text: str | None) -> int | None:
    """A NUMA node's number; None where the kernel writes -1 for "no such thing"."""
    return whole_number(text)


def clipped(text: str, length: int = 60) -> str:
    """The beginning of a text, for a message."""
    printable = "".join(c if c.isprintable() else " " for c in text.strip())
    return printable if len(printable) <= length else printable[: length - 3] + "..."
