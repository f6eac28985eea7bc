"""What ranks answered, as one result: merging, wrong results, settings that did not reach a rank, NCCL's own log."""

from __future__ import annotations

from typing import Any

import pytest
from agent_doubles import of_size, rank_answer

from topo_tune.bench.answers import (
    cause,
    merge_ranks,
    not_in_force,
    settings_in_log,
    was_wrong,
    wrong_results,
)
from topo_tune.on_node.nccl_conf import NOT_KEPT
from topo_tune.records.bench import Launch, Overlap, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS


def test_the_slowest_rank_counts_sample_by_sample() -> None:
    (merged,) = merge_ranks(
        [
            rank_answer(0, [of_size(8, [1.0, 5.0], warmup=9.0)]),
            rank_answer(1, [of_size(8, [2.0, 4.0], warmup=3.0)]),
        ]
    )

    assert merged == SizeResult(8, (2.0, 5.0), 20, TimingMode.GRAPH, True, (9.0,))


def test_single_calls_and_overlap_are_those_of_the_slowest_rank() -> None:
    alone = {"compute_alone_seconds": 1.0, "compute_beside_seconds": 2.0, "collective_beside_seconds": 3.0}
    (merged,) = merge_ranks(
        [
            rank_answer(0, [of_size(8, [1.0], single_seconds=[1.0, 4.0], overlap=alone)]),
            rank_answer(
                1,
                [
                    of_size(
                        8, [1.0], single_seconds=[2.0, 3.0], overlap=alone | {"compute_beside_seconds": 5.0}
                    )
                ],
            ),
        ]
    )

    assert (merged.single_seconds, merged.overlap) == ((2.0, 4.0), Overlap(1.0, 5.0, 3.0))


def test_a_size_that_was_cut_off_has_no_samples_and_says_at_which_limit() -> None:
    (merged,) = merge_ranks([rank_answer(rank, [of_size(8, [], slower_than_seconds=0.5)]) for rank in (0, 1)])

    assert (merged.samples_seconds, merged.slower_than_seconds) == ((), 0.5)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [((True, True), True), ((True, None), None), ((None, False), False), ((True, False), False)],
)
def test_a_size_is_correct_only_on_all_ranks(checks: tuple[bool | None, ...], verdict: bool | None) -> None:
    (merged,) = merge_ranks(
        [rank_answer(rank, [of_size(8, [1.0], is_correct=check)]) for rank, check in enumerate(checks)]
    )

    assert merged.is_correct is verdict


def test_a_wrong_result_names_the_collective_the_sizes_and_the_ranks() -> None:
    answers = [
        rank_answer(0, [of_size(8, [1.0]), of_size(32 << 20, [1.0])]),
        *(rank_answer(r, [of_size(8, [1.0]), of_size(32 << 20, [1.0], is_correct=False)]) for r in (1, 2, 3)),
    ]

    assert wrong_results(answers, "all_gather") == "wrong all_gather at 32M on ranks 1-3"


def test_right_results_are_no_error() -> None:
    assert wrong_results([rank_answer(0)], "all_reduce") is None


def test_a_launch_is_wrong_when_one_of_its_sizes_is() -> None:
    launch = Launch(0, "test", ("n1",), DEFAULTS, BackendName.NCCL, 2, "2026-01-01", 1.0)
    wrong = SizeResult(8, (1.0,), 1, TimingMode.EAGER, False)

    assert not was_wrong(launch)
    assert was_wrong(Launch(0, "test", ("n1",), DEFAULTS, BackendName.NCCL, 2, "2026-01-01", 1.0, (wrong,)))


# -- settings in force


def in_force(*ranks: dict[str, str] | None, **asked: dict[str, str]) -> str | None:
    answers = [rank_answer(number, in_force=found) for number, found in enumerate(ranks)]
    usual: dict[str, Any] = {"asked": {}, "configured": {}, "gone": {}}
    given = {**usual, **asked}
    return not_in_force(answers, given["asked"], configured=given["configured"], gone=given["gone"])


def test_a_setting_that_every_rank_has_is_no_error() -> None:
    has = {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "WARN"}

    assert in_force(has, has, asked={"NCCL_ALGO": "Ring"}) is None


