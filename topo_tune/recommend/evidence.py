"""What the confirmation says about each finalist: block by block, against the default of the same block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from topo_tune.errors import BrokenRecord
from topo_tune.records.bench import Launch
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.search import Comparison, SearchTrace
from topo_tune.stats.intervals import Interval, paired_speedup, weighted_speedup
from topo_tune.stats.objective import mean_log_seconds, shares

Seconds = Mapping[int, float]

FLOOR_CONFIDENCE = 0.9
"""One-sided confidence of the floor under each size's speed-up."""


class Evidence(NamedTuple):
    """One finalist's usable blocks and what they amount to."""

    env: NcclEnv
    blocks: tuple[tuple[Seconds, Seconds], ...]
    """(default's, finalist's) times per size, of blocks in which both are usable"""
    mean: Interval
    """speed-up over the weighted sizes; without at least two blocks it is 1 and says nothing"""
    comparisons: tuple[Comparison, ...]
    floors: Mapping[int, float]
    """per size a speed-up that the true one exceeds with `FLOOR_CONFIDENCE`, taken by itself"""
    failure: str | None
    """why one of its launches failed; None: none did"""


def gather(
    trace: SearchTrace, launches: Sequence[Launch], weights: Mapping[int, float], confidence: float
) -> tuple[Evidence, ...]:
    """Evidence for each finalist of the trace, in its order. `confidence`: of every single interval.

    `weights`: size in bytes to weight; empty weighs every size that all usable confirmation launches
    measured. Raises BrokenRecord when a launch is not of the setting that the trace names.
    """
    blocks = _blocks(trace, launches)
    usable = [launch for block in blocks for launch in block.values() if launch.is_usable]
    measured = (
        set.intersection(*[set(launch.median_seconds()) for launch in usable]) if usable else set[int]()
    )
    wanted = measured | {size for size, weight in weights.items() if weight > 0}
    share = shares(wanted, weights) if wanted else {}
    return tuple(_evidence(env, blocks, share, weights, confidence) for env in trace.finalists)


def _blocks(trace: SearchTrace, launches: Sequence[Launch]) -> tuple[Mapping[NcclEnv, Launch], ...]:
    by_index = {launch.index: launch for launch in launches}
    blocks: dict[int, dict[NcclEnv, Launch]] = {}
    for step in trace.steps:
        if step.block is not None and step.launch in by_index:
            launch = by_index[step.launch]
            if launch.env != step.env:
                raise BrokenRecord(
                    f"launch {step.launch} was one of {launch.env}, and the search says of {step.env}",
                    hint="the launches and the search are of different runs; search again in a new folder",
                )
            blocks.setdefault(step.block, {})[step.env] = launch
    return tuple(blocks.values())


def _evidence(
    env: NcclEnv,
    blocks: Sequence[Mapping[NcclEnv, Launch]],
    share: Mapping[int, float],
    weights: Mapping[int, float],
    confidence: float,
) -> Evidence:
    mine = [block[env] for block in blocks if env in block]
    pairs = tuple(
        (block[DEFAULTS].median_seconds(), block[env].median_seconds())
        for block in blocks
        if all(name in block and _is_complete(block[name], share) for name in (DEFAULTS, env))
    )
    failures = [_why(launch) for launch in mine if not _is_complete(launch, share)]
    failure = failures[0] if failures else None
    if len(pairs) < 2:
        return Evidence(env, pairs, Interval(1.0, 1.0, 1.0), (), {}, failure)
    sizes = sorted(share)
    mean = weighted_speedup(
        _table([default for default, _ in pairs], sizes),
        _table([candidate for _, candidate in pairs], sizes),
        [share[size] for size in sizes],
        confidence,
    )
    comparisons = _comparisons(pairs, weights, confidence)
    floors = {c.size_bytes: _floor(c.size_bytes, pairs) for c in comparisons}
    return Evidence(env, pairs, mean, comparisons, floors, failure)


def _floor(size: int, pairs: Sequence[tuple[Seconds, Seconds]]) -> float:
    # The low end of a two-sided interval leaves only half of its error below it.
    two_sided = 2 * FLOOR_CONFIDENCE - 1
    return paired_speedup(
        [base[size] for base, _ in pairs], [times[size] for _, times in pairs], two_sided
    ).low


def _comparisons(
    pairs: Sequence[tuple[Seconds, Seconds]], weights: Mapping[int, float], confidence: float
) -> tuple[Comparison, ...]:
    everywhere = sorted(set.intersection(*(set(times) for pair in pairs for times in pair)))
    return tuple(_comparison(size, pairs, weights, confidence) for size in everywhere)


def _comparison(
    size: int, pairs: Sequence[tuple[Seconds, Seconds]], weights: Mapping[int, float], confidence: float
) -> Comparison:
    default = np.array([base[size] for base, _ in pairs])
    candidate = np.array([times[size] for _, times in pairs])
    speedup = paired_speedup(default, candidate, confidence)
    return Comparison(
        size_bytes=size,
        weight=weights.get(size, 0.0) if weights else 1.0,
        # Geometric means, so that their ratio is exactly the speed-up that stands beside them.
        baseline_seconds=float(np.exp(np.log(default).mean())),
        candidate_seconds=float(np.exp(np.log(candidate).mean())),
        speedup=speedup.center,
        low=speedup.low,
        high=speedup.high,
        launches=len(pairs),
    )


def _is_complete(launch: Launch, share: Mapping[int, float]) -> bool:
    return launch.is_usable and mean_log_seconds(launch.median_seconds(), share) is not None


def _why(launch: Launch) -> str:
    if launch.error is not None:
        return launch.error
    return "a weighted size was not measured" if launch.is_usable else "wrong sums"


def _table(rows: Sequence[Seconds], sizes: Sequence[int]) -> np.ndarray:
    return np.array([[row[size] for size in sizes] for row in rows])
