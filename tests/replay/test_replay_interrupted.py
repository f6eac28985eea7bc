"""A controller that dies or is stopped anywhere: what it left behind is settled, and ends in the same bytes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replay_demo import (
    QUICK,
    TWO_RACKS,
    Demo,
    copied,
    make_demo,
    processes_marked,
    wait_until,
)

from topo_tune.bench.backends.replay import ReplayBackend
from topo_tune.cli.app import run
from topo_tune.errors import Refused, Unreachable
from topo_tune.pipeline import rolling
from topo_tune.records.bench import Launch
from topo_tune.records.envelope import load_lines
from topo_tune.records.lock import held_alone
from topo_tune.records.recommendation import Recommendation
from topo_tune.records.rollout import RolloutPlan
from topo_tune.records.run_folder import RunFolder
from topo_tune.records.search import SearchTrace
from topo_tune.rollout.journal import Journal

NODES = ("n1", "n2", "n3", "n4")
GO = ("--confined", "--yes")
SLOWLY = ("--launches", "12")
"""So that there is time to be killed in between a write and its verdict."""


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def stopped(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Send a signal as a terminal would, to the whole process group; exit code and standard error."""
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_init_goes_on_to_the_same_answer(
    searched: Demo, tmp_path: Path, number: signal.Signals
) -> None:
    demo = make_demo(tmp_path / "demo", TWO_RACKS)
    launches = demo.run_dir / "30-bench.jsonl"
    init = ("init", "-c", str(demo.cluster), "-o", str(demo.run_dir), *QUICK)
    mark = f"{os.getpid()}-{number}"

    process = demo.start(*init, env=os.environ | {"TOPO_TUNE_TEST": mark})
    wait_until(lambda: lines_of(launches) > 12)
    code, said = stopped(process, number)

    assert code == 130
    assert f"--output {demo.run_dir} goes on from there" in said
    assert "Traceback" not in said
    assert processes_marked(mark) == []
    recorded = load_lines(launches, Launch)
    assert demo.init(*QUICK) == 0
    assert load_lines(launches, Launch)[: len(recorded)] == recorded
    assert demo.body("40-search.json", SearchTrace) == searched.body("40-search.json", SearchTrace)
    again = demo.body("50-recommendation.json", Recommendation)
    assert again == searched.body("50-recommendation.json", Recommendation)
    name = "50-topo-tune.conf"
    assert (demo.run_dir / name).read_bytes() == (searched.run_dir / name).read_bytes()


