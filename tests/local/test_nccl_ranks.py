"""Ranks of the `nccl` back end as real processes. GPUs and NCCL are doubles, with numbers as exact as the real ones.

The variable DOUBLE of a trial or of a variant says what goes wrong, and on which rank.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_processes import Running

from topo_tune.errors import NodeProgramFailed

SECONDS_A_CALL = 160e-6
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An agent that sees GPUs."""
    running = Running(tmp_path_factory.mktemp("gpus"), DOUBLE_GPUS="4")
    running.ready = running.start("nccl")
    yield running
    running.close()


def results(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's results of its only size."""
    assert answer.get("error") is None, answer["error"]
    return [rank["results"][0] for rank in answer["ranks"]]


def correct(answer: dict[str, Any]) -> list[bool]:
    return [result["is_correct"] for result in results(answer)]


def lines(trace: Path) -> list[str]:
    """What one rank's NCCL was asked for, in order."""
    return [line[2:] for line in trace.read_text().splitlines() if line.startswith("0 ")]


# -- every collective


def test_an_agent_tells_its_gpus_and_its_nccl(agent: Running) -> None:
    assert (agent.ready["gpus"], agent.ready["nccl"]) == (4, "2.28.9")


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "out of place"])
@pytest.mark.parametrize("collective", IN_PLACE)
def test_a_collective_is_checked_alone_and_in_a_graph(
    agent: Running, collective: str, in_place: bool
) -> None:
    answer = agent.trial(ranks=3, collective=collective, in_place=in_place, sizes_bytes=[1500])

    # parts are whole multiples of 16 bytes: 1500 / 3 is 496 and a rest
    size = 1488 if collective in ("all_gather", "reduce_scatter") else 1500
    assert [(r["size_bytes"], r["mode"], r["is_correct"]) for r in results(answer)] == [
        (size, "graph", True)
    ] * 3


@pytest.mark.parametrize("collective", ["alltoall", "sendrecv"])
def test_sends_and_receives_are_checked_too(agent: Running, collective: str) -> None:
    answer = agent.trial(ranks=4, collective=collective, in_place=False)

    assert correct(answer) == [True] * 4


@pytest.mark.parametrize("collective", ["alltoall", "sendrecv"])
def test_what_has_no_form_in_place_is_refused(agent: Running, collective: str) -> None:
    answer = agent.trial(collective=collective)

    assert answer["error"].endswith(f"ValueError: {collective} cannot be done in place")


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_sums_are_exact_in_every_data_type(agent: Running, dtype: str) -> None:
    answer = agent.trial(ranks=4, dtype=dtype, sizes_bytes=[256])

    assert correct(answer) == [True] * 4


@pytest.mark.parametrize("dtype", ["float8_e5m2", "int8"])
def test_a_sum_that_is_scattered_is_exact_in_the_coarsest_types(agent: Running, dtype: str) -> None:
    answer = agent.trial(ranks=4, dtype=dtype, collective="reduce_scatter", sizes_bytes=[256])

    assert correct(answer) == [True] * 4


@pytest.mark.parametrize("collective", [*IN_PLACE, "alltoall", "sendrecv"])
def test_a_wrong_result_of_any_collective_is_seen(agent: Running, collective: str) -> None:
    answer = agent.trial("wrong@0", collective=collective, in_place=False)

    assert correct(answer) == [False, True]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_wrong_sum_of_any_data_type_is_seen(agent: Running, dtype: str) -> None:
    assert correct(agent.trial("wrong@1", dtype=dtype, sizes_bytes=[256])) == [True, False]


def test_a_sum_that_is_wrong_in_the_graph_alone_is_seen(agent: Running) -> None:
    assert correct(agent.trial("wrong-in-graph@1")) == [False, False]


def test_a_sum_that_is_wrong_in_the_graph_alone_and_not_summed_again_is_seen_where_it_is(
    agent: Running,
) -> None:
    assert correct(agent.trial("wrong-in-graph@1", in_place=False)) == [True, False]


def test_what_goes_wrong_while_it_is_timed_is_seen_behind_the_largest_size(agent: Running) -> None:
    assert correct(agent.trial("wrong-late@1", in_place=False)) == [True, False]


def test_an_old_library_has_no_fp8(tmp_path: Path) -> None:
    running = Running(tmp_path, DOUBLE_GPUS="2", DOUBLE_NCCL="22105")
    running.start("nccl")

    answer = running.trial(dtype="float8_e5m2")

    running.close()
    assert answer["error"].endswith("ValueError: NCCL 2.21.5 has no float8_e5m2; it came with 2.24")


