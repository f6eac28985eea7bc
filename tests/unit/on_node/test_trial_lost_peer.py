"""A rank that lost its peer tells of it before the news of the peer's end has come: the end is the cause."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from topo_tune.on_node.trial import Rank, RankLog, Trial

REQUEST = {"id": 1, "first_rank": 0, "local_ranks": 2, "plan": {"deadline_seconds": 60, "sizes_bytes": [8]}}
RESET = "rank 0: RuntimeError: Read error [127.0.0.1]:1: Connection reset by peer"


@pytest.fixture
def ended() -> Iterator[int]:
    """A child that a signal has ended and nobody has reaped."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    os.kill(pid, signal.SIGKILL)
    yield pid
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass


def rank(number: int, pid: int) -> tuple[Rank, int]:
    """A rank whose pipe stays open, and the end that it would write to."""
    reading, writing = os.pipe()
    log_reading, log_writing = os.pipe()
    os.close(log_writing)
    return Rank(number, pid, reading, RankLog(log_reading)), writing


def told(error: str, peer: int) -> str | None:
    """What a trial ends with when rank 0 tells this error, and rank 1 is that process."""
    trial = Trial(dict(REQUEST), "gloo")
    (first, writing), (second, kept_open) = rank(0, os.getpid()), rank(1, peer)
    trial.ranks = [first, second]
    os.write(writing, json.dumps({"rank": 0, "results": [], "error": error}).encode() + b"\n")
    trial.read([first.pipe])
    for descriptor in (writing, kept_open):
        os.close(descriptor)
    first.close()
    second.close()
    return trial.error


def test_the_killed_peer_is_the_cause(ended: int) -> None:
    assert told(RESET, ended) == "rank 1 was killed by signal 9 (SIGKILL)"


def test_an_error_of_the_ranks_own_is_told_as_it_is(ended: int) -> None:
    assert told("rank 0: ValueError: no such size", ended) == "rank 0: ValueError: no such size"


def test_without_a_dead_peer_the_lost_connection_is_all_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("topo_tune.on_node.trial.PEER_SECONDS", 0.0)

    assert told(RESET, os.getpid()) == RESET
