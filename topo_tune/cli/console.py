"""Where the command line writes: results and data to standard output, everything else to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def people() -> Console:
    """The console for progress, warnings and questions: standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def show(parts: Iterable[RenderableType], *, to_stderr: bool = False) -> None:
    """Print parts of a report with a blank line between them; to standard error when data goes to standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 160
    console = Console(stderr=to_stderr, highlight=False, width=width)
    for position, part in enumerate(parts):
        if position:
            console.print()
        console.print(part)


def print_json(record: Any) -> None:
    """A record as JSON on standard output."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n")


def warn(text: str) -> None:
    """One plain line for people."""
    print(text, file=sys.stderr, flush=True)