def test_a_rank_with_another_value_is_named_with_it() -> None:
    found = in_force({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}, asked={"NCCL_ALGO": "Ring"})

    assert found == "NCCL_ALGO=Ring did not reach rank 1: it has Tree"


def test_ranks_without_the_setting_are_named() -> None:
    assert (
        in_force({}, {}, asked={"NCCL_ALGO": "Ring"})
        == "NCCL_ALGO=Ring did not reach ranks 0-1: it is not set there"
    )


def test_a_variable_that_wins_over_the_configuration_is_told() -> None:
    found = in_force({"NCCL_MIN_CTAS": "8"}, {}, configured={"NCCL_MIN_CTAS": "16"})

    assert found == "NCCL_MIN_CTAS=16 did not reach rank 0: it has 8"


def test_what_a_setting_before_left_behind_is_told() -> None:
    found = in_force({"NCCL_ALGO": "Tree"}, {}, gone={"NCCL_ALGO": "Tree"})

    assert found == "NCCL_ALGO=Tree of an earlier setting is still in force on rank 0"


def test_what_a_file_says_in_place_of_it_is_not() -> None:
    assert in_force({"NCCL_ALGO": "Ring"}, gone={"NCCL_ALGO": "Tree"}) is None


def test_what_the_processes_have_by_themselves_is_no_left_over() -> None:
    has = {"rank": 0, "in_force": {"NCCL_ALGO": "Tree"}, "back": {"NCCL_ALGO": "Tree"}}

    assert not_in_force([has], {}, configured={}, gone={"NCCL_ALGO": "Tree"}) is None


def test_a_secret_is_told_by_nobody() -> None:
    has = {"NCCL_PSK": NOT_KEPT}

    assert in_force(has, asked={"NCCL_PSK": "s3cret"}) is None


def test_a_rank_that_does_not_tell_is_not_judged() -> None:
    assert in_force(None, {"NCCL_ALGO": "Ring"}, asked={"NCCL_ALGO": "Ring"}) is None


# -- failures


@pytest.mark.parametrize(
    "consequence",
    ["aborted: another node failed", "rank 0: RuntimeError: Connection closed by peer [10.0.0.2]:3333"],
)
def test_the_cause_is_told_and_not_its_consequence(consequence: str) -> None:
    results = [{"ok": False, "error": consequence}, {"ok": False, "error": "rank 2: out of memory"}]

    assert cause(results) == "rank 2: out of memory"


def test_where_all_went_well_there_is_no_cause() -> None:
    assert cause([{"ok": True, "error": None}]) is None


# -- NCCL's log: lines of 2.27.7 and 2.28.9, and of real clusters (MLPerf Training v5.1, Dell; nebius-solution-library)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("NCCL_SOCKET_NTHREADS set by environment to 2.", "NCCL_SOCKET_NTHREADS", "2"),
        ("NCCL_SOCKET_IFNAME set by environment to lo", "NCCL_SOCKET_IFNAME", "lo"),
        ("NCCL_BUFFSIZE set by environment to -2.", "NCCL_BUFFSIZE", "-2"),
        ("NCCL_ALGO set by environment to allreduce:ring", "NCCL_ALGO", "allreduce:ring"),
        ("NCCL_MIN_CTAS set by environment to 32.", "NCCL_MIN_CTAS", "32"),
        (
            "NCCL_TOPO_FILE set by environment to /var/run/nvidia-topologyd/virtualTopology.xml",
            "NCCL_TOPO_FILE",
            "/var/run/nvidia-topologyd/virtualTopology.xml",
        ),
        ("NCCL_SOCKET_IFNAME set by environment to eth0.", "NCCL_SOCKET_IFNAME", "eth0."),
        ("NCCL_IB_HCA set to mlx5_0:1,mlx5_1:1", None, None),
        ("Channel 00/02 : 0 1", None, None),
    ],
)
def test_a_line_of_the_log_gives_the_variable_and_its_value(
    line: str, name: str | None, value: str | None
) -> None:
    found = settings_in_log(1, "n1", [line])

    assert [(s.name, s.value, s.evidence) for s in found] == ([(name, value, line)] if name else [])


def test_the_first_line_of_a_variable_is_kept() -> None:
    lines = ["NCCL_ALGO set by environment to Ring", "NCCL_ALGO set by environment to Tree"]

    assert [s.value for s in settings_in_log(0, "n1", lines)] == ["Ring"]
