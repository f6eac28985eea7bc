"""A recommendation for people: the answer first, then the evidence, then what one must know about it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding

from topo_tune.records.recommendation import Advice, Finalist, Recommendation
from topo_tune.records.search import Comparison
from topo_tune.records.units import format_bytes, format_seconds
from topo_tune.report.text import listed, notes, replayed, table, told


def recommendation_report(recommendation: Recommendation) -> list[RenderableType]:
    """The advice, the table of gains with intervals, other finalists, what it holds for, notes."""
    parts = [_advice(recommendation)]
    shown, *others = recommendation.finalists or (None,)
    if shown is not None:
        parts.append(_evidence(shown, recommendation))
    if recommendation.effects:
        parts.append(_effects(recommendation))
    if others:
        rows = [(f"{other.env}:", other.reason) for other in others if other is not None]
        parts.append(listed("Launched again with it and not taken:", rows))
    parts.append(_validity(recommendation))
    if recommendation.notes:
        parts.append(notes(recommendation.notes))
    return parts


def _advice(recommendation: Recommendation) -> RenderableType:
    cluster, mark = told(recommendation.cluster), replayed(recommendation.backend)
    if recommendation.advice is Advice.CHANGE:
        settings = "\n".join(f"{name}={value}" for name, value in recommendation.env.settings)
        title = f"[bold green]Recommended for {cluster}[/bold green]{mark}"
        return Group(title, Padding(told(settings), (1, 0, 1, 2)), told(recommendation.reason))
    return Group(
        f"[bold green]Change nothing on {cluster}[/bold green]{mark}",
        "NCCL's own choices stand: no setting that was tried is proved better, so none is worth the risk.",
        told(recommendation.reason),
    )


def _evidence(finalist: Finalist, recommendation: Recommendation) -> RenderableType:
    what = (
        f"One {recommendation.collective} of {recommendation.dtype} on {recommendation.ranks} ranks, back end "
        f"{recommendation.backend.value}; the default and `{finalist.env}` in fresh launches, interleaved:"
    )
    interval = f"{recommendation.confidence * 100:.4g} % interval"
    numbers = ("size", "weight", "default", "tuned", "speed-up", interval, "launches")
    made = table(*numbers, right=numbers)
    for row in finalist.comparisons:
        made.add_row(*_cells(row))
    mean = (f"{finalist.mean_speedup:.2f}x", _span(finalist.low, finalist.high))
    made.add_row("mean", "", "", "", *mean, "")
    return Group(told(what), made)


def _effects(recommendation: Recommendation) -> RenderableType:
    numbers = ("mean speed-up", "interval", "most at", "there", "launches")
    made = table("setting", *numbers, right=numbers)
    for effect in recommendation.effects:
        made.add_row(
            told(" ".join(f"{name}={value}" for name, value in effect.settings)),
            f"{effect.benefit:.2f}x",
            _span(effect.low, effect.high),
            format_bytes(effect.best_size_bytes),
            f"{effect.best_size_benefit:.2f}x",
            f"{effect.launches}+{effect.launches}",
        )
    return Group("What each setting brings, beside the same setting without it:", made)


def _span(low: float, high: float) -> str:
    """An interval; a few noisy launches can make one that says nothing, and then so does this."""
    return f"{low:.2f} to {high:.2f}" if high < 100 * max(low, 0.01) else "cannot tell"


def _cells(row: Comparison) -> tuple[str, ...]:
    return (
        format_bytes(row.size_bytes),
        f"{row.weight:g}",
        format_seconds(row.baseline_seconds),
        format_seconds(row.candidate_seconds),
        f"[{_colour(row.low, row.high)}]{row.speedup:.2f}x[/]",
        _span(row.low, row.high),
        f"{row.launches}+{row.launches}",
    )


def _validity(recommendation: Recommendation) -> RenderableType:
    facts = ", ".join(f"{name} {value}" for name, value in recommendation.fingerprint)
    effort = f"{recommendation.launches_total} launches in all, back end {recommendation.backend.value}."
    return told(f"{effort} Holds for: {facts}. Void when one of these changes." if facts else effort)


def _colour(low: float, high: float) -> str:
    if low > 1:
        return "green"
    return "red" if high < 1 else "default"
