"""The seam of facts: what to ask a node, and a pure function that understands the answer.

A fact travels: the collector runs its commands and reads its files on the node, all facts in one round trip, and
`tell` gives meaning to the raw texts here. The texts of the same tools saved in files are read by the same parsers,
through a `SavedKind`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from topo_tune.records.document import DocumentBody
from topo_tune.records.scan import Absent, NodeScan
from topo_tune.scan.facts.words import clipped

_ADDED = re.compile(r"\s*NVML library version")
"""What `nvidia-smi` writes below the reason why it failed."""


class RawCommand(msgspec.Struct, frozen=True):
    """A command that was run on the node, or why it was not."""

    argv: tuple[str, ...] = ()
    status: int | None = None
    stdout: str = ""
    stderr: str = ""
    absent: str | None = None

    def failure(self) -> str | None:
        """Why its output is no answer; None where it is one."""
        if self.absent is not None:
            return self.absent
        if self.status == 0:
            return None
        lines = (self.stderr.strip() or self.stdout.strip()).split("\n")
        last_words = clipped(next((line for line in reversed(lines) if not _ADDED.match(line)), ""), 200)
        command = " ".join(self.argv)
        return f"`{command}` exited with status {self.status}" + (f": {last_words}" if last_words else "")


class RawText(msgspec.Struct, frozen=True):
    """A file of the node, or why it could not be read."""

    pattern: str
    """the `Files` it was found by"""
    path: str
    """without the node's root prefix"""
    text: str | None = None
    """its text; of `link` the real path; None where reading failed"""
    problem: str | None = None


class Command(msgspec.Struct, frozen=True):
    """A command for the collector. Runs without a shell, as topo-tune's own user; must only read."""

    argv: tuple[str, ...]
    keep: str | None = None
    """regular expression: only lines in which it is found leave the node (also for what is nobody's business)"""


class Files(msgspec.Struct, frozen=True):
    """Files for the collector to read: a glob pattern, below the node's root prefix."""

    pattern: str
    mode: str = "text"
    """`text`; `link`: the real path it leads to; `exists`: only that it is there"""
    keep: str | None = None
    """regular expression: only lines in which it is found leave the node; a file without any is left out"""
    limit_bytes: int = 4096
    """of each file's text"""


class Gathered(msgspec.Struct, frozen=True):
    """What came back from a node for the facts that were asked."""

    commands: tuple[RawCommand, ...] = ()
    files: tuple[RawText, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """variables of the session whose names were asked for"""

    def output(self, *argv: str) -> RawCommand:
        """The answer of one command; one that was never asked is absent."""
        found = (command for command in self.commands if command.argv == argv)
        return next(found, RawCommand(argv, absent="not asked by this collector"))

    def texts(self, pattern: str) -> dict[str, str]:
        """Path to text of every file that was found by this pattern and could be read, sorted by path."""
        found = (file for file in self.files if file.pattern == pattern and file.text is not None)
        return {file.path: file.text or "" for file in sorted(found, key=lambda file: file.path)}

    def problems(self, pattern: str) -> tuple[RawText, ...]:
        """Files found by this pattern that could not be read."""
        return tuple(file for file in self.files if file.pattern == pattern and file.problem is not None)


class Fact(msgspec.Struct, frozen=True):
    """One fact: its questions, and what the answers mean."""

    name: str
    """in words, for messages: `PCI devices`"""
    tell: Callable[[NodeScan, Gathered], NodeScan]
    """The scan with this fact filled in; what is not there is added to `absent`. Pure; raises InputError for text
    that it cannot understand, which becomes an `absent`, too."""
    commands: tuple[Command, ...] = ()
    files: tuple[Files, ...] = ()
    environment: tuple[str, ...] = ()
    """names of variables, `*` at the end allowed: an allow-list, since whatever is taken lies in a run folder"""


class SavedKind(msgspec.Struct, frozen=True):
    """One kind of saved file: how it is recognised by its content, and how it is read.

    Either `tell` (it describes one node) or `document` (it is about a job or the cluster).
    """

    name: str
    """in words: `ibstat output`"""
    recognise: Callable[[str], bool]
    """Whether a text is of this kind; gets the file's beginning: at most 256 KiB, lines cut at 400 characters, no
    escape codes. Must be fast on any text: no pattern that can backtrack across a line."""
    tell: Callable[[NodeScan, str, str], NodeScan] | None = None
    """(scan so far, text, file name) -> scan with what the file tells. Raises InputError."""
    document: Callable[[str, str], tuple[DocumentBody, tuple[str, ...]]] | None = None
    """(text, file name) -> what it says, and what could not be read of it. Raises InputError."""
    is_repeatable: bool = False
    """whether a node has several files of it: settings, one `ethtool` output an interface"""


def with_absent(scan: NodeScan, what: str, reason: str) -> NodeScan:
    """The scan with one more thing that was looked for and not got."""
    return msgspec.structs.replace(scan, absent=(*scan.absent, Absent(what, reason)))


def matches(pattern: str) -> Callable[[str], bool]:
    """A `recognise` that looks for a regular expression, with `^` and `$` at every line."""
    compiled = re.compile(pattern, re.M)
    return lambda text: compiled.search(text) is not None
