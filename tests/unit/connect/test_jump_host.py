"""A jump host that cannot be reached, and one that can, without any network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from topo_tune.connect.jump_host import JumpHost, Tunnel
from topo_tune.connect.login import Login
from topo_tune.errors import LoginRefused

LOGIN = Login("n1", 22, "ops")


class Sessions:
    """Opens sessions on a jump host, or fails to; counts."""

    def __init__(self, *, fails: bool = False) -> None:
        self.count, self.fails = 0, fails
        self.is_active = True

    def __call__(self, node: str) -> Any:
        self.count += 1
        if self.fails:
            raise LoginRefused(node, "wrong key")
        transport = SimpleNamespace(
            is_active=lambda: self.is_active, open_channel=lambda *args, **kwargs: SimpleNamespace()
        )
        return SimpleNamespace(get_transport=lambda: transport, close=lambda: None)


def test_one_session_carries_every_node() -> None:
    sessions = Sessions()
    jump_host = JumpHost(sessions, remember_seconds=5)

    for name in ("n1", "n2", "n3"):
        jump_host.tunnel(name, LOGIN, 5)

    assert sessions.count == 1


def test_a_broken_session_is_opened_again() -> None:
    sessions = Sessions()
    jump_host = JumpHost(sessions, remember_seconds=5)
    jump_host.tunnel("n1", LOGIN, 5)
    sessions.is_active = False

    jump_host.tunnel("n2", LOGIN, 5)

    assert sessions.count == 2


def test_a_failure_is_shared_for_a_while_and_names_each_node() -> None:
    sessions = Sessions(fails=True)
    jump_host = JumpHost(sessions, remember_seconds=5)

    with pytest.raises(LoginRefused, match="n1: at the jump host: wrong key"):
        jump_host.tunnel("n1", LOGIN, 5)
    with pytest.raises(LoginRefused, match="n2: at the jump host: wrong key"):
        jump_host.tunnel("n2", LOGIN, 5)

    assert sessions.count == 1


def test_after_a_while_the_jump_host_is_tried_again() -> None:
    sessions = Sessions(fails=True)
    jump_host = JumpHost(sessions, remember_seconds=0)

    with pytest.raises(LoginRefused):
        jump_host.tunnel("n1", LOGIN, 5)
    with pytest.raises(LoginRefused):
        jump_host.tunnel("n1", LOGIN, 5)

    assert sessions.count == 2


def test_a_closed_tunnel_leaves_the_channel_open_and_carries_nothing_more() -> None:
    calls: list[str] = []
    channel: Any = SimpleNamespace(
        send=lambda data: len(data), recv=lambda size: b"x", close=lambda: calls.append("close")
    )
    tunnel = Tunnel(channel)

    before = (tunnel.send(b"abc"), tunnel.recv(1))
    tunnel.close()

    assert before == (3, b"x")
    assert tunnel.recv(1) == b""
    with pytest.raises(BrokenPipeError):
        tunnel.send(b"abc")
    assert calls == []
