from __future__ import annotations

from typing import Any

import pytest
from agent_doubles import node

from topo_tune.bench.plan import plan_bench, weights_of
from topo_tune.errors import InputError
from topo_tune.records.bench import Collective, Layout
from topo_tune.records.inventory import BackendName, Inventory, Rack, ReplayOptions, SshOptions


def inventory(backend: BackendName, **fields: Any) -> Inventory:
    replay = ReplayOptions("h200x2-two-node-tcp") if backend is BackendName.REPLAY else None
    return Inventory("test", (Rack("r1", (node(),)),), SshOptions(), backend, replay=replay, **fields)


def test_nccl_measures_bfloat16_from_latency_to_bandwidth() -> None:
    plan = plan_bench(inventory(BackendName.NCCL))

    assert (plan.collective, plan.dtype) == ("all_reduce", "bfloat16")
    assert plan.sizes_bytes == (8 << 10, 128 << 10, 2 << 20, 32 << 20)


def test_gloo_measures_float32_and_no_large_size() -> None:
    plan = plan_bench(inventory(BackendName.GLOO))

    assert (plan.dtype, max(plan.sizes_bytes)) == ("float32", 2 << 20)


def test_sizes_of_the_cluster_file_win() -> None:
    assert plan_bench(inventory(BackendName.NCCL, sizes_bytes=(77,))).sizes_bytes == (77,)


def test_a_replay_measures_what_was_recorded() -> None:
    assert 8 << 10 in plan_bench(inventory(BackendName.REPLAY)).sizes_bytes


def test_a_replay_of_a_size_that_was_not_recorded_is_refused_with_those_that_were() -> None:
    with pytest.raises(InputError, match=r"holds no 16K, 77\nhint: recorded: .*8K"):
        plan_bench(inventory(BackendName.REPLAY, sizes_bytes=(8 << 10, 16 << 10, 77)))


def test_the_operators_choice_of_what_is_measured_is_the_plans() -> None:
    plan = plan_bench(
        inventory(BackendName.NCCL),
        collective=Collective.ALL_TO_ALL,
        dtype="int8",
        layout=Layout.RAILS,
        in_place=False,
        single_calls=100,
        overlap=True,
    )

    assert (plan.collective, plan.dtype, plan.layout, plan.in_place) == (
        "alltoall",
        "int8",
        Layout.RAILS,
        False,
    )
    assert (plan.single_calls, plan.overlap) == (100, True)


@pytest.mark.parametrize(
    "wanted",
    [
        {"collective": Collective.ALL_TO_ALL},
        {"dtype": "int8"},
        {"layout": Layout.RAILS},
        {"in_place": False},
    ],
)
def test_a_replay_of_what_was_not_recorded_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"holds no all(.|\n)*recorded: all_reduce, bfloat16"):
        plan_bench(inventory(BackendName.REPLAY), **wanted)


@pytest.mark.parametrize("wanted", [{"single_calls": 10}, {"overlap": True}])
def test_a_replay_has_nothing_beside_its_samples(wanted: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a replay has neither single calls nor"):
        plan_bench(inventory(BackendName.REPLAY), **wanted)


def test_repeats_and_deadline_are_the_operators() -> None:
    plan = plan_bench(inventory(BackendName.NCCL), repeats=2, deadline_seconds=7.5)

    assert (plan.repeats, plan.deadline_seconds) == (2, 7.5)


def test_without_weights_every_size_weighs_the_same() -> None:
    one = inventory(BackendName.NCCL, sizes_bytes=(1, 2))

    assert weights_of(one, plan_bench(one)) == {1: 1.0, 2: 1.0}


def test_a_size_without_a_weight_does_not_count() -> None:
    one = inventory(BackendName.NCCL, sizes_bytes=(1, 2), weights=((2, 3.0), (4, 9.0)))

    assert weights_of(one, plan_bench(one)) == {1: 0.0, 2: 3.0}


@pytest.mark.parametrize("backend", [BackendName.NCCL, BackendName.GLOO])
@pytest.mark.parametrize("collective", Collective)
def test_the_result_goes_where_the_collective_can_have_it(
    backend: BackendName, collective: Collective
) -> None:
    plan = plan_bench(inventory(backend), collective=collective)

    assert plan.in_place is (collective not in (Collective.ALL_TO_ALL, Collective.SEND_RECV))


@pytest.mark.parametrize(
    ("backend", "wanted", "told"),
    [
        (
            BackendName.NCCL,
            {"collective": Collective.ALL_TO_ALL, "in_place": True},
            "alltoall cannot be done in place",
        ),
        (BackendName.NCCL, {"dtype": "float64"}, "the back end nccl measures no float64"),
        (BackendName.GLOO, {"in_place": False}, "gloo has all_reduce in place only"),
        (BackendName.GLOO, {"overlap": True}, "gloo runs on CPUs"),
        (BackendName.GLOO, {"dtype": "float8_e5m2"}, "gloo has no float8_e5m2"),
    ],
)
def test_what_every_launch_would_fail_of_is_refused(
    backend: BackendName, wanted: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        plan_bench(inventory(backend), **wanted)


def test_nccl_tests_has_types_of_its_own() -> None:
    assert plan_bench(inventory(BackendName.NCCL_TESTS), dtype="float64").dtype == "float64"
