"""One command over one SSH channel: read to its end, or held as a conversation.

Channels are polled, not selected: `select` on paramiko channels costs a pipe each and fails past descriptor
1,023. Standard output wakes the reader at once; standard error and the free window for input are looked at in
between, at pauses that double from `_SHORTEST_SECONDS` while nothing moves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from topo_tune.connect import ssh_errors
from topo_tune.connect.command_line import shown
from topo_tune.connect.interface import SEND_DEADLINE_SECONDS, STDERR_TAIL_BYTES, Command, Output
from topo_tune.errors import ConnectionLost, DeadlinePassed, OutputTooLarge

if TYPE_CHECKING:
    import paramiko

_SHORTEST_SECONDS = 0.004
_LONGEST_SECONDS = 0.25
_FEEDING_SECONDS = 0.01
"""the longest pause while input is still to be sent: nothing wakes us when the window opens"""

_PIECE_BYTES = 32768
"""what one SSH packet carries"""
_READ_BYTES = 1 << 20

_LEAVING_SECONDS = 2.0

TIMEOUT_STATUS = 124
"""how the node's own clock (`timeout`) reports that it ended a command"""


def run_to_end(channel: paramiko.Channel, line: str, command: Command, node: str) -> Output:
    """Run one command line on a fresh channel: both streams are drained, input is fed as it is taken.

    Raises ConnectionLost when no exit status came, DeadlinePassed, OutputTooLarge.
    """
    name = shown(command)
    began = time.monotonic()
    streams = _Streams(channel, command.stdin)
    pause = _SHORTEST_SECONDS
    with ssh_errors.talking(node, name):
        _begin(channel, line, command.deadline_seconds, lambda: _too_late(node, name, command, 0))
        while not streams.step(pause):
            if time.monotonic() - began >= command.deadline_seconds:
                channel.close()
                raise _too_late(node, name, command, streams.received_bytes)
            if streams.received_bytes > command.output_limit_bytes:
                channel.close()
                raise OutputTooLarge(
                    node, f"`{name}` wrote more than {command.output_limit_bytes} bytes", command=name
                )
            pause = streams.next_pause(pause)
        if streams.received_bytes > command.output_limit_bytes:
            raise OutputTooLarge(
                node, f"`{name}` wrote more than {command.output_limit_bytes} bytes", command=name
            )
    seconds = time.monotonic() - began
    status = channel.exit_status
    channel.close()
    if status == -1:
        raise _lost(channel, node, name, streams.received_bytes)
    if status == TIMEOUT_STATUS and seconds >= command.deadline_seconds:
        raise _too_late(node, name, command, streams.received_bytes)
    return Output(status, b"".join(streams.stdout), b"".join(streams.stderr), seconds)


class SshChannel:
    """A running command on a node, as `interface.Channel` promises."""

    def __init__(
        self, channel: paramiko.Channel, line: str, command: Command, node: str, *, reply_seconds: float
    ) -> None:
        """`reply_seconds`: how long the node may take to say that it started the command."""
        self._channel, self._node, self._name = channel, node, shown(command)
        self._streams = _Streams(channel, b"", closes_stdin=False)
        with ssh_errors.talking(node, self._name):
            _begin(channel, line, reply_seconds, lambda: self._not_started(reply_seconds))
        if command.stdin:
            self.send(command.stdin)

    def send(self, data: bytes) -> None:
        """Write all of `data`; what the command says meanwhile is kept for `receive`."""
        self._streams.add_input(data)
        until = time.monotonic() + SEND_DEADLINE_SECONDS
        pause = _SHORTEST_SECONDS
        with ssh_errors.talking(self._node, self._name):
            while True:
                self._streams.feed()
                if self._streams.is_input_closed or self._channel.closed:
                    raise self._takes_no_more()
                if not self._streams.has_input:
                    return
                if time.monotonic() > until:
                    reason = f"`{self._name}` did not read its input for {SEND_DEADLINE_SECONDS:g} s"
                    raise ConnectionLost(
                        self._node, reason, command=self._name, stderr_tail=self.stderr_tail()
                    )
                self._streams.step(pause)
                pause = self._streams.next_pause(pause)

    def receive(self, timeout_seconds: float) -> bytes | None:
        """The next bytes of its output; b"" at its end; None when nothing came in time.

        Raises ConnectionLost when the session broke, which is not an end.
        """
        until = time.monotonic() + timeout_seconds
        pause = _SHORTEST_SECONDS
        with ssh_errors.talking(self._node, self._name):
            while not self._streams.stdout:
                if self._streams.is_at_end:
                    return self._end()
                left = until - time.monotonic()
                if left < 0:
                    return None
                self._streams.step(min(pause, max(left, 0.001)))
                pause = self._streams.next_pause(pause)
        return self._streams.stdout.popleft()

    def stderr_tail(self) -> str:
        """The last lines of its standard error, at most 4 KiB."""
        self._streams.drain_stderr()
        self._streams.keep_stderr_tail(STDERR_TAIL_BYTES)
        return b"".join(self._streams.stderr).decode("utf-8", "replace")

    def close(self) -> None:
        """Close its standard input, give it two seconds to end, and let go.

        What it still writes meanwhile is read and dropped, so that it does not end of a broken pipe.
        """
        try:
            self._channel.shutdown_write()
            until = time.monotonic() + _LEAVING_SECONDS
            while time.monotonic() < until and not self._streams.step(_FEEDING_SECONDS):
                self._streams.stdout.clear()
        except (OSError, EOFError):
            pass  # it is gone already, which is what was asked for
        self._channel.close()

    def _not_started(self, seconds: float) -> DeadlinePassed:
        return DeadlinePassed(
            self._node,
            f"the node did not say within {seconds:g} s that it started `{self._name}`",
            command=self._name,
        )

    def _end(self) -> bytes:
        if self._channel.closed and self._channel.exit_status == -1 and _is_dead(self._channel):
            raise _lost(self._channel, self._node, self._name, self._streams.received_bytes)
        return b""

    def _takes_no_more(self) -> ConnectionLost:
        tail = self.stderr_tail()
        last_words = f": {tail.strip().splitlines()[-1]}" if tail.strip() else ""
        reason = f"`{self._name}` ended and takes no more input{last_words}"
        return ConnectionLost(self._node, reason, command=self._name, stderr_tail=tail)


