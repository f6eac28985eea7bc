"""The choice: a finalist that proved its gain in fresh launches, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topo_tune.errors import NotEnoughEvidence
from topo_tune.recommend.evidence import Evidence, gather
from topo_tune.recommend.words import percent, times
from topo_tune.records.bench import BenchPlan, Launch
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.recommendation import Advice, Finalist, Recommendation
from topo_tune.records.search import SearchTrace, SettingEffect
from topo_tune.records.topology import Topology
from topo_tune.records.units import format_bytes
from topo_tune.stats.intervals import per_comparison

FEWEST_BLOCKS = 3
"""Usable blocks below which nothing is said: of two, Student's interval is nearly two hundred deviations
wide.
"""

NOT_PRUNED = "its settings were not tried one by one: some of them may add nothing to the gain"


def recommend(
    trace: SearchTrace,
    launches: Sequence[Launch],
    *,
    cluster: str,
    plan: BenchPlan,
    topology: Topology,
    weights: Mapping[int, float],
    tolerance: float = 0.03,
    minimum_gain: float = 0.03,
    confidence: float = 0.99,
    notes: tuple[str, ...] = (),
) -> Recommendation:
    """The advice that the confirmation launches bear out. Pure.

    `launches`: those of the search, found by their index; only the confirmation's count, because luck helped
    to choose the finalists in the screening. Each block of adjacent launches gives one log ratio per
    finalist, and the intervals are Student's over blocks. `confidence` holds for all finalists together; the
    record states the higher one of each single interval. `weights`: size in bytes to weight, empty for all
    the same.

    A finalist is accepted when all of this is so; sizes of weight zero are reported and never decide:

    - it finished every launch with right sums;
    - its weighted mean gain is above zero with confidence, and looks at least `minimum_gain`;
    - no weighted size looks slower than `tolerance`, and none is slower with confidence;
    - for each weighted size a loss of more than twice `tolerance` is excluded, with nine in ten. Else, where
      launches differ by eight per cent, a size that really loses a tenth would slip through once in twenty.

    Of the accepted ones whose mean lies within `tolerance` of the best, the one with the fewest settings is
    recommended, because what brings nothing that can be seen should not be set; with none, `change nothing`. Raises
    NotEnoughEvidence when a finalist that never failed has fewer than three usable blocks.
    """
    each = per_comparison(confidence, len(trace.finalists))
    evidence = gather(trace, launches, weights, each)
    _refuse_too_few(evidence)
    finalists = [
        _judged(item, tolerance, minimum_gain) for item in evidence if len(item.blocks) >= FEWEST_BLOCKS
    ]
    finalists.sort(key=lambda finalist: (not finalist.is_accepted, -finalist.low, finalist.env))
    best = _smallest_of_the_best(finalists, tolerance)
    if best is not None:
        finalists.sort(key=lambda finalist: finalist is not best)
    # The trace takes its first finalist apart, and only that one.
    effects = trace.effects if best is not None and best.env == trace.finalists[0] else ()
    return Recommendation(
        cluster=cluster,
        advice=Advice.CHANGE if best else Advice.CHANGE_NOTHING,
        reason=best.reason if best else _why_nothing(trace, evidence, finalists),
        env=best.env if best else DEFAULTS,
        backend=plan.backend,
        ranks=_ranks(launches, topology),
        collective=plan.collective,
        dtype=plan.dtype,
        confidence=each,
        finalists=tuple(finalists),
        launches_total=len(trace.steps),
        tolerance=tolerance,
        fingerprint=tuple(sorted(topology.fingerprint().items())),
        notes=(*notes, *_failures(evidence), *(_notes_on(best, tolerance, trace, effects) if best else ())),
        effects=effects,
    )


def _ranks(launches: Sequence[Launch], topology: Topology) -> int:
    """Of a launch that gave numbers: one that failed early may not know how many ranks it would have had."""
    counts = (launch.ranks for launch in launches if launch.is_usable)
    return next(counts, topology.node_count * topology.ranks_per_host)


def _smallest_of_the_best(finalists: Sequence[Finalist], tolerance: float) -> Finalist | None:
    accepted = [finalist for finalist in finalists if finalist.is_accepted]
    if not accepted:
        return None
    nearly_best = max(finalist.mean_speedup for finalist in accepted) * (1 - tolerance)
    alike = [finalist for finalist in accepted if finalist.mean_speedup >= nearly_best]
    return min(alike, key=lambda finalist: (len(finalist.env.settings), -finalist.low, finalist.env))


def _refuse_too_few(evidence: Sequence[Evidence]) -> None:
    short = [item for item in evidence if item.failure is None and len(item.blocks) < FEWEST_BLOCKS]
    if short:
        raise NotEnoughEvidence(
            f"the confirmation has {len(short[0].blocks)} usable blocks; {FEWEST_BLOCKS} are needed",
            hint="it was cut short, or NCCL's default failed: run the search again with more blocks",
        )


def _judged(item: Evidence, tolerance: float, minimum_gain: float) -> Finalist:
    stops = _stops(item, tolerance, minimum_gain)
    gain = (
        f"{times(item.mean.center)} the default's speed ({times(item.mean.low)} to {times(item.mean.high)})"
    )
    return Finalist(
        env=item.env,
        mean_speedup=item.mean.center,
        low=item.mean.low,
        high=item.mean.high,
        comparisons=item.comparisons,
        is_accepted=not stops,
        reason=f"{gain}; {'; '.join(stops) if stops else 'no weighted size is seen to be slower'}",
    )


def _stops(item: Evidence, tolerance: float, minimum_gain: float) -> list[str]:
    """What keeps the finalist from being accepted, in words; empty when nothing does."""
    stops = [] if item.failure is None else [f"a launch failed: {item.failure}"]
    for size in item.comparisons:
        if size.weight > 0 and size.speedup < 1 - tolerance:
            stops.append(f"slower at {format_bytes(size.size_bytes)}: {times(size.speedup)}")
        elif size.weight > 0 and item.floors[size.size_bytes] < 1 - 2 * tolerance:
            floor = times(item.floors[size.size_bytes])
            stops.append(
                f"{format_bytes(size.size_bytes)} varies too much to exclude a loss: down to {floor}"
            )
        elif size.weight > 0 and size.high < 1:
            stops.append(
                f"proved slower at {format_bytes(size.size_bytes)}, if only by {percent(1 - size.speedup)}"
            )
    if item.mean.low <= 1:
        stops.append("the gain is not proved: the interval reaches down to no gain at all")
    elif item.mean.center < 1 + minimum_gain:
        stops.append(f"the gain is below {percent(minimum_gain)}, the least worth a change")
    return stops


def _why_nothing(trace: SearchTrace, evidence: Sequence[Evidence], finalists: Sequence[Finalist]) -> str:
    if finalists:
        closest = finalists[0]
        return f"no setting passed; the closest was `{closest.env}`: {closest.reason}"
    if evidence:
        return "every setting that looked best failed when it was launched again"
    if trace.candidates:
        return f"none of the {len(trace.candidates)} settings that were tried finished"
    return "there was no setting to try"


def _failures(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    return tuple(
        f"`{item.env}` failed in the confirmation: {item.failure}" for item in evidence if item.failure
    )


def _dimensions(env: NcclEnv, trace: SearchTrace) -> int:
    """How many dimensions of the space a setting moves; a minimum and a maximum set together are one."""
    return sum(variable.names[0] in env.names() for variable in trace.space.variables)


def _notes_on(
    best: Finalist, tolerance: float, trace: SearchTrace, effects: Sequence[SettingEffect]
) -> tuple[str, ...]:
    ignored = [c for c in best.comparisons if c.weight == 0 and c.speedup < 1 - tolerance]
    slower = tuple(
        f"{format_bytes(c.size_bytes)} has weight zero, so it did not decide: it runs at {times(c.speedup)}"
        for c in ignored
    )
    return slower + ((NOT_PRUNED,) if _dimensions(best.env, trace) > 1 and not effects else ())
