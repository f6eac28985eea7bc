"""The outer edge: exit codes, errors as words, bugs as a saved traceback, readers that go away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from topo_tune import errors
from topo_tune.cli import app, console
from topo_tune.cli.app import run


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let every command that reads a run folder meet this."""

    def meet(path: Path) -> None:
        raise error

    monkeypatch.setattr("topo_tune.records.run_folder.RunFolder.open", meet)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["scna"], "Did you mean 'scan'?"),
        (["xyzzy"], "No such command 'xyzzy'"),
        (["apply", "run", "--dryrun"], "--dry-run"),
        (["apply", "run", "--canary", "two"], "--canary"),
        (["apply", "run", "--edge", "0.03"], "--edge"),
        (["apply"], "RUN_DIR"),
        (["init"], "--cluster-config"),
    ],
)
def test_a_wrong_word_on_the_command_line_exits_2_and_is_named(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2

    said = capsys.readouterr()
    assert hint in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("x"), 2),
        (errors.Refused("x"), 2),
        (errors.Unreachable("n1", "x"), 3),
        (errors.MissingCapability("x"), 3),
        (errors.MeasurementFailed("x"), 3),
        (errors.BrokenRecord("x"), 3),
        (errors.NotEnoughEvidence("x"), 4),
    ],
)
def test_every_deliberate_error_has_its_exit_code(
    error: errors.TopoTuneError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, error)

    assert run(["status", "run"]) == code


def test_an_error_is_its_message_and_its_hint_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, errors.Refused("it would do harm", hint="do something else"))

    run(["status", "run"])

    assert capsys.readouterr() == ("", "error: it would do harm\nhint: do something else\n")


def test_an_error_that_quotes_a_node_never_drives_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, errors.ConnectionLost("n1", "it said \x1b[2J\r[bold]bye[/bold]"))

    run(["status", "run"])

    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\r" not in said
    assert "[bold]bye[/bold]" in said


def test_a_bug_exits_70_and_leaves_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raising(monkeypatch, ZeroDivisionError("an oversight"))

    assert run(["status", "run"]) == 70

    (saved,) = tmp_path.glob("topo-tune-bug-*.txt")
    assert "ZeroDivisionError: an oversight" in saved.read_text()
    assert "in meet" in saved.read_text()
    assert str(saved) in capsys.readouterr().err


def test_a_bug_whose_traceback_cannot_be_saved_is_told_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    raising(monkeypatch, ZeroDivisionError("an oversight"))

    assert run(["status", "run"]) == 70
    assert "in meet" in capsys.readouterr().err


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raising(monkeypatch, KeyboardInterrupt())

    assert run(["status", "run"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_path_that_is_no_run_folder_is_an_input_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [run([command, str(tmp_path)]) for command in ("recommend", "apply", "rollback", "status")]

    assert codes == [2, 2, 2, 2]
    assert "is not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["init", "--help"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "topo_tune", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(writing)

    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_a_command_goes_on_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    with os.fdopen(writing, "w") as stream:
        console.write("first\n", stream)
        console.write("second\n", stream)


def test_a_lost_terminal_ends_a_command_as_an_interrupt_does() -> None:
    with pytest.raises(KeyboardInterrupt):
        app._interrupt(1, None)
