"""A host reached over SSH, through paramiko. Host keys are always checked, against our own reading of
known_hosts.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topo_tune.connect import ssh_errors
from topo_tune.connect.command_line import bounded, quoted, shown
from topo_tune.connect.interface import Channel, Command, Output
from topo_tune.connect.jump_host import JumpHost, Tunnel
from topo_tune.connect.known_hosts import SSH_PORT, HostKey, HostKeys, KnownHosts
from topo_tune.connect.login import Login, Lookup, read_ssh_config, resolve, resolve_jump
from topo_tune.connect.ssh_channel import SshChannel, run_to_end
from topo_tune.connect.sudo import as_root, check_sudo
from topo_tune.errors import ConnectionLost, HostKeyRefused, InputError
from topo_tune.records.inventory import Become, Node, SshOptions

if TYPE_CHECKING:
    import paramiko

# A dead peer is noticed within about ten seconds: unanswered data after TCP_USER_TIMEOUT, an idle connection
# after 4 + 3 * 2 s of keepalives. paramiko's own set_keepalive counts no answers and never notices.
_USER_TIMEOUT_MILLISECONDS = 8000
_KEEPALIVE_IDLE_SECONDS = 4
_KEEPALIVE_INTERVAL_SECONDS = 2
_KEEPALIVE_COUNT = 3

_HANDSHAKE_FACTOR = 2
_LOGIN_FACTOR = 3
"""The SSH handshake, and then the login (PAM, slow home directories), may take this many connect timeouts."""


class SshAccess:
    """What the connections of one run share: known hosts, private keys, ssh_config and jump hosts, each read
    once.
    """

    def __init__(self, options: SshOptions, *, ssh_config: Path | None = None) -> None:
        """`ssh_config`: the user's file when None. Raises InputError for files that cannot be read."""
        import logging

        import paramiko  # noqa: F401 -- here, once, and not by sixty-four threads together

        # paramiko logs with tracebacks what it also raises; without a handler that would go to standard
        # error.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self.options = options
        self.known_hosts = KnownHosts.read(options.known_hosts)
        self._look_up: Lookup = read_ssh_config(ssh_config)
        self._lock = threading.Lock()
        self._keys: dict[str, paramiko.PKey | None] = {}
        self._jump_hosts: dict[str, JumpHost] = {}

    def login_of(self, node: Node) -> Login:
        """Where a node is logged in to. Raises InputError."""
        return resolve(node.address, self.options, self._look_up)

    def open(self, node: str, login: Login) -> paramiko.SSHClient:
        """A logged-in session, through the jump host where there is one. Raises HostError or InputError."""
        options = self.options
        sock: socket.socket | Tunnel
        if login.jump is not None:
            jump_host = self._jump_host(login.jump)
            sock = jump_host.tunnel(node, login, options.connect_timeout_seconds * _HANDSHAKE_FACTOR)
        else:
            with ssh_errors.connecting(node, login):
                sock = _connected(login, options.connect_timeout_seconds)
        return self._log_in(node, login, sock)

    def close(self) -> None:
        """Close the jump hosts, and with them every session that goes through one."""
        with self._lock:
            jump_hosts = list(self._jump_hosts.values())
            self._jump_hosts.clear()
        for jump_host in jump_hosts:
            jump_host.close()

    def _log_in(self, node: str, login: Login, sock: Any) -> paramiko.SSHClient:
        import paramiko

        client = paramiko.SSHClient()
        seconds = self.options.connect_timeout_seconds
        try:
            with ssh_errors.connecting(node, login), ExitStack() as until_logged_in:
                listed = self.known_hosts.keys_of(login.host, login.port)
                client.set_missing_host_key_policy(_listed_keys_only(node, login, listed))
                client.connect(
                    login.host,
                    login.port,
                    login.user,
                    pkey=self._key(node, login, until_logged_in),
                    sock=sock,
                    # one second longer than the banner's limit, whose message says more
                    timeout=seconds * _HANDSHAKE_FACTOR + 1,
                    banner_timeout=seconds * _HANDSHAKE_FACTOR,
                    auth_timeout=seconds * _LOGIN_FACTOR,
                    channel_timeout=seconds * _LOGIN_FACTOR,
                    allow_agent=not login.is_only_identity,
                    look_for_keys=login.identity is None,
                    transport_factory=_transport_factory(listed, seconds * _HANDSHAKE_FACTOR),
                )
        except BaseException:
            client.close()
            sock.close()
            raise
        return client

    def _key(self, node: str, login: Login, until_logged_in: ExitStack) -> paramiko.PKey | None:
        """The configured key, or its like in the agent when it has a passphrase; None: paramiko looks for
        keys.
        """
        if login.identity is None:
            return None
        with self._lock:
            if login.identity not in self._keys:
                self._keys[login.identity] = _load_key(login.identity)
            key = self._keys[login.identity]
        if key is None and login.is_only_identity:
            return _agent_key(node, login, until_logged_in)
        return key

    def _jump_host(self, text: str) -> JumpHost:
        with self._lock:
            if text not in self._jump_hosts:
                login = resolve_jump(text, self.options, self._look_up)
                self._jump_hosts[text] = JumpHost(
                    lambda node: self.open(node, login), self.options.connect_timeout_seconds
                )
            return self._jump_hosts[text]


