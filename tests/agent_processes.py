"""A bench agent as a real process with the torch double, and a look at its processes from outside."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topo_tune.bench.agents import Agent
from topo_tune.connect.local import LocalConnection
from topo_tune.connect.program import program_command
from topo_tune.records.inventory import ConnectionKind, Node

DOUBLE = Path(__file__).parent / "local" / "torch_double"
SECONDS = 10.0


class Running:
    """An agent with the double, and a look at its processes from outside."""

    def __init__(self, folder: Path, *before: str, **environment: str) -> None:
        self.tag = f"TOPO_TUNE_TEST={uuid.uuid4()}"
        self.folder = folder
        added = {
            "TMPDIR": str(folder),
            "PYTHONPATH": str(DOUBLE),
            "DOUBLE_FOLDER": str(folder),
            **environment,
        }
        python = ("env", self.tag, *(f"{n}={v}" for n, v in added.items()), *before, sys.executable)
        self.node = Node("n1", "r1", "127.0.0.1", ConnectionKind.LOCAL, python=python)
        self.connection = LocalConnection(self.node)
        command = program_command(python, "bench_agent", deadline_seconds=600)
        self.agent = Agent(self.node, self.connection.start(command))
        self.ready: dict[str, Any] = {}
        self._trials = 0
        self._port = 0

    def start(self, backend: str = "gloo") -> dict[str, Any]:
        return self.agent.ask({"op": "start", "backend": backend, "root": "/"}, SECONDS)

    def begin(
        self,
        double: str = "",
        ranks: int = 2,
        *,
        probe: bool = False,
        as_nodes: int = 1,
        env: dict[str, str] | None = None,
        variants: list[dict[str, Any]] | None = None,
        ranks_per_node: int | None = None,
        **changes: Any,
    ) -> int:
        """Ask for a trial; its number. What is not named here belongs to its plan."""
        self._trials += 1
        self._port = self.agent.ask({"op": "port"}, SECONDS)["port"]
        plan = {"sizes_bytes": [1024], "dtype": "float32", "repeats": 1, "deadline_seconds": 20}
        request = {
            "op": "trial",
            "id": self._trials,
            "node": "n1",
            "env": {"DOUBLE": double, **(env or {})},
            "master": ["127.0.0.1", self._port],
            "world_size": ranks,
            "first_rank": 0,
            "local_ranks": ranks,
            "as_nodes": as_nodes,
            "probe": probe,
            "plan": {**plan, **changes},
        }
        if variants is not None:
            request["variants"] = variants
        if ranks_per_node is not None:
            request["ranks_per_node"] = ranks_per_node
        self.agent.send(request)
        return self._trials

    def result(self) -> dict[str, Any]:
        event = self.agent.next_event(SECONDS)
        assert event is not None, "the agent did not answer"
        return event

    def trial(self, double: str = "", ranks: int = 2, **changes: Any) -> dict[str, Any]:
        self.begin(double, ranks, **changes)
        return self.result()

    def variants(
        self, variants: list[dict[str, Any]], double: str = "", **changes: Any
    ) -> list[dict[str, Any]]:
        """A trial of several variants: what the agent said, its result last."""
        self.begin(double, variants=variants, **changes)
        events = [self.result()]
        while events[-1]["event"] != "result":
            events.append(self.result())
        return events

    @property
    def pid(self) -> int:
        """The agent's process: the one of its tag whose parent is none of them."""
        tagged = set(self.processes())
        (agent,) = (pid for pid in tagged if parent_of(pid) not in tagged)
        return agent

    def processes(self) -> list[int]:
        """Every living process that was started with this agent's tag, the agent included."""
        return [pid for pid in all_pids() if self.tag.encode() in read(f"/proc/{pid}/environ")]

    def ranks(self) -> list[int]:
        """Every child of the agent, zombies included."""
        agent = self.pid
        return [pid for pid in all_pids() if parent_of(pid) == agent]

    def await_hanging_ranks(self, count: int = 2) -> list[int]:
        """The ranks, once all of them have made their first call."""
        folder = self.folder / str(self._port)
        wait_for(lambda: list(folder.glob("sum_1_[0-9]")), count)
        return self.ranks()

    def close(self) -> None:
        self.agent.close()
        self.connection.close()


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""  # it has ended, or is somebody else's


def parent_of(pid: int) -> int | None:
    stat = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(stat[1]) if stat else None


def pipes_of(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    return {target for entry in folder.iterdir() if (target := os.readlink(entry)).startswith("pipe:")}


def wait_for(found: Callable[[], list[Any]], count: int) -> None:
    until = time.monotonic() + SECONDS
    while len(found()) != count:
        assert time.monotonic() < until, f"{len(found())} found, expected {count}"
        time.sleep(0.01)
