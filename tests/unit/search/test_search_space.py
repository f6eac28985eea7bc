from __future__ import annotations

import random

import msgspec
import pytest

from topo_tune.errors import InputError
from topo_tune.records.catalogue import catalogue
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.records.search import SearchSpace
from topo_tune.records.topology import Fabric, Topology
from topo_tune.search.space import build_space, draw, keeps_rules, settings, single_changes

SOCKETS = Topology(
    node_count=2,
    ranks_per_host=2,
    intra_fabric=Fabric.NVLINK,
    inter_fabric=Fabric.SOCKET,
    nccl_version="2.28.9",
    gpu_model="NVIDIA H200",
    compute_capability="9.0",
    driver="580.159",
    cpu_vendor="GenuineIntel",
)
ONE_NODE = msgspec.structs.replace(SOCKETS, node_count=1, inter_fabric=Fabric.NONE)
ROCE = msgspec.structs.replace(SOCKETS, inter_fabric=Fabric.ROCE)
CPUS = msgspec.structs.replace(
    ONE_NODE, nccl_version=None, gpu_model=None, compute_capability=None, intra_fabric=Fabric.NONE
)


def on(version: str | None, topology: Topology = SOCKETS) -> SearchSpace:
    return build_space(msgspec.structs.replace(topology, nccl_version=version))


def values(space: SearchSpace) -> dict[str, tuple[str, ...]]:
    return {name: variable.values for variable in space.variables for name in variable.names}


def reasons(space: SearchSpace) -> dict[str, str]:
    return {left_out.name: left_out.reason for left_out in space.left_out}


@pytest.mark.parametrize("topology", [SOCKETS, ONE_NODE, ROCE, CPUS])
def test_every_cluster_has_at_least_32_combinations(topology: Topology) -> None:
    assert build_space(topology).combinations >= 32


@pytest.mark.parametrize("version", ["2.12.7", "2.18.1", "2.23.4", "2.24.3", "2.27.3", "2.30.7", None])
def test_every_version_of_nccl_has_at_least_32_combinations(version: str | None) -> None:
    assert on(version).combinations >= 32


def test_algorithm_and_protocol_are_scoped_to_all_reduce_from_224_on() -> None:
    assert values(on("2.24.3"))["NCCL_ALGO"] == ("allreduce:ring", "allreduce:tree")
    assert values(on("2.24.3"))["NCCL_PROTO"] == ("allreduce:ll", "allreduce:simple")


def test_before_224_no_scope_is_written_because_it_would_switch_everything_off() -> None:
    assert values(on("2.23.4"))["NCCL_ALGO"] == ("Ring", "Tree")
    assert values(on("2.23.4"))["NCCL_PROTO"] == ("LL", "Simple")


def test_where_nodes_agree_on_no_version_nothing_with_a_changed_grammar_is_searched() -> None:
    space = on(None)
    assert not {"NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_CTAS"} & set(values(space))
    assert "agree on no NCCL version" in reasons(space)["NCCL_ALGO"]


@pytest.mark.parametrize("topology", [SOCKETS, ONE_NODE, ROCE, CPUS])
def test_ll128_is_never_forced(topology: Topology) -> None:
    words = [value.lower() for value in values(build_space(topology))["NCCL_PROTO"]]
    assert not [word for word in words if "ll128" in word or "^" in word]


def test_channels_move_both_ends_together() -> None:
    space = on("2.28.9")
    channels = next(variable for variable in space.variables if "NCCL_MIN_CTAS" in variable.names)
    assert channels.names == ("NCCL_MAX_CTAS", "NCCL_MIN_CTAS")
    assert channels.values[-1] == "64"


def test_before_217_channels_go_by_their_old_names_and_end_at_32() -> None:
    found = values(on("2.12.7"))
    assert (
        found["NCCL_MIN_NCHANNELS"] == found["NCCL_MAX_NCHANNELS"] == ("1", "2", "4", "8", "16", "24", "32")
    )


def test_socket_variables_are_searched_over_sockets_only() -> None:
    assert "NCCL_SOCKET_NTHREADS" in values(build_space(SOCKETS))
    assert "NCCL_SOCKET_NTHREADS" not in values(build_space(ROCE))
    assert "roce" in reasons(build_space(ROCE))["NCCL_SOCKET_NTHREADS"]


def test_rdma_variables_are_searched_over_rdma_only() -> None:
    assert "NCCL_IB_QPS_PER_CONNECTION" in values(build_space(ROCE))
    assert "NCCL_IB_QPS_PER_CONNECTION" not in values(build_space(SOCKETS))


def test_threads_per_block_are_searched_inside_one_node_only() -> None:
    assert "NCCL_NTHREADS" in values(build_space(ONE_NODE))
    assert "NCCL_NTHREADS" not in values(build_space(SOCKETS))


def test_variables_younger_than_the_library_are_left_out_with_the_version() -> None:
    assert "2.27" in reasons(on("2.26.2"))["NCCL_SOCKET_INLINE"]
    assert "NCCL_SOCKET_INLINE" in values(on("2.27.3"))


@pytest.mark.parametrize(
    ("name", "default"),
    [("NCCL_BUFFSIZE", "4194304"), ("NCCL_SOCKET_MIN_TASKSIZE", "65536"), ("NCCL_NSOCKS_PERTHREAD", "1")],
)
def test_the_default_of_a_variable_is_no_candidate(name: str, default: str) -> None:
    assert default not in values(build_space(SOCKETS))[name]


