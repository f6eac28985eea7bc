"""What measured launches look like to people, and to whatever reads nccl-tests' tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from topo_tune.job_output.log_lines import log_lines
from topo_tune.job_output.tests_output import runs_in
from topo_tune.records.bench import Collective, Launch, Layout, Overlap, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_documents import MeasuredRow, MeasuredTime
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


def read_back(lines: list[str]) -> tuple[MeasuredRow, ...]:
    """The rows, read by the parser that reads nccl-tests' own output."""
    (run,) = runs_in(log_lines("\n".join(lines)))
    return run.rows


# Of 1 MiB in bfloat16 on 16 ranks. Source: the *.cu files of NVIDIA/nccl-tests; `alltoall` and `broadcast` also as
# in tests/golden/facts/nccl-tests.
COLUMNS = {
    "all_reduce": (524288, "sum", -1, 30 / 16),
    "all_gather": (32768, "none", -1, 15 / 16),
    "reduce_scatter": (32768, "sum", -1, 15 / 16),
    "broadcast": (524288, "none", 0, 1.0),
    "reduce": (524288, "sum", 0, 1.0),
    "alltoall": (32768, "none", -1, 15 / 16),
    "sendrecv": (524288, "sum", -1, 1.0),
}


@pytest.mark.parametrize("collective", [collective.value for collective in Collective])
def test_every_collective_has_the_columns_of_its_own_test(collective: str) -> None:
    made = launch(0, result(1 << 20, 10, 10), collective=collective, dtype="bfloat16")

    (row,) = read_back(launches_report((made,), "all_reduce", "float32"))

    count, redop, root, factor = COLUMNS[collective]
    assert (row.size_bytes, row.count, row.type) == (1 << 20, count, "bfloat16")
    assert (row.redop, row.root) == (redop, root)
    assert row.out_of_place is not None
    assert row.out_of_place.busbw_gb_per_s == pytest.approx(104.86 * factor, abs=0.01)


def test_what_was_measured_at_both_places_has_both_halves() -> None:
    launches = (
        launch(0, result(8192, 50, 51, 52), in_place=False),
        launch(1, result(8192, 40, 41, 42)),
    )

    lines = launches_report(launches, "all_reduce", "bfloat16")

    (row,) = read_back(lines)
    assert "out of place and in place" in lines[1]
    assert lines[2].split() == ["#", "out-of-place", "in-place"]
    assert (row.out_of_place, row.in_place) == (
        MeasuredTime(51.0, 0.16, 0.30, 0.0),
        MeasuredTime(41.0, 0.2, 0.37, 0.0),
    )
    assert [line.split()[:7] for line in lines if line.startswith("#       8192")] == [
        ["#", "8192", "out", "of", "place", "50.00", "51.00"],
        ["#", "8192", "in", "place", "40.00", "41.00", "42.00"],
    ]


def test_in_a_narrow_terminal_the_spread_stands_below_the_table() -> None:
    launches = (launch(0, result(8192, 40, 41, 42)),)

    narrow = launches_report(launches, "all_reduce", "bfloat16", columns=100)

    assert read_back(narrow) == read_back(launches_report(launches, "all_reduce", "bfloat16", columns=160))
    assert max(map(len, narrow)) <= 84
    assert narrow[-1].split()[:5] == ["#", "8192", "40.00", "41.00", "42.00"]


def test_settings_collectives_and_layouts_have_tables_of_their_own() -> None:
    launches = (
        launch(0, result(8192, 50)),
        launch(1, result(8192, 50), collective="all_gather", dtype="float32"),
        launch(2, result(8192, 50), layout=Layout.WITHIN_NODE, communicator_ranks=8, dtype="bfloat16"),
    )

    lines = launches_report(launches, "all_reduce", "bfloat16")

    assert [line for line in lines if "launches usable" in line] == [
        "# all_reduce, 16 ranks, in place, back end nccl, 1 of 1 launches usable",
        "# all_gather, 16 ranks, in place, back end nccl, 1 of 1 launches usable",
        "# all_reduce, 16 ranks, layout node (8 in a communicator), in place, back end nccl, 1 of 1 launches usable",
    ]
    # 8192 bytes in 50 us, times 2 (8 - 1) / 8.
    assert rows_of(lines)[2]["busbw"] == "0.29"


def spread_of(line: str) -> list[str]:
    return line.split()[9:]


def test_percentiles_are_over_single_calls_where_there_are_some() -> None:
    calls = tuple(float(us) * 1e-6 for us in range(1, 201))
    timed = msgspec.structs.replace(result(8192, 50, 50), single_seconds=calls)

    (row,) = rows_of(launches_report((launch(0, timed),), "all_reduce", "bfloat16"))

    assert spread_of(row.string) == ["1.00", "100.5", "198.0", "call", "1", "0.0", "-", "graph"]


def test_the_spread_within_launches_and_between_them_are_two_numbers() -> None:
    steady = (launch(0, result(8192, 10, 10, 10)), launch(1, result(8192, 20, 20, 20)))
    noisy = (launch(0, result(8192, 10, 15, 20)), launch(1, result(8192, 10, 15, 20)))

    within_and_between = [
        spread_of(rows_of(launches_report(launches, "all_reduce", "bfloat16"))[0].string)[5:7]
        for launches in (steady, noisy)
    ]

    assert within_and_between == [["0.0", "47.1"], ["33.3", "0.0"]]


def test_a_size_that_was_cut_off_is_told_and_the_others_are_shown() -> None:
    cut = SizeResult(1 << 30, (), 0, TimingMode.EAGER, None, slower_than_seconds=0.25)
    launches = (
        launch(0, result(8192, 54), cut, env=RING),
        launch(1, result(8192, 54), result(1 << 30, 2e5), env=RING),
    )

    lines = launches_report(launches, "all_reduce", "bfloat16")

    assert [(row["size"], row["time"]) for row in rows_of(lines)] == [
        ("8192", "54.00"),
        ("1073741824", "200000"),
    ]
    assert lines[-1] == "# 1073741824  slower than 250000 us and cut off there in 1 of 2 launches"


def test_a_half_that_was_cut_off_is_not_available() -> None:
    cut = SizeResult(8192, (), 0, TimingMode.EAGER, None, slower_than_seconds=0.25)
    launches = (launch(0, result(8192, 50), in_place=False), launch(1, cut))

    lines = launches_report(launches, "all_reduce", "bfloat16")

    assert lines[5].split()[5:] == ["50.00", "0.16", "0.31", "0", "N/A", "N/A", "N/A", "N/A"]
    assert lines[-1].endswith("8192 in place  slower than 250000 us and cut off there in 1 of 1 launches")


def test_what_a_collective_and_compute_cost_each_other_is_a_small_table() -> None:
    beside = msgspec.structs.replace(result(1 << 20, 100), overlap=Overlap(1e-3, 1.25e-3, 150e-6))

    lines = launches_report((launch(0, beside),), "all_reduce", "bfloat16")

    assert lines[-4] == "# a call beside a matrix product, and the product beside calls:"
    assert lines[-1].split() == ["#", "1048576", "100.0", "150.0", "50.0", "1000.0", "1250.0", "25.0", "20.0"]


def test_a_type_that_is_not_known_stands_as_it_is() -> None:
    (row,) = rows_of(launches_report((launch(0, result(8192, 54)),), "all_reduce", "int4"))

    assert (row["type"], row["count"]) == ("int4", "8192")
