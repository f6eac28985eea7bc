"""Pruning: each setting of the best candidate is taken away in turn, and what brings nothing that is seen goes.

A search keeps settings that came along by luck. They cost trust: each is one more thing that can go wrong with the next
version of NCCL. So the best candidate is launched beside itself less one dimension, in blocks, and dimensions whose
absence costs nothing that the launches show are dropped, the half that brings least first, until none is left to drop.
What is left meets the default in the confirmation like any other candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from topo_tune.records.bench import Launch
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.search import PURPOSE_PRUNE, SearchSpace, SettingEffect, TraceStep
from topo_tune.search.space import CanMeasure, keeps_rules
from topo_tune.stats.intervals import paired_speedup, weighted_speedup
from topo_tune.stats.objective import shares

PRUNE_BLOCKS = 4
"""launches of each; with a noise of 7 % a dimension that brings a tenth at some size is then seen"""
SEEN = 0.9
"""confidence with which a benefit must lie above zero: a dimension is kept on weak evidence, dropped on none"""
LEAST_BENEFIT = 0.01
"""a benefit below one per cent, even if it is seen, is not worth a setting"""

Evaluate = Callable[[NcclEnv, str], Launch]
Tell = Callable[[str, int, int, Launch], None]
"""(phase, launches done, launches planned, launch)"""


class Pruned(NamedTuple):
    """What is left, what each part of it brings, and the launches that showed it."""

    env: NcclEnv
    effects: tuple[SettingEffect, ...]
    steps: tuple[TraceStep, ...]


def prune(
    candidate: NcclEnv,
    space: SearchSpace,
    evaluate: Evaluate,
    *,
    weights: Mapping[int, float],
    tolerance: float,
    can_measure: CanMeasure | None = None,
    blocks: int = PRUNE_BLOCKS,
    tell: Tell | None = None,
) -> Pruned:
    """The candidate less whatever brings nothing that is seen. Deterministic given the launches.

    A candidate of one dimension stays as it is, and so does one whose own launches fail. `weights`: size in bytes
    to weight, empty for all the same; `tolerance`: a benefit at one size counts from there on.
    """
    steps: list[TraceStep] = []
    effects: tuple[SettingEffect, ...] = ()
    while smaller := _smaller(candidate, space, can_measure):
        phase = f"prune-{len({step.phase for step in steps}) + 1}"
        launches = _round(candidate, tuple(smaller.values()), evaluate, blocks, phase, steps, tell)
        measured = {
            names: _benefit(launches[candidate], launches[env], weights, names, candidate)
            for names, env in smaller.items()
        }
        effects = tuple(effect for effect in measured.values() if effect is not None)
        # A setting whose absence could not be measured, or failed, is needed for all one knows.
        removable = {
            names: effect
            for names, effect in measured.items()
            if effect is not None and not _is_seen(effect, tolerance)
        }
        if not removable:
            break
        candidate = _without_least(candidate, smaller, removable, can_measure)
        effects = ()
    return Pruned(candidate, effects, tuple(steps))


def _without_least(
    candidate: NcclEnv,
    smaller: Mapping[tuple[str, ...], NcclEnv],
    removable: Mapping[tuple[str, ...], SettingEffect],
    can_measure: CanMeasure | None,
) -> NcclEnv:
    """The candidate without the half of the removable dimensions that bring least; without one where half cannot go.

    Half at a time keeps the cost down. Two dimensions of which either would do can both go that way; the candidate as
    it was found meets the default beside what is left of it, so the loss would show.
    """
    ranked = sorted(removable, key=lambda names: (removable[names].benefit, names))
    going = {name for names in ranked[: math.ceil(len(ranked) / 2)] for name in names}
    rest = NcclEnv(tuple(pair for pair in candidate.settings if pair[0] not in going))
    if rest != DEFAULTS and keeps_rules(rest) and (can_measure is None or can_measure(rest)):
        return rest
    return smaller[ranked[0]]


def _smaller(
    env: NcclEnv, space: SearchSpace, can_measure: CanMeasure | None
) -> dict[tuple[str, ...], NcclEnv]:
    """The names of each dimension that may be taken away, to the setting without it; never the default.

    keeps_rules(DEFAULTS) holds, so a pair that is all there is ends the search for company and is left out.
    """
    moved = [variable.names for variable in space.variables if variable.names[0] in env.names()]
    found = {}
    for names in moved:
        # Sockets per thread mean nothing without threads: what cannot stand alone goes with it.
        for together in (names, *((*names, *other) for other in moved if other != names)):
            rest = NcclEnv(tuple(pair for pair in env.settings if pair[0] not in together))
            if keeps_rules(rest):
                if rest != DEFAULTS and (can_measure is None or can_measure(rest)):
                    found[together] = rest
                break
    return found


def _round(
    candidate: NcclEnv,
    smaller: tuple[NcclEnv, ...],
    evaluate: Evaluate,
    blocks: int,
    phase: str,
    steps: list[TraceStep],
    tell: Tell | None,
) -> dict[NcclEnv, list[Launch]]:
    """Each once a block, the order turning round from block to block; a setting that fails is not launched again."""
    launches: dict[NcclEnv, list[Launch]] = {env: [] for env in (candidate, *smaller)}
    done = 0
    for block in range(blocks):
        order = [env for env, made in launches.items() if all(launch.is_usable for launch in made)]
        for env in order if block % 2 == 0 else reversed(order):
            launch = evaluate(env, PURPOSE_PRUNE)
            launches[env].append(launch)
            done += 1
            steps.append(
                TraceStep(launch.index, phase, env, 0.0 if launch.is_usable else None, launch.error or "")
            )
            if tell is not None:
                tell(phase, done, blocks * len(launches), launch)
    return launches


def _benefit(
    with_it: list[Launch],
    without: list[Launch],
    weights: Mapping[int, float],
    names: tuple[str, ...],
    candidate: NcclEnv,
) -> SettingEffect | None:
    """What a dimension brings: the speed-up of the candidate over itself without it. None: it cannot be told."""
    pairs = [
        (a.median_seconds(), b.median_seconds())
        for a, b in zip(with_it, without, strict=False)
        if a.is_usable and b.is_usable
    ]
    if len(pairs) < 2 or len(pairs) < len(without):
        return None
    measured = sorted(set.intersection(*(set(times) for pair in pairs for times in pair)))
    share = shares(measured, weights)
    sizes = sorted(share)
    mean = weighted_speedup(
        [[slow[size] for size in sizes] for _, slow in pairs],
        [[fast[size] for size in sizes] for fast, _ in pairs],
        [share[size] for size in sizes],
        SEEN,
    )
    per_size = {
        size: paired_speedup([slow[size] for _, slow in pairs], [fast[size] for fast, _ in pairs], SEEN)
        for size in sizes
    }
    best = max(per_size, key=lambda size: (per_size[size].low, size))
    given = candidate.as_dict()
    return SettingEffect(
        settings=tuple((name, given[name]) for name in names),
        benefit=mean.center,
        low=mean.low,
        high=mean.high,
        best_size_bytes=best,
        best_size_benefit=per_size[best].center,
        best_size_low=per_size[best].low,
        launches=len(pairs),
    )


def _is_seen(effect: SettingEffect, tolerance: float) -> bool:
    """Whether the dimension brings something: on average, or at one size beyond the tolerance."""
    on_average = effect.low > 1 and effect.benefit >= 1 + LEAST_BENEFIT
    at_one_size = effect.best_size_low > 1 and effect.best_size_benefit >= 1 + tolerance
    return on_average or at_one_size
