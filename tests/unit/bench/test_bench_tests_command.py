"""Commands that run nccl-tests: sizes as ranges, options that the binary knows, launchers, layouts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.bench.tests_command import (
    Binary,
    Job,
    Sizes,
    call_by_call,
    calls_per_sample,
    candidates,
    options_in,
    probing,
    runs_of,
    timed,
)
from topo_tune.errors import InputError
from topo_tune.records.bench import BenchPlan, Layout
from topo_tune.records.inventory import BackendName, ConnectionKind, NcclTestsOptions, Node
from topo_tune.records.nccl_env import DEFAULTS, nccl_env

NODES = tuple(Node(f"n{i}", "r1", f"10.0.0.{i}", ConnectionKind.SSH) for i in (1, 2))
NEW = Binary(("/opt/all_reduce_perf",), frozenset("gbefinwcdoGaRNJIS"))
OLD = Binary(("/opt/all_reduce_perf",), frozenset("gbefinwcdo"))
MPIRUN = NcclTestsOptions("/opt", ("mpirun", "-np", "{processes}", "-H", "{slots}"))
ALONE = NcclTestsOptions("/opt")
LL = nccl_env({"NCCL_PROTO": "LL"})
(RANGE,) = runs_of((8192, 16384, 32768))


def plan(**changes: Any) -> BenchPlan:
    fields: dict[str, Any] = {"dtype": "bfloat16", "sizes_bytes": (8192, 16384, 32768), "repeats": 5}
    return BenchPlan(BackendName.NCCL_TESTS, "all_reduce", **(fields | changes))


def value(argv: tuple[str, ...], option: str) -> str | None:
    """What the last occurrence of an option has, as getopt takes it."""
    places = [place for place, word in enumerate(argv) if word == option]
    return argv[places[-1] + 1] if places else None


# --- sizes ---


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ((8192,), [Sizes(8192, 8192, 1)]),
        ((8192, 16384, 32768), [Sizes(8192, 32768, 3, factor=2)]),
        ((8192, 131072, 2097152, 33554432), [Sizes(8192, 33554432, 4, factor=16)]),
        ((1000, 2000, 3000, 4000), [Sizes(1000, 4000, 4, step_bytes=1000)]),
        ((8192, 10000), [Sizes(8192, 8192, 1), Sizes(10000, 10000, 1)]),
        ((1024, 8192, 65536, 100000), [Sizes(1024, 65536, 3, factor=8), Sizes(100000, 100000, 1)]),
        ((7, 1024, 2048, 4096), [Sizes(7, 7, 1), Sizes(1024, 4096, 3, factor=2)]),
    ],
)
def test_sizes_become_as_few_runs_as_their_distances_allow(sizes: tuple[int, ...], runs: list[Sizes]) -> None:
    assert list(runs_of(sizes)) == runs


@given(st.sets(st.integers(1, 1 << 34), min_size=1, max_size=12))
@settings(max_examples=60)
def test_runs_measure_each_size_once(sizes: set[int]) -> None:
    wanted = tuple(sorted(sizes))

    found = [size for run in runs_of(wanted) for size in as_nccl_tests_counts(run)]

    assert tuple(found) == wanted
    assert [run.of(wanted) for run in runs_of(wanted)] == [as_nccl_tests_counts(r) for r in runs_of(wanted)]


def as_nccl_tests_counts(run: Sizes) -> tuple[int, ...]:
    """The loop of TimeTest in src/common.cu, with its default step of 1 MiB."""
    words = dict(zip(run.arguments()[::2], run.arguments()[1::2], strict=True))
    found = []
    size = int(words["-b"])
    while size <= int(words["-e"]):
        found.append(size)
        size = size * int(words["-f"]) if "-f" in words else size + int(words.get("-i", 1 << 20))
    return tuple(found)


# --- what the binary knows ---


def test_a_help_tells_letters() -> None:
    text = "USAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>] \n\t[-G,--cudagraph <n>] \n\t[-h,--help]"

    assert options_in(text) == {"t", "G", "h"}
    assert options_in("error while loading shared libraries: libnccl.so.2") == frozenset()


def test_a_new_binary_repeats_in_graphs_and_writes_a_file() -> None:
    argv = timed(Job(ALONE, NODES[:1], 8), NEW, DEFAULTS, plan(), RANGE)

    assert argv[:2] == ("env", "/opt/all_reduce_perf")
    assert {option: value(argv, option) for option in ("-b", "-e", "-f", "-d", "-g")} == {
        "-b": "8192",
        "-e": "32768",
        "-f": "2",
        "-d": "bfloat16",
        "-g": "8",
    }
    assert {option: value(argv, option) for option in ("-n", "-w", "-c", "-G", "-N", "-a", "-J")} == {
        "-n": "20",
        "-w": "5",
        "-c": "1",
        "-G": "4",
        "-N": "5",
        "-a": "3",
        "-J": "{report}",
    }


def test_an_old_binary_is_given_nothing_that_it_does_not_know() -> None:
    argv = timed(Job(ALONE, NODES[:1], 8), OLD, DEFAULTS, plan(), RANGE)

    assert not {"-G", "-N", "-a", "-J", "-I"} & set(argv)


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [
        ((), 80),
        (("-n", "50"), 200),
        (("-n50", "-G", "0"), 50),
        (("--iters", "10", "--cudagraph=3"), 30),
        (("-z", "1"), 80),
    ],
)
def test_an_operators_arguments_replace_ours(arguments: tuple[str, ...], calls: int) -> None:
    job = Job(NcclTestsOptions("/opt", arguments=arguments), NODES[:1], 8)

    argv = timed(job, NEW, DEFAULTS, plan(), RANGE)

    assert calls_per_sample(job, NEW) == calls
    # Of an option that is given twice the last one counts.
    assert argv[argv.index("-N") + 2 : argv.index("-d")] == arguments


def test_an_old_binary_has_no_graphs_in_a_sample() -> None:
    assert calls_per_sample(Job(ALONE, NODES[:1], 8), OLD) == 20


def test_calls_are_timed_one_by_one_outside_of_graphs_whatever_an_operator_gave() -> None:
    job = Job(NcclTestsOptions("/opt", arguments=("-n", "50", "-G", "9")), NODES[:1], 8)

    argv = call_by_call(job, NEW, DEFAULTS, plan(single_calls=300), RANGE)

    assert [value(argv, option) for option in ("-I", "-n", "-G", "-c")] == ["1", "300", "0", "0"]
    assert "-N" not in argv


def test_types_have_nccl_tests_names() -> None:
    argv = timed(Job(ALONE, NODES[:1], 8), NEW, DEFAULTS, plan(dtype="float16"), RANGE)

    assert value(argv, "-d") == "half"
    with pytest.raises(InputError, match="nccl-tests has no type `int4`"):
        timed(Job(ALONE, NODES[:1], 8), NEW, DEFAULTS, plan(dtype="int4"), RANGE)


def test_builds_with_mpi_are_looked_for_first_where_a_launcher_starts_them() -> None:
    assert candidates(ALONE, "alltoall") == (("/opt/alltoall_perf",), ("/opt/alltoall_perf_mpi",))
    assert candidates(MPIRUN, "alltoall") == (("/opt/alltoall_perf_mpi",), ("/opt/alltoall_perf",))
    assert candidates(NcclTestsOptions(), "reduce") == (("reduce_perf",), ("reduce_perf_mpi",))


# --- launchers and layouts ---


def test_settings_stand_in_front_of_the_test_where_every_launcher_leaves_them() -> None:
    argv = timed(Job(MPIRUN, NODES, 8), NEW, LL, plan(), RANGE)

    assert argv[:8] == (
        "mpirun",
        "-np",
        "16",
        "-H",
        "10.0.0.1:8,10.0.0.2:8",
        "env",
        "NCCL_PROTO=LL",
        "/opt/all_reduce_perf",
    )
    assert value(argv, "-g") == "1"


def test_every_word_of_a_launcher_is_filled() -> None:
    words = (
        "{nodes}",
        "{addresses}",
        "{slots}",
        "-n{ranks}",
        "{processes}",
        "{node_count}",
        "{processes_per_node}",
    )
    job = Job(NcclTestsOptions("", ("srun", *words), gpus_per_process=4), NODES, 8)

    argv = timed(job, NEW, DEFAULTS, plan(), RANGE)

    assert argv[1:8] == ("n1,n2", "10.0.0.1,10.0.0.2", "10.0.0.1:2,10.0.0.2:2", "-n16", "4", "2", "2")
    assert value(argv, "-g") == "4"


@pytest.mark.parametrize(
    ("layout", "split"),
    [
        (Layout.WORLD, None),
        (Layout.WITHIN_NODE, "NCCL_TESTS_SPLIT=DIV 8"),
        (Layout.RAILS, "NCCL_TESTS_SPLIT=MOD 8"),
        (Layout.PAIRS, "NCCL_TESTS_SPLIT=DIV 2"),
    ],
)
def test_layouts_are_splits_of_the_world(layout: Layout, split: str | None) -> None:
    argv = timed(Job(MPIRUN, NODES, 8), NEW, DEFAULTS, plan(layout=layout), RANGE)

    assert [word for word in argv if word.startswith("NCCL_TESTS_")] == ([split] if split else [])


def test_one_process_a_node_needs_no_split_and_has_no_rails() -> None:
    job = Job(ALONE, NODES, 8)

    assert "NCCL_TESTS_SPLIT" not in str(timed(job, NEW, DEFAULTS, plan(layout=Layout.WITHIN_NODE), RANGE))
    with pytest.raises(InputError, match="layout `rails` needs a process for each rank"):
        timed(job, NEW, DEFAULTS, plan(layout=Layout.RAILS), RANGE)
    several = Job(NcclTestsOptions("", ("mpirun",), gpus_per_process=4), NODES, 8)
    with pytest.raises(InputError, match="layout `pairs` needs a process for each rank"):
        timed(several, NEW, DEFAULTS, plan(layout=Layout.PAIRS), RANGE)


def test_a_layout_that_leaves_ranks_alone_is_refused() -> None:
    with pytest.raises(InputError, match="layout `rails` leaves ranks alone"):
        timed(Job(MPIRUN, NODES[:1], 8), NEW, DEFAULTS, plan(layout=Layout.RAILS), RANGE)


def test_a_probe_asks_nccl_to_tell_and_times_nothing() -> None:
    argv = probing(Job(MPIRUN, NODES, 8), NEW, LL, plan())

    assert {"NCCL_DEBUG=INFO", "NCCL_PROTO=LL"} <= set(argv)
    assert [value(argv, option) for option in ("-b", "-e", "-n", "-c")] == ["8192", "8192", "1", "0"]
