"""The seam to one host: run a command, or hold a conversation with one.

Implementations: `local` (child processes), `ssh` (paramiko), `recorded` (transcripts, needs no host). Every
foreign exception is translated into a `HostError` inside the implementation.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from topo_tune.records.inventory import Node

DEFAULT_OUTPUT_LIMIT_BYTES = 64 << 20

STDERR_TAIL_BYTES = 4096
"""how much of its standard error a `Channel` keeps"""

SEND_DEADLINE_SECONDS = 60.0
"""how long a command may take to read what is sent to it: requests are small, so then it reads no more"""


class Command(msgspec.Struct, frozen=True):
    """One command for a node: an argument vector (never a shell string), its input, and its limits."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    deadline_seconds: float = 60.0
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    """standard output and error together"""
    become: bool = False
    """run as root, by the inventory's `become`; nothing is added where the session is root already (local) or
    `become` is `none`"""


class Output(msgspec.Struct, frozen=True):
    """What a command left: a real exit status, and everything it wrote."""

    status: int
    """0..255; a command killed by a signal has 128 + signal"""
    stdout: bytes
    stderr: bytes
    seconds: float


class Channel(Protocol):
    """A running command on a node: bytes in, bytes out."""

    def send(self, data: bytes) -> None:
        """Write all of `data` to its standard input. Raises ConnectionLost when the command is gone, or does not read
        it within `SEND_DEADLINE_SECONDS`."""

    def receive(self, timeout_seconds: float) -> bytes | None:
        """The next bytes of its standard output: b"" at its end, None when nothing came in time."""

    def stderr_tail(self) -> str:
        """The last lines it wrote to standard error so far (at most 4 KiB)."""

    def close(self) -> None:
        """Close its standard input and let go; kills a local command that does not end within two seconds.
        Closing twice is harmless."""


class Connection(Protocol):
    """One host, reached in one way. Safe to use from one thread at a time."""

    node: Node

    def run(self, command: Command) -> Output:
        """Run a command to its end. Raises HostError: Unreachable, HostKeyRefused, LoginRefused,
        ConnectionLost, DeadlinePassed or OutputTooLarge. A non-zero exit status is a result, not an error."""

    def start(self, command: Command) -> Channel:
        """Start a command and leave it running. Raises HostError as `run`. No deadline is kept."""

    def close(self) -> None:
        """End the session and whatever it still runs."""
