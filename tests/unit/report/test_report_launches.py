"""What measured launches look like to people, and to whatever reads nccl-tests' tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from topo_tune.records.bench import Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.report.launches import launches_report

RING = nccl_env({"NCCL_ALGO": "Ring"})

# From a log of nccl-tests on eight nodes of eight H200s; a second half for in-place follows there.
NCCL_TESTS_TITLES = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
NCCL_TESTS_UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
NCCL_TESTS_ROW = re.compile(
    r"\s*(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>\w+)\s+(?P<redop>\w+)\s+(?P<root>-?\d+)\s+(?P<time>[\d.]+)\s+"
    r"(?P<algbw>[\d.]+)\s+(?P<busbw>[\d.]+)\s+(?P<wrong>\d+|N/A)\s"
)


def result(size_bytes: int, *samples_us: float, is_correct: bool | None = True) -> SizeResult:
    samples = tuple(sample * 1e-6 for sample in samples_us)
    return SizeResult(size_bytes, samples, 100, TimingMode.GRAPH, is_correct)


def launch(index: int, *results: SizeResult, env: NcclEnv = DEFAULTS, **changes: Any) -> Launch:
    fields: dict[str, Any] = {
        "purpose": "bench",
        "nodes": ("n1", "n2"),
        "backend": BackendName.NCCL,
        "ranks": 16,
        "started_at": "2026-01-02T03:04:05+00:00",
        "wall_seconds": 1.5,
    }
    return Launch(index=index, env=env, results=results, **(fields | changes))


def rows_of(lines: list[str]) -> list[re.Match[str]]:
    return [match for line in lines if (match := NCCL_TESTS_ROW.match(line)) is not None]


def test_tables_of_two_settings_with_a_failed_launch(golden: Callable[[str, str], None]) -> None:
    launches = (
        launch(0, result(8192, 54, 55, 60), result(1 << 30, 1e5, 1.1e5, 1.2e5)),
        launch(1, result(8192, 44, 45, 50), result(1 << 30, 0.9e5, 1e5, 1.1e5), env=RING),
        launch(2, env=RING, error="rank 3 was killed by signal 11"),
        launch(3, result(8192, 58, 59, 61), result(1 << 30, 1e5, 1.2e5, 1.3e5)),
    )

    golden("reports/launches.txt", "\n".join(launches_report(launches, "all_reduce", "bfloat16")) + "\n")


def test_the_first_columns_are_those_of_nccl_tests() -> None:
    lines = launches_report((launch(0, result(8192, 54)),), "all_reduce", "bfloat16")

    assert lines[2].startswith(NCCL_TESTS_TITLES)
    assert lines[3].startswith(NCCL_TESTS_UNITS)


def test_a_row_reads_as_one_of_nccl_tests() -> None:
    lines = launches_report((launch(0, result(1 << 20, 100, 100, 100)),), "all_reduce", "float32")

    row = rows_of(lines)[0].groupdict()

    assert row == {
        "size": "1048576",
        "count": "262144",
        "type": "float",
        "redop": "sum",
        "root": "-1",
        "time": "100.0",
        "algbw": "10.49",
        "busbw": "19.66",
        "wrong": "0",
    }


def test_every_line_that_is_no_row_is_a_comment() -> None:
    launches = (launch(0, result(8192, 54)), launch(1, error="hung\nwith a second line"))

    lines = launches_report(launches, "all_reduce", "bfloat16")

    assert [line for line in lines if not line.startswith("#")] == [rows_of(lines)[0].string]


def test_sums_that_nobody_checked_are_not_called_right() -> None:
    lines = launches_report((launch(0, result(8192, 54, is_correct=None)),), "all_reduce", "bfloat16")

    assert rows_of(lines)[0]["wrong"] == "N/A"


def test_a_launch_with_wrong_sums_gives_no_row_but_its_reason() -> None:
    lines = launches_report((launch(0, result(8192, 54, is_correct=False)),), "all_reduce", "bfloat16")

    assert rows_of(lines) == []
    assert lines[-1] == "# launch 0 failed: wrong sums"


def test_launches_that_failed_alike_are_one_line() -> None:
    launches = tuple(launch(index, error="no torch") for index in (0, 2, 4))

    lines = launches_report(launches, "all_reduce", "bfloat16")

    assert lines[-1] == "# launches 0, 2, 4 failed: no torch"


def test_a_replay_says_so_above_its_numbers() -> None:
    lines = launches_report(
        (launch(0, result(8192, 54), backend=BackendName.REPLAY),), "all_reduce", "bfloat16"
    )

    assert "back end replay (recorded times)" in lines[1]