def test_a_type_and_a_collective_that_nobody_knows_are_refused(agent: Running) -> None:
    assert "no data type `float99` here; there are float32," in agent.trial(dtype="float99")["error"]
    assert "no collective `dance` here; there are all_reduce," in agent.trial(collective="dance")["error"]


def test_a_size_of_which_nothing_is_left_is_refused(agent: Running) -> None:
    answer = agent.trial(ranks=4, collective="all_gather", sizes_bytes=[60])

    assert answer["error"].endswith("60 bytes are too few for all_gather of 4 ranks; the least is 64")


# -- layouts


@pytest.mark.parametrize(
    ("layout", "groups"),
    [
        ("world", {"0 of 4", "1 of 4", "2 of 4", "3 of 4"}),
        ("node", {"0 of 2", "1 of 2"}),
        ("rails", {"0 of 2", "1 of 2"}),
        ("pairs", {"0 of 2", "1 of 2"}),
    ],
)
def test_every_rank_of_a_layout_is_measured_and_checked_in_its_group(
    agent: Running, tmp_path: Path, layout: str, groups: set[str]
) -> None:
    trace = tmp_path / "trace"

    answer = agent.trial(ranks=4, layout=layout, ranks_per_node=2, env={"DOUBLE_TRACE": str(trace)})

    made = {" ".join(line.split()[2:5]) for line in trace.read_text().splitlines() if " init " in line}
    assert (correct(answer), made) == ([True] * 4, groups)


