"""What changed between two scans, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from topo_tune.records.finding import Finding
from topo_tune.report.text import folded, listed, table, told
from topo_tune.scan.difference import Change, Difference

_CHANGES_LIMIT = 200


def difference_report(found: Difference, *, old: str, new: str) -> list[RenderableType]:
    """Findings first: they say what the changes mean; then nodes, then facts folded over nodes."""
    if found.is_empty:
        return [f"Nothing differs between {told(old)} and {told(new)}."]
    parts: list[RenderableType] = [f"From {told(old)} to {told(new)}:"]
    if found.findings_new:
        parts.append(listed("New findings:", _findings(found.findings_new)))
    if found.findings_gone:
        parts.append(listed("Findings that are gone:", _findings(found.findings_gone)))
    nodes = [("gone", found.nodes_gone), ("new", found.nodes_new)]
    if any(names for _, names in nodes):
        parts.append(listed("Nodes:", [(word, folded(names)) for word, names in nodes if names]))
    if found.changes:
        parts.append(_changes(found.changes))
    if len(found.changes) > _CHANGES_LIMIT:
        parts.append(f"and {len(found.changes) - _CHANGES_LIMIT} more changes (--json has them all)")
    return parts


def _findings(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    return [
        (
            finding.severity.value,
            folded(finding.nodes) if finding.nodes else "-",
            f"{finding.what} ({finding.rule})",
        )
        for finding in findings
    ]


def _changes(changes: Sequence[Change]) -> RenderableType:
    made = table("nodes", "fact", "before", "after")
    for change in changes[:_CHANGES_LIMIT]:
        before, after = (
            "[dim]not there[/dim]" if v is None else told(v) for v in (change.before, change.after)
        )
        made.add_row(told(folded(change.nodes)), told(change.fact), before, after)
    return made