class _Streams:
    """The three streams of a channel. `step` moves what can be moved, waiting at most one pause for more."""

    def __init__(self, channel: paramiko.Channel, stdin: bytes, *, closes_stdin: bool = True) -> None:
        self.stdout: deque[bytes] = deque()
        self.stderr: deque[bytes] = deque()
        self.received_bytes = 0
        self.is_at_end = False
        self.is_input_closed = False
        self._channel = channel
        self._closes_stdin = closes_stdin
        self._input: deque[memoryview] = deque([memoryview(stdin)] if stdin else [])
        self._has_moved = False

    @property
    def has_input(self) -> bool:
        """Whether input is still to be sent."""
        return bool(self._input)

    def add_input(self, data: bytes) -> None:
        if data:
            self._input.append(memoryview(data))

    def step(self, pause: float) -> bool:
        """One round over the three streams. True once the output has ended and the status is known, or never
        comes.
        """
        before = self.received_bytes
        sent = self.feed()
        self.drain_stderr()
        if not self.is_at_end:
            self._read_stdout(pause)
            is_over = False
        else:
            is_over = self._channel.status_event.wait(pause) or self._channel.closed
        if self.is_at_end:
            self.drain_stderr()
        self._has_moved = sent or self.received_bytes != before
        return is_over

    def next_pause(self, pause: float) -> float:
        """The pause after this one: short again as soon as something moved."""
        longest = _FEEDING_SECONDS if self._input else _LONGEST_SECONDS
        return _SHORTEST_SECONDS if self._has_moved else min(pause * 2, longest)

    def feed(self) -> bool:
        """Send what the window takes; True when anything went out. A command that closed its input is no
        error.
        """
        sent = False
        try:
            while self._input and self._channel.send_ready():
                count = self._channel.send(self._input[0][:_PIECE_BYTES])  # type: ignore[arg-type]
                if count == 0:
                    raise BrokenPipeError
                sent = True
                rest = self._input[0][count:]
                self._input.popleft()
                if rest:
                    self._input.appendleft(rest)
            if not self._input and self._closes_stdin and not self.is_input_closed:
                self.is_input_closed = True
                self._channel.shutdown_write()
        except (OSError, EOFError):
            self._input.clear()
            self.is_input_closed = True
        return sent

    def drain_stderr(self) -> None:
        while self._channel.recv_stderr_ready():
            data = self._channel.recv_stderr(_READ_BYTES)
            self.stderr.append(data)
            self.received_bytes += len(data)
            if not self._closes_stdin:
                self.keep_stderr_tail(STDERR_TAIL_BYTES)

    def keep_stderr_tail(self, size: int) -> None:
        """Forget all of standard error but its end."""
        tail = b"".join(self.stderr)[-size:]
        self.stderr = deque([tail] if tail else [])

    def _read_stdout(self, pause: float) -> None:
        self._channel.settimeout(pause)
        try:
            data = self._channel.recv(_READ_BYTES)
        except TimeoutError:
            return
        if data:
            self.stdout.append(data)
            self.received_bytes += len(data)
        else:
            self.is_at_end = True


def _begin(
    channel: paramiko.Channel, line: str, deadline_seconds: float, too_late: Callable[[], DeadlinePassed]
) -> None:
    """Ask for the command. paramiko waits for the answer without any timeout, hence the watch."""
    rang = threading.Event()

    def close() -> None:
        rang.set()
        channel.close()

    watch = threading.Timer(deadline_seconds, close)
    watch.daemon = True
    watch.start()
    try:
        channel.exec_command(line)
    finally:
        watch.cancel()
        if rang.is_set():
            raise too_late()


def _too_late(node: str, name: str, command: Command, received_bytes: int) -> DeadlinePassed:
    return DeadlinePassed(
        node,
        f"`{name}` was still running after {command.deadline_seconds:g} s; {received_bytes} bytes had come",
        command=name,
    )


def _lost(channel: paramiko.Channel, node: str, name: str, received_bytes: int) -> ConnectionLost:
    transport = channel.get_transport()
    cause = transport.get_exception()
    why = f" ({type(cause).__name__}: {cause})" if cause is not None and str(cause) else ""
    ended = f"the session ended{why}" if _is_dead(channel) else "the node ended the session by itself"
    return ConnectionLost(
        node,
        f"{ended} before `{name}` reported its status; {received_bytes} bytes had come",
        command=name,
        hint="nothing is known about how far it came; the node may have been restarted, or its sshd killed",
    )


def _is_dead(channel: paramiko.Channel) -> bool:
    """Whether the whole connection is gone. paramiko closes its channels first, so it gets a moment."""
    transport = channel.get_transport()
    if transport.is_active():
        transport.join(0.2)
    return not transport.is_active()
