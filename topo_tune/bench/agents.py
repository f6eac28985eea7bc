"""Conversations with bench agents: started once a node, kept for a run, replaced when they are lost."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from topo_tune.connect.interface import Channel, Command
from topo_tune.connect.program import parse_line
from topo_tune.errors import ConnectionLost, HostError, MissingCapability, NodeProgramFailed
from topo_tune.records.inventory import BackendName, Node

START_DEADLINE_SECONDS = 120.0
"""importing torch from a cold network file system can take a minute"""

_POLL_SECONDS = 0.5
_CLOSING_AT_ONCE = 32

OpenChannel = Callable[[Node, Command], Channel]
Event = dict[str, Any]
Result = TypeVar("Result")


class Agent:
    """One agent: JSON out, JSON in. Ends with its channel."""

    def __init__(self, node: Node, channel: Channel) -> None:
        self.node = node
        self._channel = channel
        self._pending = b""
        self._is_closed = False
        self.ready: dict[str, Any] = {}

    def send(self, request: dict[str, Any]) -> None:
        """Send one request. Raises ConnectionLost."""
        self._channel.send(json.dumps(request).encode() + b"\n")

    def next_event(
        self, timeout_seconds: float, give_up: Callable[[], bool] | None = None
    ) -> dict[str, Any] | None:
        """The agent's next event; None when none came in time, or when `give_up` became true meanwhile.

        Raises ConnectionLost when the agent is gone.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            while b"\n" in self._pending:
                line, self._pending = self._pending.split(b"\n", 1)
                event = parse_line(line.decode("utf-8", "replace"))
                if event is not None:
                    return event
            left = deadline - time.monotonic()
            if left <= 0 or (give_up is not None and give_up()):
                return None
            data = self._channel.receive(min(left, _POLL_SECONDS))
            if data == b"":
                tail = self._channel.stderr_tail().strip()
                raise ConnectionLost(
                    self.node.name,
                    "the bench agent ended" + (f": {tail.splitlines()[-1]}" if tail else " without a word"),
                    stderr_tail=tail,
                )
            self._pending += data or b""

    def ask(self, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """One request and its answer. Raises HostError when there is none or it is an error."""
        self.send(request)
        event = self.next_event(timeout_seconds)
        # Words of a trial that was given up may still be on their way.
        while event is not None and event.get("event") in ("variant", "result"):
            event = self.next_event(timeout_seconds)
        if event is None:
            raise NodeProgramFailed(
                self.node.name, f"the bench agent did not answer within {timeout_seconds:g} s"
            )
        if event.get("event") == "error":
            raise NodeProgramFailed(self.node.name, str(event.get("error")))
        return event

    def close(self) -> None:
        """Close its input; the agent then kills its ranks and ends."""
        if not self._is_closed:
            self._is_closed = True
            self._channel.close()


class AgentPool:
    """The agents of a run. An agent that fails is dropped, and the next attempt starts a new one."""

    def __init__(
        self, backend: BackendName, commands: Callable[[Node], Command], open_channel: OpenChannel
    ) -> None:
        self._backend = backend
        self._commands = commands
        self._open_channel = open_channel
        self._agents: dict[str, Agent] = {}

    def agents(self, nodes: tuple[Node, ...]) -> list[Agent]:
        """An agent on each node, started where there is none. Raises HostError or MissingCapability."""
        for node in nodes:
            if node.name not in self._agents:
                self._start(node)
        # All are started before the first is waited for: they import torch side by side. One that an earlier call
        # started and did not get to wait for is waited for now.
        agents = [self._agents[node.name] for node in nodes]
        for agent in agents:
            if not agent.ready:
                self._await_ready(agent)
        return agents

    def attempt(self, work: Callable[[], Result]) -> Result:
        """Do what needs agents; when one cannot be had or is lost on the way, do it once more with fresh ones.

        What an agent tells of its ranks is a result. An agent that is gone tells nothing of the setting that was
        tried, so a second loss raises its HostError instead of becoming anybody's result.
        """
        try:
            return work()
        except HostError:
            self.close()
            return work()

    def drop(self, node: Node) -> None:
        """Let go of a node's agent."""
        agent = self._agents.pop(node.name, None)
        if agent is not None:
            agent.close()

    def close(self) -> None:
        """End every agent."""
        agents = list(self._agents.values())
        self._agents.clear()
        if agents:
            with ThreadPoolExecutor(
                min(len(agents), _CLOSING_AT_ONCE), thread_name_prefix="close"
            ) as threads:
                list(threads.map(Agent.close, agents))

    def run_trial(
        self,
        agents: Sequence[Agent],
        requests: Sequence[Event],
        timeout_seconds: float,
        on_variant: Callable[[int, list[Event]], None],
    ) -> list[Event]:
        """One trial on every agent; their `result` events, in the order in which they came.

        `requests`: each agent's own, of one `id`. `on_variant` gets the index of a variant and every rank's answer as
        soon as all agents have told theirs, in the thread that called. When one agent fails, the others are told to
        abort. An agent that is lost is dropped, and its HostError raised when all have ended.
        """
        return _Trial(agents, requests, timeout_seconds).run(on_variant, self.drop)

    def _start(self, node: Node) -> None:
        with _before_ready(node):
            agent = Agent(node, self._open_channel(node, self._commands(node)))
        self._agents[node.name] = agent
        try:
            with _before_ready(node):
                agent.send({"op": "start", "backend": self._backend.value, "root": node.root})
        except HostError:
            self.drop(node)
            raise

    def _await_ready(self, agent: Agent) -> None:
        try:
            with _before_ready(agent.node):
                event = agent.next_event(START_DEADLINE_SECONDS)
        except HostError:
            self.drop(agent.node)
            raise
        if event is None:
            self.drop(agent.node)
            raise NodeProgramFailed(
                agent.node.name, f"the bench agent was not ready within {START_DEADLINE_SECONDS:g} s"
            )
        if event.get("event") == "error":
            self.drop(agent.node)
            raise MissingCapability(
                f"{agent.node.name}: {event.get('error')}",
                hint=f"`python:` of the cluster file is `{' '.join(agent.node.python)}`; it must import torch there, "
                f"or choose another `bench.backend`",
            )
        agent.ready = event


@contextlib.contextmanager
def _before_ready(node: Node) -> Iterator[None]:
    """Says, of an agent that is gone before it ever spoke, what its command must be able to do."""
    try:
        yield
    except ConnectionLost as exc:
        raise ConnectionLost(
            node.name,
            exc.reason,
            command=exc.command,
            stderr_tail=exc.stderr_tail,
            hint=exc.hint
            or f"`python:` of the cluster file is `{' '.join(node.python)}`; it must start Python 3.8 or newer there "
            f"and pass its standard input on (`docker exec` needs `-i`)",
        ) from exc


class _Trial:
    """One trial on several agents at once: a thread for each, and their words in one queue."""

    def __init__(self, agents: Sequence[Agent], requests: Sequence[Event], timeout_seconds: float) -> None:
        self._agents, self._requests, self._timeout_seconds = agents, requests, timeout_seconds
        self._failed = threading.Event()
        self._said: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        """what agents said; None: one of them has ended"""
        self._lost: list[HostError] = []

    def run(
        self, on_variant: Callable[[int, list[Event]], None], drop: Callable[[Node], None]
    ) -> list[Event]:
        """See `AgentPool.run_trial`."""
        results: list[Event] = []
        told: dict[int, list[Event]] = {}
        with ThreadPoolExecutor(len(self._agents), thread_name_prefix="trial") as threads:
            ends = [threads.submit(self._run_on, position, drop) for position in range(len(self._agents))]
            try:
                for event in self._until_all_ended():
                    if event["event"] == "result":
                        results.append(event)
                        continue
                    by_now = told.setdefault(int(event["index"]), [])
                    by_now.append(event)
                    if len(by_now) == len(self._agents):
                        answers = [answer for one in by_now for answer in one["ranks"]]
                        on_variant(int(event["index"]), sorted(answers, key=lambda answer: answer["rank"]))
            except BaseException:
                # Ctrl-C, or a result that cannot be kept: tell all to abort before the pool joins their threads.
                self._failed.set()
                raise
        for end in ends:
            end.result()
        if self._lost:
            raise self._lost[0]
        return results

    def _until_all_ended(self) -> Iterator[Event]:
        running = len(self._agents)
        while running:
            event = self._said.get()
            if event is None:
                running -= 1
            else:
                yield event

    def _run_on(self, position: int, drop: Callable[[Node], None]) -> None:
        agent, request = self._agents[position], self._requests[position]
        is_well = False
        try:
            agent.send(request)
            for event in self._events(agent, request["id"]):
                self._said.put(event)
                is_well = bool(event.get("ok"))
        except HostError as exc:
            self._lost.append(exc)
            drop(agent.node)
        finally:
            # Whatever came up here, the other nodes do not wait for this one until the deadline.
            if not is_well:
                self._failed.set()
            self._said.put(None)

    def _events(self, agent: Agent, identity: int) -> Iterator[Event]:
        """What the agent says of this trial, its result last. Raises HostError when that does not come in time."""
        deadline = time.monotonic() + self._timeout_seconds
        is_aborted = False
        while time.monotonic() < deadline:
            give_up = None if is_aborted else self._failed.is_set
            event = agent.next_event(deadline - time.monotonic(), give_up)
            if event is None:
                if self._failed.is_set() and not is_aborted:
                    agent.send({"op": "abort", "id": identity, "reason": "another node failed"})
                    is_aborted = True
                continue
            # A word of an older, abandoned trial may still be in the pipe.
            if event.get("id") == identity and event.get("event") in ("variant", "result"):
                yield event
                if event["event"] == "result":
                    return
        raise HostError(
            agent.node.name, f"the bench agent did not answer within {self._timeout_seconds:g} s, dropped"
        )
