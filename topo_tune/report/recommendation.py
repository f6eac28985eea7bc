"""A recommendation for people: the answer first, then the evidence, then what one must know about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topo_tune.records.inventory import BackendName
from topo_tune.records.recommendation import Advice, Finalist, Recommendation
from topo_tune.records.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def recommendation_report(recommendation: Recommendation) -> list[RenderableType]:
    """Headline, settings, table of gains with intervals, other finalists, notes."""
    from rich.markup import escape

    replayed = " [yellow](replay)[/yellow]" if recommendation.backend is BackendName.REPLAY else ""
    parts: list[RenderableType] = []
    if recommendation.advice is Advice.CHANGE:
        parts.append(f"[bold green]Recommended for {escape(recommendation.cluster)}[/bold green]{replayed}")
        parts.append("\n".join(f"  {name}={value}" for name, value in recommendation.env.settings))
    else:
        parts.append(f"[bold]Change nothing on {escape(recommendation.cluster)}[/bold]{replayed}")
    parts.append(escape(recommendation.reason))
    shown, *others = recommendation.finalists or (None,)
    if shown is not None:
        parts += [_headline(shown, recommendation), _table(shown, recommendation)]
    if others:
        lines = [f"  {o.env}: {_speed(o)}; {o.reason}" for o in others if o is not None]
        parts.append(escape("\n".join(["Also met the default and not taken:", *lines])))
    facts = ", ".join(f"{name} {value}" for name, value in recommendation.fingerprint)
    parts.append(f"{recommendation.launches_total} launches by back end {recommendation.backend.value}.")
    if facts:
        parts.append(f"Holds for: {escape(facts)}. Void when one of these changes.")
    parts += [f"note: {escape(note)}" for note in recommendation.notes]
    return parts


def _headline(finalist: Finalist, recommendation: Recommendation) -> str:
    from rich.markup import escape

    if finalist.is_accepted and finalist.env == recommendation.env:
        return f"Mean over the weighted sizes: [green]{_speed(finalist)}[/green]"
    return f"Closest: {escape(str(finalist.env))}: {_speed(finalist)}"


def _speed(finalist: Finalist) -> str:
    return f"{finalist.mean_speedup:.2f}x ({finalist.low:.2f} to {finalist.high:.2f})"


def _table(finalist: Finalist, recommendation: Recommendation) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("size", justify="right")
    table.add_column("weight", justify="right")
    table.add_column("default", justify="right")
    table.add_column("tuned", justify="right")
    table.add_column("faster", justify="right")
    table.add_column(f"interval ({recommendation.confidence * 100:.4g} %)", justify="right")
    table.add_column("launches", justify="right")
    for row in finalist.comparisons:
        table.add_row(
            format_bytes(row.size_bytes),
            f"{row.weight:g}",
            format_seconds(row.baseline_seconds),
            format_seconds(row.candidate_seconds),
            f"[{_colour(row.low, row.high)}]{row.speedup:.2f}x[/]",
            f"{row.low:.2f} to {row.high:.2f}",
            f"{row.launches}+{row.launches}",
        )
    return table


def _colour(low: float, high: float) -> str:
    if low > 1:
        return "green"
    return "red" if high < 1 else "default"