@pytest.mark.parametrize("topology", [SOCKETS, ONE_NODE, ROCE, CPUS])
def test_every_tunable_variable_is_searched_or_left_out_with_a_reason(topology: Topology) -> None:
    space = build_space(topology)
    tunable = {name for name, variable in catalogue().items() if variable.tunable}
    assert tunable <= set(values(space)) | set(reasons(space))
    assert all(reasons(space).values())
    assert all(variable.reason for variable in space.variables)


def test_what_the_cluster_file_pins_is_not_searched() -> None:
    space = build_space(SOCKETS, pinned=nccl_env({"NCCL_BUFFSIZE": 1048576}))
    assert "NCCL_BUFFSIZE" not in values(space)
    assert "NCCL_BUFFSIZE=1048576" in reasons(space)["NCCL_BUFFSIZE"]


@pytest.mark.parametrize(
    ("pinned", "left_out"),
    [
        ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"),
        ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"),
        ("NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS"),
    ],
)
def test_what_depends_on_a_pinned_variable_is_not_searched_either(pinned: str, left_out: str) -> None:
    space = build_space(SOCKETS, pinned=nccl_env({pinned: 2}))
    assert left_out not in values(space)
    assert pinned in reasons(space)[left_out]


def test_extra_values_join_the_catalogues() -> None:
    space = build_space(SOCKETS, extra_values={"NCCL_SOCKET_INLINE": ("512",)})
    assert "512" in values(space)["NCCL_SOCKET_INLINE"]


def test_extra_values_that_nccl_would_misread_are_refused() -> None:
    with pytest.raises(InputError, match="4M"):
        build_space(SOCKETS, extra_values={"NCCL_BUFFSIZE": ("4M",)})


def test_without_nccl_the_list_says_that_nobody_reads_it() -> None:
    assert all("no NCCL here" in variable.reason for variable in build_space(CPUS).variables)


def test_the_count_is_the_number_of_settings() -> None:
    space = on("2.18.1")
    everything = list(settings(space))
    assert space.combinations == len(everything) == len(set(everything))


def test_nccls_default_is_no_setting_of_the_space() -> None:
    assert DEFAULTS not in set(settings(build_space(ONE_NODE)))


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_NSOCKS_PERTHREAD": 4},
        {"NCCL_SOCKET_NTHREADS": 16, "NCCL_NSOCKS_PERTHREAD": 8},
        {"NCCL_IB_SPLIT_DATA_ON_QPS": 1},
        {"NCCL_PROTO": "allreduce:ll", "NCCL_BUFFSIZE": 8388608},
    ],
)
def test_a_setting_with_a_variable_that_does_nothing_breaks_a_rule(env: dict[str, str | int]) -> None:
    assert not keeps_rules(nccl_env(env))


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_SOCKET_NTHREADS": 16, "NCCL_NSOCKS_PERTHREAD": 4},
        {"NCCL_IB_QPS_PER_CONNECTION": 4, "NCCL_IB_SPLIT_DATA_ON_QPS": 1},
        {"NCCL_PROTO": "allreduce:ll,simple", "NCCL_BUFFSIZE": 8388608},
    ],
)
def test_a_setting_in_which_everything_acts_keeps_the_rules(env: dict[str, str | int]) -> None:
    assert keeps_rules(nccl_env(env))


def test_drawn_settings_belong_to_the_space() -> None:
    space = build_space(ONE_NODE)
    rng = random.Random(1)
    everything = {DEFAULTS, *settings(space)}
    assert {draw(space, rng) for _ in range(500)} <= everything


def test_single_changes_move_one_dimension_each() -> None:
    singles = single_changes(build_space(ONE_NODE))
    assert {len(set(env.as_dict().values())) for env in singles} == {1}
    assert len(singles) == sum(len(variable.values) for variable in build_space(ONE_NODE).variables)


# A recording that knows ring and tree only together with Simple and only next to a channel count.
RECORDED = {
    nccl_env({"NCCL_BUFFSIZE": 1048576}),
    nccl_env({"NCCL_MIN_CTAS": 4, "NCCL_MAX_CTAS": 4}),
    nccl_env(
        {
            "NCCL_MIN_CTAS": 4,
            "NCCL_MAX_CTAS": 4,
            "NCCL_ALGO": "allreduce:ring",
            "NCCL_PROTO": "allreduce:simple",
        }
    ),
}


def was_recorded(env: NcclEnv) -> bool:
    return env in RECORDED


def test_a_value_that_was_never_recorded_is_left_out_with_that_reason() -> None:
    space = build_space(SOCKETS, can_measure=was_recorded)
    assert values(space)["NCCL_ALGO"] == ("allreduce:ring",)
    assert values(space)["NCCL_BUFFSIZE"] == ("1048576",)
    assert reasons(space)["NCCL_ALGO=allreduce:tree"] == "the back end cannot measure it"
    assert "NCCL_SOCKET_NTHREADS" not in values(space)


def test_settings_that_were_never_recorded_are_counted() -> None:
    space = build_space(SOCKETS, can_measure=was_recorded)
    assert space.combinations == 3
    assert reasons(space)["settings"] == "the back end cannot measure 12 of the 15 settings of the grid"


def test_a_back_end_that_measures_everything_leaves_the_space_whole() -> None:
    assert build_space(ONE_NODE, can_measure=lambda env: True) == build_space(ONE_NODE)
