"""The space of settings: dimensions from the catalogue, rules between them, and walks through it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping

from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.search import LeftOut, SearchSpace, SearchVariable
from topo_tune.records.topology import Topology
from topo_tune.search.variables import searched_variables

CanMeasure = Callable[[NcclEnv], bool]

MOST_SOCKETS = 64
"""Threads times sockets per thread that a connection may have; NCCL cuts the rest, with a warning."""

MOST_CHECKED = 200_000
"""Settings that are asked one by one whether they can be measured; about a second."""


def build_space(
    topology: Topology,
    *,
    pinned: NcclEnv = DEFAULTS,
    can_measure: CanMeasure | None = None,
    extra_values: Mapping[str, tuple[str, ...]] | None = None,
) -> SearchSpace:
    """The space for this cluster. Pure.

    `pinned`: what the cluster file sets for every job, which is never searched. `can_measure`: whether the
    back end has an answer for a setting; None where it has one for all. A value that occurs in no
    measurable setting of one to three changes is left out, and `combinations` counts the measurable settings;
    of a grid beyond `MOST_CHECKED` it counts all. `extra_values`: name to values besides the catalogue's.
    NCCL's default is no combination.
    """
    searched = searched_variables(topology, pinned, extra_values)
    variables, left_out = searched.variables, searched.left_out
    if can_measure is None:
        return SearchSpace(variables, left_out, _count(variables))
    variables, unmeasured = _only_measurable_values(variables, can_measure)
    space = SearchSpace(variables, left_out + unmeasured, _count(variables))
    return _only_measurable_settings(space, can_measure)


def settings(space: SearchSpace) -> Iterator[NcclEnv]:
    """Every setting of the full grid that breaks no rule, without NCCL's default, in a fixed order."""
    return (env for env in _grid(space.variables) if env != DEFAULTS and keeps_rules(env))


def single_changes(space: SearchSpace) -> tuple[NcclEnv, ...]:
    """Every setting in which one dimension moves and the rest stays at the default."""
    singles = (_env([(variable, value)]) for variable in space.variables for value in variable.values)
    return tuple(env for env in singles if keeps_rules(env))


def neighbours(space: SearchSpace, env: NcclEnv) -> tuple[NcclEnv, ...]:
    """Every setting that differs from `env` in one dimension, its absence included, and keeps the rules."""
    given = env.as_dict()
    found = []
    for variable in space.variables:
        rest = {name: value for name, value in given.items() if name not in variable.names}
        for value in (None, *variable.values):
            moved = {} if value is None else dict.fromkeys(variable.names, value)
            other = NcclEnv(tuple(sorted({**rest, **moved}.items())))
            if other != env and keeps_rules(other):
                found.append(other)
    return tuple(found)


def draw(space: SearchSpace, rng: random.Random) -> NcclEnv:
    """A random setting that keeps the rules: each dimension stays at the default with probability one half.

    Staying with one half keeps combinations small enough to read and to prune, however many dimensions
    there are. May be NCCL's default.
    """
    while True:
        moved = [(v, rng.choice(v.values)) for v in space.variables if rng.random() < 0.5]
        env = _env(moved)
        if keeps_rules(env):
            return env


def keeps_rules(env: NcclEnv) -> bool:
    """Whether every variable in it has an effect next to the others, and none is cut by NCCL."""
    given = env.as_dict()
    threads = int(given.get("NCCL_SOCKET_NTHREADS", 0))
    sockets = int(given.get("NCCL_NSOCKS_PERTHREAD", 1))
    if "NCCL_NSOCKS_PERTHREAD" in given and threads < 1:
        return False  # read only where there is at least one helper thread
    if threads * sockets > MOST_SOCKETS:
        return False
    if "NCCL_IB_SPLIT_DATA_ON_QPS" in given and "NCCL_IB_QPS_PER_CONNECTION" not in given:
        return False  # nothing to split over
    # The buffer of that name is the Simple protocol's; LL alone never touches it.
    only_ll = given.get("NCCL_PROTO", "").lower().removeprefix("allreduce:") == "ll"
    return not (only_ll and "NCCL_BUFFSIZE" in given)


_TIED = (
    frozenset({"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"}),
    frozenset({"NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS"}),
    frozenset({"NCCL_PROTO", "NCCL_BUFFSIZE"}),
)
"""Variables that a rule of `keeps_rules` joins; all others are free of each other."""


def _grid(variables: tuple[SearchVariable, ...]) -> Iterator[NcclEnv]:
    choices = [[None, *variable.values] for variable in variables]
    for values in itertools.product(*choices):
        yield _env([(v, value) for v, value in zip(variables, values, strict=True) if value is not None])


def _env(moved: list[tuple[SearchVariable, str]]) -> NcclEnv:
    # Values were validated when the space was built; validating each combination again would cost seconds.
    return NcclEnv(tuple(sorted((name, value) for variable, value in moved for name in variable.names)))


def _count(variables: tuple[SearchVariable, ...]) -> int:
    """Settings that keep the rules, less the default: tied dimensions together, the others multiplied."""
    rest = list(variables)
    factors = []
    for names in _TIED:
        group = tuple(variable for variable in rest if names & set(variable.names))
        rest = [variable for variable in rest if variable not in group]
        factors.append(sum(keeps_rules(env) for env in _grid(group)))
    factors += [len(variable.values) + 1 for variable in rest]
    return math.prod(factors) - 1


def _only_measurable_values(
    variables: tuple[SearchVariable, ...], can_measure: CanMeasure
) -> tuple[tuple[SearchVariable, ...], tuple[LeftOut, ...]]:
    seen: set[tuple[str, str]] = set()
    for moved in _small_changes(variables):
        env = _env(moved)
        if keeps_rules(env) and can_measure(env):
            seen.update((variable.names[0], value) for variable, value in moved)
    kept, left_out = [], []
    for variable in variables:
        values = tuple(value for value in variable.values if (variable.names[0], value) in seen)
        missing = [value for value in variable.values if value not in values]
        if values:
            kept.append(SearchVariable(variable.names, values, variable.reason))
        if missing:
            names = " and ".join(variable.names)
            left_out.append(LeftOut(f"{names}={', '.join(missing)}", "the back end cannot measure it"))
    return tuple(kept), tuple(left_out)


def _small_changes(variables: tuple[SearchVariable, ...]) -> Iterator[list[tuple[SearchVariable, str]]]:
    """One to three dimensions moved, some ten thousand settings: enough to meet each recorded value."""
    for moved in (1, 2, 3):
        for chosen in itertools.combinations(variables, moved):
            for values in itertools.product(*(variable.values for variable in chosen)):
                yield list(zip(chosen, values, strict=True))


def _only_measurable_settings(space: SearchSpace, can_measure: CanMeasure) -> SearchSpace:
    total = space.combinations
    if total > MOST_CHECKED:
        return space
    measurable = sum(can_measure(env) for env in settings(space))
    if measurable == total:
        return space
    reason = f"the back end cannot measure {total - measurable} of the {total} settings of the grid"
    return SearchSpace(space.variables, (*space.left_out, LeftOut("settings", reason)), measurable)
