from __future__ import annotations

import itertools

import pytest

from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.search import SearchSpace, SearchVariable
from topo_tune.search.strategies.halving import Halving, round_sizes
from topo_tune.search.strategies.interface import Trial

SPACE = SearchSpace(
    (
        SearchVariable(("NCCL_MAX_CTAS",), ("1", "2", "4", "8"), "test"),
        SearchVariable(("NCCL_BUFFSIZE",), ("1", "2", "3"), "test"),
        SearchVariable(("NCCL_SOCKET_INLINE",), ("0", "1"), "test"),
    ),
    (),
    59,
)


def value(env: NcclEnv) -> float:
    """A score that is different for every setting."""
    return int(env.short_hash(), 16) / 16**12


def rounds(halving: Halving, failing: frozenset[NcclEnv] = frozenset()) -> list[tuple[NcclEnv, ...]]:
    made = []
    while suggestion := halving.suggest():
        made.append(suggestion)
        halving.update(tuple(Trial(e, None if e in failing else value(e)) for e in suggestion))
    return made


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [(48, (48, 16, 8, 4)), (32, (32, 11, 6, 4)), (5, (5, 4, 4, 4)), (2, (2, 2, 2, 2)), (0, ())],
)
def test_rounds_shrink_to_a_third_a_sixth_and_four(candidates: int, expected: tuple[int, ...]) -> None:
    assert round_sizes(candidates) == expected


def test_the_last_four_have_been_launched_four_times() -> None:
    made = rounds(Halving(SPACE, seed=0, budget=48))
    assert [len(suggestion) for suggestion in made] == [48, 16, 8, 4]
    assert all(set(later) <= set(earlier) for earlier, later in itertools.pairwise(made))


def test_the_best_setting_wins_when_there_is_no_noise() -> None:
    halving = Halving(SPACE, seed=0, budget=48)
    everything = rounds(halving)[0]
    assert halving.finalists(2) == tuple(sorted(everything, key=value, reverse=True)[:2])


def test_a_setting_that_fails_once_is_never_launched_again() -> None:
    best = max(rounds(Halving(SPACE, seed=0, budget=48))[0], key=value)
    halving = Halving(SPACE, seed=0, budget=48)
    made = rounds(halving, failing=frozenset({best}))
    assert [best in suggestion for suggestion in made] == [True, False, False, False]
    assert best not in halving.finalists(48)


def test_one_lucky_launch_does_not_beat_four_good_ones() -> None:
    halving = Halving(SPACE, seed=0, budget=48)
    made = rounds(halving)
    best = halving.finalists(1)
    dropped_early = next(env for env in made[0] if env not in made[1])
    halving.update((Trial(dropped_early, 9.0),))
    assert halving.finalists(1) == best


def test_a_round_has_its_own_order() -> None:
    made = rounds(Halving(SPACE, seed=0, budget=48))
    assert made[1] != tuple(env for env in made[0] if env in made[1])


def test_phases_count_the_rounds() -> None:
    halving = Halving(SPACE, seed=0, budget=48)
    names = []
    while suggestion := halving.suggest():
        names.append(halving.phase())
        halving.update(tuple(Trial(env, value(env)) for env in suggestion))
    assert names == ["screen-1", "screen-2", "screen-3", "screen-4"]
