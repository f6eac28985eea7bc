from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from topo_tune.connect.interface import Command
from topo_tune.connect.ssh_channel import SshChannel
from topo_tune.errors import DeadlinePassed


class NeverAnswers:
    """A channel of a node that took the request to start a command and went silent."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def exec_command(self, line: str) -> None:
        self._closed.wait(20)
        raise OSError("closed")

    def close(self) -> None:
        self._closed.set()


def test_a_node_that_never_says_that_it_started_an_agent_is_not_waited_for_as_long_as_an_agent_may_run() -> (
    None
):
    channel: Any = NeverAnswers()
    began = time.monotonic()

    with pytest.raises(
        DeadlinePassed, match=r"n1: the node did not say within 0\.1 s that it started `python3`"
    ):
        SshChannel(channel, "python3", Command(("python3",), deadline_seconds=7e5), "n1", reply_seconds=0.1)

    assert time.monotonic() - began < 5
