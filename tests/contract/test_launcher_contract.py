"""What every launcher promises; a new one joins by its line in the table."""

from __future__ import annotations

import subprocess
import sys

import pytest

from topo_tune.connect.program import find_answer, program_of
from topo_tune.launch import LAUNCHERS
from topo_tune.launch.interface import Launcher
from topo_tune.records.inventory import ConnectionKind, Node

NODES = tuple(
    Node(f"n{i}", "r1", f"10.0.0.{i}", ConnectionKind.SSH, python=(sys.executable,)) for i in range(1, 4)
)


@pytest.fixture(params=sorted(LAUNCHERS))
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return LAUNCHERS[request.param]()


def test_every_node_gets_a_command(launcher: Launcher) -> None:
    assert list(launcher.commands(NODES, "bench_agent")) == ["n1", "n2", "n3"]


def test_a_command_is_an_argument_vector_and_never_a_shell_string(launcher: Launcher) -> None:
    for command in launcher.commands(NODES, "bench_agent").values():
        assert isinstance(command.argv, tuple)
        assert all(isinstance(word, str) and word for word in command.argv)


def test_the_programs_source_is_on_standard_input(launcher: Launcher) -> None:
    command = launcher.commands(NODES, "bench_agent")["n2"]

    assert program_of(command) == ("bench_agent", b"")
    assert b"def main(stdin" in command.stdin


def test_a_command_outlives_any_search(launcher: Launcher) -> None:
    assert launcher.commands(NODES, "bench_agent")["n1"].deadline_seconds > 86400


def test_a_command_starts_the_program(launcher: Launcher) -> None:
    command = launcher.commands(NODES, "bench_agent")["n1"]

    output = subprocess.run(
        command.argv, input=command.stdin + b'{"op": "port"}\n', capture_output=True, check=True, timeout=20
    )

    answer = find_answer(output.stdout)
    assert answer is not None
    assert answer["event"] == "port"
