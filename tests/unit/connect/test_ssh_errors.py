"""No exception of paramiko's, of a socket's or of a key file's gets through untranslated."""

from __future__ import annotations

import errno
import inspect
import socket
import struct

import paramiko
import pytest
from paramiko import ssh_exception
from paramiko.hostkeys import InvalidHostKey
from paramiko.pkey import UnknownKeyType

from topo_tune.connect import ssh_errors
from topo_tune.connect.login import Login
from topo_tune.errors import ConnectionLost, HostError, InputError, LoginRefused, Unreachable

LOGIN = Login("n1.example", 2222, "ops", identity="/key")


def example(kind: type[BaseException]) -> BaseException:
    """An instance of an exception class, made with as many arguments as it wants."""
    special = {
        ssh_exception.BadHostKeyException: lambda: ssh_exception.BadHostKeyException("n1", KEY, KEY),
        ssh_exception.NoValidConnectionsError: lambda: ssh_exception.NoValidConnectionsError(
            {("10.0.0.1", 22): OSError(errno.ECONNREFUSED, "refused")}
        ),
        ssh_exception.BadAuthenticationType: lambda: ssh_exception.BadAuthenticationType("no", ["publickey"]),
        ssh_exception.PartialAuthentication: lambda: ssh_exception.PartialAuthentication(["password"]),
        ssh_exception.ChannelException: lambda: ssh_exception.ChannelException(2, "Connect failed"),
        ssh_exception.ProxyCommandFailure: lambda: ssh_exception.ProxyCommandFailure("nc", "failed"),
        InvalidHostKey: lambda: InvalidHostKey("a line", ValueError("bad")),
        UnknownKeyType: lambda: UnknownKeyType("ssh-dss", b""),
    }
    return special.get(kind, lambda: kind("what happened"))()


KEY = paramiko.Ed25519Key(data=b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32))

SSH_EXCEPTIONS = [
    kind
    for _, kind in inspect.getmembers(ssh_exception, inspect.isclass)
    if issubclass(kind, BaseException) and kind.__module__ == ssh_exception.__name__
]

OTHERS: list[type[BaseException]] = [
    OSError,
    EOFError,
    TimeoutError,
    socket.timeout,
    socket.gaierror,
    ConnectionResetError,
    InvalidHostKey,
    UnknownKeyType,
    ValueError,
    UnicodeError,
    struct.error,
    AssertionError,
]


@pytest.mark.parametrize("kind", SSH_EXCEPTIONS + OTHERS)
def test_everything_that_opening_a_session_raises_becomes_a_host_error(kind: type[BaseException]) -> None:
    with pytest.raises(HostError) as caught, ssh_errors.connecting("n1", LOGIN):
        raise example(kind)

    assert caught.value.host == "n1"
    assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize("kind", [*SSH_EXCEPTIONS, OSError, EOFError, TimeoutError, ConnectionResetError])
def test_everything_that_an_open_session_raises_is_a_lost_connection(kind: type[BaseException]) -> None:
    with pytest.raises(ConnectionLost), ssh_errors.talking("n1", "uname"):
        raise example(kind)


@pytest.mark.parametrize("error", [InputError("yours"), Unreachable("n1", "already ours")])
def test_our_own_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, ssh_errors.connecting("n1", LOGIN):
        raise error

    assert caught.value is error


def test_an_interrupt_passes() -> None:
    with pytest.raises(KeyboardInterrupt), ssh_errors.connecting("n1", LOGIN):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("exc", "kind", "words"),
    [
        (paramiko.AuthenticationException("Authentication failed."), LoginRefused, "does not accept the key"),
        (
            paramiko.BadAuthenticationType("Bad authentication type", ["password", "publickey"]),
            LoginRefused,
            "allows: password, publickey",
        ),
        (paramiko.SSHException("No authentication methods available"), LoginRefused, "does not accept"),
        (paramiko.AuthenticationException("Authentication timeout."), Unreachable, "during the login"),
        (paramiko.PasswordRequiredException("locked"), LoginRefused, "ssh-add /key"),
        (paramiko.SSHException("Error reading SSH protocol banner"), Unreachable, "never spoke SSH"),
        (
            paramiko.SSHException("Error reading SSH protocol banner[Errno 104] Connection reset by peer"),
            Unreachable,
            "ended the connection",
        ),
        (paramiko.SSHException("No existing session"), Unreachable, "stalled"),
        (EOFError(), Unreachable, "ended the connection during the SSH handshake: EOFError"),
        (TimeoutError("timed out"), Unreachable, "did not answer in time"),
        (OSError(errno.EMFILE, "Too many open files"), Unreachable, "ulimit -n"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), Unreachable, "No route to host"),
        (paramiko.ChannelException(1, "Administratively prohibited"), Unreachable, "AllowTcpForwarding"),
        (ValueError("odd bytes"), Unreachable, "does not speak SSH correctly: odd bytes"),
    ],
)
def test_each_failure_is_told_apart(exc: BaseException, kind: type[HostError], words: str) -> None:
    error = ssh_errors.of_connecting(exc, "n1", LOGIN)

    assert type(error) is kind
    assert words in str(error)
