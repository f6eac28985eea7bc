"""Progress where there is no terminal: lines that a log can hold. And on one: bars that tell their source."""

from __future__ import annotations

import io
import re
import sys

import pytest

from topo_tune.cli.progress import Reporter
from topo_tune.records.inventory import BackendName
from topo_tune.records.progress import NodeProgress, Progress


class Terminal(io.StringIO):
    """Standard error of somebody sitting at a screen."""

    def isatty(self) -> bool:
        return True


def sit_down(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as standard error. Called in the test: pytest puts its own there after fixtures ran."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return stream


def test_a_log_gets_the_first_and_the_last_step_of_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter() as reporter:
        for done in range(1, 6):
            reporter.on_progress(Progress("confirm", done, 5, "NCCL's defaults"))

    assert capsys.readouterr().err == "confirm 1/5: NCCL's defaults\nconfirm 5/5\n"


def test_a_stage_that_begins_again_is_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter() as reporter:
        for done in (1, 2, 1, 2):
            reporter.on_progress(Progress("guard-before", done, 2, "measured"))

    assert capsys.readouterr().err.count("guard-before 1/2") == 2


def test_every_line_of_a_replay_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter(backend=BackendName.REPLAY) as reporter:
        reporter.on_progress(Progress("confirm", 1, 2, "NCCL's defaults"))
        reporter.on_progress(Progress("confirm", 2, 2, "NCCL's defaults"))

    lines = capsys.readouterr().err.splitlines()
    assert lines == ["replay confirm 1/2: NCCL's defaults", "replay confirm 2/2"]


def test_nodes_that_fail_are_told_and_others_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter() as reporter:
        reporter.on_node(NodeProgress("scan", "n1", "done"))
        reporter.on_node(NodeProgress("scan", "n2", "failed", "no answer\x1b[2J"))

    assert capsys.readouterr().err == "scan: n2 failed: no answer\N{REPLACEMENT CHARACTER}[2J\n"


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter(quiet=True) as reporter:
        reporter.on_progress(Progress("confirm", 1, 1, "x"))
        reporter.on_node(NodeProgress("scan", "n2", "failed", "no answer"))
        reporter.say("a note")

    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_bars_within_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = sit_down(monkeypatch)

    with Reporter(backend=BackendName.REPLAY) as reporter:
        reporter.on_node(NodeProgress("scan", "n1", "done"))
        reporter.on_progress(Progress("screen-1", 3, 59, "NCCL_ALGO=Ring " * 20))

    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    (bar,) = {line for line in text.splitlines() if "replay screen-1" in line}
    assert " 3/59 " in bar
    assert "NCCL_ALGO=Ring" in bar
    assert len(bar) <= 80


def test_what_is_said_on_a_terminal_is_never_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = sit_down(monkeypatch)

    with Reporter() as reporter:
        reporter.say("[bold]as it is[/bold] \x1b[2J")
        reporter.on_node(NodeProgress("scan", "n1", "failed", "[/red] odd"))

    text = terminal.getvalue()
    assert "[bold]as it is[/bold]" in text
    assert "\x1b[2J" not in text
    assert "[/red] odd" in text


def test_progress_can_pause_for_a_question_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = sit_down(monkeypatch)

    with Reporter() as reporter:
        reporter.pause()
        reporter.say("a line")
        reporter.resume()
        reporter.on_progress(Progress("guard-before", 1, 5, "measured"))

    assert "guard-before" in terminal.getvalue()
