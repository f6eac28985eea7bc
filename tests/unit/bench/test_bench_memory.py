"""The memory of a communicator's buffers: what NCCL allocates for each channel and connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_tune.bench.memory import channels, communicator_bytes
from topo_tune.records.bench import Collective
from topo_tune.records.catalogue import catalogue
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

MIB = 1 << 20
ALL_OF_A_CONNECTION = (4 + 2 + 6) * MIB
"""4 MiB for Simple, 0.5 MiB for LL and 4.7 MiB for LL128, each in pieces of 2 MiB"""


def needed(
    setting: NcclEnv = DEFAULTS, collective: str = "all_reduce", ranks: int = 8, nodes: int = 1
) -> int:
    return communicator_bytes(setting, collective, ranks=ranks, nodes=nodes)


def test_a_ring_has_two_connections_a_channel() -> None:
    assert needed(collective="all_gather") == 32 * 2 * ALL_OF_A_CONNECTION


def test_an_all_reduce_may_take_trees_as_well() -> None:
    assert needed() == 32 * (2 + 6) * ALL_OF_A_CONNECTION


def test_two_ranks_have_one_neighbour_in_a_tree() -> None:
    assert needed(ranks=2) == 32 * (2 + 2) * ALL_OF_A_CONNECTION


def test_a_larger_buffer_counts_for_every_connection_of_every_channel() -> None:
    setting = nccl_env({"NCCL_BUFFSIZE": 64 * MIB, "NCCL_MAX_CTAS": 4})

    assert needed(setting, "broadcast") == 4 * 2 * (64 + 2 + 6) * MIB


def test_a_buffer_of_gigabytes_is_more_than_any_gpu_has() -> None:
    assert needed(nccl_env({"NCCL_BUFFSIZE": 2 << 30})) > 500 << 30


def test_nccls_defaults_fit_beside_a_model() -> None:
    assert max(needed(collective=c.value, ranks=16, nodes=2) for c in Collective) < 16 << 30


def test_all_to_all_is_connected_to_every_rank_of_the_node_and_shares_a_pool_beyond() -> None:
    beyond = needed(collective="alltoall", ranks=16, nodes=2) - needed(collective="alltoall", ranks=8)

    assert beyond == 2 * 16 * 64 * (128 << 10)


def test_one_rank_needs_nothing() -> None:
    assert needed(ranks=1) == 0


@pytest.mark.parametrize(
    ("setting", "count"),
    [
        ({}, 32),
        ({"NCCL_MIN_CTAS": 48}, 48),
        ({"NCCL_MIN_NCHANNELS": 64}, 64),
        ({"NCCL_MAX_NCHANNELS": 2}, 2),
        ({"NCCL_MIN_CTAS": 16, "NCCL_MAX_CTAS": 8}, 8),
        ({"NCCL_MAX_CTAS": 0}, 32),
    ],
)
def test_channels_are_what_the_setting_allows(setting: dict[str, int], count: int) -> None:
    assert channels(nccl_env(setting)) == count


@pytest.mark.parametrize("name", ["NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"])
def test_a_buffer_of_its_default_changes_nothing(name: str) -> None:
    default = catalogue()[name].default
    assert isinstance(default, int)

    assert needed(nccl_env({name: default})) == needed()


@given(
    st.dictionaries(
        st.sampled_from(["NCCL_BUFFSIZE", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"]), st.integers(0, 2**62)
    ),
    st.sampled_from(Collective),
    st.integers(2, 4096),
    st.integers(1, 64),
)
def test_more_ranks_never_need_less(
    values: dict[str, int], collective: Collective, ranks: int, nodes: int
) -> None:
    setting = nccl_env(values)
    less = needed(setting, collective.value, ranks, nodes)

    assert 0 < less <= needed(setting, collective.value, ranks + nodes, nodes)
