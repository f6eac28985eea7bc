"""Where the command line writes: results and data to standard output, everything else to standard error.

A reader that goes away (`| head`) ends the output, never the command: a rollout must not be broken off for it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

_PIPE_COLUMNS = 4096
"""Where nobody sees a right margin, lines are not wrapped: they are for grep, files and logs."""


def show(parts: Iterable[RenderableType], *, to_stderr: bool = False) -> None:
    """Print parts of a report with a blank line between them; to standard error when data goes to standard output."""
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    console = Console(file=stream, highlight=False, width=None if stream.isatty() else _PIPE_COLUMNS)
    with console.capture() as capture:
        for position, part in enumerate(parts):
            if position:
                console.print()
            console.print(part)
    # Tables are padded to their width; nobody wants those spaces in a file.
    write("\n".join(line.rstrip() for line in capture.get().split("\n")), stream)


def columns(*, to_stderr: bool = False) -> int | None:
    """How wide the terminal is; None where it is none, and lines may be of any length."""
    stream = sys.stderr if to_stderr else sys.stdout
    return shutil.get_terminal_size().columns if stream.isatty() else None


def print_json(record: Any) -> None:
    """A record as JSON on standard output."""
    import msgspec

    write(msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n", sys.stdout)


def print_lines(lines: Iterable[str], *, to_stderr: bool = False) -> None:
    """Lines of plain text; to standard error when data goes to standard output."""
    write("".join(f"{line}\n" for line in lines), sys.stderr if to_stderr else sys.stdout)


def warn(text: str) -> None:
    """Some plain text for people, without what could drive their terminal: it may quote a node or a file."""
    from topo_tune.report.text import visible

    write(f"{visible(text)}\n", sys.stderr)


def write(text: str, stream: TextIO) -> None:
    """Write and flush; quietly nothing from the moment on when the reader has gone."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # What is still in the buffer must not raise once more when Python ends.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
