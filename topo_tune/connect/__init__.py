"""One host: reached locally, over SSH, or from a recorded transcript; and many of them side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from topo_tune.connect.fan_out import NodeEvent, NodeState, OnEvent, fan_out, ignore_event
from topo_tune.connect.interface import Channel, Command, Connection, Output
from topo_tune.errors import ConnectionLost
from topo_tune.records.inventory import ConnectionKind, Missing, Node, SshOptions

if TYPE_CHECKING:
    from topo_tune.connect.ssh import SshAccess

T = TypeVar("T")

Open = Callable[[Node], Connection]
"""opens one node's connection; raises HostError"""


def open_connection(node: Node, ssh_options: SshOptions, access: SshAccess | None = None) -> Connection:
    """A connection to a node, logged in. Raises HostError.

    `access` is what connections share; without it a connection reads keys and known hosts for itself. Over a
    jump host share one, and close it after the connections: it ends the jump host's session.
    """
    return _KINDS[node.connection](node, ssh_options, access)


class Connections:
    """The connections of one run: one a node, opened at first use, kept, and closed together at the end.

    They share known hosts, private keys and the jump host's session. Safe to use from many threads; two
    threads that ask for the same node get the same connection, which is then theirs to take turns on.
    """

    def __init__(self, ssh_options: SshOptions, *, open_one: Open | None = None) -> None:
        """`open_one` replaces the table of connection kinds: `recorded.opener(folder)` needs no hosts."""
        self._ssh_options = ssh_options
        self._open_one = open_one if open_one is not None else self._from_table
        self._lock = threading.Lock()
        self._node_locks: dict[str, threading.Lock] = {}
        self._open: dict[str, Connection] = {}
        self._access: SshAccess | None = None
        self._is_closed = False

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def to(self, node: Node) -> Connection:
        """The connection to a node, opened now if it is not open yet. Raises HostError."""
        with self._lock:
            node_lock = self._node_locks.setdefault(node.name, threading.Lock())
        with node_lock:
            connection = self._open.get(node.name)
            if connection is not None:
                return connection
            self._refuse_if_closed(node)
            connection = self._open_one(node)
            with self._lock:
                came_too_late = self._is_closed
                if not came_too_late:
                    self._open[node.name] = connection
            if came_too_late:
                connection.close()
                self._refuse_if_closed(node)
            return connection

    def fan_out(
        self,
        nodes: Sequence[Node],
        work: Callable[[Connection], T],
        *,
        parallel: int | None = None,
        on_event: OnEvent = ignore_event,
        retry: bool = True,
    ) -> tuple[dict[str, T], tuple[Missing, ...]]:
        """Do `work` with every node's connection; see `fan_out`. When it is given up, all connections are
        closed.

        `parallel` is the inventory's `ssh.parallel` when None.
        """
        return fan_out(
            nodes,
            lambda node: work(self.to(node)),
            parallel=parallel if parallel is not None else self._ssh_options.parallel,
            on_event=on_event,
            retry=retry,
            connect=self.to,
            abort=self.close,
        )

    def close(self) -> None:
        """Close every connection, then the jump hosts. Work in progress raises ConnectionLost."""
        with self._lock:
            self._is_closed = True
            connections = list(self._open.values())
            self._open.clear()
            access, self._access = self._access, None
        for connection in connections:
            connection.close()
        if access is not None:
            access.close()

    def _refuse_if_closed(self, node: Node) -> None:
        if self._is_closed:
            raise ConnectionLost(node.name, "the connections of this run are closed")

    def _from_table(self, node: Node) -> Connection:
        access = self._shared_access() if node.connection is ConnectionKind.SSH else None
        return open_connection(node, self._ssh_options, access)

    def _shared_access(self) -> SshAccess:
        from topo_tune.connect.ssh import SshAccess

        with self._lock:
            if self._access is None:
                self._access = SshAccess(self._ssh_options)
            return self._access


def _open_local(node: Node, ssh_options: SshOptions, access: SshAccess | None) -> Connection:
    from topo_tune.connect.local import LocalConnection

    return LocalConnection(node, ssh_options.become)


def _open_ssh(node: Node, ssh_options: SshOptions, access: SshAccess | None) -> Connection:
    from topo_tune.connect.ssh import SshAccess, SshConnection

    connection = SshConnection(node, access if access is not None else SshAccess(ssh_options))
    connection.connect()
    return connection


_KINDS: dict[ConnectionKind, Callable[[Node, SshOptions, SshAccess | None], Connection]] = {
    ConnectionKind.LOCAL: _open_local,
    ConnectionKind.SSH: _open_ssh,
}

__all__ = [
    "Channel",
    "Command",
    "Connection",
    "Connections",
    "NodeEvent",
    "NodeState",
    "OnEvent",
    "Output",
    "fan_out",
    "ignore_event",
    "open_connection",
]
