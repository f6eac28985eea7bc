"""What a size means for each collective, and which ranks take part in it."""

from __future__ import annotations

import pytest

from topo_tune.on_node.collectives import (
    COLLECTIVES,
    Counts,
    collective_of,
    counts_of,
    groups_of,
    in_place_starts,
    least_bytes,
    measured_bytes,
)
from topo_tune.records.bench import Collective, Layout


def test_there_are_those_that_a_plan_can_name() -> None:
    assert set(COLLECTIVES) == {collective.value for collective in Collective}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("all_reduce", Counts(512, 512, 512)),
        ("broadcast", Counts(512, 512, 512)),
        ("reduce", Counts(512, 512, 512)),
        ("sendrecv", Counts(512, 512, 512)),
        ("all_gather", Counts(128, 128, 512)),
        ("reduce_scatter", Counts(128, 512, 128)),
        ("alltoall", Counts(128, 512, 512)),
    ],
)
def test_a_size_is_what_nccl_tests_means_by_it(name: str, counts: Counts) -> None:
    found = counts_of(collective_of(name), 1024, ranks=4, item_bytes=2)

    assert (found, measured_bytes(found, 2)) == (counts, 1024)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "alltoall"])
def test_parts_are_whole_multiples_of_16_bytes_and_the_size_is_what_is_left(name: str) -> None:
    # 1000 / 3 is 333 bytes and a rest: 20 times 16
    found = counts_of(collective_of(name), 1000, ranks=3, item_bytes=4)

    assert (found.call, measured_bytes(found, 4)) == (80, 960)


def test_a_size_that_is_not_divided_is_only_cut_to_whole_elements() -> None:
    found = counts_of(collective_of("all_reduce"), 1003, ranks=3, item_bytes=4)

    assert measured_bytes(found, 4) == 1000


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_least_size_is_enough_and_one_byte_less_is_not(name: str) -> None:
    collective = collective_of(name)
    least = least_bytes(collective, 6, 2)

    assert counts_of(collective, least, 6, 2).call > 0
    with pytest.raises(ValueError, match=f"are too few for {name} of 6 ranks; the least is {least}"):
        counts_of(collective, least - 1, 6, 2)


def test_in_place_a_rank_has_its_own_part_of_the_whole() -> None:
    counts = Counts(128, 128, 512)

    assert in_place_starts(collective_of("all_gather"), counts, rank=3) == (384, 0)
    assert in_place_starts(collective_of("reduce_scatter"), counts, rank=3) == (0, 384)
    assert in_place_starts(collective_of("all_reduce"), counts, rank=3) == (0, 0)


@pytest.mark.parametrize(
    ("layout", "groups"),
    [
        (Layout.WORLD, [(0, 1, 2, 3, 4, 5)]),
        (Layout.WITHIN_NODE, [(0, 1, 2), (3, 4, 5)]),
        (Layout.RAILS, [(0, 3), (1, 4), (2, 5)]),
        (Layout.PAIRS, [(0, 1), (2, 3), (4, 5)]),
    ],
)
def test_every_rank_is_in_one_group_of_a_layout(layout: Layout, groups: list[tuple[int, ...]]) -> None:
    found = groups_of(layout.value, world=6, ranks_per_node=3)

    assert [group.ranks for group in found] == groups
    assert [group.number for group in found] == list(range(len(groups)))


@pytest.mark.parametrize(
    ("layout", "world", "per_node"), [("node", 4, 1), ("rails", 4, 4), ("pairs", 5, 5), ("world", 1, 1)]
)
def test_a_group_of_a_single_rank_is_refused(layout: str, world: int, per_node: int) -> None:
    with pytest.raises(ValueError, match="leaves a group of a single rank"):
        groups_of(layout, world, per_node)


def test_ranks_that_are_no_whole_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="7 ranks are no whole nodes of 3 ranks"):
        groups_of("rails", 7, 3)


def test_names_that_nobody_knows_are_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no collective `allreduce` here; there are all_reduce, "):
        collective_of("allreduce")
    with pytest.raises(ValueError, match="no layout `rack` here; there are world, node, rails, pairs"):
        groups_of("rack", 4, 2)
