"""SshConnection against real OpenSSH servers, and against listeners that misbehave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from ssh_servers import SshCluster, make_key, start_cluster

from topo_tune.connect import Connections, ssh_channel
from topo_tune.connect.interface import Command
from topo_tune.connect.program import MARKER, run_program
from topo_tune.connect.ssh import SshConnection
from topo_tune.errors import (
    ConnectionLost,
    DeadlinePassed,
    HostKeyRefused,
    InputError,
    LoginRefused,
    OutputTooLarge,
    Unreachable,
)

pytestmark = pytest.mark.ssh

MB = 1_000_000

CUT = "p=$$; while ! grep -q sshd /proc/$p/comm; do p=$(cut -d' ' -f4 /proc/$p/stat); done; kill -9 $p"
"""kills the sshd of its own session: the nearest ancestor of that name"""


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tester's own agent, keys and ssh_config stay out of it."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def connection(ssh_cluster: SshCluster) -> Iterator[SshConnection]:
    connection = ssh_cluster.connection()
    yield connection
    connection.close()


@contextmanager
def listener(on_accept: str, answer: bytes = b"") -> Iterator[int]:
    """A TCP server on 127.0.0.1 that is no SSH server; its port."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.sendall(answer)
                if on_accept == "close":
                    client.close()
                else:
                    accepted.append(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    for client in accepted:
        client.close()


def sh(script: str, **fields: object) -> Command:
    return Command(argv=("sh", "-c", script), **fields)  # type: ignore[arg-type]


def wait_until_gone(pid: int, seconds: float = 8.0) -> bool:
    until = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return not Path(f"/proc/{pid}").exists()


# -- logging in


def test_a_key_file_logs_in_and_a_command_gives_its_output(connection: SshConnection) -> None:
    output = connection.run(Command(("echo", "it's", "a b", "$HOME", "*")))

    assert (output.status, output.stdout, output.stderr) == (0, b"it's a b $HOME *\n", b"")


def test_one_session_serves_many_commands(connection: SshConnection) -> None:
    ports = {connection.run(sh("echo $SSH_CONNECTION")).stdout for _ in range(5)}

    assert len(ports) == 1


def test_a_different_host_key_is_refused(ssh_cluster: SshCluster, tmp_path: Path) -> None:
    other_key = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"[{ssh_cluster.addresses[0]}]:{ssh_cluster.port} {' '.join(other_key)}\n")
    connection = ssh_cluster.connection(known_hosts=str(known_hosts))

    with pytest.raises(
        HostKeyRefused, match=r"differs from the one in known_hosts[\s\S]*hint: if the node was"
    ):
        connection.connect()


