from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agent_doubles import READY, Channels, line, node

from topo_tune.bench import agents as agents_module
from topo_tune.errors import ConnectionLost, MissingCapability, NodeProgramFailed, Unreachable
from topo_tune.records.inventory import BackendName

ONE, TWO = node("n1"), node("n2")
SECONDS = 0.05


def willing(name: str, request: dict[str, Any]) -> Iterator[dict[str, Any] | bytes]:
    yield READY if request["op"] == "start" else {"event": "echo", "of": request}


@pytest.fixture(autouse=True)
def _short_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_module, "START_DEADLINE_SECONDS", SECONDS)


def test_an_agent_is_started_once_a_node_and_kept() -> None:
    channels = Channels(willing)
    pool = channels.pool()

    pool.agents((ONE, TWO))
    pool.agents((ONE, TWO))

    assert {name: len(opened) for name, opened in channels.opened.items()} == {"n1": 1, "n2": 1}
    assert channels.requests("n1", "start") == [{"op": "start", "backend": "replay", "root": "/"}]


def test_agents_come_in_the_order_of_the_nodes() -> None:
    assert [agent.node.name for agent in Channels(willing).pool().agents((TWO, ONE))] == ["n2", "n1"]


def test_noise_before_the_marker_is_skipped() -> None:
    def noisy(name: str, request: dict[str, Any]) -> Iterator[bytes]:
        yield b"Welcome to gpu-01\r\n@topo-tune@ this is no JSON\n@topo-tu"
        yield b"ne@ [1]\nTip: " + line(READY)
        yield line(READY)[:9]
        yield line(READY)[9:]

    (agent,) = Channels(noisy).pool().agents((ONE,))

    assert agent.ready == READY


def test_an_agent_that_never_answers_is_dropped_and_told() -> None:
    channels = Channels(lambda name, request: ())
    pool = channels.pool()

    with pytest.raises(NodeProgramFailed, match=r"n1: the bench agent was not ready within 0\.05 s"):
        pool.agents((ONE,))

    assert channels.opened["n1"][0].closed == 1


def test_an_agent_that_dies_is_dropped_and_quoted_with_what_its_command_must_do() -> None:
    channels = Channels(lambda name, request: [b""], stderr="Traceback\nNo module named json\n")

    with pytest.raises(
        ConnectionLost, match=r"n1: the bench agent ended: No module named json\nhint: `python:`"
    ):
        channels.pool().agents((ONE,))

    assert channels.opened["n1"][0].closed == 1


def test_an_agent_that_dies_without_a_word_says_so() -> None:
    with pytest.raises(ConnectionLost, match="the bench agent ended without a word"):
        Channels(lambda name, request: [b""]).pool().agents((ONE,))


def test_a_node_that_cannot_do_it_is_a_missing_capability() -> None:
    channels = Channels(lambda name, request: [{"event": "error", "error": "cannot import torch"}])

    with pytest.raises(
        MissingCapability, match=r"n1: cannot import torch\nhint: .*`python3`; it must import torch"
    ):
        channels.pool(BackendName.GLOO).agents((ONE,))


def test_after_one_node_failed_to_start_the_others_are_still_heard_out() -> None:
    is_down = [True]
    channels = Channels(willing)
    pool = channels.pool()
    open_channel = pool._open_channel

    def open_or_fail(node: Any, command: Any) -> Any:
        if node is TWO and is_down:
            raise Unreachable(node.name, "no route")
        return open_channel(node, command)

    pool._open_channel = open_or_fail
    with pytest.raises(Unreachable):
        pool.agents((ONE, TWO))
    is_down.clear()

    first, _ = pool.agents((ONE, TWO))

    assert first.ready == READY
    assert first.ask({"op": "port"}, SECONDS)["event"] == "echo"


def test_the_result_of_a_trial_that_was_given_up_is_not_taken_for_an_answer() -> None:
    def late(name: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if request["op"] == "port":
            yield {"event": "result", "id": 7, "ok": True}
        yield from willing(name, request)  # type: ignore[misc]

    (agent,) = Channels(late).pool().agents((ONE,))

    assert agent.ask({"op": "port"}, SECONDS)["event"] == "echo"


def test_a_question_without_an_answer_is_told_with_its_time() -> None:
    (agent,) = (
        Channels(lambda name, request: [READY] if request["op"] == "start" else []).pool().agents((ONE,))
    )

    with pytest.raises(NodeProgramFailed, match=r"did not answer within 0\.05 s"):
        agent.ask({"op": "port"}, SECONDS)


def test_an_answer_that_is_an_error_is_raised() -> None:
    def failing(name: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield READY if request["op"] == "start" else {"event": "error", "error": "no ports left"}

    (agent,) = Channels(failing).pool().agents((ONE,))

    with pytest.raises(NodeProgramFailed, match="n1: no ports left"):
        agent.ask({"op": "port"}, SECONDS)


def test_waiting_ends_early_when_it_is_given_up() -> None:
    (agent,) = Channels(willing).pool().agents((ONE,))

    assert agent.next_event(60.0, lambda: True) is None


def test_closing_the_pool_closes_every_agent_once() -> None:
    channels = Channels(willing)
    pool = channels.pool()
    pool.agents((ONE, TWO))

    pool.close()
    pool.close()

    assert [channels.opened[name][0].closed for name in ("n1", "n2")] == [1, 1]


def test_dropping_a_node_without_an_agent_is_harmless() -> None:
    Channels(willing).pool().drop(ONE)
