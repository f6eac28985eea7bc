"""Readings that several facts share: numbers as the kernel writes them, and the ways of saying nothing."""

from __future__ import annotations

import re

# Parsers find these two beside their other readings; what jobs print is read with them as well.
from topo_tune.words import clipped as clipped
from topo_tune.words import without_escapes as without_escapes

_NOTHING = {"", "n/a", "[n/a]", "[not supported]", "not supported", "[unknown error]", "none", "[not found]"}


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