def test_a_second_search_in_a_folder_where_one_is_at_work_is_refused(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sound.picture()

    with held_alone(sound.run_dir / ".run.lock"):
        assert sound.init(*QUICK) == 2

    assert "another topo-tune works in" in capsys.readouterr().err
    assert sound.picture() == before


def test_a_second_bench_into_a_file_where_one_is_at_work_is_refused(sound: Demo, tmp_path: Path) -> None:
    file = tmp_path / "launches.jsonl"

    with held_alone(tmp_path / ".launches.jsonl.lock"):
        assert run(["bench", "-c", str(sound.cluster), "-n", "1", "-o", str(file)]) == 2

    assert not file.exists()


class Away:
    """A node that no agent can be had on while it is away; a replay asks it once a launch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.from_launch: float = math.inf
        ask = ReplayBackend._ask_each

        def ask_or_not(backend: ReplayBackend, nodes: Any, env: Any) -> Any:
            self.asked += 1
            if self.asked > self.from_launch:
                raise Unreachable("n2", "no route to it")
            return ask(backend, nodes, env)

        monkeypatch.setattr(ReplayBackend, "_ask_each", ask_or_not)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(monkeypatch)


def test_a_node_that_goes_away_during_a_search_blames_no_setting_and_the_search_goes_on_later(
    searched: Demo, tmp_path: Path, away: Away, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = make_demo(tmp_path / "demo", TWO_RACKS)
    away.from_launch = 15

    assert demo.init(*QUICK) == 3

    said = capsys.readouterr().err
    assert "n2: no route to it" in said
    assert f"the same command with --output {demo.run_dir} goes on" in said
    recorded = load_lines(demo.run_dir / "30-bench.jsonl", Launch)
    assert (len(recorded), {launch.error for launch in recorded}) == (15, {None})
    away.from_launch = math.inf
    assert demo.init(*QUICK) == 0
    again = demo.body("50-recommendation.json", Recommendation)
    assert again == searched.body("50-recommendation.json", Recommendation)


@pytest.mark.parametrize("from_launch", [0, 3, 6, 7, 9])
def test_a_node_that_goes_away_under_the_guard_puts_the_wave_back_and_can_be_resumed(
    sound: Demo, searched: Demo, away: Away, from_launch: int
) -> None:
    away.from_launch = from_launch

    assert sound("apply", *GO) == 3

    assert sound.picture(*NODES) == searched.picture(*NODES)
    away.from_launch = math.inf
    assert sound("apply", "--resume", *GO) == 0


@pytest.fixture
def killed_in_the_middle(sound: Demo) -> Demo:
    """Both nodes of the first rack are written, nothing is proved, and the controller is gone."""
    process = sound.start("apply", str(sound.run_dir), *GO, *SLOWLY)
    wait_until(lambda: sound.actions().count("written") == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    return sound


def test_a_killed_rollout_is_told_by_status(
    killed_in_the_middle: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    assert killed_in_the_middle("status") == 1
    assert "A wave was broken off" in capsys.readouterr().out


def test_a_killed_rollout_is_not_begun_anew(killed_in_the_middle: Demo) -> None:
    assert killed_in_the_middle("apply", *GO) == 2


def test_a_killed_rollout_can_be_resumed_to_its_end(killed_in_the_middle: Demo, tmp_path: Path) -> None:
    demo = killed_in_the_middle

    assert demo("apply", "--resume", *GO) == 0

    assert demo.actions()[-1] == "finished"
    assert demo("status") == 0


def carry_out(demo: Demo, plan: RolloutPlan, options: rolling.ApplyOptions) -> None:
    """Go on with a rollout as `apply --resume` does, on nodes that must not be reached."""
    nothing: Any = None
    rolling.apply(
        RunFolder.open(demo.run_dir),
        nothing,
        plan,
        options,
        consent=lambda state: True,
        on_entry=lambda entry: None,
        watch=nothing,
    )


def test_a_resume_must_be_told_anew_that_no_job_can_hang(killed_in_the_middle: Demo) -> None:
    state = rolling.recorded_state(RunFolder.open(killed_in_the_middle.run_dir))
    assert state is not None
    plan = msgspec.structs.replace(state.plan, must_match=("NCCL_ALGO",), confined=False)
    before = killed_in_the_middle.picture()

    with pytest.raises(Refused, match="give `--drained` when no job runs on these nodes"):
        carry_out(killed_in_the_middle, plan, rolling.ApplyOptions())

    assert killed_in_the_middle.picture() == before
    rolling.check_resume(plan, rolling.ApplyOptions(drained=True), state)


def test_a_rollout_that_is_over_needs_no_word_about_jobs(sound: Demo) -> None:
    assert sound("apply", *GO) == 0
    state = rolling.recorded_state(RunFolder.open(sound.run_dir))
    assert state is not None
    plan = msgspec.structs.replace(state.plan, must_match=("NCCL_ALGO",), confined=False)

    rolling.check_resume(plan, rolling.ApplyOptions(), state)


def test_a_killed_rollout_can_be_rolled_back_to_the_old_bytes(
    killed_in_the_middle: Demo, searched: Demo
) -> None:
    demo = killed_in_the_middle
    assert demo.picture(*NODES) != searched.picture(*NODES)

    assert demo("rollback") == 0

    assert demo.picture(*NODES) == searched.picture(*NODES)
    assert demo("status") == 0


def test_a_killed_rollout_is_resumed_whatever_is_recommended_by_now(killed_in_the_middle: Demo) -> None:
    assert killed_in_the_middle("recommend", "--minimum-gain", "50") == 0

    assert killed_in_the_middle("apply", "--resume", *GO) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_rollout_puts_its_wave_back_at_once(
    sound: Demo, searched: Demo, number: signal.Signals
) -> None:
    process = sound.start("apply", str(sound.run_dir), *GO, *SLOWLY)
    wait_until(lambda: "proved" in sound.actions())

    code, said = stopped(process, number)

    assert code == 130
    assert "--resume" in said
    assert sound.picture(*NODES) == searched.picture(*NODES)
    assert sound("status") == 0
    assert sound("apply", "--resume", *GO) == 0


def test_a_terminal_that_closes_sends_two_hang_ups_and_the_wave_is_put_back_all_the_same(
    sound: Demo, searched: Demo
) -> None:
    process = sound.start("apply", str(sound.run_dir), *GO, *SLOWLY)
    wait_until(lambda: "proved" in sound.actions())

    for _ in range(5):
        os.killpg(process.pid, signal.SIGHUP)
        time.sleep(0.03)
    process.communicate(timeout=60)

    assert sound.picture(*NODES) == searched.picture(*NODES)
    assert sound("status") == 0


def test_a_rollout_goes_on_when_the_reader_of_its_output_goes_away(sound: Demo) -> None:
    reading, writing = os.pipe()
    process = sound.start("apply", str(sound.run_dir), *GO, stdout=writing, stderr=writing)
    os.close(writing)
    os.close(reading)

    assert process.wait(timeout=60) == 0
    assert sound("status") == 0


def test_two_rollouts_in_one_folder_do_not_meet(sound: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    assert sound("apply", *GO) == 0
    before = sound.picture(*NODES)

    with Journal(sound.run_dir):
        assert sound("rollback") == 2
        assert sound("apply", "--resume", *GO) == 2

    assert "another rollout is at work" in capsys.readouterr().err
    assert sound.picture(*NODES) == before


def test_a_copy_of_a_run_folder_does_not_undo_what_is_not_there(searched: Demo, tmp_path: Path) -> None:
    demo = copied(searched, tmp_path / "copy")

    assert demo("rollback") == 2
