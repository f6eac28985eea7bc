"""What a probe proves."""

from __future__ import annotations

import pytest

from topo_tune.records.bench import Probe, SettingInForce
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.rollout.proof import can_tell, in_force_already, not_in_force

ENV = NcclEnv((("NCCL_ALGO", "allreduce:ring"), ("NCCL_NTHREADS", "+256")))


def probe(*settings, ranks=1, error=None, source="nccl log"):
    seen = tuple(SettingInForce(rank, f"n{rank}", name, value, "line") for rank, name, value in settings)
    return Probe(tuple(f"n{rank}" for rank in range(ranks)), "", ranks, source, seen, error)


PROVED = ((0, "NCCL_ALGO", "allreduce:ring"), (0, "NCCL_NTHREADS", "256"))


def test_every_setting_on_every_rank_is_a_proof_and_numbers_compare_as_numbers():
    assert not_in_force(probe(*PROVED), ENV) == ()


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (probe(ranks=0), "the probe had no ranks"),
        (probe(*PROVED, error="rank 0 died"), "the probe failed: rank 0 died"),
        (
            probe(*PROVED, ranks=2),
            "`NCCL_ALGO` should be `allreduce:ring` on every rank: not seen on rank 1",
        ),
        (
            probe((0, "NCCL_ALGO", "Ring"), PROVED[1]),
            "`NCCL_ALGO` should be `allreduce:ring` on every rank: `Ring` on rank 0",
        ),
        (
            probe(PROVED[0], (0, "NCCL_NTHREADS", "25")),
            "`NCCL_NTHREADS` should be `+256` on every rank: `25` on rank 0",
        ),
    ],
)
def test_anything_less_is_none(seen, problem):
    assert not_in_force(seen, ENV)[0] == problem


def test_a_value_in_force_before_is_told_only_for_the_nodes_asked_about():
    assert in_force_already(probe(*PROVED), ENV, ["n1"]) == ()
    assert in_force_already(probe(*PROVED), ENV, ["n0"])[0] == (
        "rank 0 on n0 has `NCCL_ALGO=allreduce:ring` already"
    )


def test_another_value_before_the_write_is_no_obstacle():
    assert in_force_already(probe((0, "NCCL_NTHREADS", "128")), ENV, ["n0"]) == ()


def test_a_source_of_nobody_cannot_tell():
    assert not can_tell(probe(source="nobody (gloo)"))
    assert can_tell(probe())
