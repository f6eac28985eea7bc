from __future__ import annotations

import random

import pytest

from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.search import SearchSpace, SearchVariable
from topo_tune.search.candidates import random_settings, starting_candidates
from topo_tune.search.space import settings, single_changes


def space_of(**dimensions: tuple[str, ...]) -> SearchSpace:
    variables = tuple(
        SearchVariable((f"NCCL_{name}",), values, "test") for name, values in dimensions.items()
    )
    return SearchSpace(variables, (), 0)


SPACE = space_of(
    ALGO=("allreduce:ring", "allreduce:tree"),
    MAX_CTAS=("1", "2", "4", "8"),
    NTHREADS=("128", "256"),
    SOCKET_NTHREADS=("1", "2", "4"),
)


def test_every_single_change_is_among_the_candidates() -> None:
    assert set(single_changes(SPACE)) <= set(starting_candidates(SPACE, seed=0, count=48))


def test_there_are_as_many_as_asked_for_none_twice_and_never_the_default() -> None:
    candidates = starting_candidates(SPACE, seed=0, count=48)
    assert len(candidates) == len({*candidates} - {DEFAULTS}) == 48


def test_a_small_wish_still_gives_32() -> None:
    assert len(starting_candidates(SPACE, seed=0, count=5)) == 32


def test_many_dimensions_leave_room_for_combinations() -> None:
    wide = space_of(MAX_CTAS=tuple(str(n) for n in range(1, 61)), NTHREADS=("128",))
    candidates = starting_candidates(wide, seed=0, count=40)
    assert len(candidates) == 71
    assert sum(len(env.settings) > 1 for env in candidates) == 10


def test_another_seed_gives_other_combinations_in_another_order() -> None:
    assert starting_candidates(SPACE, seed=0, count=40) != starting_candidates(SPACE, seed=1, count=40)


def test_the_same_seed_gives_the_same_candidates() -> None:
    assert starting_candidates(SPACE, seed=7, count=40) == starting_candidates(SPACE, seed=7, count=40)


def test_where_little_can_be_measured_there_are_only_those() -> None:
    measurable = set(random.Random(0).sample(sorted(settings(SPACE)), 12))
    candidates = starting_candidates(SPACE, seed=0, count=48, can_measure=measurable.__contains__)
    assert set(candidates) == measurable


@pytest.mark.parametrize("space", [space_of(), space_of(NTHREADS=("128",))])
def test_an_empty_or_tiny_space_ends_the_drawing(space: SearchSpace) -> None:
    assert len(random_settings(space, random.Random(0), 10)) == len(space.variables)


def test_what_is_already_known_is_not_drawn_again() -> None:
    known = tuple(single_changes(SPACE))
    drawn: tuple[NcclEnv, ...] = random_settings(SPACE, random.Random(0), 30, besides=known)
    assert not set(drawn) & set(known)
