"""Connections that need no host: what a node answered once, from a transcript, and the recorder that writes
it.

A transcript is a JSON list, one entry a command, small enough to be written by hand::

    [
      {"argv": ["uname", "-r"], "status": 0, "stdout": "6.8.0\\n"},
      {"program": "collector", "request": {"root": "/"}, "status": 0, "stdout": "@topo-tune@ {...}\\n"},
      {"argv": ["sleep", "100"], "error": {"kind": "deadline passed", "reason": "still running"}},
      {"program": "bench_agent", "conversation": [{"sent": "{...}\\n"}, {"received": "@topo-tune@ {...}\\n"}]}
    ]

A command is found again by what it asks for, not by how it travels: a node program by its name and its
request (so neither its source text nor the interpreter matters), any other command by its arguments and,
where recorded, the hash of its input. A command recorded several times answers in that order, and then goes
on giving its last answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from topo_tune.connect.command_line import shown
from topo_tune.connect.interface import STDERR_TAIL_BYTES, Channel, Command, Connection, Output
from topo_tune.connect.program import program_of
from topo_tune.errors import BrokenRecord, HostError, NodeProgramFailed
from topo_tune.records.inventory import Node


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not UTF-8."""

    base64: str


Text = str | Base64
"""bytes in a transcript: as text wherever they are UTF-8"""


class RecordedError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HostError that a command ended in."""

    kind: str
    """as the error class names itself: `unreachable`, `connection lost`, ..."""
    reason: str


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One piece of a conversation, in one direction; `received` of "" is the end of the output."""

    sent: Text | None = None
    received: Text | None = None


class Exchange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command and what came of it."""

    argv: tuple[str, ...] = ()
    """of a command that is no node program"""
    stdin_sha256: str | None = None
    """None: whatever its input"""
    program: str | None = None
    request: Any = None
    """what a node program found on its standard input: the JSON value, or text; None: nothing"""
    status: int = 0
    stdout: Text = ""
    stderr: Text = ""
    error: RecordedError | None = None
    conversation: tuple[Turn, ...] = ()
    """of a command that was started and left running"""


def load_transcript(path: Path) -> tuple[Exchange, ...]:
    """Read a transcript. Raises BrokenRecord."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[Exchange, ...])
    except (OSError, msgspec.DecodeError) as exc:
        raise BrokenRecord(f"cannot read the transcript `{path}`: {exc}") from exc