def test_hosts_that_act_as_several_nodes_are_groups_of_their_own(agent: Running, tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    answer = agent.trial(ranks=4, layout="node", as_nodes=2, env={"DOUBLE_TRACE": str(trace)})

    assert correct(answer) == [True] * 4
    assert lines(trace)[0].startswith("init 0 of 2")


def test_a_layout_that_leaves_a_rank_alone_is_refused(agent: Running) -> None:
    answer = agent.trial(ranks=3, layout="pairs")

    assert answer["error"].endswith("layout `pairs` of 3 ranks, 3 a node, leaves a group of a single rank")


def test_ranks_that_do_not_wait_for_each_other_begin_together(agent: Running) -> None:
    answer = agent.trial(ranks=4, collective="sendrecv", in_place=False, layout="pairs")

    assert correct(answer) == [True] * 4


# -- times


def test_short_calls_are_timed_in_a_graph(agent: Running) -> None:
    result = results(agent.trial())[1]

    assert (result["mode"], result["calls_per_sample"]) == ("graph", 40)
    assert result["samples_seconds"] == pytest.approx([SECONDS_A_CALL])


def test_long_calls_are_timed_as_they_are(agent: Running) -> None:
    result = results(agent.trial("slow", repeats=2))[0]

    assert (result["mode"], result["calls_per_sample"]) == ("eager", 1)
    assert result["samples_seconds"] == pytest.approx([50e-3, 50e-3])


def test_a_setting_that_is_slower_than_it_may_be_is_cut_off_there(agent: Running) -> None:
    answer = agent.trial("slow", sizes_bytes=[512, 1024, 2048], slowest_seconds=[[512, 1.0], [1024, 0.01]])

    first, second = answer["ranks"][0]["results"]
    assert (len(first["samples_seconds"]), "slower_than_seconds" in first) == (1, False)
    assert (second["samples_seconds"], second["slower_than_seconds"]) == ([], 0.01)


def test_a_host_that_was_busy_for_a_moment_is_no_slow_setting(agent: Running) -> None:
    result = results(agent.trial("busy", sizes_bytes=[1024], slowest_seconds=[[1024, 0.01]]))[0]

    assert "slower_than_seconds" not in result
    assert result["warmup_seconds"] == pytest.approx([50e-3, 50e-3, 50e-3, SECONDS_A_CALL])
    assert result["samples_seconds"] == pytest.approx([SECONDS_A_CALL])


def test_a_variant_may_have_limits_of_its_own(agent: Running) -> None:
    free, limited, _ = agent.variants(
        [{"slowest_seconds": []}, {}], "slow", sizes_bytes=[1024], slowest_seconds=[[1024, 0.01]]
    )

    assert "slower_than_seconds" not in results(free)[0]
    assert results(limited)[0]["slower_than_seconds"] == 0.01


def test_calls_are_timed_one_by_one_where_that_is_asked(agent: Running) -> None:
    result = results(agent.trial(single_calls=5))[0]

    assert result["single_seconds"] == pytest.approx([SECONDS_A_CALL] * 5)


def test_a_collective_is_measured_beside_a_matrix_product(agent: Running) -> None:
    result = results(agent.trial(overlap=True))[1]

    # in the double the two share nothing, so that neither costs the other anything
    assert result["overlap"] == pytest.approx(
        {
            "compute_alone_seconds": 500e-6,
            "compute_beside_seconds": 500e-6,
            "collective_beside_seconds": SECONDS_A_CALL,
        }
    )


# -- variants, one communicator each


def test_each_variant_has_a_communicator_with_its_own_variables_and_configuration(
    agent: Running, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    variants = [
        {"env": {"NCCL_ALGO": "ring"}},
        {"config": {"minCTAs": 4, "maxCTAs": 8}},
        {"env": {"NCCL_ALGO": "tree"}, "config": {}},
    ]

    *told, result = agent.variants(variants, env={"DOUBLE_TRACE": str(trace)})

    assert result["variants_done"] == 3
    assert [line for line in lines(trace) if line.startswith("init")] == [
        "init 0 of 2  ALGO=ring",
        "init 0 of 2 minCTAs=4 maxCTAs=8 ALGO=",
        "init 0 of 2  ALGO=tree",
    ]
    assert [event["ranks"][1]["in_force"].get("NCCL_ALGO") for event in told] == ["ring", None, "tree"]


def test_what_is_in_force_is_read_where_nccl_put_it_and_comes_back_behind_a_variant(
    agent: Running, tmp_path: Path
) -> None:
    (tmp_path / "nccl.conf").write_text("NCCL_ALGO=from_file\nNCCL_PROTO=Simple\n")
    env = {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf"), "NCCL_PSK": "secret"}

    *told, _ = agent.variants([{"env": {"NCCL_ALGO": "ring"}}, {}], env=env)

    first, second = (event["ranks"][0]["in_force"] for event in told)
    assert (first["NCCL_ALGO"], first["NCCL_PROTO"]) == ("ring", "Simple")
    assert (second["NCCL_ALGO"], second["NCCL_PROTO"]) == ("from_file", "Simple")
    assert first["NCCL_PSK"] == "(not kept)"


def test_only_the_first_variant_has_the_cost_of_the_process(agent: Running) -> None:
    first, second, _ = agent.variants([{}, {}])

    assert first["ranks"][0]["setup"].keys() == {"context", "communicator", "first_call", "release"}
    assert second["ranks"][0]["setup"].keys() == {"communicator", "first_call", "release"}


@pytest.mark.parametrize(
    ("release", "asked"), [("keep", []), ("destroy", ["finalize", "destroy"]), ("abort", ["abort"])]
)
def test_a_communicator_is_let_go_behind_its_graphs(
    agent: Running, tmp_path: Path, release: str, asked: list[str]
) -> None:
    trace = tmp_path / "trace"

    result = agent.variants([{}, {}], env={"DOUBLE_TRACE": str(trace)}, release=release)[-1]

    # the double waits for ever, as NCCL does, where a graph is left
    assert result["ok"], result["error"]
    init = ["init 0 of 2  ALGO="]
    assert lines(trace) == [*init, *asked, *init, *asked]


def test_communicators_that_need_more_room_than_is_left_make_it_first(agent: Running, tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    result = agent.variants([{}, {}], env={"DOUBLE_TRACE": str(trace)}, needs_bytes=600 << 20)[-1]

    assert result["ok"], result["error"]
    assert [line.split()[0] for line in lines(trace)] == ["init", "finalize", "destroy", "init"]


def test_a_communicator_that_cannot_fit_is_not_made(agent: Running, tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    answer = agent.trial(needs_bytes=5 << 30, env={"DOUBLE_TRACE": str(trace)})

    assert answer["error"].endswith(
        "OutOfGpuMemory: the communicator needs about 5120 MiB, 1024 MiB are free"
    )
    assert not trace.exists()


@pytest.mark.parametrize("double", ["hang@1", "crash@0", "nccl-error@1", "init-error@0"])
def test_what_ends_a_variant_leaves_those_before_it(agent: Running, double: str) -> None:
    variants = [{}, {"env": {"DOUBLE": double}}, {}]

    *told, result = agent.variants(variants, deadline_seconds=3)

    assert [event["index"] for event in told] == [0]
    assert (result["ok"], result["variants_done"]) == (False, 1)
    assert agent.trial()["ok"]


def test_a_variant_that_hangs_is_named_with_what_it_did(agent: Running) -> None:
    result = agent.variants([{}, {"env": {"DOUBLE": "hang@1"}}], deadline_seconds=3)[-1]

    assert result["error"] == (
        "still running at its deadline of 3 s, killed; "
        "rank 0: variant 2 of 2, checking 1024 bytes, rank 1: variant 2 of 2, checking 1024 bytes"
    )


def test_a_wrong_result_is_the_last_one_of_its_processes(agent: Running) -> None:
    *told, result = agent.variants([{}, {"env": {"DOUBLE": "wrong@1"}}, {}])

    assert [correct(event) for event in told] == [[True, True], [True, False]]
    assert (result["ok"], result["variants_done"]) == (True, 2)


def test_the_deadline_is_that_of_one_variant(agent: Running) -> None:
    pause = {"env": {"DOUBLE": "pause@1"}}

    result = agent.variants([pause] * 4, deadline_seconds=2.5)[-1]

    # the four pauses together are longer than that
    assert (result["ok"], result["variants_done"]) == (True, 4)


# -- errors in words


def test_what_nccl_refuses_is_told_with_its_last_words(agent: Running) -> None:
    assert agent.trial("nccl-error@1")["error"] == (
        "rank 1: NcclError: ncclAllReduce: internal error (3): proxy.cc:7 NCCL WARN no luck today"
    )


def test_a_communicator_that_is_refused_is_told_with_its_last_words(agent: Running) -> None:
    assert agent.trial("init-error@0")["error"] == (
        "rank 0: NcclError: ncclCommInitRankConfig: invalid argument (4): init.cc:42 -> Invalid config"
    )


def test_what_fails_behind_a_call_ends_the_trial_though_the_gpu_never_does(agent: Running) -> None:
    began = time.monotonic()

    answer = agent.trial("async@1")

    assert answer["error"] == (
        "rank 1: NcclError: asynchronous part of a call: remote error (6): "
        "socket.cc:99 Connection closed by remote peer"
    )
    assert time.monotonic() - began < 5


def test_a_field_that_the_version_does_not_have_is_refused(agent: Running) -> None:
    answer = agent.variants([{"config": {"numberOfWishes": 3}}])[-1]

    assert answer["error"].endswith("NCCL 2.28.9 has no `numberOfWishes` in its configuration")


def test_running_out_of_gpu_memory_is_told_apart(agent: Running) -> None:
    assert agent.trial("oom@1")["error"] == (
        "rank 1: out of GPU memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )


# -- probes


def test_a_host_that_acts_as_two_has_a_host_id_for_each_half(agent: Running) -> None:
    answer = agent.trial("nothing", ranks=4, probe=True, as_nodes=2)

    ids = [rank["log"][1].rpartition(" ")[2] for rank in answer["ranks"]]
    assert ids == ["n1-part0", "n1-part0", "n1-part1", "n1-part1"]


def test_a_probe_gives_nccls_own_words_and_leaves_no_file(agent: Running) -> None:
    answer = agent.trial("nothing", probe=True)

    assert answer["ok"], answer["error"]
    assert [rank["log"] for rank in answer["ranks"]] == [["DOUBLE set by environment to nothing"]] * 2
    assert list(agent.folder.glob("topo-tune-nccl-*")) == []


def test_a_probe_of_variants_gives_each_its_own_words(agent: Running) -> None:
    variants = [{"env": {"NCCL_ALGO": "ring"}}, {"env": {"NCCL_ALGO": "tree"}}]

    *told, _ = agent.variants(variants, "nothing", probe=True)

    assert [event["ranks"][0]["log"][-1] for event in told] == [
        "NCCL_ALGO set by environment to ring",
        "NCCL_ALGO set by environment to tree",
    ]


def test_a_probe_that_crashes_leaves_no_file_either(agent: Running) -> None:
    answer = agent.trial("crash@1", probe=True)

    assert "SIGSEGV" in answer["error"]
    assert list(agent.folder.glob("topo-tune-nccl-*")) == []


# -- nodes that cannot


def test_a_node_without_gpus_cannot_run_nccl(tmp_path: Path) -> None:
    running = Running(tmp_path, DOUBLE_GPUS="0")

    with pytest.raises(NodeProgramFailed, match="no GPU is visible to torch"):
        running.start("nccl")

    running.close()


def test_a_driver_that_fails_is_told_and_not_taken_for_no_gpus(tmp_path: Path) -> None:
    running = Running(tmp_path, DOUBLE_GPUS="driver too old")

    with pytest.raises(NodeProgramFailed, match="cannot count the GPUs: RuntimeError: driver too old"):
        running.start("nccl")

    running.close()


def test_overlap_without_a_gpu_is_refused(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.start("gloo")

    answer = running.trial(overlap=True)

    running.close()
    assert answer["error"].endswith("ValueError: overlap is measured with NCCL only")