class SshConnection:
    """One node over SSH: connects at first use, keeps the session, and opens a new one when that one broke.

    A command that may have reached the node is never sent a second time.
    """

    def __init__(self, node: Node, access: SshAccess) -> None:
        self.node = node
        self._access = access
        self._login = access.login_of(node)
        self._client: paramiko.SSHClient | None = None
        self._closed = threading.Event()

    def connect(self) -> None:
        """Log in now rather than at first use. Raises HostError."""
        self._transport()

    def run(self, command: Command) -> Output:
        """Run a command to its end; see `interface.Connection`."""
        argv = bounded(command.argv, command.deadline_seconds)
        output = run_to_end(
            self._channel(command), quoted(self._as_asked(command, argv)), command, self.node.name
        )
        if self._uses_sudo(command):
            check_sudo(self.node.name, self._login.user, shown(command), output)
        return output

    def start(self, command: Command) -> Channel:
        """Start a command and leave it running; it should end when its standard input does."""
        line = quoted(self._as_asked(command, command.argv))
        # An agent's own deadline is days; that its start is answered is a matter of the login's time.
        seconds = self._access.options.connect_timeout_seconds * _LOGIN_FACTOR
        return SshChannel(self._channel(command), line, command, self.node.name, reply_seconds=seconds)

    def close(self) -> None:
        """End the session. Commands in progress raise ConnectionLost; the node's own clock ends them."""
        self._closed.set()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _as_asked(self, command: Command, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Under sudo, where the command asks for root and the login is not root already."""
        return as_root(argv) if self._uses_sudo(command) else argv

    def _uses_sudo(self, command: Command) -> bool:
        return command.become and self._access.options.become is Become.SUDO and self._login.user != "root"

    def _channel(self, command: Command) -> paramiko.Channel:
        """A fresh channel. An old session may be dead without knowing it; a new one then gets one try."""
        is_reused = self._client is not None
        try:
            return self._open_channel(command)
        except ConnectionLost:
            if not is_reused or self._closed.is_set():
                raise
            self._drop()
            return self._open_channel(command)

    def _open_channel(self, command: Command) -> paramiko.Channel:
        transport = self._transport()
        seconds = self._access.options.connect_timeout_seconds * _LOGIN_FACTOR
        with ssh_errors.talking(self.node.name):
            return transport.open_session(timeout=min(seconds, command.deadline_seconds + 1))

    def _transport(self) -> paramiko.Transport:
        if self._closed.is_set():
            raise ConnectionLost(self.node.name, "the connection was closed")
        transport = self._client.get_transport() if self._client is not None else None
        if transport is not None and transport.is_active():
            return transport
        self._drop()
        client = self._access.open(self.node.name, self._login)
        self._client = client
        if self._closed.is_set():  # by another thread, while we were connecting
            self._drop()
            raise ConnectionLost(self.node.name, "the connection was closed")
        opened = client.get_transport()
        assert opened is not None
        return opened

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _connected(login: Login, timeout_seconds: float) -> socket.socket:
    sock = socket.create_connection((login.host, login.port), timeout=timeout_seconds)
    # Without it Nagle's algorithm meets delayed acknowledgements: 108 ms instead of 68 ms a connection.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Linux only; elsewhere a dead peer is noticed by the command's deadline.
    for name, value in (
        ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MILLISECONDS),
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_COUNT),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def _transport_factory(listed: HostKeys, handshake_seconds: float) -> Callable[..., paramiko.Transport]:
    """Transports that ask the server for a host key of a type that we know, and the user for nothing."""
    import paramiko

    class AsksNobody(paramiko.Transport):
        def auth_interactive_dumb(self, *args: Any, **options: Any) -> list[str]:
            """paramiko would prompt on the terminal here, from any thread, and wait for ever."""
            raise paramiko.BadAuthenticationType("a second factor is wanted", ["keyboard-interactive"])

    def make(sock: Any, **options: Any) -> paramiko.Transport:
        transport = AsksNobody(sock, **options)
        transport.handshake_timeout = handshake_seconds
        security = transport.get_security_options()
        known = {name for key in listed.trusted for name in _algorithms(key)}
        security.key_types = sorted(security.key_types, key=lambda name: name not in known)
        return transport

    return make


def _algorithms(key: HostKey) -> tuple[str, ...]:
    """An RSA key signs under newer names than its own (RFC 8332)."""
    return ("rsa-sha2-512", "rsa-sha2-256") if key.type == "ssh-rsa" else (key.type,)


def _listed_keys_only(node: str, login: Login, listed: HostKeys) -> paramiko.MissingHostKeyPolicy:
    """A policy that refuses every key that is not listed. paramiko is given no keys, so it asks this about
    each.
    """
    import paramiko

    class ListedKeysOnly(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
            shown_key = HostKey(key.get_name(), key.asbytes())
            if not listed.accepts(shown_key):
                raise _key_refused(node, login, listed, shown_key, key.fingerprint)

    return ListedKeysOnly()


def _key_refused(node: str, login: Login, listed: HostKeys, key: HostKey, fingerprint: str) -> HostKeyRefused:
    name = login.host if login.port == SSH_PORT else f"[{login.host}]:{login.port}"
    what = f"the {key.type} key of `{name}` ({fingerprint})"
    if key in listed.revoked:
        return HostKeyRefused(
            node,
            f"{what} is revoked in known_hosts",
            hint="the node must get a new host key before anybody logs in to it",
        )
    if listed.trusted:
        return HostKeyRefused(
            node,
            f"{what} differs from the one in known_hosts",
            hint=f"if the node was reinstalled, compare the fingerprint on its console, "
            f"then `ssh-keygen -R '{name}'` and add the new key; if not, somebody else answers in its place",
        )
    port = "" if login.port == SSH_PORT else f"-p {login.port} "
    return HostKeyRefused(
        node,
        f"{what} is not in known_hosts",
        hint=f"run `ssh-keyscan {port}{login.host}`, compare its fingerprint (`ssh-keygen -lf -`) "
        "with the node's own, and add the line to known_hosts",
    )


def _load_key(identity: str) -> paramiko.PKey | None:
    """A private key; None when it is protected by a passphrase. Raises InputError."""
    import paramiko

    try:
        return paramiko.PKey.from_path(Path(identity).expanduser())
    except TypeError:  # how the cryptography package says that a passphrase is missing
        return None
    except OSError as exc:
        raise InputError(
            f"cannot read the private key: {exc.strerror}", file=identity, field="ssh.identity"
        ) from exc
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as exc:
        raise InputError(
            "not a private key that can be used for SSH",
            file=identity,
            field="ssh.identity",
            hint="name the private key, not its `.pub` file; `ssh-keygen -t ed25519` makes one",
        ) from exc


def _agent_key(node: str, login: Login, until_logged_in: ExitStack) -> paramiko.PKey:
    """The agent's key that belongs to a protected key file, told by the `.pub` file beside it."""
    import paramiko

    assert login.identity is not None
    public = Path(f"{login.identity}.pub").expanduser()
    try:
        encoded = public.read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError):
        raise ssh_errors.locked_key(node, login) from None
    agent = paramiko.Agent()
    until_logged_in.callback(agent.close)
    for key in agent.get_keys():
        if key.get_base64() == encoded:
            return key
    raise ssh_errors.locked_key(node, login)
