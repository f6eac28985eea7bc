"""What every connection promises, whatever is behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ssh_servers import SshCluster

from topo_tune.connect.interface import Command, Connection
from topo_tune.connect.local import LocalConnection
from topo_tune.connect.recorded import RecordedConnection, RecordingConnection
from topo_tune.errors import DeadlinePassed, HostError, OutputTooLarge
from topo_tune.records.inventory import ConnectionKind, Node

NODE = Node(name="n1", rack="r1", address="127.0.0.1", connection=ConnectionKind.LOCAL)


def sh(script: str, **fields: object) -> Command:
    return Command(argv=("sh", "-c", script), **fields)  # type: ignore[arg-type]


ECHO = Command(("echo", "it's", "a b", "$HOME"))
NO_SUCH = Command(("no-such-command-anywhere",))
STATUS = sh("echo out; echo err >&2; exit 3")
KILLED = sh("kill -9 $$")
CAT = Command(("cat",), stdin=b"\x00\xff" * 100_000)
UNREAD = Command(("true",), stdin=bytes(1_000_000))
EMPTY_INPUT = sh("cat; echo end")
BOTH = sh("head -c 3000000 /dev/zero >&2 & head -c 3000000 /dev/zero; wait")
HANGS = sh("sleep 20", deadline_seconds=0.3)
FLOODS = sh("cat /dev/zero", output_limit_bytes=1_000_000)
TALKS = sh("echo ready; exec cat")
EVERY_RUN = (ECHO, NO_SUCH, STATUS, KILLED, CAT, UNREAD, EMPTY_INPUT, BOTH, HANGS, FLOODS)


def converse(connection: Connection) -> list[bytes | None]:
    """One fixed conversation; what was received."""
    channel = connection.start(TALKS)
    heard = [channel.receive(5)]
    channel.send(b"one\n")
    heard.append(channel.receive(5))
    heard.append(channel.receive(0.05))
    channel.send(b"two\n")
    heard.append(channel.receive(5))
    channel.close()
    return heard


@pytest.fixture(scope="module")
def transcript_of_everything() -> RecordingConnection:
    """A local connection after all that the tests below ask for, in their order."""
    recording = RecordingConnection(LocalConnection(NODE))
    for command in EVERY_RUN:
        try:
            recording.run(command)
        except HostError:
            pass  # recorded as well
    converse(recording)
    return recording


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.ssh), "recorded"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    made: Connection
    if request.param == "local":
        made = LocalConnection(NODE)
    elif request.param == "ssh":
        cluster: SshCluster = request.getfixturevalue("ssh_cluster")
        made = cluster.connection()
    else:
        recording: RecordingConnection = request.getfixturevalue("transcript_of_everything")
        made = RecordedConnection(NODE, recording.exchanges)
    yield made
    made.close()


def test_it_says_which_node_it_reaches(connection: Connection) -> None:
    assert connection.node.name == "n1"


def test_arguments_arrive_as_they_are(connection: Connection) -> None:
    assert connection.run(ECHO).stdout == b"it's a b $HOME\n"


def test_streams_and_status_are_kept_apart(connection: Connection) -> None:
    output = connection.run(STATUS)

    assert (output.status, output.stdout, output.stderr) == (3, b"out\n", b"err\n")


def test_a_command_that_does_not_exist_has_status_127(connection: Connection) -> None:
    output = connection.run(NO_SUCH)

    assert output.status == 127
    assert b"no-such-command-anywhere" in output.stderr


def test_a_death_by_signal_has_128_and_the_signal(connection: Connection) -> None:
    assert connection.run(KILLED).status == 137


def test_input_goes_in_whole(connection: Connection) -> None:
    assert connection.run(CAT).stdout == CAT.stdin


def test_input_that_nobody_reads_is_no_error(connection: Connection) -> None:
    assert connection.run(UNREAD).status == 0


def test_without_input_a_reader_finds_its_end(connection: Connection) -> None:
    assert connection.run(EMPTY_INPUT).stdout == b"end\n"


def test_two_full_streams_do_not_block_each_other(connection: Connection) -> None:
    output = connection.run(BOTH)

    assert (len(output.stdout), len(output.stderr)) == (3_000_000, 3_000_000)


def test_a_command_that_hangs_passes_its_deadline(connection: Connection) -> None:
    began = time.monotonic()

    with pytest.raises(DeadlinePassed, match=r"n1: `sh -c 'sleep 20'` was still running after 0\.3 s"):
        connection.run(HANGS)

    assert time.monotonic() - began < 3


def test_too_much_output_is_stopped(connection: Connection) -> None:
    with pytest.raises(OutputTooLarge, match="more than 1000000 bytes"):
        connection.run(FLOODS)


def test_after_a_failure_the_connection_goes_on(connection: Connection) -> None:
    with pytest.raises(DeadlinePassed):
        connection.run(HANGS)

    assert connection.run(ECHO).status == 0


def test_a_conversation_alternates_and_knows_silence(connection: Connection) -> None:
    assert converse(connection) == [b"ready\n", b"one\n", None, b"two\n"]


def test_closing_twice_is_harmless(connection: Connection) -> None:
    connection.run(ECHO)

    connection.close()
    connection.close()
