"""LocalConnection with real child processes: what only it promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from topo_tune.connect import local
from topo_tune.connect.interface import Command
from topo_tune.connect.local import LocalConnection
from topo_tune.errors import ConnectionLost, DeadlinePassed, LoginRefused, NodeProgramFailed
from topo_tune.records.inventory import Become, ConnectionKind, Node

NODE = Node(name="n1", rack="r1", address="127.0.0.1", connection=ConnectionKind.LOCAL)


def is_gone(pid_file: Path, seconds: float = 3.0) -> bool:
    stat = Path("/proc") / pid_file.read_text().strip() / "stat"
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_a_deadline_ends_the_whole_process_group(tmp_path: Path) -> None:
    script = f"sh -c 'echo $$ > {tmp_path}/child; sleep 60' & sleep 60"

    with pytest.raises(DeadlinePassed):
        LocalConnection(NODE).run(Command(("sh", "-c", script), deadline_seconds=0.3))

    assert is_gone(tmp_path / "child")


def test_a_process_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"

    with pytest.raises(DeadlinePassed):
        LocalConnection(NODE).run(Command(("sh", "-c", script), deadline_seconds=0.3))

    assert is_gone(tmp_path / "pid")


def test_a_deadline_holds_for_a_command_that_closed_its_output() -> None:
    with pytest.raises(DeadlinePassed):
        LocalConnection(NODE).run(Command(("sh", "-c", "exec >&- 2>&-; sleep 9"), deadline_seconds=0.3))


def test_closing_from_another_thread_ends_a_command_in_progress() -> None:
    connection = LocalConnection(NODE)
    closer = threading.Timer(0.2, connection.close)
    closer.start()

    with pytest.raises(ConnectionLost):
        connection.run(Command(("sleep", "20")))
    closer.join()


def test_closing_a_conversation_kills_a_command_that_does_not_end(tmp_path: Path) -> None:
    connection = LocalConnection(NODE)
    channel = connection.start(Command(("sh", "-c", f"echo $$ > {tmp_path}/pid; echo up; exec sleep 60")))
    assert channel.receive(5) == b"up\n"

    channel.close()

    assert is_gone(tmp_path / "pid")


def test_sending_to_a_command_that_has_ended_is_a_lost_connection() -> None:
    connection = LocalConnection(NODE)
    channel = connection.start(Command(("sh", "-c", "echo the reason >&2; exit 1")))
    assert channel.receive(5) == b""

    with pytest.raises(ConnectionLost, match="takes no more input: the reason"):
        channel.send(bytes(1_000_000))
    channel.close()


def test_sending_to_a_command_that_does_not_read_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SEND_DEADLINE_SECONDS", 0.2)
    channel = LocalConnection(NODE).start(Command(("sleep", "20")))

    with pytest.raises(ConnectionLost, match=r"did not read its input for 0\.2 s"):
        channel.send(bytes(1_000_000))
    channel.close()


def test_closing_a_conversation_twice_is_harmless() -> None:
    channel = LocalConnection(NODE).start(Command(("cat",)))

    channel.close()
    channel.close()


def test_a_large_echo_does_not_deadlock_a_conversation() -> None:
    channel = LocalConnection(NODE).start(Command(("cat",)))

    channel.send(bytes(8_000_000))
    size = 0
    while size < 8_000_000:
        size += len(channel.receive(5) or b"")

    channel.close()
    assert size == 8_000_000


@pytest.mark.parametrize("argv", [("no-such-command-anywhere",), ("echo", "null\0byte")])
def test_a_conversation_that_cannot_start_says_so(argv: tuple[str, ...]) -> None:
    with pytest.raises(NodeProgramFailed, match="cannot start"):
        LocalConnection(NODE).start(Command(argv))


def test_a_file_that_is_not_executable_has_status_126(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")

    assert LocalConnection(NODE).run(Command((str(tmp_path / "script"),))).status == 126


def install_sudo(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `sudo` into the PATH, and forget to be root."""
    (folder / "sudo").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def test_root_is_asked_of_sudo_without_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_sudo(tmp_path, 'echo "$1 $2"; shift 2; exec "$@"', monkeypatch)

    output = LocalConnection(NODE, Become.SUDO).run(Command(("echo", "hi"), become=True))

    assert output.stdout == b"-n --\nhi\n"


@pytest.mark.parametrize(("become", "asked"), [(Become.NONE, True), (Become.SUDO, False)])
def test_sudo_is_left_out_unless_both_inventory_and_command_ask_for_it(
    become: Become, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_sudo(tmp_path, "exit 99", monkeypatch)

    assert LocalConnection(NODE, become).run(Command(("true",), become=asked)).status == 0


def test_a_root_session_needs_no_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_sudo(tmp_path, "exit 99", monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert LocalConnection(NODE, Become.SUDO).run(Command(("true",), become=True)).status == 0


def test_sudo_that_wants_a_password_is_a_refused_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_sudo(tmp_path, "echo 'sudo: a password is required' >&2; exit 1", monkeypatch)

    with pytest.raises(LoginRefused, match=r"a password is required[\s\S]*hint: .*NOPASSWD"):
        LocalConnection(NODE, Become.SUDO).run(Command(("true",), become=True))


def test_an_interrupt_ends_the_program_and_all_it_started_within_seconds(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from topo_tune.connect import Command, Connections\n"
        "from topo_tune.records.inventory import ConnectionKind, Node, SshOptions\n"
        "LOCAL = ConnectionKind.LOCAL\n"
        "nodes = [Node(name=f'n{i}', rack='r', address='x', connection=LOCAL) for i in range(4)]\n"
        "def work(connection):\n"
        "    script = f'echo $$ > {sys.argv[1]}/{connection.node.name}; exec sleep 60'\n"
        "    return connection.run(Command(('sh', '-c', script)))\n"
        "with Connections(SshOptions()) as connections:\n"
        "    connections.fan_out(nodes, work)\n"
    )
    running = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)], stderr=subprocess.PIPE, start_new_session=True
    )
    until = time.monotonic() + 20
    while not all((tmp_path / f"n{i}").is_file() for i in range(4)) and time.monotonic() < until:
        time.sleep(0.05)

    running.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, stderr = running.communicate(timeout=20)

    assert time.monotonic() - began < 5
    assert b"KeyboardInterrupt" in stderr
    assert all(is_gone(tmp_path / f"n{i}") for i in range(4))
