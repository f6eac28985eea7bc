"""From a command to the argument vector that really runs."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from topo_tune.connect.command_line import bounded, quoted, shown
from topo_tune.connect.interface import Command, Output
from topo_tune.connect.program import program_command
from topo_tune.connect.sudo import as_root, check_sudo
from topo_tune.errors import LoginRefused


def test_quoting_survives_a_shell() -> None:
    argv = ("printf", "%s|", "a b", "it's", "$HOME", "", "new\nline", "*")

    output = subprocess.run(["sh", "-c", quoted(argv)], capture_output=True, check=True)

    assert shlex.split(quoted(argv)) == list(argv)
    assert output.stdout == b"a b|it's|$HOME||new\nline|*|"


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_a_bounded_command_keeps_its_exit_status(script: str, status: int) -> None:
    done = subprocess.run(bounded(("sh", "-c", script), 60), capture_output=True, check=False)

    assert done.returncode == status


def test_a_bounded_command_has_a_whole_second_more_than_its_deadline() -> None:
    assert bounded(("true",), 0.5)[-2:] == ("2", "true")


def test_sudo_never_asks() -> None:
    assert as_root(("id",)) == ("sudo", "-n", "--", "id")


@pytest.mark.parametrize(
    ("status", "stderr"),
    [
        (1, b"sudo: a password is required\n"),
        (1, b"noise\nsudo: sorry, you must have a tty to run sudo\n"),
        (1, b"ops is not in the sudoers file.\n"),
        (127, b"bash: line 1: sudo: command not found\n"),
    ],
)
def test_a_refusal_of_sudo_is_a_refused_login(status: int, stderr: bytes) -> None:
    with pytest.raises(LoginRefused, match="does not make `ops` root") as caught:
        check_sudo("n1", "ops", "id", Output(status, b"", stderr, 0.1))

    assert caught.value.hint is not None
    assert "NOPASSWD" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "stderr"),
    [
        (1, b"sudo: unable to resolve host n1\nno such file\n"),
        (0, b"sudo: a password is required\n"),
        (2, b""),
    ],
)
def test_a_failure_of_the_command_itself_is_left_alone(status: int, stderr: bytes) -> None:
    check_sudo("n1", "ops", "id", Output(status, b"", stderr, 0.1))


def test_messages_show_a_node_program_by_its_name() -> None:
    assert shown(program_command(("python3",), "nccl_conf", b"{}", deadline_seconds=1)) == "nccl_conf"


def test_messages_show_one_short_line_of_any_other_command() -> None:
    assert shown(Command(("echo", "a b"))) == "echo 'a b'"
    assert shown(Command(("sh", "-c", "x" * 200))).endswith("...")
    assert "\n" not in shown(Command(("sh", "-c", "a\nb")))
