"""The beginning of a text: what is looked at where a file is far longer than any tool writes."""

from __future__ import annotations

LINES_LIMIT = 200_000
"""`nvidia-smi -q` writes some 300 lines a GPU; a text of more lines than this is not what it is taken for."""


def beginning(text: str, lines: int = LINES_LIMIT) -> str:
    """The first lines of a text, so that one of millions of empty ones costs neither time nor memory."""
    if text.count("\n") < lines:
        return text
    end = -1
    for _ in range(lines):
        end = text.find("\n", end + 1)
    return text[:end]
