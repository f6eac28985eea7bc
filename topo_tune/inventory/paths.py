"""Paths as a cluster file writes them: from the file's own folder, `~` from the home of its reader."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import NamedTuple


class Start(NamedTuple):
    """Where paths of one cluster file start."""

    folder: Path
    """absolute folder of the cluster file"""
    home: Path

    def resolve(self, written: str) -> str:
        """The absolute path, without `.` and `..`; symbolic links stay."""
        return os.path.normpath(self.folder / self.expand_home(written))

    def expand_home(self, written: str) -> str:
        """`~` and `~/...` with the home folder in its place; anything else as it is."""
        if written == "~" or written.startswith("~/"):
            return str(self.home) + written[1:]
        return written


def has_control_character(text: str) -> bool:
    """Whether it holds a line break, a NUL or the like, which no path or command here means."""
    return any(ord(character) < 32 or ord(character) == 127 for character in text)