def save_transcript(path: Path, exchanges: Sequence[Exchange]) -> None:
    """Write a transcript, indented for reviews."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tuple(exchanges)), indent=2) + b"\n")


def opener(folder: Path) -> Callable[[Node], Connection]:
    """Opens nodes from the transcripts `<node name>.json` of a folder; for `Connections(open_one=...)`."""
    return lambda node: RecordedConnection(node, load_transcript(folder / f"{node.name}.json"))


class RecordedConnection:
    """A node that answers from a transcript."""

    def __init__(self, node: Node, exchanges: Sequence[Exchange]) -> None:
        self.node = node
        self._answers: dict[str, deque[Exchange]] = {}
        for exchange in exchanges:
            self._answers.setdefault(_key_of(exchange), deque()).append(exchange)

    def run(self, command: Command) -> Output:
        """The recorded output. Raises the recorded error, and NodeProgramFailed where there is no record."""
        exchange = self._find(command)
        return Output(exchange.status, _bytes(exchange.stdout), _bytes(exchange.stderr), seconds=0.0)

    def start(self, command: Command) -> Channel:
        """The recorded conversation. Raises as `run`."""
        return RecordedChannel(self.node.name, shown(command), self._find(command))

    def close(self) -> None:
        """Nothing is open."""

    def _find(self, command: Command) -> Exchange:
        for key in _keys_of(command):
            answers = self._answers.get(key)
            if answers:
                exchange = answers.popleft() if len(answers) > 1 else answers[0]
                if exchange.error is not None:
                    raise _error(self.node.name, exchange.error, shown(command))
                return exchange
        raise NodeProgramFailed(
            self.node.name,
            f"the transcript has no answer to {_keys_of(command)[0]}",
            command=shown(command),
            hint=f"it answers {len(self._answers)} others: {'; '.join(sorted(self._answers))[:600]}",
        )


class RecordedChannel:
    """A conversation that goes as it once went."""

    def __init__(self, node: str, name: str, exchange: Exchange) -> None:
        self._node, self._name = node, name
        self._turns = deque(exchange.conversation)
        self._stderr = _bytes(exchange.stderr)
        self._sent = b""

    def send(self, data: bytes) -> None:
        """Take input. Raises NodeProgramFailed as soon as it differs from the record."""
        self._sent += data
        self._consume()

    def receive(self, timeout_seconds: float) -> bytes | None:
        """The next recorded output: b"" at its end; None, at once, while the record waits for input."""
        self._consume()
        if not self._turns:
            return b""
        if self._turns[0].received is None:
            return None
        return _bytes(self._turns.popleft().received or "")

    def stderr_tail(self) -> str:
        """The recorded end of its standard error."""
        return self._stderr[-STDERR_TAIL_BYTES:].decode("utf-8", "replace")

    def close(self) -> None:
        """Nothing is open."""

    def _consume(self) -> None:
        """Strike out the input turns that were sent by now."""
        while self._sent and self._turns and self._turns[0].sent is not None:
            expected = _bytes(self._turns[0].sent)
            common = min(len(expected), len(self._sent))
            if self._sent[:common] != expected[:common]:
                raise NodeProgramFailed(
                    self._node,
                    f"`{self._name}` was sent something else than recorded: {self._sent[:200]!r}, "
                    f"recorded {expected[:200]!r}",
                    command=self._name,
                )
            if common < len(expected):
                return
            self._sent = self._sent[common:]
            self._turns.popleft()


class RecordingConnection:
    """Another connection, listened to: everything goes through, and `exchanges` is its transcript so far."""

    def __init__(self, connection: Connection) -> None:
        self.node = connection.node
        self._connection = connection
        self._exchanges: list[Exchange | _RecordingChannel] = []

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What was said so far."""
        return tuple(e.exchange if isinstance(e, _RecordingChannel) else e for e in self._exchanges)

    def run(self, command: Command) -> Output:
        """Run a command on the other connection and keep what came of it, a HostError too."""
        asked = _asked(command)
        try:
            output = self._connection.run(command)
        except HostError as exc:
            self._exchanges.append(msgspec.structs.replace(asked, error=RecordedError(exc.kind, exc.reason)))
            raise
        self._exchanges.append(
            msgspec.structs.replace(
                asked, status=output.status, stdout=_text(output.stdout), stderr=_text(output.stderr)
            )
        )
        return output

    def start(self, command: Command) -> Channel:
        """Start a command on the other connection and keep the conversation."""
        try:
            channel = self._connection.start(command)
        except HostError as exc:
            error = RecordedError(exc.kind, exc.reason)
            self._exchanges.append(msgspec.structs.replace(_asked(command), error=error))
            raise
        recording = _RecordingChannel(channel, _asked(command))
        self._exchanges.append(recording)
        return recording

    def close(self) -> None:
        """Close the other connection; the transcript stays."""
        self._connection.close()


class _RecordingChannel:
    """A channel, listened to."""

    def __init__(self, channel: Channel, asked: Exchange) -> None:
        self._channel, self._asked = channel, asked
        self._turns: list[Turn] = []

    @property
    def exchange(self) -> Exchange:
        return msgspec.structs.replace(
            self._asked, conversation=tuple(self._turns), stderr=self._channel.stderr_tail()
        )

    def send(self, data: bytes) -> None:
        self._channel.send(data)
        self._turns.append(Turn(sent=_text(data)))

    def receive(self, timeout_seconds: float) -> bytes | None:
        data = self._channel.receive(timeout_seconds)
        if data is not None:
            self._turns.append(Turn(received=_text(data)))
        return data

    def stderr_tail(self) -> str:
        return self._channel.stderr_tail()

    def close(self) -> None:
        self._channel.close()


def _asked(command: Command) -> Exchange:
    """What a command asks for, with no answer yet."""
    program = program_of(command)
    if program is not None:
        return Exchange(program=program[0], request=_request(program[1]))
    digest = hashlib.sha256(command.stdin).hexdigest() if command.stdin else None
    return Exchange(argv=command.argv, stdin_sha256=digest)


def _request(payload: bytes) -> Any:
    if not payload:
        return None
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode("utf-8", "surrogateescape")


def _key_of(exchange: Exchange) -> str:
    """One line that stands for what an exchange asks for; shown in messages."""
    if exchange.program is not None:
        return f"`{exchange.program}` with {json.dumps(exchange.request, sort_keys=True)}"
    digest = f" with input {exchange.stdin_sha256}" if exchange.stdin_sha256 else ""
    return f"`{' '.join(exchange.argv)}`{digest}"


def _keys_of(command: Command) -> tuple[str, ...]:
    """The keys that answer a command, the most exact one first."""
    asked = _asked(command)
    return _key_of(asked), _key_of(msgspec.structs.replace(asked, stdin_sha256=None))


def _text(data: bytes) -> Text:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return Base64(base64.b64encode(data).decode("ascii"))


def _bytes(text: Text) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else base64.b64decode(text.base64)


def _error(node: str, error: RecordedError, command: str) -> HostError:
    known = {kind.kind: kind for kind in HostError.__subclasses__()}
    return known.get(error.kind, HostError)(node, error.reason, command=command)
