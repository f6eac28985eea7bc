"""What every search strategy promises; a new one joins by its line in the table."""

from __future__ import annotations

from typing import Any

import pytest

from topo_tune.errors import InputError
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.search import SearchSpace, SearchVariable
from topo_tune.search.space import keeps_rules
from topo_tune.search.strategies import STRATEGIES
from topo_tune.search.strategies import strategy as make_strategy
from topo_tune.search.strategies.interface import Strategy, Trial

SPACE = SearchSpace(
    (
        SearchVariable(("NCCL_ALGO",), ("allreduce:ring", "allreduce:tree"), "test"),
        SearchVariable(("NCCL_MAX_CTAS", "NCCL_MIN_CTAS"), ("1", "2", "4", "8"), "test"),
        SearchVariable(("NCCL_SOCKET_NTHREADS",), ("1", "2", "16"), "test"),
        SearchVariable(("NCCL_NSOCKS_PERTHREAD",), ("2", "8"), "test"),
    ),
    (),
    134,
)
EMPTY = SearchSpace((), (), 0)
MOST_ROUNDS = 100

every_strategy = pytest.mark.parametrize("name", sorted(STRATEGIES))


def score(env: NcclEnv) -> float:
    return int(env.short_hash(), 16) / 16**12 - 0.5


def strategy(name: str, space: SearchSpace, *, seed: int, **options: Any) -> Strategy:
    return make_strategy(
        name, space, seed=seed, objective=lambda gains: sum(gains.values()) / len(gains), **options
    )


def walk(chosen: Strategy, *, fails: bool = False) -> list[tuple[NcclEnv, ...]]:
    """All suggestions until the strategy stops, each answered with a score or a failure."""
    suggestions = []
    for _ in range(MOST_ROUNDS):
        suggestion = chosen.suggest()
        if not suggestion:
            return suggestions
        suggestions.append(suggestion)
        chosen.update(
            tuple(Trial(env, None if fails else score(env), ((8, score(env)),)) for env in suggestion)
        )
    raise AssertionError(f"no end after {MOST_ROUNDS} rounds")


@every_strategy
def test_it_ends_by_itself(name: str) -> None:
    assert walk(strategy(name, SPACE, seed=0))


@every_strategy
def test_the_same_seed_and_results_give_the_same_suggestions(name: str) -> None:
    assert walk(strategy(name, SPACE, seed=3)) == walk(strategy(name, SPACE, seed=3))


@every_strategy
def test_another_seed_gives_other_suggestions(name: str) -> None:
    assert walk(strategy(name, SPACE, seed=3)) != walk(strategy(name, SPACE, seed=4))


@every_strategy
def test_it_tries_at_least_32_settings(name: str) -> None:
    assert (
        len({env for suggestion in walk(strategy(name, SPACE, seed=0, budget=32)) for env in suggestion})
        >= 32
    )


@every_strategy
def test_it_never_suggests_the_default_or_one_setting_twice_in_a_round(name: str) -> None:
    suggestions = walk(strategy(name, SPACE, seed=0))
    assert all(len(suggestion) == len({*suggestion} - {DEFAULTS}) for suggestion in suggestions)


@every_strategy
def test_it_suggests_only_what_keeps_the_rules(name: str) -> None:
    assert all(keeps_rules(env) for suggestion in walk(strategy(name, SPACE, seed=0)) for env in suggestion)


@every_strategy
def test_it_suggests_only_what_the_back_end_can_measure(name: str) -> None:
    def can_measure(env: NcclEnv) -> bool:
        return "NCCL_ALGO" not in env.names()

    suggestions = walk(strategy(name, SPACE, seed=0, can_measure=can_measure))
    assert suggestions
    assert all(can_measure(env) for suggestion in suggestions for env in suggestion)


@every_strategy
def test_it_survives_when_everything_fails_and_has_no_finalists_then(name: str) -> None:
    chosen = strategy(name, SPACE, seed=0)
    assert walk(chosen, fails=True)
    assert chosen.finalists(3) == ()


@every_strategy
def test_finalists_are_settings_that_were_launched_and_never_the_default(name: str) -> None:
    chosen = strategy(name, SPACE, seed=0)
    launched = {env for suggestion in walk(chosen) for env in suggestion}
    finalists = chosen.finalists(3)
    assert len(set(finalists)) == 3
    assert set(finalists) <= launched - {DEFAULTS}


@every_strategy
def test_an_empty_space_is_over_at_once(name: str) -> None:
    chosen = strategy(name, EMPTY, seed=0)
    assert (walk(chosen), chosen.finalists(3)) == ([], ())


@every_strategy
def test_a_back_end_that_measures_nothing_ends_the_search_at_once(name: str) -> None:
    assert walk(strategy(name, SPACE, seed=0, can_measure=lambda env: False)) == []


@every_strategy
def test_every_round_has_a_name(name: str) -> None:
    chosen = strategy(name, SPACE, seed=0)
    chosen.suggest()
    assert chosen.phase().startswith("screen-")


def test_an_unknown_strategy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean `halving`"):
        strategy("halfing", SPACE, seed=0)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="budget"):
        strategy("halving", SPACE, seed=0, budget=0)
