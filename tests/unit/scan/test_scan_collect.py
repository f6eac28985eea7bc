"""Scanning nodes that answer, and nodes that do not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from raw_answers import raw_answer

from topo_tune.connect.interface import Channel, Command, Connection, Output
from topo_tune.connect.local import LocalConnection
from topo_tune.connect.program import MARKER
from topo_tune.errors import DeadlinePassed, HostError, NodeProgramFailed
from topo_tune.records.inventory import (
    BackendName,
    ConnectionKind,
    Inventory,
    Missing,
    Node,
    Rack,
    SshOptions,
)
from topo_tune.records.provenance import Reach
from topo_tune.scan.collect import OnEachNode, collect, collector_request, scan_cluster

Result = TypeVar("Result")


def node(name: str, root: str = "/") -> Node:
    return Node(name, "r1", "127.0.0.1", ConnectionKind.LOCAL, root, (sys.executable,))


def inventory(*names: str) -> Inventory:
    return Inventory(
        "test", (Rack("r1", tuple(node(name) for name in names)),), SshOptions(), BackendName.GLOO
    )


class Answering:
    """A connection to a node whose collector prints what it is told to print."""

    def __init__(self, name: str, stdout: bytes) -> None:
        self.node = node(name)
        self._stdout = stdout
        self.asked: list[Command] = []

    def run(self, command: Command) -> Output:
        self.asked.append(command)
        return Output(0, self._stdout, b"", 0.1)

    def start(self, command: Command) -> Channel:
        raise NotImplementedError

    def close(self) -> None:
        pass


def printed(**changes: object) -> bytes:
    return (MARKER + json.dumps(raw_answer(**changes)) + "\n").encode()


def each_of(*connections: Connection, missing: tuple[Missing, ...] = ()) -> OnEachNode:
    def on_each_node(work: Callable[[Connection], Result]) -> tuple[dict[str, Result], tuple[Missing, ...]]:
        return {connection.node.name: work(connection) for connection in connections}, missing

    return on_each_node


def test_every_node_is_scanned_in_the_inventorys_order() -> None:
    on_each_node = each_of(Answering("n2", printed()), Answering("n1", printed()))

    found = scan_cluster(inventory("n1", "n2"), on_each_node)

    assert found.cluster == "test"
    assert [scan.node for scan in found.nodes] == ["n1", "n2"]


def test_a_node_that_did_not_answer_is_missing_beside_the_others() -> None:
    gone = Missing("n2", "unreachable", "connection refused")

    found = scan_cluster(inventory("n1", "n2"), each_of(Answering("n1", printed()), missing=(gone,)))

    assert [scan.node for scan in found.nodes] == ["n1"]
    assert found.missing == (gone,)


def test_a_scan_costs_one_round_trip() -> None:
    connection = Answering("n1", printed())

    collect(connection, deadline_seconds=60.0)

    assert [command.deadline_seconds for command in connection.asked] == [60.0]


def test_an_answer_that_makes_no_sense_is_an_error_of_the_node() -> None:
    with pytest.raises(NodeProgramFailed, match="n1: the collector's answer is damaged") as caught:
        collect(Answering("n1", printed(hostname=7)), deadline_seconds=60.0)

    assert isinstance(caught.value, HostError)


@pytest.mark.parametrize("deadline_seconds", [0.5, 5.0, 20.0, 60.0, 600.0])
def test_the_collector_is_done_before_its_command_is_stopped(deadline_seconds: float) -> None:
    request = collector_request("/", deadline_seconds)

    assert request["command_deadline_seconds"] < request["deadline_seconds"] < deadline_seconds


def test_this_machine_can_be_scanned_for_real(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_ALGO=Ring\n")
    connection = LocalConnection(node("here", str(tmp_path)))

    found = collect(connection, deadline_seconds=60.0)

    assert found.cpu.threads >= 1
    assert any(nic.kind == "loopback" for nic in found.nics)
    assert [(file.path, file.settings[0].value) for file in found.nccl_files if file.exists] == [
        (f"{tmp_path}/etc/nccl.conf", "Ring")
    ]


def test_a_scan_says_where_variables_are_set_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "etc/profile.d").mkdir(parents=True)
    (tmp_path / "etc/profile.d/nccl.sh").write_text("TOKEN=hunter2\nexport NCCL_PROTO=LL\n")
    (tmp_path / "etc/nccl.conf").write_text("NCCL_TOPO_FILE=/opt/topo.xml\n")

    found = collect(LocalConnection(node("here", str(tmp_path))), deadline_seconds=60.0).settings

    told = {origin.name: (origin.path, origin.line, origin.reach, origin.file_exists) for origin in found}
    assert told["NCCL_PROTO"] == ("/etc/profile.d/nccl.sh", 2, Reach.DEPENDS, None)
    assert told["NCCL_TOPO_FILE"] == (f"{tmp_path}/etc/nccl.conf", 1, Reach.WINS, False)
    assert "hunter2" not in str(found)


def test_a_python_that_does_not_start_in_time_is_an_error_of_the_node() -> None:
    slow = Node("n1", "r1", "127.0.0.1", ConnectionKind.LOCAL, "/", ("sh", "-c", "sleep 30"))

    with pytest.raises(DeadlinePassed):
        collect(LocalConnection(slow), deadline_seconds=0.3)
