"""Reports as the text that a terminal of some width, or a pipe, would get."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType


def text_of(parts: Iterable[RenderableType], *, width: int = 80) -> str:
    """Plain text at a width, without the padding behind each line."""
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        for position, part in enumerate(parts):
            if position:
                console.print()
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().split("\n"))


def coloured(parts: Iterable[RenderableType]) -> str:
    """Text with the escapes of a colour terminal."""
    console = Console(
        file=io.StringIO(), width=200, highlight=False, color_system="standard", force_terminal=True
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()
