"""Marks that a rank leaves in its log, so that one which hangs can be told from one that is slow."""

from __future__ import annotations

import os

AT = "topo-tune is at: "
"""Begins a mark; the agent takes it out of the log again."""


def mark(text: str) -> None:
    """Leave a mark of what this rank does next; its standard error is its log."""
    os.write(2, (AT + text + "\n").encode())
