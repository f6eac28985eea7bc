"""What runs of nccl-tests say: samples of each size, and each reason for which numbers are of no use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden_facts import FACTS, text_of

from topo_tune.bench.tests_outcome import Ended, ended, outcome, versions, with_calls
from topo_tune.bench.tests_reading import (
    Expected,
    failure,
    log_of_rank_0,
    read,
    results,
    settings_in_force,
    single_seconds,
)
from topo_tune.job_output.per_iteration import calls_us
from topo_tune.records.bench import TimingMode

HEADER = (
    "# nThread 1 nGpus 2 minBytes 8192 maxBytes 16384 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 1 graph: 4\n"
    "#  Rank  0 Group  0 Pid   100 on     node01 device  0 [0000:01:00] NVIDIA H200\n"
    "#  Rank  1 Group  0 Pid   101 on     node01 device  1 [0000:02:00] NVIDIA H200\n"
    "#       size         count      type   redop    root"
    "     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
)
CLOSING = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.5 \n#\n"


def row(size: int, time: float, wrong: str = "0") -> str:
    half = f"  {time:7.2f}    1.00    1.50  {wrong:>5}"
    in_place = f"  {time - 1:7.2f}    1.00    1.50  {wrong:>5}"
    return f"{size:12}  {size // 2:12}  bfloat16     sum      -1{half}{in_place}\n"


TABLE = HEADER + row(8192, 20) + row(16384, 30) + row(8192, 22) + row(16384, 32) + CLOSING


def expected(**changes: Any) -> Expected:
    fields: dict[str, Any] = {
        "sizes_bytes": (8192, 16384),
        "ranks": 2,
        "nodes": 1,
        "communicators": 1,
        "in_place": True,
        "calls_per_sample": 80,
    }
    return Expected(**(fields | changes))


def report(*times: float, **per_iter: Any) -> dict[str, Any]:
    rows = [
        {
            "size": size,
            "count": 1,
            "type": "bfloat16",
            "redop": "sum",
            "root": "-1",
            "out_of_place": {"time": time, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0},
            "in_place": {"time": time - 1, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0},
            **per_iter,
        }
        for size, time in zip((8192, 16384) * 2, times, strict=False)
    ]
    return {"version": 3, "start_time": "2026-01-01 10:00:00", "results": rows}


# --- numbers ---


def test_repetitions_of_a_size_are_its_samples() -> None:
    small, large = results(read(TABLE, None), expected())

    assert (small.size_bytes, small.samples_seconds) == (8192, pytest.approx((19e-6, 21e-6)))
    assert (large.size_bytes, large.samples_seconds) == (16384, pytest.approx((29e-6, 31e-6)))
    assert (small.mode, small.calls_per_sample, small.is_correct) == (TimingMode.NCCL_TESTS, 80, True)


def test_the_place_decides_which_half_is_read() -> None:
    small, _ = results(read(TABLE, None), expected(in_place=False))

    assert small.samples_seconds == pytest.approx((20e-6, 22e-6))


def test_a_json_file_adds_digits() -> None:
    small, _ = results(read(TABLE, report(20.1234, 30.1, 22.5678, 32.1)), expected())

    assert small.samples_seconds == pytest.approx((19.1234e-6, 21.5678e-6))


@pytest.mark.parametrize(
    "other", [report(1.0), {}, {"results": 3}, {"version": 3, "results": [{"size": 1}] * 4}]
)
def test_a_json_file_of_another_run_or_half_of_one_is_passed_over(other: dict[str, Any]) -> None:
    small, _ = results(read(TABLE, other), expected())

    assert small.samples_seconds == pytest.approx((19e-6, 21e-6))


def test_results_that_were_not_checked_are_not_called_right() -> None:
    unchecked = HEADER.replace("validation: 1", "validation: 0") + row(8192, 20, "N/A") + CLOSING

    (result,) = results(read(unchecked, None), expected(sizes_bytes=(8192,)))

    assert result.is_correct is None


def test_calls_that_were_timed_one_by_one_come_from_the_file() -> None:
    timed = report(20.0, 30.0, in_place_per_iter={"times_us": [19.0, 18.5, 25.0]})
    reading = read(HEADER + row(8192, 20) + row(16384, 30) + CLOSING, timed)

    assert single_seconds(reading, expected()) == (pytest.approx((19e-6, 18.5e-6, 25e-6)),) * 2
    assert single_seconds(reading, expected(sizes_bytes=(8192,))) == ()
    assert single_seconds(read(TABLE, None), expected()) == ()


@pytest.mark.parametrize("times", [None, 3, ["x"], [True], [1.0, float("nan")], [0.0], [-1.0]])
def test_times_that_are_none_are_left_out(times: object) -> None:
    assert calls_us({"results": [{"in_place_per_iter": {"times_us": times}}]}, in_place=True) == ((),)


def test_the_sizes_may_be_rounded_to_what_ranks_can_share() -> None:
    reading = read(HEADER + row(8190, 20) + CLOSING, None)
    wanted = expected(sizes_bytes=(8192,))

    assert failure(reading, 0, wanted) is None
    assert results(reading, wanted)[0].size_bytes == 8192


# --- reasons ---


def test_an_ordinary_run_has_no_failure() -> None:
    assert failure(read(TABLE, None), 0, expected()) is None


@pytest.mark.parametrize(
    ("changed", "status", "wanted", "reason"),
    [
        ({}, 0, {"ranks": 16}, "it ran with 2 ranks where 16 were asked for"),
        ({}, 0, {"nodes": 2}, "it ran on 1 node where 2 were asked for"),
        ({"[0000:02:00]": "[0000:01:00]", "device  1": "device  0"}, 0, {}, "2 ranks shared 1 GPU"),
        ({"Rank  1": "Rank  0"}, 0, {}, "its processes did not form one job: a binary built without MPI"),
        ({}, 0, {"communicators": 2}, "this binary does not know NCCL_TESTS_SPLIT"),
        ({}, 0, {"sizes_bytes": (8192, 16384, 32768)}, "it measured 4 sizes, and not 3"),
        ({}, 0, {"sizes_bytes": (8192, 20000)}, "it measured 16384 bytes in place of 20000"),
        ({}, 3, {}, "it ended with status 3 and without a word"),
        ({"    :": " 0 :", "values : 0 OK": "values : 2 FAILED"}, 1, {}, "2 value(s) out of bounds"),
    ],
)
def test_each_reason_for_distrust_is_an_error(
    changed: dict[str, str], status: int, wanted: dict[str, Any], reason: str
) -> None:
    text = TABLE
    for old, new in changed.items():
        text = text.replace(old, new)

    found = failure(read(text, None), status, expected(**wanted))

    assert found is not None
    assert reason in found


def test_one_rank_communicates_nothing() -> None:
    text = text_of(FACTS / "nccl-tests" / "smci-b200-alltoall-1rank-zero-busbw.log")

    found = failure(read(text, None), 0, expected(sizes_bytes=(4299161, 8598323), ranks=8))

    assert found == "it ran with 1 rank where 8 were asked for, so nothing was communicated"


def test_ranks_that_share_a_gpu_are_refused() -> None:
    text = text_of(FACTS / "nccl-tests" / "5090-2rank-same-gpu-socket.log")

    assert failure(read(text, None), 0, expected(nodes=2)) == "2 ranks shared 1 GPU"


def test_wrong_results_are_an_error_and_stay_with_it() -> None:
    text = text_of(FACTS / "nccl-tests" / "2xa100-ll128-failed-no-hash.log")
    wanted = expected(sizes_bytes=(8388608,), nodes=2)

    found, error = outcome([Ended(read(text, None), 1, None)], wanted)

    assert error is not None
    assert error.startswith("2 value(s) out of bounds: results were wrong")
    assert [result.is_correct for result in found] == [False]


def test_a_launcher_that_gave_up_is_told_in_its_words() -> None:
    text = text_of(FACTS / "nccl-tests" / "gcm-no-slots-failure.log")

    assert failure(read(text, None), 1, expected()) == "not enough slots for 16 processes"


def test_a_run_that_broke_off_has_the_warning_of_nccl_as_its_reason() -> None:
    log = "node01:100:100 [0] transport/net.cc:12 NCCL WARN connection refused by peer\n"

    assert failure(read(HEADER + log, None), 134, expected()) == (
        "it ended with status 134: connection refused by peer"
    )


def test_a_command_that_printed_nothing_has_its_status() -> None:
    assert failure(read("", None), 127, expected()) == "it ended with status 127 and without a word"


@pytest.mark.parametrize("name", sorted(path.name for path in (FACTS / "nccl-tests").glob("*.log")))
def test_any_recorded_output_is_read_to_an_end(name: str) -> None:
    reading = read(text_of(FACTS / "nccl-tests" / name), None)

    found, error = outcome([Ended(reading, 0, None)], expected())

    assert (error is None) == bool(found and all(result.is_correct is not False for result in found))


# --- several nodes ---


def test_of_nodes_side_by_side_the_slowest_counts() -> None:
    slower = Ended(read(TABLE.replace("20.00", "50.00").replace("19.00", "49.00"), None), 0, None)
    faster = Ended(read(TABLE, None), 0, None)

    (small, _), error = outcome([faster, slower], expected())

    assert error is None
    assert small.samples_seconds == pytest.approx((49e-6, 21e-6))
    assert small.is_correct is True


def test_the_error_that_came_first_is_told_and_not_its_consequence() -> None:
    aborted = Ended(read("", None), None, "aborted: another node failed")
    failed = Ended(read("", None), None, "deadline of 15 s passed")

    assert outcome([aborted, failed], expected()) == ((), "deadline of 15 s passed")


def test_single_calls_of_nodes_are_the_slowest_of_each() -> None:
    table = HEADER + row(8192, 20) + CLOSING
    wanted = expected(sizes_bytes=(8192,))
    one, other = (
        Ended(read(table, report(20.0, in_place_per_iter={"times_us": times})), 0, None)
        for times in ([1.0, 5.0], [3.0, 2.0])
    )
    found, _ = outcome([one, other], wanted)

    assert with_calls(found, [one, other], wanted)[0].single_seconds == pytest.approx((3e-6, 5e-6))
    assert with_calls(found, [one, Ended(read(table, None), 0, None)], wanted) == found


def test_the_answer_of_a_node_is_read() -> None:
    one = ended({"output": TABLE, "report": None, "status": 0, "error": None})

    assert (one.status, one.error, outcome([one], expected())[1]) == (0, None, None)
    assert versions([ended({"output": "NCCL version 2.28.9+cuda13.0\n" + TABLE})]) == [
        "nccl-tests ran with NCCL 2.28.9+cuda13.0"
    ]


# --- what was in force ---

LOG = (
    "node01:100:100 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
    "node01:101:101 [1] NCCL INFO NCCL_PROTO set by environment to LL\n"
    "node01:100:100 [0] NCCL INFO NCCL_MAX_CTAS set by environment to 4.\n"
)


def test_each_process_tells_for_its_ranks_what_it_took() -> None:
    reading = read(LOG + TABLE, None)

    found = settings_in_force(reading, ["n1"], 2)

    assert [(s.rank, s.node, s.name, s.value) for s in found] == [
        (0, "n1", "NCCL_PROTO", "LL"),
        (0, "n1", "NCCL_MAX_CTAS", "4"),
        (1, "n1", "NCCL_PROTO", "LL"),
    ]
    assert log_of_rank_0(reading) == (
        "NCCL_PROTO set by environment to LL",
        "NCCL_MAX_CTAS set by environment to 4.",
    )


def test_one_process_tells_for_all_of_its_ranks_wherever_its_name_ends() -> None:
    text = (LOG + TABLE).replace("Pid   101", "Pid   100").replace("node01:", "node01.site.org:")

    found = settings_in_force(read(text, None), ["n1"], 2)

    assert {s.rank for s in found if s.name == "NCCL_MAX_CTAS"} == {0, 1}


def test_a_table_without_ranks_tells_of_nobody() -> None:
    assert settings_in_force(read(LOG, None), ["n1"], 2) == ()
    assert log_of_rank_0(read(LOG, None)) == ()


def test_nothing_of_a_report_is_shown_that_it_did_not_measure() -> None:
    secret = {**report(20.0, 30.0, 22.0, 32.0), "args": ["--token=secret"], "x": "secret"}

    found, _ = outcome([ended({"output": TABLE, "report": secret, "status": 0})], expected())

    assert "secret" not in json.dumps([str(result) for result in found])
