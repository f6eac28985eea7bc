"""This machine as a node: commands run as child processes, each in a process group of its own."""

from __future__ import annotations

import getpass
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from topo_tune.connect.command_line import NOT_EXECUTABLE_STATUS, NOT_FOUND_STATUS, bounded, shown
from topo_tune.connect.interface import (
    SEND_DEADLINE_SECONDS,
    STDERR_TAIL_BYTES,
    Channel,
    Command,
    Output,
)
from topo_tune.connect.sudo import as_root, check_sudo
from topo_tune.errors import ConnectionLost, DeadlinePassed, HostError, NodeProgramFailed, OutputTooLarge
from topo_tune.records.inventory import Become, Node

_PIECE_BYTES = 1 << 16
_TERM_SECONDS = 1.0
"""between asking a process group to end and killing it"""
_LEAVING_SECONDS = 2.0


class LocalConnection:
    """The machine that topo-tune itself runs on."""

    def __init__(self, node: Node, become: Become = Become.NONE) -> None:
        self.node = node
        self._become = become
        self._running: set[_Process] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def run(self, command: Command) -> Output:
        """Run a command to its end; see `interface.Connection`."""
        began = time.monotonic()
        name = shown(command)
        try:
            process = self._spawn(command, is_bounded=True)
        except FileNotFoundError as exc:
            return _not_started(NOT_FOUND_STATUS, exc, began)
        except PermissionError as exc:
            return _not_started(NOT_EXECUTABLE_STATUS, exc, began)
        try:
            status = self._read_to_end(process, command, name, began)
        except BaseException:
            process.kill()
            raise
        finally:
            self._forget(process)
        if self._closed.is_set():
            raise ConnectionLost(self.node.name, f"`{name}` was ended with the connection", command=name)
        output = Output(status, b"".join(process.stdout), b"".join(process.stderr), time.monotonic() - began)
        if self._uses_sudo(command):
            check_sudo(self.node.name, getpass.getuser(), name, output)
        return output

    def start(self, command: Command) -> Channel:
        """Start a command and leave it running."""
        try:
            process = self._spawn(command, is_bounded=False)
        except OSError as exc:
            raise self._cannot_start(command, exc) from exc
        channel = LocalChannel(process, self.node.name, shown(command), self._forget)
        try:
            channel.send(command.stdin)
        except BaseException:
            channel.close()
            raise
        return channel

    def close(self) -> None:
        """Kill whatever still runs."""
        self._closed.set()
        with self._lock:
            running = list(self._running)
        for process in running:
            process.kill()

    def _spawn(self, command: Command, *, is_bounded: bool) -> _Process:
        """Start a command. Raises FileNotFoundError and PermissionError as they are, else HostError."""
        if self._closed.is_set():
            raise ConnectionLost(self.node.name, "the connection was closed")
        argv = command.argv
        if self._uses_sudo(command):
            # a process of root cannot be killed from here, so it gets a clock of its own
            argv = as_root(bounded(argv, command.deadline_seconds) if is_bounded else argv)
        try:
            process = _Process(argv, command.stdin if is_bounded else b"", closes_stdin=is_bounded)
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, ValueError) as exc:  # ValueError: a null byte in an argument
            raise self._cannot_start(command, exc) from exc
        with self._lock:
            self._running.add(process)
        return process

    def _read_to_end(self, process: _Process, command: Command, name: str, began: float) -> int:
        """Drain both streams and give the exit status. Raises DeadlinePassed and OutputTooLarge."""
        status = None
        while status is None:
            left = command.deadline_seconds - (time.monotonic() - began)
            if left <= 0:
                raise DeadlinePassed(
                    self.node.name,
                    f"`{name}` was still running after {command.deadline_seconds:g} s; "
                    f"{process.received_bytes} bytes had come",
                    command=name,
                )
            if process.is_at_end:
                status = process.wait(left)
            else:
                process.step(left)
            if process.received_bytes > command.output_limit_bytes:
                reason = f"`{name}` wrote more than {command.output_limit_bytes} bytes"
                raise OutputTooLarge(self.node.name, reason, command=name)
        return status

    def _uses_sudo(self, command: Command) -> bool:
        return command.become and self._become is Become.SUDO and os.geteuid() != 0

    def _cannot_start(self, command: Command, exc: Exception) -> HostError:
        name = shown(command)
        return NodeProgramFailed(self.node.name, f"cannot start `{name}`: {exc}", command=name)

    def _forget(self, process: _Process) -> None:
        process.close_pipes()
        with self._lock:
            self._running.discard(process)


