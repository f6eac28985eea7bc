"""A jump host: one connection to it, and a way through it to each node behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topo_tune.connect import ssh_errors
from topo_tune.connect.login import Login
from topo_tune.errors import ConnectionLost, HostError

if TYPE_CHECKING:
    import paramiko


class Tunnel:
    """What paramiko takes for a socket: a way through the jump host that is let go of, but never closed.

    paramiko sends data on a channel after its own close of it, at random; the jump host's sshd answers by
    dropping the whole connection, and every node behind it is lost. So nothing is closed on the jump host's
    connection until all of it is: `close` only stops this end from using the channel.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._closed = False  # paramiko's Transport asks its socket for exactly this name

    def send(self, data: bytes) -> int:
        """Send some of `data`; the number of bytes that went."""
        if self._closed:
            raise BrokenPipeError("the tunnel is closed")
        return self._channel.send(data)

    def recv(self, size: int) -> bytes:
        """Receive at most `size` bytes; b"" at the end."""
        return b"" if self._closed else self._channel.recv(size)

    def settimeout(self, seconds: float | None) -> None:
        """How long `send` and `recv` wait."""
        self._channel.settimeout(seconds)

    def getpeername(self) -> object:
        """The jump host's address."""
        return self._channel.getpeername()

    def close(self) -> None:
        """Stop using the channel; the jump host's connection closes it at its own end."""
        self._closed = True


class JumpHost:
    """One shared session on a jump host. Safe to use from many threads.

    `connect(node)` opens that session; it is called again after the session broke. A failure is shared with
    everybody who asks within `remember_seconds`, so that a thousand nodes behind a dead jump host do not wait
    one after another.
    """

    def __init__(self, connect: Callable[[str], paramiko.SSHClient], remember_seconds: float) -> None:
        self._connect, self._remember_seconds = connect, remember_seconds
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._client: paramiko.SSHClient | None = None
        self._failure: tuple[float, HostError] | None = None

    def tunnel(self, node: str, login: Login, timeout_seconds: float) -> Tunnel:
        """A way to a node. Raises HostError."""
        transport = self._open(node)
        with ssh_errors.connecting(node, login):
            channel = transport.open_channel(
                "direct-tcpip", (login.host, login.port), ("127.0.0.1", 0), timeout=timeout_seconds
            )
        return Tunnel(channel)

    def close(self) -> None:
        """End the session, and with it everything that goes through it.

        Waits for nobody: a thread that is just opening the session closes it by itself.
        """
        self._closed.set()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self, node: str) -> paramiko.Transport:
        with self._lock:
            client = self._client
            transport = client.get_transport() if client is not None else None
            if transport is not None and transport.is_active():
                return transport
            if self._failure is not None and time.monotonic() - self._failure[0] < self._remember_seconds:
                raise _at_jump_host(node, self._failure[1])
            return self._open_anew(node)

    def _open_anew(self, node: str) -> paramiko.Transport:
        old, self._client = self._client, None
        if old is not None:
            old.close()
        try:
            client = self._connect(node)
        except HostError as exc:
            self._failure = (time.monotonic(), exc)
            raise _at_jump_host(node, exc) from exc
        self._failure, self._client = None, client
        if self._closed.is_set():
            client.close()
            raise ConnectionLost(node, "the jump host's session was closed")
        opened = client.get_transport()
        assert opened is not None
        return opened


def _at_jump_host(node: str, exc: HostError) -> HostError:
    return type(exc)(node, f"at the jump host: {exc.reason}", hint=exc.hint)
