"""Search strategies behind one seam: `STRATEGIES` names them, `strategy()` makes one.

A new strategy is a file here and a line in the table; `tests/contract/test_strategy_contract.py` tells
whether it keeps the promises.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from topo_tune.errors import InputError, did_you_mean
from topo_tune.records.search import SearchSpace
from topo_tune.search.space import CanMeasure
from topo_tune.search.strategies.interface import Objective, Strategy

STRATEGIES = {
    "model": ("topo_tune.search.strategies.model", "ModelGuided"),
    "halving": ("topo_tune.search.strategies.halving", "Halving"),
    "random": ("topo_tune.search.strategies.random", "Random"),
}
"""Name to the module and class that is loaded when somebody asks for it."""

DEFAULT_STRATEGY = "model"
DEFAULT_BUDGET = 48
"""Candidates in the first round. With the rounds after it 101 launches, and a fifth as many of the default."""


class _Factory(Protocol):
    def __call__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        budget: int,
        can_measure: CanMeasure | None = None,
        objective: Objective,
    ) -> Strategy: ...


def strategy(
    name: str,
    space: SearchSpace,
    *,
    seed: int,
    budget: int = DEFAULT_BUDGET,
    can_measure: CanMeasure | None = None,
    objective: Objective,
) -> Strategy:
    """The strategy of that name, ready to suggest. `budget`: candidates of the first round.

    Raises InputError for an unknown name or a budget below one.
    """
    if name not in STRATEGIES:
        raise InputError(f"`{name}` is not a search strategy", hint=did_you_mean(name, STRATEGIES))
    if budget < 1:
        raise InputError(f"a search needs a budget of at least one candidate: {budget}")
    module, attribute = STRATEGIES[name]
    factory = cast(_Factory, getattr(importlib.import_module(module), attribute))
    return factory(space, seed=seed, budget=budget, can_measure=can_measure, objective=objective)