class LocalChannel:
    """A running child process, as `interface.Channel` promises."""

    def __init__(self, process: _Process, node: str, name: str, forget: Callable[[_Process], None]) -> None:
        self._process, self._node, self._name, self._forget = process, node, name, forget
        self._is_closed = False

    def send(self, data: bytes) -> None:
        """Write all of `data`; what the command says meanwhile is kept for `receive`."""
        self._process.add_input(data)
        until = time.monotonic() + SEND_DEADLINE_SECONDS
        while self._process.has_input:
            left = until - time.monotonic()
            if left <= 0:
                reason = f"`{self._name}` did not read its input for {SEND_DEADLINE_SECONDS:g} s"
                raise ConnectionLost(self._node, reason, command=self._name, stderr_tail=self.stderr_tail())
            self._process.step(left)
        if self._process.is_input_closed:
            tail = self.stderr_tail()
            last_words = f": {tail.strip().splitlines()[-1]}" if tail.strip() else ""
            reason = f"`{self._name}` ended and takes no more input{last_words}"
            raise ConnectionLost(self._node, reason, command=self._name, stderr_tail=tail)

    def receive(self, timeout_seconds: float) -> bytes | None:
        """The next bytes of its output; b"" at its end; None when nothing came in time."""
        until = time.monotonic() + timeout_seconds
        while not self._process.stdout:
            if self._process.is_stdout_ended:
                return b""
            left = until - time.monotonic()
            if left < 0:
                return None
            self._process.step(left)
        return self._process.stdout.popleft()

    def stderr_tail(self) -> str:
        """The last lines of its standard error, at most 4 KiB."""
        self._process.step(0)
        return b"".join(self._process.stderr)[-STDERR_TAIL_BYTES:].decode("utf-8", "replace")

    def close(self) -> None:
        """Close its standard input, give it two seconds to end, then kill it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._process.leave(_LEAVING_SECONDS)
        self._forget(self._process)


class _Process:
    """A child process and its three streams. `step` moves what can be moved, waiting at most so long."""

    def __init__(self, argv: tuple[str, ...], stdin: bytes, *, closes_stdin: bool) -> None:
        self.stdout: deque[bytes] = deque()
        self.stderr: deque[bytes] = deque()
        self.received_bytes = 0
        self.is_stdout_ended = False
        self._closes_stdin = closes_stdin
        self._input: deque[memoryview] = deque([memoryview(stdin)] if stdin else [])
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._selector = selectors.DefaultSelector()
        for stream, events in (
            (self._child.stdout, selectors.EVENT_READ),
            (self._child.stderr, selectors.EVENT_READ),
            (self._child.stdin, selectors.EVENT_WRITE),
        ):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            if stream is not self._child.stdin:
                self._selector.register(stream, events)
        self._watch_input()

    @property
    def has_input(self) -> bool:
        """Whether input is still to be written."""
        return bool(self._input)

    @property
    def is_input_closed(self) -> bool:
        assert self._child.stdin is not None
        return self._child.stdin.closed

    @property
    def is_at_end(self) -> bool:
        """Whether both output streams have ended."""
        return not any(key.events & selectors.EVENT_READ for key in self._selector.get_map().values())

    def add_input(self, data: bytes) -> None:
        if data and not self.is_input_closed:
            self._input.append(memoryview(data))
            self._watch_input()

    def step(self, timeout_seconds: float | None) -> None:
        """Wait for the streams once, and move what they take and give. Nothing after `close_pipes`."""
        if self._child.stdout is not None and self._child.stdout.closed:
            return
        for key, _ in self._selector.select(timeout_seconds):
            stream = key.fileobj
            assert not isinstance(stream, int)
            if stream is self._child.stdin:
                self._write()
            else:
                self._read(stream)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> int | None:
        """The exit status, 128 + signal when a signal ended it; None when it did not end in time."""
        try:
            code = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def leave(self, seconds: float) -> None:
        """Close its input, drop its output, and kill it when it has not ended in time."""
        self._input.clear()
        self._close_input()
        until = time.monotonic() + seconds
        while not self.is_at_end and time.monotonic() < until:
            self.step(max(0.0, until - time.monotonic()))
            self.stdout.clear()
        if self.wait(max(0.0, until - time.monotonic())) is None:
            self.kill()

    def kill(self) -> None:
        """End the whole process group: ask first, then kill."""
        self._signal(signal.SIGTERM)
        self.wait(_TERM_SECONDS)
        self._signal(signal.SIGKILL)  # also for children that outlive the first of them
        self.wait(_TERM_SECONDS)  # a process of root, or one stuck in the kernel, is left to its own clock

    def close_pipes(self) -> None:
        """Let go of the pipes."""
        self._selector.close()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert stream is not None
            stream.close()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._child.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _watch_input(self) -> None:
        assert self._child.stdin is not None
        if self._input:
            if self._child.stdin not in self._selector.get_map():
                self._selector.register(self._child.stdin, selectors.EVENT_WRITE)
        elif self._closes_stdin:
            self._close_input()

    def _write(self) -> None:
        assert self._child.stdin is not None
        try:
            count = os.write(self._child.stdin.fileno(), self._input[0][:_PIECE_BYTES])
        except BlockingIOError:
            return
        except BrokenPipeError:  # it closed its input: no error by itself
            self._input.clear()
            self._close_input()
            return
        rest = self._input.popleft()[count:]
        if rest:
            self._input.appendleft(rest)
        if not self._input:
            self._selector.unregister(self._child.stdin)
            self._watch_input()

    def _read(self, stream: IO[bytes]) -> None:
        try:
            data = os.read(stream.fileno(), _PIECE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(stream)
            self.is_stdout_ended = self.is_stdout_ended or stream is self._child.stdout
            return
        self.received_bytes += len(data)
        if stream is self._child.stdout:
            self.stdout.append(data)
            return
        self.stderr.append(data)
        if not self._closes_stdin:  # a conversation lasts; only the end of what it said is ever asked for
            self.stderr = deque([b"".join(self.stderr)[-STDERR_TAIL_BYTES:]])

    def _close_input(self) -> None:
        assert self._child.stdin is not None
        if not self._child.stdin.closed:
            if self._child.stdin in self._selector.get_map():
                self._selector.unregister(self._child.stdin)
            self._child.stdin.close()


def _not_started(status: int, exc: OSError, began: float) -> Output:
    """What a shell would leave where a command does not exist or cannot be run."""
    return Output(status, b"", f"{exc.filename}: {exc.strerror}\n".encode(), time.monotonic() - began)
