"""A recommendation in plain language, line by line."""

from __future__ import annotations

from topo_tune.records.recommendation import Advice, Finalist, Recommendation
from topo_tune.records.search import Comparison
from topo_tune.records.units import format_bytes, format_seconds


def explain(recommendation: Recommendation) -> tuple[str, ...]:
    """What to do, what it gives per size, what else was confirmed, what it holds for. No line ends in a
    newline.
    """
    lines = [*_advice(recommendation)]
    if recommendation.finalists:
        lines += ["", f"measured for `{recommendation.finalists[0].env}`:"]
        lines += [f"  {line}" for line in map(size_line, recommendation.finalists[0].comparisons)]
        lines.append(f"  over the weighted sizes: {_interval(recommendation.finalists[0])}")
        lines.append(f"  each interval holds with {_confidence(recommendation.confidence)} confidence")
    others = recommendation.finalists[1:]
    lines += ["", "confirmed besides:"] if others else []
    lines += [f"  `{other.env}`: {other.reason}" for other in others]
    lines += ["", f"holds for: {', '.join(f'{name} {value}' for name, value in recommendation.fingerprint)}"]
    lines.append("measure again when one of these changes")
    return (*lines, *(f"note: {note}" for note in recommendation.notes))


def size_line(comparison: Comparison) -> str:
    """`32M: 11.3 ms -> 3.20 ms, 3.53x (3.21x to 3.88x)`."""
    before, after = format_seconds(comparison.baseline_seconds), format_seconds(comparison.candidate_seconds)
    ratio = f"{times(comparison.speedup)} ({times(comparison.low)} to {times(comparison.high)})"
    remark = ", weight zero: does not decide" if comparison.weight == 0 else ""
    return f"{format_bytes(comparison.size_bytes)}: {before} -> {after}, {ratio}{remark}"


def times(ratio: float) -> str:
    """A speed-up as a factor: `1.93x`; above one is faster than the default."""
    return f"{ratio:.2f}x"


def percent(share: float) -> str:
    """A share as per cent: `3 %`, `0.4 %`."""
    return f"{share * 100:.2g} %"


def _advice(recommendation: Recommendation) -> list[str]:
    where = f"{recommendation.cluster}: {recommendation.collective}, {recommendation.dtype}"
    source = f"{recommendation.ranks} ranks, back end {recommendation.backend.value}"
    lines = [f"{where}, {source}, {recommendation.launches_total} launches"]
    if recommendation.advice is Advice.CHANGE_NOTHING:
        return [*lines, "change nothing", recommendation.reason]
    return [*lines, "change:", *(f"  {n}={v}" for n, v in recommendation.env.settings), recommendation.reason]


def _interval(finalist: Finalist) -> str:
    return f"{times(finalist.mean_speedup)} ({times(finalist.low)} to {times(finalist.high)})"


def _confidence(confidence: float) -> str:
    return f"{confidence * 100:.2f} %"
