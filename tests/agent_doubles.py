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
from topo_tune.records.nccl_env import NcclEnv

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


def of_size(
    size: int, samples: list[float], *, is_correct: bool | None = True, warmup: float = 1.0, **further: Any
) -> dict[str, Any]:
    """One size of one rank's answer."""
    return {
        "size_bytes": size,
        "samples_seconds": samples,
        "calls_per_sample": 20,
        "mode": "graph",
        "is_correct": is_correct,
        "warmup_seconds": [warmup],
        **further,
    }


def rank_answer(rank: int, results: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """One rank's answer for one variant."""
    usual = {"rank": rank, "setup": {"context": 0.5}, "in_force": None, "error": None}
    return {**usual, "results": results or [of_size(8192, [1.0 + rank, 2.0])], **fields}


def trial_events(
    request: dict[str, Any],
    *,
    error: str | None = None,
    log: list[str] | None = None,
    script: Callable[[NcclEnv], Any] = lambda env: {},
    ends_with: str | None = None,
) -> Iterable[dict[str, Any] | bytes]:
    """What an agent says of a trial: its variants, then its result.

    `error` fails the trial before its first variant, `ends_with` behind its last one. `script`: for the setting of a
    variant, without its configuration, an error text, `dies`, or what is different in its ranks' answers.
    """
    ranks = range(request["first_rank"], request["first_rank"] + request["local_ranks"])
    done = 0
    if not request["probe"]:
        for index, variant in enumerate(request["variants"]):
            in_force = {**request["env"], **variant["env"]}
            does = script(
                NcclEnv(tuple(sorted(variant["env"].items() if variant["env"] else request["env"].items())))
            )
            if does == "dies":
                yield b""
            if isinstance(does, str) or error is not None:
                error = error or does
                break
            answers = [rank_answer(rank, **{"in_force": in_force, **does}) for rank in ranks]
            yield {"event": "variant", "id": request["id"], "index": index, "ranks": answers}
            done += 1
            if any(result["is_correct"] is False for answer in answers for result in answer["results"]):
                error = "a wrong result"
                break
    error = error or ends_with
    logs = [{"rank": rank, "log": log or []} for rank in ranks]
    yield {
        "event": "result",
        "id": request["id"],
        "ok": error is None,
        "error": error,
        "ranks": logs if request["probe"] and error is None else [],
        "variants_done": done,
    }
