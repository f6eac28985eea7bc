"""Text from tools and nodes: without what only terminals need, and short enough for a message."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def without_escapes(text: str) -> str:
    """The text without terminal escape codes and without carriage returns."""
    return _ANSI.sub("", text).replace("\r", "")


def clipped(text: str, length: int = 60) -> str:
    """The beginning of a text, for a message."""
    printable = "".join(c if c.isprintable() else " " for c in text.strip())
    return printable if len(printable) <= length else printable[: length - 3] + "..."
