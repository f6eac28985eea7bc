"""Becoming root on a node with `sudo -n`, and telling its refusals from the command's own failures."""

from __future__ import annotations

from topo_tune.connect.command_line import NOT_FOUND_STATUS
from topo_tune.connect.interface import Output
from topo_tune.errors import LoginRefused

_SUDO = ("sudo", "-n", "--")
"""`-n`: fails instead of asking for a password that nobody could type."""

_REFUSALS = (
    "sudo: a password is required",
    "sudo: a terminal is required",
    "sudo: sorry, you must have a tty",
    "is not in the sudoers file",
    "may not run sudo",
    "is not allowed to execute",
    "is not allowed to run sudo",
    "sudo: not found",
    "sudo: command not found",
    "sudo: No such file or directory",
)


def as_root(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The same command under `sudo -n`."""
    return (*_SUDO, *argv)


def check_sudo(node: str, user: str, command: str, output: Output) -> None:
    """Raise LoginRefused when sudo refused to run the command; a command that ran and failed is a result."""
    if output.status not in (1, NOT_FOUND_STATUS):
        return
    lines = output.stderr.decode("utf-8", "replace").splitlines()
    refusal = next((line for line in lines if any(words in line for words in _REFUSALS)), None)
    if refusal is not None:
        raise LoginRefused(
            node,
            f"`sudo -n` does not make `{user}` root: {refusal}",
            command=command,
            status=output.status,
            hint="allow it in sudoers without a password (`NOPASSWD`), or log in as root",
        )