def test_an_unknown_host_key_is_refused_with_the_way_to_add_it(
    ssh_cluster: SshCluster, tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("")
    connection = ssh_cluster.connection(known_hosts=str(tmp_path / "empty"))

    with pytest.raises(HostKeyRefused, match=r"is not in known_hosts[\s\S]*hint: run `ssh-keyscan -p"):
        connection.connect()


def test_a_revoked_host_key_is_refused_although_it_is_listed(ssh_cluster: SshCluster, tmp_path: Path) -> None:
    first = ssh_cluster.known_hosts.read_text().splitlines()[0]
    (tmp_path / "known_hosts").write_text(f"{first}\n@revoked * {' '.join(first.split()[1:])}\n")
    connection = ssh_cluster.connection(known_hosts=str(tmp_path / "known_hosts"))

    with pytest.raises(HostKeyRefused, match="is revoked"):
        connection.connect()


def test_a_key_that_is_not_authorized_is_refused(ssh_cluster: SshCluster, tmp_path: Path) -> None:
    connection = ssh_cluster.connection(identity=str(make_key(tmp_path / "stranger")))

    with pytest.raises(LoginRefused, match=r"does not accept the key[\s\S]*hint: try `ssh -p"):
        connection.connect()


def test_an_unknown_user_is_refused(ssh_cluster: SshCluster) -> None:
    with pytest.raises(LoginRefused, match="nobody-of-that-name@"):
        ssh_cluster.connection(user="nobody-of-that-name").connect()


def test_without_any_key_the_login_is_refused(ssh_cluster: SshCluster) -> None:
    with pytest.raises(LoginRefused, match="any key of the agent"):
        ssh_cluster.connection(identity=None).connect()


def test_a_protected_key_is_refused_with_the_way_through_the_agent(
    ssh_cluster: SshCluster, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "locked", passphrase="correct horse")

    with pytest.raises(LoginRefused, match=r"protected by a passphrase[\s\S]*hint: run `ssh-add"):
        ssh_cluster.connection(identity=str(key)).connect()


def test_a_missing_key_file_is_the_users_mistake_and_not_a_nodes(ssh_cluster: SshCluster) -> None:
    with pytest.raises(InputError, match="nowhere"):
        ssh_cluster.connection(identity="/nowhere/id").connect()


def test_a_public_key_in_place_of_the_private_one_is_told(ssh_cluster: SshCluster) -> None:
    with pytest.raises(InputError, match=r"not its `\.pub` file"):
        ssh_cluster.connection(identity=f"{ssh_cluster.key}.pub").connect()


def test_a_host_key_of_another_type_than_the_servers_favourite_is_asked_for(
    ssh_cluster: SshCluster, tmp_path: Path
) -> None:
    address = ssh_cluster.addresses[0]
    public = (ssh_cluster.folder / f"ecdsa_host_key_{address}.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"[{address}]:{ssh_cluster.port} {public}")
    connection = ssh_cluster.connection(known_hosts=str(tmp_path / "known_hosts"))

    assert connection.run(Command(("true",))).status == 0
    connection.close()


def test_a_server_that_wants_a_second_factor_is_a_refused_login_and_nobody_is_asked(tmp_path: Path) -> None:
    strict = "PasswordAuthentication yes\nAuthenticationMethods publickey,password"
    cluster = start_cluster(tmp_path, 1, extra_configuration=strict)

    with pytest.raises(LoginRefused, match="wants more than a key"):
        cluster.connection().connect()
    cluster.stop()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An SSH agent of our own, with its socket in the environment."""
    where = tmp_path / "agent"
    running = subprocess.Popen(["ssh-agent", "-D", "-a", str(where)], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 5
    while not where.exists() and time.monotonic() < until:
        time.sleep(0.02)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(where))
    yield where
    running.terminate()
    running.wait(5)


@pytest.fixture
def protected_key_in_agent(ssh_cluster: SshCluster, agent: Path, tmp_path: Path) -> Path:
    """The cluster's key under a passphrase; the agent knows it already."""
    key = tmp_path / "protected"
    key.write_bytes(ssh_cluster.key.read_bytes())
    key.chmod(0o600)
    key.with_suffix(".pub").write_bytes(ssh_cluster.key.with_suffix(".pub").read_bytes())
    subprocess.run(["ssh-add", "-q", str(key)], check=True)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True)
    return key


def test_a_protected_key_is_used_through_the_agent(
    ssh_cluster: SshCluster, protected_key_in_agent: Path
) -> None:
    connection = ssh_cluster.connection(identity=str(protected_key_in_agent))

    assert connection.run(Command(("true",))).status == 0
    connection.close()


@pytest.mark.usefixtures("protected_key_in_agent")
def test_without_a_named_key_the_agents_keys_are_tried(ssh_cluster: SshCluster) -> None:
    connection = ssh_cluster.connection(identity=None)

    assert connection.run(Command(("true",))).status == 0
    connection.close()


# -- not getting through


def test_a_closed_port_is_unreachable(ssh_cluster: SshCluster) -> None:
    connection = ssh_cluster.connection(port=1)

    with pytest.raises(Unreachable, match="Connection refused"):
        connection.connect()


def test_an_unknown_name_is_unreachable(ssh_cluster: SshCluster) -> None:
    node = ssh_cluster.node(address="no-such-host.invalid")
    connection = SshConnection(node, ssh_cluster.access())

    with pytest.raises(Unreachable, match=r"`no-such-host\.invalid` is not known"):
        connection.connect()


@pytest.mark.parametrize(
    ("on_accept", "answer", "said"),
    [
        ("hold", b"", "never spoke SSH"),
        ("close", b"", "SSH"),
        ("hold", b"SSH-2.0-OpenSSH_9.9\r\n", "stalled|handshake"),
        ("close", b"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH"),
        ("hold", b"SSH-2.0-x\r\n" + bytes(range(256)) * 20, "SSH"),
    ],
    ids=["silent", "closes at once", "stalls after its banner", "a web server", "garbage after its banner"],
)
def test_a_listener_that_is_no_ssh_server_is_unreachable(
    ssh_cluster: SshCluster, on_accept: str, answer: bytes, said: str
) -> None:
    with listener(on_accept, answer) as port:
        node = ssh_cluster.node(address="127.0.0.1")
        access = ssh_cluster.access(port=port, connect_timeout_seconds=0.4)
        began = time.monotonic()

        with pytest.raises(Unreachable, match=said):
            SshConnection(node, access).connect()

        assert time.monotonic() - began < 3


# -- running commands


def test_a_status_that_is_not_zero_is_a_result(connection: SshConnection) -> None:
    output = connection.run(sh("echo no >&2; exit 3"))

    assert (output.status, output.stderr) == (3, b"no\n")


def test_a_command_that_a_signal_killed_has_128_and_the_signal(connection: SshConnection) -> None:
    assert connection.run(sh("kill -9 $$")).status == 137


def test_a_cut_connection_is_never_a_result(connection: SshConnection) -> None:
    with pytest.raises(ConnectionLost, match="6 bytes had come"):
        connection.run(sh(f"echo begun; {CUT}; sleep 20"))


def test_after_a_cut_connection_the_next_command_gets_a_new_session(connection: SshConnection) -> None:
    with pytest.raises(ConnectionLost):
        connection.run(sh(f"{CUT}; sleep 20"))

    assert connection.run(Command(("echo", "back"))).stdout == b"back\n"


def test_a_session_that_froze_passes_the_deadline_and_is_replaced(
    ssh_cluster: SshCluster, tmp_path: Path
) -> None:
    connection = ssh_cluster.connection(connect_timeout_seconds=0.4)
    freeze = CUT.replace("kill -9 $p", f"echo $p > {tmp_path}/frozen; kill -STOP $p")

    with pytest.raises(DeadlinePassed):
        connection.run(sh(f"{freeze}; echo never seen", deadline_seconds=1.0))
    output = connection.run(Command(("echo", "replaced")))

    os.kill(int((tmp_path / "frozen").read_text()), signal.SIGKILL)
    connection.close()
    assert output.stdout == b"replaced\n"


def test_a_command_that_hangs_ends_at_its_deadline_and_is_gone_from_the_node(
    connection: SshConnection, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    began = time.monotonic()

    with pytest.raises(DeadlinePassed, match=r"still running after 0\.5 s"):
        connection.run(sh(f"echo $$ > {pid_file}; exec sleep 60", deadline_seconds=0.5))

    assert time.monotonic() - began < 2
    assert wait_until_gone(int(pid_file.read_text()))


def test_a_trickle_of_output_does_not_extend_the_deadline(connection: SshConnection) -> None:
    began = time.monotonic()

    with pytest.raises(DeadlinePassed):
        connection.run(sh("while :; do echo x; sleep 0.05; done", deadline_seconds=0.5))

    assert time.monotonic() - began < 2


def test_fifty_megabytes_arrive_whole(connection: SshConnection) -> None:
    output = connection.run(sh(f"head -c {50 * MB} /dev/zero"))

    assert output.stdout == bytes(50 * MB)


def test_a_flood_over_the_limit_is_stopped(connection: SshConnection) -> None:
    with pytest.raises(OutputTooLarge, match="more than 1000000 bytes"):
        connection.run(sh("cat /dev/zero", output_limit_bytes=MB))


def test_ten_megabytes_on_both_streams_arrive_whole(connection: SshConnection) -> None:
    size = 10 * MB

    output = connection.run(sh(f"head -c {size} /dev/zero >&2 & head -c {size} /dev/zero; wait"))

    assert (output.stdout, output.stderr) == (bytes(size), bytes(size))


def test_ten_megabytes_go_through_cat(connection: SshConnection) -> None:
    data = os.urandom(10 * MB)

    assert connection.run(Command(("cat",), stdin=data)).stdout == data


@pytest.mark.parametrize("script", ["exit 5", "sleep 0.3; exit 5", "exec <&-; sleep 0.3; exit 5"])
def test_input_that_nobody_reads_is_no_error(connection: SshConnection, script: str) -> None:
    assert connection.run(sh(script, stdin=bytes(10 * MB))).status == 5


def test_output_that_was_closed_early_does_not_hide_the_status(connection: SshConnection) -> None:
    assert connection.run(sh("exec >&- 2>&-; sleep 0.3; exit 4")).status == 4


def test_a_closed_connection_refuses_commands(connection: SshConnection) -> None:
    connection.close()

    with pytest.raises(ConnectionLost, match="was closed"):
        connection.run(Command(("true",)))


def test_closing_from_another_thread_ends_a_command_in_progress(connection: SshConnection) -> None:
    connection.connect()
    closer = threading.Timer(0.3, connection.close)
    closer.start()

    with pytest.raises(ConnectionLost):
        connection.run(sh("sleep 3"))
    closer.join()


# -- conversations


def test_a_conversation_goes_back_and_forth_and_ends_with_its_input(
    connection: SshConnection, tmp_path: Path
) -> None:
    channel = connection.start(sh(f"echo $$ > {tmp_path}/pid; exec cat"))

    channel.send(b"one\n")
    first = channel.receive(5)
    silence = channel.receive(0.05)
    channel.send(b"two\n")
    second = channel.receive(5)
    channel.close()

    assert (first, silence, second) == (b"one\n", None, b"two\n")
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_conversation_tells_the_end_of_the_output_and_the_last_of_standard_error(
    connection: SshConnection,
) -> None:
    channel = connection.start(sh("head -c 10000 /dev/zero | tr '\\0' a >&2; echo bye >&2; echo out"))

    received = [channel.receive(5), channel.receive(5)]

    assert received == [b"out\n", b""]
    assert channel.stderr_tail().endswith("abye\n")
    assert len(channel.stderr_tail()) <= 4096
    channel.close()


def test_sending_to_a_command_that_has_ended_is_a_lost_connection(connection: SshConnection) -> None:
    channel = connection.start(sh("echo the reason >&2; exit 1"))
    assert channel.receive(5) == b""

    with pytest.raises(ConnectionLost, match=r"takes no more input: the reason"):
        channel.send(bytes(8 * MB))
    channel.close()


def test_sending_to_a_command_that_does_not_read_ends_in_time(
    connection: SshConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_channel, "SEND_DEADLINE_SECONDS", 0.2)
    channel = connection.start(Command(("sleep", "20")))

    with pytest.raises(ConnectionLost, match=r"did not read its input for 0\.2 s"):
        channel.send(bytes(8 * MB))
    channel.close()


def test_closing_a_conversation_twice_is_harmless(connection: SshConnection) -> None:
    channel = connection.start(Command(("cat",)))

    channel.close()
    channel.close()


def test_a_large_echo_does_not_deadlock_a_conversation(connection: SshConnection) -> None:
    channel = connection.start(Command(("cat",)))

    channel.send(bytes(8 * MB))
    size = 0
    while size < 8 * MB:
        size += len(channel.receive(5) or b"")

    channel.close()
    assert size == 8 * MB


def test_a_conversation_over_a_cut_session_is_a_lost_connection(connection: SshConnection) -> None:
    channel = connection.start(sh(f"{CUT}; cat"))

    with pytest.raises(ConnectionLost):
        channel.receive(5)
    channel.close()


# -- jump hosts


def test_eight_nodes_are_reached_through_one_session_on_a_jump_host(ssh_cluster: SshCluster) -> None:
    jump = f"{ssh_cluster.user}@{ssh_cluster.addresses[0]}:{ssh_cluster.port}"
    nodes = ssh_cluster.nodes()[1:]

    with ExitStack() as stack:
        access = ssh_cluster.access(jump=jump)
        stack.callback(access.close)
        connections = Connections(access.options, open_one=lambda node: SshConnection(node, access))
        stack.callback(connections.close)
        # several rounds, with sessions closed in between: that is what used to cut the jump host's session
        rounds = []
        for _ in range(3):
            answers, missing = connections.fan_out(
                nodes,
                lambda c: c.run(sh("echo $SSH_CONNECTION; head -c 100000 /dev/zero")).stdout,
                retry=False,
            )
            rounds.append((answers, missing))
            for node in nodes[::2]:
                connections.to(node).close()
                connections._open.pop(node.name)

    assert [missing for _, missing in rounds] == [(), (), ()]
    senders = {answer.split()[0] for answers, _ in rounds for answer in answers.values()}
    receivers = {answer.split()[2].decode() for answer in rounds[0][0].values()}
    assert len(senders) == 1
    assert receivers == set(ssh_cluster.addresses[1:])


def test_a_dead_jump_host_makes_every_node_unreachable_quickly(ssh_cluster: SshCluster) -> None:
    access = ssh_cluster.access(jump=f"{ssh_cluster.user}@127.0.0.1:1")
    connections = Connections(access.options, open_one=lambda node: _connected(SshConnection(node, access)))

    answers, missing = connections.fan_out(ssh_cluster.nodes(), lambda c: c.run(Command(("true",))))
    access.close()

    assert answers == {}
    assert {m.kind for m in missing} == {"unreachable"}
    assert all("at the jump host: no connection to `127.0.0.1:1`" in m.reason for m in missing)


def test_a_node_that_the_jump_host_cannot_reach_is_unreachable(ssh_cluster: SshCluster) -> None:
    access = ssh_cluster.access(
        jump=f"{ssh_cluster.user}@{ssh_cluster.addresses[0]}:{ssh_cluster.port}", port=1
    )

    with pytest.raises(Unreachable, match="the jump host opened no way to"):
        SshConnection(ssh_cluster.node(1), access).connect()
    access.close()


def _connected(connection: SshConnection) -> SshConnection:
    connection.connect()
    return connection


# -- the whole way


def test_connections_open_once_a_node_and_close_together(ssh_cluster: SshCluster) -> None:
    with Connections(ssh_cluster.options()) as connections:
        answers, missing = connections.fan_out(
            ssh_cluster.nodes(), lambda c: c.run(sh("echo $SSH_CONNECTION")).stdout
        )
        again, _ = connections.fan_out(
            ssh_cluster.nodes(), lambda c: c.run(sh("echo $SSH_CONNECTION")).stdout
        )
        first = connections.to(ssh_cluster.node(0))

    assert missing == ()
    assert list(answers) == [node.name for node in ssh_cluster.nodes()]
    assert again == answers
    with pytest.raises(ConnectionLost):
        first.run(Command(("true",)))


def test_a_node_program_runs_end_to_end(
    connection: SshConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.py").write_text(
        "import json\n"
        "def main(stdin):\n"
        "    request = json.loads(stdin.read())\n"
        "    print('noise of a login script')\n"
        f"    print({MARKER!r} + json.dumps({{'sum': sum(request['numbers'])}}))\n"
    )
    monkeypatch.setattr("topo_tune.connect.program.resources.files", lambda package: tmp_path)

    assert run_program(connection, "tiny", {"numbers": [1, 2, 3]}, deadline_seconds=20) == {"sum": 6}


def test_an_interrupt_ends_a_program_with_ssh_sessions_within_seconds(
    ssh_cluster: SshCluster, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "import msgspec\n"
        "from topo_tune.connect import Command, Connections\n"
        "from topo_tune.records.inventory import Inventory\n"
        "inventory = msgspec.json.decode(open(sys.argv[1]).read(), type=Inventory)\n"
        "def work(connection):\n"
        "    script = f'touch {sys.argv[2]}/{connection.node.name}; sleep 8'\n"
        "    return connection.run(Command(('sh', '-c', script), deadline_seconds=8))\n"
        "with Connections(inventory.ssh) as connections:\n"
        "    connections.fan_out(inventory.nodes(), work)\n"
    )
    (tmp_path / "inventory.json").write_bytes(msgspec.json.encode(ssh_cluster.inventory(racks=2)))
    running = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path / "inventory.json"), str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    names = [node.name for node in ssh_cluster.nodes()]
    until = time.monotonic() + 20
    while not all((tmp_path / name).is_file() for name in names) and time.monotonic() < until:
        time.sleep(0.05)

    running.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, stderr = running.communicate(timeout=20)

    assert time.monotonic() - began < 4
    assert stderr.rstrip().endswith(b"KeyboardInterrupt")


def test_importing_the_package_does_not_import_paramiko() -> None:
    script = "import sys, topo_tune.connect.ssh, topo_tune.connect; sys.exit('paramiko' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
