"""Many nodes side by side, with functions in place of connections."""

from __future__ import annotations

import resource
import threading

import pytest

from topo_tune.connect import Connections
from topo_tune.connect.fan_out import NodeEvent, NodeState, fan_out, raise_open_files_limit
from topo_tune.connect.recorded import Exchange, RecordedConnection
from topo_tune.errors import ConnectionLost, LoginRefused, Unreachable
from topo_tune.records.inventory import ConnectionKind, Missing, Node, SshOptions


def node(name: str) -> Node:
    return Node(name=name, rack="r1", address=name, connection=ConnectionKind.LOCAL)


NODES = tuple(node(f"n{number}") for number in range(1, 8))


class Flaky:
    """Work that fails on some nodes: for good, or the first time only."""

    def __init__(self, *, once: tuple[str, ...] = (), refused: tuple[str, ...] = ()) -> None:
        self.once, self.refused = set(once), refused
        self.calls: list[str] = []

    def __call__(self, node: Node) -> str:
        self.calls.append(node.name)
        if node.name in self.refused:
            raise LoginRefused(node.name, "wrong key")
        if node.name in self.once:
            self.once.discard(node.name)
            raise Unreachable(node.name, "no banner")
        return node.name.upper()


def test_every_answer_is_kept_in_the_order_of_the_nodes() -> None:
    answers, missing = fan_out(NODES, lambda node: node.name.upper(), parallel=3)

    assert list(answers.items()) == [(node.name, node.name.upper()) for node in NODES]
    assert missing == ()


def test_no_nodes_give_no_answers() -> None:
    assert fan_out((), lambda node: node, parallel=3) == ({}, ())


def test_a_node_that_fails_is_missing_with_its_reason_and_the_others_answer() -> None:
    answers, missing = fan_out(NODES, Flaky(refused=("n2", "n5")), parallel=3)

    assert set(answers) == {"n1", "n3", "n4", "n6", "n7"}
    assert missing == (
        Missing("n2", "login refused", "wrong key"),
        Missing("n5", "login refused", "wrong key"),
    )


def test_a_retryable_failure_gets_one_more_pass_after_all_others() -> None:
    work = Flaky(once=("n1",))

    answers, missing = fan_out(NODES, work, parallel=1)

    assert work.calls == [*(node.name for node in NODES), "n1"]
    assert answers["n1"] == "N1"
    assert missing == ()


def test_a_refused_login_is_not_tried_again() -> None:
    work = Flaky(refused=("n1",))

    fan_out(NODES, work, parallel=1)

    assert work.calls.count("n1") == 1


def test_without_retry_a_node_is_missing_at_its_first_failure() -> None:
    _, missing = fan_out(NODES, Flaky(once=("n1",)), parallel=1, retry=False)

    assert missing == (Missing("n1", "unreachable", "no banner"),)


def test_events_tell_every_change_of_state_in_the_callers_thread() -> None:
    events: list[tuple[NodeEvent, threading.Thread]] = []

    fan_out(
        NODES[:1],
        Flaky(once=("n1",)),
        parallel=1,
        connect=lambda node: None,
        on_event=lambda event: events.append((event, threading.current_thread())),
    )

    assert [(event.state, event.reason) for event, _ in events] == [
        (NodeState.WAITING, ""),
        (NodeState.CONNECTING, ""),
        (NodeState.RUNNING, ""),
        (NodeState.RETRYING, "no banner"),
        (NodeState.CONNECTING, ""),
        (NodeState.RUNNING, ""),
        (NodeState.DONE, ""),
    ]
    assert {thread for _, thread in events} == {threading.current_thread()}


def test_no_more_nodes_than_asked_for_work_at_once() -> None:
    gate = threading.Barrier(3, timeout=5)
    lock, working, most = threading.Lock(), [0], [0]

    def work(node: Node) -> None:
        with lock:
            working[0] += 1
            most[0] = max(most[0], working[0])
        gate.wait()
        with lock:
            working[0] -= 1
        gate.wait()

    fan_out(NODES[:6], work, parallel=3)

    assert most[0] == 3


def test_any_other_exception_is_raised_and_the_rest_is_given_up() -> None:
    released = threading.Event()
    calls: list[str] = []

    def work(node: Node) -> None:
        calls.append(node.name)
        if node.name == "n1":
            raise ZeroDivisionError
        released.wait(5)

    with pytest.raises(ZeroDivisionError):
        fan_out(NODES, work, parallel=2, abort=released.set)

    assert released.is_set()
    assert len(calls) <= 3


def test_an_interrupt_leaves_no_thread_behind() -> None:
    released = threading.Event()
    before = set(threading.enumerate())

    def interrupt_once_running(event: NodeEvent) -> None:
        if event.state is NodeState.RUNNING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan_out(
            NODES,
            lambda node: released.wait(30),
            parallel=4,
            on_event=interrupt_once_running,
            abort=released.set,
        )

    assert set(threading.enumerate()) <= before


def test_the_limit_of_open_files_is_raised_and_never_lowered() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))

    raise_open_files_limit(200)
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_open_files_limit(150)
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)

    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised == kept == (200, hard)


class Opener:
    """Opens recorded connections, and remembers for whom."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def __call__(self, node: Node) -> RecordedConnection:
        self.opened.append(node.name)
        return RecordedConnection(node, (Exchange(argv=("hostname",), stdout=node.name),))


def test_connections_are_opened_at_first_use_and_kept() -> None:
    opener = Opener()

    with Connections(SshOptions(), open_one=opener) as connections:
        assert opener.opened == []
        assert connections.to(NODES[0]) is connections.to(NODES[0])

    assert opener.opened == ["n1"]


def test_many_threads_that_want_one_node_open_it_once() -> None:
    opener = Opener()

    with Connections(SshOptions(), open_one=opener) as connections:
        fan_out(NODES[:1] * 20, connections.to, parallel=20)

    assert opener.opened == ["n1"]


def test_closed_connections_open_nothing_more() -> None:
    connections = Connections(SshOptions(), open_one=Opener())
    connections.close()

    with pytest.raises(ConnectionLost, match="are closed"):
        connections.to(NODES[0])


def test_a_connection_that_came_after_the_end_is_closed_at_once() -> None:
    closed: list[str] = []

    class Late(RecordedConnection):
        def close(self) -> None:
            closed.append(self.node.name)

    def open_late(node: Node) -> RecordedConnection:
        connections.close()
        return Late(node, ())

    connections = Connections(SshOptions(), open_one=open_late)

    with pytest.raises(ConnectionLost):
        connections.to(NODES[0])
    assert closed == ["n1"]
