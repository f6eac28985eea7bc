"""The one place where what paramiko, sockets and key files raise becomes a `HostError`."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from topo_tune.connect.login import Login
from topo_tune.errors import ConnectionLost, HostError, LoginRefused, TopoTuneError, Unreachable

_NETWORK_HINT = "check the address and the port in the cluster file, and that sshd runs there"

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

# What paramiko says, word for word, where it has no class for it.
_NO_METHODS = "No authentication methods available"
_AUTH_CUT = ("Authentication timeout", "transport shut down")
_STALLED = "No existing session"
_BANNER = "protocol banner"


@contextmanager
def connecting(node: str, login: Login) -> Iterator[None]:
    """Translate everything that opening a session raises.

    Broad on purpose: what a broken server sends can make paramiko raise nearly anything (ValueError,
    struct.error, bare EOFError), and one such node must not take the others down.
    """
    try:
        yield
    except TopoTuneError:
        raise
    except Exception as exc:
        raise of_connecting(exc, node, login) from exc


@contextmanager
def talking(node: str, command: str | None = None) -> Iterator[None]:
    """Translate everything that an open session raises: whatever it is, the session is gone."""
    import paramiko

    try:
        yield
    except TopoTuneError:
        raise
    except (paramiko.SSHException, OSError, EOFError) as exc:
        raise of_talking(exc, node, command) from exc


def of_connecting(exc: BaseException, node: str, login: Login) -> HostError:
    """The HostError for a foreign exception that came while a session was being opened."""
    import paramiko
    from paramiko.ssh_exception import IncompatiblePeer

    text = _text(exc)
    if isinstance(exc, paramiko.AuthenticationException) and any(words in text for words in _AUTH_CUT):
        return Unreachable(node, f"`{login.place}` ended the connection during the login: {text}")
    if isinstance(exc, paramiko.PasswordRequiredException):
        return locked_key(node, login)
    if isinstance(exc, paramiko.AuthenticationException) or _NO_METHODS in text:
        return _login_refused(exc, node, login)
    if isinstance(exc, paramiko.ChannelException):
        return Unreachable(
            node,
            f"the jump host opened no way to `{login.host}:{login.port}`: {exc.text}",
            hint="its sshd must allow TCP forwarding (`AllowTcpForwarding`) and reach the node",
        )
    if isinstance(exc, IncompatiblePeer):
        return Unreachable(
            node, f"`{login.host}:{login.port}` shares no SSH algorithm with topo-tune: {text}"
        )
    if isinstance(exc, (paramiko.SSHException, EOFError)):
        return _handshake_failed(node, login, text)
    if isinstance(exc, OSError):
        return _no_connection(exc, node, login)
    return Unreachable(node, f"`{login.host}:{login.port}` does not speak SSH correctly: {text}")


def of_talking(exc: BaseException, node: str, command: str | None = None) -> ConnectionLost:
    """The HostError for a foreign exception that came out of an open session."""
    what = f"`{command}` reported its status" if command else "a command could be started"
    return ConnectionLost(node, f"the session ended before {what}: {_text(exc)}", command=command)


def locked_key(node: str, login: Login) -> LoginRefused:
    """The configured key has a passphrase, and no agent holds it."""
    return LoginRefused(
        node,
        f"the key `{login.identity}` is protected by a passphrase, and no SSH agent holds it",
        hint=f"run `ssh-add {login.identity}` first; the agent is then asked",
    )


def _login_refused(exc: BaseException, node: str, login: Login) -> LoginRefused:
    if "second factor" in str(exc):
        return LoginRefused(
            node,
            f"`{login.place}` wants more than a key: a password or a second factor",
            hint="topo-tune never asks for one; let this key log in alone (`AuthenticationMethods`), or "
            "use a user for whom it may",
        )
    key = f"the key `{login.identity}`" if login.identity else "any key of the agent or of ~/.ssh"
    allowed = getattr(exc, "allowed_types", None)
    extra = f" (it allows: {', '.join(allowed)})" if allowed else ""
    return LoginRefused(
        node,
        f"`{login.place}` does not accept {key}{extra}",
        hint=f"try `ssh -p {login.port} {login.user}@{login.host} true`; the public key must be in that "
        "account's authorized_keys, and sshd refuses a locked account even with the right key",
    )


def _handshake_failed(node: str, login: Login, text: str) -> Unreachable:
    place = f"`{login.host}:{login.port}`"
    if _STALLED in text:
        return Unreachable(node, f"{place} accepted the connection and then stalled")
    if _BANNER in text and "reset" not in text:
        return Unreachable(
            node, f"{place} accepted the connection and never spoke SSH: {text}", hint=_NETWORK_HINT
        )
    return Unreachable(node, f"{place} ended the connection during the SSH handshake: {text}")


def _no_connection(exc: OSError, node: str, login: Login) -> Unreachable:
    place = f"`{login.host}:{login.port}`"
    if isinstance(exc, socket.gaierror):
        return Unreachable(node, f"the name `{login.host}` is not known: {_text(exc)}", hint=_NETWORK_HINT)
    if exc.errno in _OUT_OF_DESCRIPTORS:
        return Unreachable(
            node,
            "this machine has no file descriptor left",
            hint="raise `ulimit -n`, or lower `ssh.parallel`",
        )
    if isinstance(exc, TimeoutError):
        return Unreachable(node, f"{place} did not answer in time", hint=_NETWORK_HINT)
    return Unreachable(node, f"no connection to {place}: {_text(exc)}", hint=_NETWORK_HINT)


def _text(exc: BaseException) -> str:
    """What an exception says on one line; its class where it says nothing, as EOFError does."""
    said = getattr(exc, "strerror", None) or str(exc)
    return " ".join(said.split()) or type(exc).__name__
