"""Agents without processes: channels that answer as a script says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from topo_tune.bench.agents import AgentPool
from topo_tune.connect.interface import Command
from topo_tune.connect.program import MARKER
from topo_tune.errors import ConnectionLost
from topo_tune.records.inventory import BackendName, ConnectionKind, Node

Answer = Callable[[str, dict[str, Any]], Iterable[dict[str, Any] | bytes]]
"""(node, request) to what the agent says: events, or raw bytes as they are; `b""` is its end."""

READY = {"event": "ready", "backend": "replay", "gpus": 8}


def node(name: str = "n1", rack: str = "r1", **changes: Any) -> Node:
    usual: dict[str, Any] = {"address": name, "connection": ConnectionKind.LOCAL}
    return Node(name, rack, **{**usual, **changes})


def line(event: dict[str, Any]) -> bytes:
    return (MARKER + json.dumps(event) + "\n").encode()


class ScriptedChannel:
    """A channel whose other end is a function."""

    def __init__(self, node: Node, answer: Answer, stderr: str = "") -> None:
        self.node, self.answer, self.stderr = node, answer, stderr
        self.said: list[bytes] = []
        self.requests: list[dict[str, Any]] = []
        self.closed = 0

    def send(self, data: bytes) -> None:
        if self.said[-1:] == [b""]:
            raise ConnectionLost(self.node.name, "`python3` ended and takes no more input")
        request = json.loads(data)
        self.requests.append(request)
        self.said += [
            word if isinstance(word, bytes) else line(word) for word in self.answer(self.node.name, request)
        ]

    def receive(self, timeout_seconds: float) -> bytes | None:
        if self.said[:1] == [b""]:
            return b""
        return self.said.pop(0) if self.said else None

    def stderr_tail(self) -> str:
        return self.stderr

    def close(self) -> None:
        self.closed += 1


class Channels:
    """Opens scripted channels and keeps them, by node name in order of opening."""

    def __init__(self, answer: Answer, stderr: str = "") -> None:
        self.answer, self.stderr = answer, stderr
        self.opened: dict[str, list[ScriptedChannel]] = {}

    def open(self, node: Node, command: Command) -> ScriptedChannel:
        channel = ScriptedChannel(node, self.answer, self.stderr)
        self.opened.setdefault(node.name, []).append(channel)
        return channel

    def pool(self, backend: BackendName = BackendName.REPLAY) -> AgentPool:
        return AgentPool(backend, lambda node: Command(("python3",)), self.open)

    def requests(self, name: str, operation: str) -> list[dict[str, Any]]:
        """What was asked of a node's agents, in order."""
        asked = [request for channel in self.opened[name] for request in channel.requests]
        return [request for request in asked if request["op"] == operation]
