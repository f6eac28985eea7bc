"""Many nodes side by side: each in a thread, the unlucky ones once more, every answer or its reason kept."""

from __future__ import annotations

import enum
import queue
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from topo_tune.errors import HostError
from topo_tune.records.inventory import Missing, Node

T = TypeVar("T")

_JOIN_SECONDS = 2.0
"""how long an interrupted fan-out waits for its threads; they are daemons, so none can hold up the exit"""

_DESCRIPTORS_PER_NODE = 4
"""a socket, or three pipes and a selector"""
_DESCRIPTORS_BESIDES = 256


class NodeState(enum.Enum):
    """What a node is doing in a fan-out."""

    WAITING = "waiting"
    CONNECTING = "connecting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    RETRYING = "retrying"
    """failed with an error that often passes; waits for the second pass"""


class NodeEvent(msgspec.Struct, frozen=True):
    """A node changed its state."""

    node: str
    state: NodeState
    reason: str = ""
    """why: for `failed` and `retrying`"""


OnEvent = Callable[[NodeEvent], None]


def ignore_event(event: NodeEvent) -> None:
    """Nobody watches."""


def fan_out(
    nodes: Sequence[Node],
    work: Callable[[Node], T],
    *,
    parallel: int = 64,
    on_event: OnEvent = ignore_event,
    retry: bool = True,
    connect: Callable[[Node], object] | None = None,
    abort: Callable[[], None] | None = None,
) -> tuple[dict[str, T], tuple[Missing, ...]]:
    """Do `work` for every node, at most `parallel` at a time; the answers by node name, and the nodes without
    one.

    Both are in the order of `nodes`. Nodes that failed with a retryable HostError get one more pass after all
    others are through. A HostError makes a node missing; any other exception is raised once the rest was
    cancelled. `connect` is done first in the node's turn, and only tells the states apart. `abort` is called
    when the work is given up, from this thread: it should make work in progress fail soon (close the
    connections). Events come in the caller's own thread.
    """
    raise_open_files_limit(len(nodes) * _DESCRIPTORS_PER_NODE + _DESCRIPTORS_BESIDES)
    for node in nodes:
        on_event(NodeEvent(node.name, NodeState.WAITING))
    first = _Pass(nodes, work, connect, on_event, may_retry=retry)
    answers, errors = first.go(parallel, abort)
    again = (
        [node for node in nodes if node.name in errors and errors[node.name].is_retryable] if retry else []
    )
    if again:
        second = _Pass(again, work, connect, on_event, may_retry=False)
        more, still = second.go(parallel, abort)
        answers.update(more)
        errors.update(still)
    return (
        {node.name: answers[node.name] for node in nodes if node.name in answers},
        tuple(_missing(node, errors[node.name]) for node in nodes if node.name not in answers),
    )


def raise_open_files_limit(wanted: int) -> None:
    """Raise the soft limit of open files to `wanted`, or as far as the hard limit lets us; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


class _Finished(msgspec.Struct, frozen=True):
    """A worker is through with a node: an answer, or what was raised."""

    node: str
    answer: object = None
    error: BaseException | None = None


class _Pass(Generic[T]):
    """One pass over some nodes. Workers only report; the caller's thread decides and tells."""

    def __init__(
        self,
        nodes: Sequence[Node],
        work: Callable[[Node], T],
        connect: Callable[[Node], object] | None,
        on_event: OnEvent,
        *,
        may_retry: bool,
    ) -> None:
        self._work, self._connect, self._on_event = work, connect, on_event
        self._may_retry = may_retry
        self._unfinished = len(nodes)
        self._stopped = threading.Event()
        self._waiting: queue.SimpleQueue[Node] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[NodeEvent | _Finished] = queue.SimpleQueue()
        for node in nodes:
            self._waiting.put(node)

    def go(
        self, parallel: int, abort: Callable[[], None] | None
    ) -> tuple[dict[str, T], dict[str, HostError]]:
        """Run the pass to its end; answers and HostErrors by node name."""
        count = max(1, min(parallel, self._unfinished))
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        answers: dict[str, T] = {}
        errors: dict[str, HostError] = {}
        try:
            for thread in threads:
                thread.start()
            while self._unfinished:
                report = self._reports.get()
                if isinstance(report, NodeEvent):
                    self._on_event(report)
                else:
                    self._unfinished -= 1
                    self._take(report, answers, errors)
        except BaseException:
            self._stopped.set()
            if abort is not None:
                abort()
            _join(threads, _JOIN_SECONDS)
            raise
        _join(threads, _JOIN_SECONDS)
        return answers, errors

    def _take(self, report: _Finished, answers: dict[str, T], errors: dict[str, HostError]) -> None:
        if report.error is None:
            answers[report.node] = report.answer  # type: ignore[assignment]
            self._on_event(NodeEvent(report.node, NodeState.DONE))
            return
        if not isinstance(report.error, HostError):
            raise report.error
        errors[report.node] = report.error
        retries = self._may_retry and report.error.is_retryable
        state = NodeState.RETRYING if retries else NodeState.FAILED
        self._on_event(NodeEvent(report.node, state, report.error.reason))

    def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                node = self._waiting.get_nowait()
            except queue.Empty:
                return
            self._reports.put(self._do(node))

    def _do(self, node: Node) -> _Finished:
        try:
            if self._connect is not None:
                self._reports.put(NodeEvent(node.name, NodeState.CONNECTING))
                self._connect(node)
            self._reports.put(NodeEvent(node.name, NodeState.RUNNING))
            return _Finished(node.name, self._work(node))
        except BaseException as exc:  # noqa: BLE001
            # carried to the caller's thread, which keeps a HostError and raises anything else
            return _Finished(node.name, error=exc)


def _join(threads: list[threading.Thread], seconds: float) -> None:
    until = time.monotonic() + seconds
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, until - time.monotonic()))


def _missing(node: Node, error: HostError) -> Missing:
    return Missing(node.name, error.kind, error.reason, error.hint)
