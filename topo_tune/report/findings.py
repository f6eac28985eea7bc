"""Findings for people: what is wrong, where, what shows it, why it matters and what to do, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from topo_tune.records.finding import Finding, Severity
from topo_tune.report.text import folded, told

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTICE: "cyan"}
_EVIDENCE_LINES = 5


def findings_report(findings: Sequence[Finding], nodes: Sequence[str]) -> list[RenderableType]:
    """A heading with counts, then each finding; nodes: all that answered, so that `every node` can be said."""
    return [heading(findings), *(_finding(finding, nodes) for finding in findings)]


def heading(findings: Iterable[Finding]) -> str:
    """`2 errors, 1 warning`, as markup."""
    counts = Counter(finding.severity for finding in findings)
    if not counts:
        return "[green]No findings[/green]: no rule saw anything wrong in what was collected."
    words = [
        f"[{_STYLES[severity]}]{counts[severity]} {severity.value}{'' if counts[severity] == 1 else 's'}"
        f"[/{_STYLES[severity]}]"
        for severity in Severity
        if counts[severity]
    ]
    return "Findings: " + ", ".join(words)


def where(finding: Finding, nodes: Sequence[str]) -> str:
    """The nodes of a finding, as short as they can be said."""
    if not finding.nodes:
        return "the files as a whole"
    if len(nodes) > 1 and set(finding.nodes) == set(nodes):
        return f"every node ({len(nodes)})"
    return folded(finding.nodes)


def _finding(finding: Finding, nodes: Sequence[str]) -> RenderableType:
    style = _STYLES[finding.severity]
    title = Table.grid(padding=(0, 1))
    title.add_row(f"[{style}]{finding.severity.value}[/{style}]", f"[bold]{told(finding.what)}[/bold]")
    title.columns[1].overflow = "fold"
    rows = Table.grid(padding=(0, 1))
    rows.add_row("[dim]on[/dim]", told(where(finding, nodes)))
    for position, line in enumerate(_shortened(finding.evidence)):
        rows.add_row("[dim]seen[/dim]" if position == 0 else "", told(line))
    rows.add_row("[dim]why[/dim]", told(finding.why))
    for position, step in enumerate(finding.fix):
        rows.add_row("[dim]fix[/dim]" if position == 0 else "", told(step))
    source = f"; {finding.source}" if finding.source else ""
    rows.add_row("[dim]rule[/dim]", f"[dim]{told(finding.rule + source)}[/dim]")
    rows.columns[1].overflow = "fold"
    return Group(title, Padding(rows, (0, 0, 0, 2)))


def _shortened(evidence: tuple[str, ...]) -> list[str]:
    if len(evidence) <= _EVIDENCE_LINES:
        return list(evidence)
    left_out = len(evidence) - (_EVIDENCE_LINES - 1)
    return [*evidence[: _EVIDENCE_LINES - 1], f"and {left_out} more lines in the record (--json)"]
