from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from topo_tune.bench.record import RecordedLaunches
from topo_tune.errors import BrokenRecord
from topo_tune.records.bench import Launch
from topo_tune.records.envelope import append_line, load_lines
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

TUNED = nccl_env({"NCCL_SOCKET_NTHREADS": 4})


class Bench:
    """Makes launches up and counts them."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def measure(self, env: NcclEnv, purpose: str, index: int) -> Launch:
        self.made.append(index)
        return Launch(index, purpose, ("n1",), env, BackendName.NCCL, 8, "2026-01-01", float(index))


def interrupted(path: Path) -> None:
    """A run that was broken off after a default and a candidate."""
    record = RecordedLaunches(path, Bench().measure)
    record.evaluate(DEFAULTS, "baseline")
    record.evaluate(TUNED, "candidate")


def test_each_launch_is_on_file_as_soon_as_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "30-bench.jsonl"
    record = RecordedLaunches(path, Bench().measure)

    first = record.evaluate(DEFAULTS, "baseline")

    assert load_lines(path, Launch) == (first,)


def test_recorded_launches_are_given_back_and_the_rest_is_measured(tmp_path: Path) -> None:
    interrupted(tmp_path / "30-bench.jsonl")
    bench = Bench()
    record = RecordedLaunches(tmp_path / "30-bench.jsonl", bench.measure)

    indices = [
        record.evaluate(DEFAULTS, "baseline").index,
        record.evaluate(TUNED, "candidate").index,
        record.evaluate(DEFAULTS, "baseline").index,
    ]

    assert (indices, bench.made) == ([0, 1, 2], [2])
    assert record.recorded == 3
    assert [launch.index for launch in record.launches] == [0, 1, 2]


@pytest.mark.parametrize(("env", "purpose"), [(TUNED, "baseline"), (DEFAULTS, "candidate")])
def test_a_record_of_another_search_is_refused(tmp_path: Path, env: NcclEnv, purpose: str) -> None:
    interrupted(tmp_path / "30-bench.jsonl")
    record = RecordedLaunches(tmp_path / "30-bench.jsonl", Bench().measure)

    with pytest.raises(BrokenRecord, match="launch 0 was a baseline of NCCL's defaults, this run asks for a"):
        record.evaluate(env, purpose)


def test_a_launch_that_was_being_written_when_it_crashed_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "30-bench.jsonl"
    interrupted(path)
    path.write_bytes(path.read_bytes()[:-20])
    bench = Bench()
    record = RecordedLaunches(path, bench.measure)

    record.evaluate(DEFAULTS, "baseline")
    record.evaluate(TUNED, "candidate")

    assert bench.made == [1]
    assert [launch.index for launch in load_lines(path, Launch)] == [0, 1]


def test_a_guard_never_gets_an_old_launch(tmp_path: Path) -> None:
    interrupted(tmp_path / "61-guard.jsonl")
    bench = Bench()
    record = RecordedLaunches(tmp_path / "61-guard.jsonl", bench.measure, append_only=True)

    launch = record.evaluate(DEFAULTS, "baseline")

    assert (launch.index, bench.made, record.recorded) == (2, [2], 3)


def test_a_file_that_two_runs_wrote_into_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "30-bench.jsonl"
    interrupted(path)
    append_line(path, Launch(1, "baseline", ("n1",), DEFAULTS, BackendName.NCCL, 8, "2026-01-01", 1.0))

    with pytest.raises(BrokenRecord, match="launch 1 stands where launch 2 belongs"):
        RecordedLaunches(path, Bench().measure)


# -- launches that are asked for together


def together(record: RecordedLaunches, bench: Bench, *settings: NcclEnv) -> tuple[Launch, ...]:
    def measure(left: tuple[NcclEnv, ...], first: int, keep: Callable[[Launch], None]) -> None:
        for index, env in enumerate(reversed(left), start=first):
            keep(bench.measure(env, "bench", index))

    return record.evaluate_all(settings, "bench", "all_reduce", measure)


def test_launches_are_on_file_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    path = tmp_path / "30-bench.jsonl"

    made = together(RecordedLaunches(path, Bench().measure), Bench(), DEFAULTS, TUNED)

    assert [launch.env for launch in made] == [TUNED, DEFAULTS]
    assert load_lines(path, Launch) == made


def test_only_what_is_missing_of_a_block_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "30-bench.jsonl"
    first = together(RecordedLaunches(path, Bench().measure), Bench(), TUNED)
    bench = Bench()

    made = together(RecordedLaunches(path, bench.measure), bench, DEFAULTS, TUNED)

    assert (made[0], bench.made) == (first[0], [1])
    assert [launch.env for launch in made] == [TUNED, DEFAULTS]


def test_a_block_of_other_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "30-bench.jsonl"
    together(RecordedLaunches(path, Bench().measure), Bench(), TUNED)

    with pytest.raises(
        BrokenRecord, match="a bench of NCCL_SOCKET_NTHREADS=4, this run asks for a bench of NCCL"
    ):
        together(RecordedLaunches(path, Bench().measure), Bench(), DEFAULTS)


def test_a_setting_counts_as_often_as_it_is_asked_for(tmp_path: Path) -> None:
    bench = Bench()

    made = together(RecordedLaunches(tmp_path / "b.jsonl", bench.measure), bench, DEFAULTS, DEFAULTS)

    assert [launch.index for launch in made] == [0, 1]


def test_what_was_kept_before_it_broke_off_is_on_file(tmp_path: Path) -> None:
    path = tmp_path / "30-bench.jsonl"
    record = RecordedLaunches(path, Bench().measure)

    def breaks(left: tuple[NcclEnv, ...], first: int, keep: Callable[[Launch], None]) -> None:
        keep(Bench().measure(left[0], "bench", first))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record.evaluate_all((DEFAULTS, TUNED), "bench", "all_reduce", breaks)

    assert [launch.env for launch in load_lines(path, Launch)] == [DEFAULTS]
