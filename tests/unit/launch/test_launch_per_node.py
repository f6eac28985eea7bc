from __future__ import annotations

from topo_tune.connect.program import program_of
from topo_tune.launch import LAUNCHERS
from topo_tune.launch.per_node import PerNodeLauncher
from topo_tune.records.inventory import ConnectionKind, Node

CONTAINER = ("docker", "exec", "-i", "job", "python3")


def test_a_python_that_is_a_container_command_stays_in_front() -> None:
    node = Node("n1", "r1", "n1", ConnectionKind.SSH, python=CONTAINER)

    command = PerNodeLauncher().commands((node,), "bench_agent")["n1"]

    assert command.argv[:6] == (*CONTAINER, "-c")


def test_an_agent_runs_as_the_account_that_jobs_run_as() -> None:
    node = Node("n1", "r1", "n1", ConnectionKind.SSH)

    assert PerNodeLauncher().commands((node,), "bench_agent")["n1"].become is False


def test_nothing_is_asked_before_the_agent_runs() -> None:
    node = Node("n1", "r1", "n1", ConnectionKind.SSH)

    assert program_of(PerNodeLauncher().commands((node,), "bench_agent")["n1"]) == ("bench_agent", b"")


def test_every_kind_of_connection_has_a_launcher() -> None:
    assert set(LAUNCHERS) == {kind.value for kind in ConnectionKind}
