"""Transcripts: how commands are found again, and what a recorder writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from topo_tune.connect import Connections
from topo_tune.connect.interface import Command
from topo_tune.connect.local import LocalConnection
from topo_tune.connect.program import MARKER, program_command, run_program
from topo_tune.connect.recorded import (
    Base64,
    Exchange,
    RecordedConnection,
    RecordedError,
    RecordingConnection,
    Turn,
    load_transcript,
    opener,
    save_transcript,
)
from topo_tune.errors import BrokenRecord, DeadlinePassed, NodeProgramFailed
from topo_tune.records.inventory import ConnectionKind, Node, SshOptions

NODE = Node(name="n1", rack="r1", address="n1", connection=ConnectionKind.LOCAL)


def recorded(*exchanges: Exchange) -> RecordedConnection:
    return RecordedConnection(NODE, exchanges)


def test_a_command_gives_its_recorded_output() -> None:
    output = recorded(Exchange(argv=("uname",), status=3, stdout="Linux\n", stderr="oh\n")).run(
        Command(("uname",))
    )

    assert (output.status, output.stdout, output.stderr) == (3, b"Linux\n", b"oh\n")


def test_a_node_program_is_found_by_its_name_and_request_whatever_its_source_and_interpreter() -> None:
    connection = recorded(
        Exchange(program="nccl_conf", request={"a": 1, "b": 2}, stdout=f'{MARKER}{{"found": true}}\n')
    )

    assert run_program(connection, "nccl_conf", {"b": 2, "a": 1}, deadline_seconds=1) == {"found": True}


def test_a_node_program_with_another_request_is_not_found() -> None:
    connection = recorded(Exchange(program="nccl_conf", request={"a": 1}))

    with pytest.raises(
        NodeProgramFailed, match=r'no answer to `nccl_conf` with \{"a": 2\}[\s\S]*hint: it answers'
    ):
        run_program(connection, "nccl_conf", {"a": 2}, deadline_seconds=1)


def test_a_payload_that_is_no_json_is_found_as_text() -> None:
    connection = recorded(Exchange(program="nccl_conf", request="plain", stdout="found"))

    command = program_command(("python3",), "nccl_conf", b"plain", deadline_seconds=1)

    assert connection.run(command).stdout == b"found"


def test_input_counts_where_it_was_recorded_and_not_elsewhere() -> None:
    hashed = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of b"x"
    connection = recorded(
        Exchange(argv=("cat",), stdin_sha256=hashed, stdout="exactly x"),
        Exchange(argv=("cat",), stdout="any"),
    )

    assert connection.run(Command(("cat",), stdin=b"x")).stdout == b"exactly x"
    assert connection.run(Command(("cat",), stdin=b"y")).stdout == b"any"


def test_several_answers_come_in_their_order_and_the_last_stays() -> None:
    connection = recorded(Exchange(argv=("date",), stdout="1"), Exchange(argv=("date",), stdout="2"))

    assert [connection.run(Command(("date",))).stdout for _ in range(3)] == [b"1", b"2", b"2"]


def test_a_recorded_error_is_raised_as_its_own_class() -> None:
    connection = recorded(Exchange(argv=("hang",), error=RecordedError("deadline passed", "too long")))

    with pytest.raises(DeadlinePassed, match="n1: too long"):
        connection.run(Command(("hang",)))


def test_bytes_that_are_no_text_survive_a_file(tmp_path: Path) -> None:
    exchanges = (
        Exchange(argv=("a",), stdout=Base64("/w==")),
        Exchange(program="p", request={"x": [1, None]}, conversation=(Turn(sent="a"), Turn(received=""))),
    )
    save_transcript(tmp_path / "n1.json", exchanges)

    assert load_transcript(tmp_path / "n1.json") == exchanges
    assert opener(tmp_path)(NODE).run(Command(("a",))).stdout == b"\xff"


@pytest.mark.parametrize("text", ["", "{}", '[{"argv": ["a"], "statuss": 0}]'])
def test_a_broken_transcript_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "n1.json").write_text(text)

    with pytest.raises(BrokenRecord, match="cannot read the transcript"):
        load_transcript(tmp_path / "n1.json")


def test_what_was_recorded_answers_like_the_original(tmp_path: Path) -> None:
    original = RecordingConnection(LocalConnection(NODE))
    commands = (
        Command(("sh", "-c", "echo out; echo err >&2; exit 3")),
        Command(("cat",), stdin=b"\xff\x00"),
        Command(("no-such-command",)),
    )
    outputs = [original.run(command) for command in commands]
    with pytest.raises(DeadlinePassed):
        original.run(Command(("sleep", "9"), deadline_seconds=0.1))
    channel = original.start(Command(("cat",)))
    channel.send(b"hello\n")
    received = channel.receive(5)
    channel.close()
    original.close()

    save_transcript(tmp_path / "n1.json", original.exchanges)
    with Connections(SshOptions(), open_one=opener(tmp_path)) as connections:
        twin = connections.to(NODE)
        again = [twin.run(command) for command in commands]
        with pytest.raises(DeadlinePassed):
            twin.run(Command(("sleep", "9")))
        twin_channel = twin.start(Command(("cat",)))
        before = twin_channel.receive(0)
        twin_channel.send(b"hel")
        twin_channel.send(b"lo\n")
        after = twin_channel.receive(0)

    assert [(o.status, o.stdout, o.stderr) for o in again] == [
        (o.status, o.stdout, o.stderr) for o in outputs
    ]
    assert (before, after, twin_channel.receive(0)) == (None, received, b"")


def test_a_conversation_that_goes_another_way_is_told() -> None:
    channel = recorded(Exchange(argv=("cat",), conversation=(Turn(sent="one"),))).start(Command(("cat",)))

    with pytest.raises(NodeProgramFailed, match="something else than recorded: b'two', recorded b'one'"):
        channel.send(b"two")
