"""nccl-tests output: every recorded file, other layouts, JSON, reasons for distrust, and texts that are none of it."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from golden_facts import FACTS, beside_the_repository, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.job_output.tests_run import ONE_RANK, version_of_code
from topo_tune.records.nccl_documents import MeasuredRun, MeasuredTime, NcclTests
from topo_tune.scan.documents.nccl_tests import KINDS, parse

FILES = sorted((FACTS / "nccl-tests").glob("*.log"))


def output_of(name: str) -> NcclTests:
    return parse(text_of(FACTS / "nccl-tests" / name))


def run_of(name: str) -> MeasuredRun:
    (run,) = output_of(name).runs
    return run


def sizes(run: MeasuredRun) -> list[int]:
    return [row.size_bytes for row in run.rows]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_recorded_output_is_read_as_before(file, golden) -> None:  # type: ignore[no-untyped-def]
    read = msgspec.json.encode(parse(text_of(file)))

    golden(f"facts/nccl-tests/{file.name}.json", msgspec.json.format(read, indent=1).decode() + "\n")


# File: rows, first and last size, ranks, hosts, GPUs, best bus bandwidth, average.
EXPECTED: dict[str, tuple[Any, ...]] = {
    "superbench-allreduce-8a100.log": (34, 0, 8589934592, 8, 1, 8, 235.26, 68.4048),
    "superbench-alltoall-8a100.log": (34, 0, 8589934592, 8, 1, 8, 226.16, 58.6481),
    "superbench-reduce-8a100.log": (34, 0, 8589934592, 8, 1, 8, 231.28, 65.018),
    "smc-8h100-pmix-noise.log": (6, 22020096, 704643072, 8, 1, 8, 458.66, 382.449),
    "oci-8h100-odd-size.log": (1, 53687090, 53687090, 8, 1, 8, 327.37, 327.025),
    "smci-8b200-1proc-8threads.log": (1, 40160460, 40160460, 8, 1, 8, 406.30, 397.767),
    "smci-b200-alltoall-1rank-zero-busbw.log": (2, 4299152, 8598320, 1, 1, 1, 0.0, 0.0),
    "gcp-64h200-8nodes.log": (1, 1731821448, 1731821448, 64, 8, 64, 240.18, 239.462),
    "deepops-4xdgxa100-old-error-column.log": (13, 1048576, 4294967296, None, 0, None, 191.56, 113.289),
    "aks-2xnd-a100-ib.log": (16, 8, 8589934592, None, 0, None, 187.22, 56.3994),
    "aks-2xnd-a100-ipoib-slow.log": (16, 8, 8589934592, None, 0, None, 3.17, 1.38997),
    "cscs-2xgh200-busid-domain.log": (25, 8, 134217728, 8, 2, 8, 123.11, 19.7866),
    "gcm-pairwise-2x8a100.log": (6, 33554432, 1073741824, 16, 2, 16, 182.80, 150.209),
    "5090-2rank-same-gpu-socket.log": (9, 1024, 67108864, 2, 1, 1, 3.93, 0.8664),
    "2xa100-ll128-failed-no-hash.log": (1, 8388608, 8388608, 2, 2, 2, 1.53, 1.49781),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_run_tells_what_was_read_by_eye(name: str) -> None:
    run = run_of(name)

    shape = (len(run.rows), sizes(run)[0], sizes(run)[-1], run.ranks, len(run.hosts), run.devices)
    assert (*shape, run.best_busbw_gb_per_s, run.average_busbw_gb_per_s) == EXPECTED[name]


def test_sizes_of_zero_are_rows_and_a_blank_reduction_is_none() -> None:
    reduced, exchanged = run_of("superbench-allreduce-8a100.log"), run_of("superbench-alltoall-8a100.log")

    assert (sizes(reduced).count(0), sizes(exchanged).count(0)) == (2, 5)
    assert {row.redop for row in reduced.rows} == {"sum"}
    assert {row.redop for row in exchanged.rows} == {None}
    assert exchanged.rows[-1].in_place == MeasuredTime(33234.0, 258.47, 226.16, None)
    assert reduced.validation is False


def test_the_root_is_told_where_there_is_such_a_column() -> None:
    assert {row.root for row in run_of("superbench-reduce-8a100.log").rows} == {0}
    assert {row.root for row in run_of("gcm-pairwise-2x8a100.log").rows} == {-1}
    assert {row.root for row in run_of("deepops-4xdgxa100-old-error-column.log").rows} == {None}


def test_the_old_error_column_and_wrong_counts_are_one_value() -> None:
    old = run_of("deepops-4xdgxa100-old-error-column.log").rows[0]
    new = run_of("smc-8h100-pmix-noise.log").rows[0]

    assert old.out_of_place is not None
    assert new.in_place is not None
    assert (old.out_of_place.wrong, new.in_place.wrong) == (7e-07, 0.0)
    assert not run_of("deepops-4xdgxa100-old-error-column.log").wrong_results


def test_ranks_may_come_in_any_order_of_nodes() -> None:
    run = run_of("gcp-64h200-8nodes.log")

    assert run.hosts[:3] == ("a3ultra-node-7", "a3ultra-node-14", "a3ultra-node-5")
    assert run.gpu_names == ("NVIDIA H200",)
    assert run_of("gcm-pairwise-2x8a100.log").hosts == ("{host1}", "{host2}")
    assert run_of("smc-8h100-pmix-noise.log").hosts == ("1node01",)


def test_the_test_and_the_library_are_named_where_a_line_tells() -> None:
    assert run_of("cscs-2xgh200-busid-domain.log").test == "all_reduce"
    assert run_of("5090-2rank-same-gpu-socket.log").test == "broadcast"
    assert run_of("smci-b200-alltoall-1rank-zero-busbw.log").test == "alltoall"
    assert run_of("aks-2xnd-a100-ib.log").test is None
    assert run_of("gcm-pairwise-2x8a100.log").nccl_version == "2.12.12+cuda11.6"


def test_rows_that_debug_lines_cut_are_put_together() -> None:
    tests = output_of("3090-32rank-rows-split-by-debug.log")

    assert [(run.ranks, len(run.hosts), sizes(run)) for run in tests.runs] == [(32, 4, [64]), (32, 4, [128])]
    assert tests.runs[0].rows[0].redop == "sum"
    assert tests.runs[0].rows[0].out_of_place == MeasuredTime(413.6, 0.0, 0.0, 2e-07)
    assert tests.log is not None
    assert tests.log.hosts == ("gpu-27", "gpu-28", "gpu-26", "gpu-25")
    assert dict(tests.log.choices)["TREE LL"] > 100


def test_rows_that_labelled_debug_lines_cut_are_put_together() -> None:
    debug = "[0] node-1:4978:4978 [0] NCCL INFO 8192 Bytes -> Algo 0 proto 0 time 26.549810"
    text = "\n".join(
        (
            HEADER,
            f"[0]         8192          2048     float     sum      -1{debug}",
            debug,
            f"[0]     35.15    0.23    0.23       0{debug}",
            "[0]     30.33    0.27    0.27       0",
            CLOSING,
        )
    )

    assert parse(text).runs[0].rows == parse(WHOLE).runs[0].rows


INCOMPLETE = """\
# Rank {rank} Pid 180379 on node002 device 0 [0x00] Tesla V100-SXM3-32GB
{log}
# size count type redop time algbw busbw error time algbw busbw error
1048576 262144 float sum 1491.5 0.70 {busbw} 0e+00 1421.3 0.74 {busbw} 0e+00
# Out of bounds values : 0 OK
# Avg bus bandwidth : {busbw}
"""
RANK_0_OF_8 = (
    "node001:42:43 [0] NCCL INFO comm 0x1551f0001000 rank 0 nranks 8 cudaDev 0 busId 60 - Init COMPLETE"
)


@pytest.mark.parametrize(
    ("rank", "log", "busbw", "ranks", "is_one"),
    [
        (1, "", "0.70", 2, False),
        (0, RANK_0_OF_8, "0.70", 8, False),
        (0, RANK_0_OF_8, "0.00", 8, False),
        (0, "", "0.70", 1, False),
        (0, "", "0.00", 1, True),
    ],
)
def test_a_list_that_lost_ranks_is_no_run_of_one_rank(
    rank: int, log: str, busbw: str, ranks: int, is_one: bool
) -> None:
    (run,) = parse(INCOMPLETE.format(rank=rank, log=log, busbw=busbw)).runs

    assert run.ranks == ranks
    assert (ONE_RANK in run.problems) == is_one
    assert run.devices == (1 if ranks == 1 else None)
    assert run.hosts == (("node002", "node001") if log else ("node002",))


PROBLEMS = {
    "smci-b200-alltoall-1rank-zero-busbw.log": ["one rank only", "the smallest size is 4299152 bytes"],
    "5090-2rank-same-gpu-socket.log": ["2 ranks share 1 GPU"],
    "oci-8h100-odd-size.log": ["the smallest size is 53687090 bytes where 53687091 were asked"],
    "2xa100-ll128-failed-no-hash.log": ["2 value(s) out of bounds", "wrong results in 1 row(s)"],
    "gcp-64h200-8nodes.log": [],
    "superbench-allreduce-8a100.log": [],
    "smc-8h100-pmix-noise.log": [],
    "cscs-2xgh200-busid-domain.log": [],
    "aks-2xnd-a100-ib.log": [],
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_reasons_for_distrust_are_told_and_no_others(name: str) -> None:
    problems = run_of(name).problems

    assert len(problems) == len(PROBLEMS[name])
    assert all(words in problem for words, problem in zip(PROBLEMS[name], problems, strict=True))


def test_wrong_results_fail_the_run_whatever_stands_out_of_place() -> None:
    run = run_of("2xa100-ll128-failed-no-hash.log")

    assert (run.failed, run.out_of_bounds, run.wrong_results) == (True, 2, True)
    assert run.rows[0].out_of_place == MeasuredTime(5729.5, 1.46, 1.46, 0.0)
    assert run.rows[0].in_place == MeasuredTime(5477.3, 1.53, 1.53, 1.0)


def test_a_launch_that_failed_has_no_run_and_a_cause() -> None:
    tests = output_of("gcm-no-slots-failure.log")

    assert (tests.runs, tests.cause) == ((), "not enough slots for 16 processes")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "node: Test NCCL failure common.cu:958 'internal error - please report'",
            "internal error - please report",
        ),
        ("n: Test NCCL failure common.cu:1005 'unhandled system error / '", "unhandled system error"),
        ("n: Test CUDA failure common.cu:941 'system not yet initialized'", "system not yet initialized"),
        (
            "Invalid number of GPUs: 8 requested but only 1 were found.\nall_reduce_perf",
            "Invalid number of GPUs: 8 requested but only 1 were found",
        ),
        (
            "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file",
            "error while loading shared libraries: libnccl.so.2: cannot open shared object file",
        ),
    ],
)
def test_other_ways_of_not_starting_are_told(text: str, cause: str) -> None:
    assert parse(text).cause == cause


HEADER = (
    "#                                                              out-of-place                       in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "     time   algbw   busbw  #wrong"
)
ROW = (
    "        8192          2048     float     sum      -1    35.15    0.23    0.23       0"
    "    30.33    0.27    0.27       0"
)
RANKS = (
    "#  Rank  0 Group  0 Pid 16 on node01 device  0 [000f:01:00] NVIDIA GB10\n"
    "#  Rank  1 Group  0 Pid 17 on node02 device  0 [000f:01:00] NVIDIA GB10"
)
CLOSING = (
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.25 \n#\n"
    "# Collective test concluded: all_reduce_perf"
)
STARTING = (
    "# nccl-tests version 2.20.0 (b4d5bee) nccl-headers=23102 nccl-library=23102\n"
    "# Collective test starting: all_reduce_perf\n"
    "# nThread 1 nGpus 1 minBytes 8192 maxBytes 8192 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1"
    " validation: 1 graph: 0 unalign: 0\n#\n# Using devices"
)
WHOLE = "\n".join((STARTING, RANKS, "#", HEADER, ROW, CLOSING))


def test_the_newest_layout_is_read() -> None:
    (run,) = parse(WHOLE).runs

    assert (run.test, run.nccl_version, run.ranks, run.devices) == ("all_reduce", "2.31.2", 2, 2)
    assert (run.validation, run.is_graph, run.failed, run.problems) == (True, False, False, ())
    assert run.rows[0].in_place == MeasuredTime(30.33, 0.27, 0.27, 0.0)


@pytest.mark.parametrize(
    "label", ["    ", " 0: ", "[1,0]<stdout>:", "[0] ", "launcher-0: ", "2024-05-01T10:20:30.1Z "]
)
def test_labels_of_launchers_do_not_matter(label: str) -> None:
    labelled = "\r\n".join(label + line for line in WHOLE.split("\n"))

    assert parse(labelled).runs == parse(WHOLE).runs


def test_per_iteration_columns_are_passed_over() -> None:
    header = (
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max"
        "    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%"
    )
    row = "8192 2048 float sum -1 35.15 0.23 0.24 0 30.1 40.2 39.0 4.5 30.33 0.27 0.28 0 29.1 33.0 32.9 2.1"

    (run,) = parse(f"{header}\n{row}\n{CLOSING}").runs

    assert run.rows[0].out_of_place == MeasuredTime(35.15, 0.23, 0.24, 0.0)
    assert run.rows[0].in_place == MeasuredTime(30.33, 0.27, 0.28, 0.0)
    assert parse(row).runs[0].rows == run.rows


def test_time_stamps_may_stand_on_either_side() -> None:
    behind = f"{HEADER}           timestamp\n{ROW}  2025-10-14 10:20:30\n{CLOSING}"
    before = f"#           timestamp{HEADER.split('#', 2)[2]}\n  2025-10-14 10:20:30 {ROW}\n{CLOSING}"

    assert parse(behind).runs[0].rows == parse(WHOLE).runs[0].rows
    assert parse(before).runs[0].rows == parse(WHOLE).runs[0].rows


def test_rows_without_a_header_are_read_by_their_shape() -> None:
    with_root, without = (
        parse(f"{ROW}\n{CLOSING}").runs[0],
        parse(f"{ROW.replace('-1', '  ')}\n{CLOSING}").runs[0],
    )

    assert (with_root.rows[0].root, without.rows[0].root) == (-1, None)
    assert with_root.rows[0].in_place == without.rows[0].in_place == MeasuredTime(30.33, 0.27, 0.27, 0.0)


def test_a_row_cut_at_the_end_of_the_file_is_told() -> None:
    (run,) = parse(WHOLE[: WHOLE.index("30.33")]).runs

    assert run.rows[0].in_place is None
    assert run.problems == (
        "1 row(s) cut, the first of 8192 bytes",
        "the table has no closing lines: the run did not end by itself",
    )


def test_several_runs_of_one_file_are_kept_apart() -> None:
    runs = parse(f"{WHOLE}\n{WHOLE.replace('all_reduce', 'all_gather')}\n").runs

    assert [(run.test, len(run.rows), run.ranks) for run in runs] == [
        ("all_reduce", 1, 2),
        ("all_gather", 1, 2),
    ]


def test_processes_that_do_not_know_of_each_other_are_told() -> None:
    alone = "#   Rank  0 Pid   1320 on {} device  0 [0x00] Tesla V100-SXM2-16GB"
    text = "\n".join(
        ("# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 1",)
        * 2
        + (alone.format("a"), alone.format("b"), HEADER, HEADER, ROW, ROW, CLOSING)
    )

    (run,) = parse(text).runs

    assert run.repeated_ranks is True
    assert run.problems[0].startswith("ranks appear more than once")


def test_bus_numbers_that_tell_nothing_do_not_make_gpus_shared() -> None:
    same_bus = "\n".join(
        f"#   Rank {n:2} Pid {100 + n} on vm device  0 [0x01] NVIDIA GH200\n" for n in range(4)
    )

    (run,) = parse(f"{same_bus}\n{HEADER}\n{ROW}\n{CLOSING}").runs

    assert (run.devices, run.problems) == (4, ())


def test_rccl_tests_are_named() -> None:
    text = WHOLE.replace("NVIDIA GB10", "AMD Instinct MI300X").replace(
        "# Using", "rccl-tests: Version develop:83d\n# Using"
    )

    tests = parse(text.replace("# Out of", "# Errors with asterisks indicate errors\n# Out of"))

    assert (tests.library, len(tests.runs), tests.runs[0].rows[0].size_bytes) == ("RCCL", 1, 8192)


JSON: dict[str, Any] = {
    "version": 3,
    "start_time": "2026-01-01 10:00:00",
    "args": ["/opt/nccl-tests/build/all_reduce_perf", "-J", "out.json"],
    "env": ["HF_TOKEN=secret-of-somebody", "PATH=/bin"],
    "nccl_version": 22809,
    "config": {
        "nthreads": 1,
        "ngpus": 1,
        "validation": 1,
        "graph": 4,
        "devices": [
            {
                "rank": rank,
                "group": 0,
                "pid": 100 + rank,
                "hostname": f"node0{rank}",
                "device": 0,
                "device_hex": "0000:02:00",
                "device_info": "NVIDIA H200",
            }
            for rank in range(2)
        ],
    },
    "results": [
        {
            "size": 8192,
            "count": 2048,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {"time": 35.15, "alg_bw": 0.23, "bus_bw": 0.24, "nwrong": 0.0},
            "in_place": {"cpu_time": 30.33, "alg_bw": "nan", "bus_bw": 0.28, "nwrong": None},
            "actual_iterations": 20,
        }
    ],
    "out_of_bounds": {"count": 0, "okay": "true"},
    "average_bus_bandwidth": {"bandwidth": 0.26, "okay": "unchecked"},
    "errors": [],
    "end_time": "2026-01-01 10:00:09",
}


def test_a_json_file_tells_the_same_and_nothing_of_the_environment() -> None:
    tests = parse(json.dumps(JSON))

    (run,) = tests.runs
    assert (run.test, run.nccl_version, run.ranks, run.devices) == ("all_reduce", "2.28.9", 2, 2)
    assert (run.hosts, run.average_busbw_gb_per_s, run.failed) == (("node00", "node01"), 0.26, False)
    assert (run.validation, run.is_graph, run.problems) == (True, True, ())
    assert run.rows[0].root == -1
    assert run.rows[0].out_of_place == MeasuredTime(35.15, 0.23, 0.24, 0.0)
    assert run.rows[0].in_place == MeasuredTime(30.33, None, 0.28, None)
    assert b"secret" not in msgspec.json.encode(tests)
    assert KINDS[0].recognise(json.dumps(JSON)) is True


def test_a_build_without_mpi_writes_down_one_rank_of_all_in_json() -> None:
    config = JSON["config"] | {"ngpus": 8, "devices": JSON["config"]["devices"][:1]}

    (run,) = parse(json.dumps(JSON | {"config": config})).runs

    assert (run.ranks, run.devices, run.problems) == (8, None, ())


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(JSON)[:-200],
        '{"version": 3, "start_time": ' + "[" * 100_000,
        '{"version": 3, "start_time": ' + "9" * 5000 + "}",
    ],
)
def test_a_json_file_without_an_end_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="whole JSON file"):
        parse(text, file="x.json")


@pytest.mark.parametrize(
    "body", [{}, {"config": 3}, {"results": [1, {}, {"size": 10**30}]}, {"nccl_version": True}]
)
def test_json_of_other_shapes_gives_what_is_there(body: dict[str, Any]) -> None:
    (run,) = parse(json.dumps({"version": 9, "start_time": "x"} | body)).runs

    assert run.rows == ()


def test_version_codes_of_both_generations() -> None:
    assert [version_of_code(code) for code in (22809, 23102, 2708, 2402, 7, 10**9)] == [
        "2.28.9",
        "2.31.2",
        "2.7.8",
        "2.4.2",
        None,
        None,
    ]


def test_a_text_without_a_table_is_refused() -> None:
    with pytest.raises(InputError, match="no output of nccl-tests"):
        parse("hello\n", file="x.log")


def test_only_outputs_of_nccl_tests_are_taken_for_such() -> None:
    taken = [
        file.name
        for file in beside_the_repository(".")
        if KINDS[0].recognise(text_of(file)[:262_144]) and file.parent.name != "nccl-tests"
    ]

    assert taken == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_recorded_output_is_recognised(file) -> None:  # type: ignore[no-untyped-def]
    assert KINDS[0].recognise(text_of(file)) is True


_LINES = [line for file in FILES for line in text_of(file).split("\n")[:60]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(_LINES), st.text(max_size=60)), max_size=40),
    st.integers(0, 300),
    st.sampled_from(["\n", "", "\r\n", " "]),
)
def test_any_mixture_gives_runs_or_an_input_error(lines: list[str], cut: int, joint: str) -> None:
    text = joint.join(lines)[cut:]

    try:
        read: object = parse(text)
    except InputError as error:
        read = error

    assert isinstance(read, (NcclTests, InputError))


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5), st.lists, max_leaves=8
    )
)
def test_any_value_in_json_gives_a_run_or_an_input_error(value: Any) -> None:
    spoiled = {
        "version": 3,
        "start_time": "x",
        "config": {"devices": [value]},
        "results": [{"size": 8, "in_place": value}],
    }

    tests = parse(json.dumps(spoiled | {"errors": [value], "average_bus_bandwidth": value, "args": value}))

    assert len(tests.runs) == 1


@pytest.mark.parametrize(
    "text",
    [
        "1 " * 2_500_000,
        "8 2 float\n" + "1.0\n" * 1_200_000,
        "1 1 a\n" * 800_000,
        f"{ROW}\n" * 40_000,
        " " * 5_000_000,
        "all_reduce_perf\n" * 300_000,
    ],
    ids=["numbers", "a row without end", "rows of nothing", "rows", "blanks", "names"],
)
def test_hostile_texts_cost_little(text: str) -> None:
    start = time.process_time()

    try:
        parse(text)
    except InputError:
        pass

    # One second is the promise; the rest is room for a slow machine.
    assert time.process_time() - start < 4
