"""Help: complete, in the order of the journey, and quick because nothing heavy is imported for it."""

from __future__ import annotations

import json
import subprocess
import sys
import typing

import pytest
import typer
from typer.models import OptionInfo

from topo_tune.cli.app import app, run

COMMANDS = ("init", "scan", "bench", "recommend", "apply", "rollback", "status", "lint", "explain")

HEAVY = {"torch", "numpy", "scipy", "paramiko", "networkx", "yaml", "ClusterShell", "cryptography", "pynvml"}
"""What takes long to import, and is imported by the one module that owns it when it needs it."""

AT_START = {
    "topo_tune",
    "topo_tune.cli",
    "topo_tune.cli.app",
    *(f"topo_tune.cli.{command}" for command in COMMANDS),
    "topo_tune.cli.console",
    "topo_tune.cli.options",
    "topo_tune.errors",
}
"""Everything of topo-tune that is imported before a command runs. A longer list makes every call slower."""

_PROBE = """
import json, sys
from topo_tune.cli.app import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules_after(*arguments: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_nothing_heavy(command: str) -> None:
    code, modules = modules_after(*command.split(), "--help")

    assert code == 0
    assert modules & HEAVY == set()
    assert {name for name in modules if name.split(".")[0] == "topo_tune"} == AT_START


def test_the_version_imports_nothing_heavy() -> None:
    code, modules = modules_after("--version")

    assert code == 0
    assert modules & HEAVY == set()


def test_commands_are_listed_in_the_order_of_the_journey(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])

    listed = capsys.readouterr().out.split("Commands:\n")[1].splitlines()
    assert tuple(line.split()[0] for line in listed[: len(COMMANDS)]) == COMMANDS


def test_each_command_is_one_line_of_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])

    listed = capsys.readouterr().out.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert len(listed) == len(COMMANDS)
    assert "..." not in "".join(listed)


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert "1 it worked and the answer is no" in text
    assert "70 a bug" in text


def test_every_option_and_every_argument_has_help() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]

    silent = [
        f"{name} {parameter.name}"
        for name, command in commands.items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]

    assert silent == []


def test_without_a_command_it_helps_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2

    said = capsys.readouterr()
    assert "Commands:" in said.out + said.err


def test_the_version_tells_what_results_depend_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("topo-tune ")
    assert lines[-1].startswith("NCCL catalogue read at ")
    assert {"python", "paramiko", "torch", "msgspec"} <= {line.split()[0] for line in lines}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown_for_each_shell(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topo_tune"],
        env={"_TOPO_TUNE_COMPLETE": f"source_{shell}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0
    assert "_TOPO_TUNE_COMPLETE=complete_" in done.stdout


def test_completion_knows_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topo_tune"],
        env={
            "_TOPO_TUNE_COMPLETE": "complete_bash",
            "COMP_WORDS": "topo-tune r",
            "COMP_CWORD": "1",
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split() == ["recommend", "rollback"]


def test_an_option_whose_value_is_called_like_itself_says_its_name() -> None:
    """Some versions of typer take such a metavar for the option's name: `--SIZES`."""
    unsaid = [
        (command.name, name)
        for command in app.registered_commands
        if command.callback is not None
        for name, hint in typing.get_type_hints(command.callback, include_extras=True).items()
        for info in getattr(hint, "__metadata__", ())
        # in `Annotated`, typer keeps the first name as the default
        if isinstance(info, OptionInfo) and not str(info.default).startswith("-")
        if (info.metavar or "").lower().replace("-", "_") == name
    ]

    assert unsaid == []
