"""A rollout for people: the plan with its diff, what happened, and where everything stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from topo_tune.records.inventory import BackendName, Missing
from topo_tune.records.nodeset import fold
from topo_tune.records.rollout import (
    Action,
    JournalEntry,
    NodeStatus,
    RolloutPlan,
    RolloutResult,
    RolloutState,
    WaveStatus,
)
from topo_tune.records.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLOUR = {
    Outcome.PASS: "green",
    Outcome.IMPROVED: "green",
    Outcome.REGRESSED: "red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NO_DATA: "yellow",
}


def plan_report(plan: RolloutPlan, diffs: tuple[tuple[str, str], ...]) -> list[RenderableType]:
    """Waves, then the diff of each kind of node, then what one must know."""
    from rich.markup import escape
    from rich.table import Table

    replayed = " [yellow](replay)[/yellow]" if plan.backend is BackendName.REPLAY else ""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("wave", "nodes", "judged on"):
        table.add_column(title)
    for number, wave in enumerate(plan.waves, start=1):
        table.add_row(f"{number}. {wave.name}", fold(wave.nodes), fold(wave.measured))
    parts: list[RenderableType] = [
        f"[bold]Rollout on {escape(plan.cluster)}[/bold]{replayed}: {len(plan.waves)} waves, "
        f"each is kept only if throughput stays above {plan.edge:+.0%}",
        table,
    ]
    for nodes, text in diffs:
        parts.append(f"[bold]{escape(nodes)}[/bold]\n" + _coloured(text or "nothing to write\n"))
    parts += [f"not reached: {escape(m.node)}: {escape(m.reason)}" for m in plan.missing]
    parts += [f"note: {escape(note)}" for note in plan.notes]
    return parts


def entry_line(entry: JournalEntry) -> str | None:
    """What a journal line means to somebody watching; None for lines that only matter after a crash."""
    wave, node = entry.wave, entry.node
    if entry.action is Action.JUDGED and entry.verdict is not None:
        return f"{wave}: {verdict_line(entry.verdict)}"
    words = {
        Action.WAVE_STARTED: f"{wave}: begins; measuring as the nodes are",
        Action.WRITTEN: f"{wave}: {node} written",
        Action.WRITE_REFUSED: f"{wave}: {node} refused the write: {entry.note}",
        Action.WRITE_FAILED: f"{wave}: {node} may be half written: {entry.note}",
        Action.PROVED: f"{wave}: every rank has the setting, {entry.note}",
        Action.NOT_PROVED: f"{wave}: not in force: {entry.note}",
        Action.WAVE_KEPT: f"{wave}: kept",
        Action.RESTORED: f"{wave}: {node} has its old bytes again",
        Action.RESTORE_FAILED: f"{wave}: {node} was NOT restored: {entry.note}",
        Action.WAVE_PUT_BACK: f"{wave}: put back ({entry.note})",
        Action.WAVE_ROLLED_BACK: f"{wave}: rolled back ({entry.note})",
    }
    return words.get(entry.action)


def verdict_line(verdict: Verdict) -> str:
    """`regressed: -11.2 % (-13.0 % to -9.3 %, 95 %), 5 launches before and 5 after; edge -3 %`."""
    if verdict.change is None:
        return f"{verdict.outcome.value}: {verdict.reason}"
    interval = ""
    if verdict.low is not None and verdict.high is not None:
        interval = f" ({_percent(verdict.low)} to {_percent(verdict.high)}, {verdict.confidence:.0%})"
    return (
        f"{verdict.outcome.value}: throughput {_percent(verdict.change)}{interval}, {verdict.launches_before} launches "
        f"before and {verdict.launches_after} after; edge {_percent(verdict.edge)}"
    )


def result_report(result: RolloutResult) -> list[RenderableType]:
    """How it ended: one line a wave, then anything that needs a hand."""
    from rich.markup import escape

    verdicts = dict(result.verdicts)
    parts: list[RenderableType] = []
    for names, word, colour in (
        (result.kept, "kept", "green"),
        (result.rolled_back, "rolled back", "red"),
        (result.untouched, "untouched", "default"),
    ):
        for name in names:
            verdict = verdicts.get(name)
            why = f": {verdict_line(verdict)}" if verdict is not None and word != "untouched" else ""
            parts.append(f"[{colour}]{word:<11}[/] {escape(name)}{escape(why)}")
    for missing in result.unsettled:
        parts.append(
            f"[bold red]needs a hand[/] {escape(missing.node)}: {missing.kind}; {escape(missing.reason)}"
        )
    return ["\n".join(str(part) for part in parts), escape(result.reason)]


def status_report(
    state: RolloutState, found: Mapping[str, str], missing: tuple[Missing, ...], *, asked: bool
) -> list[RenderableType]:
    """Where a rollout stands by its journal, beside what the nodes say themselves."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("node", "rack", "journal", "files on the node"):
        table.add_column(title)
    reasons = {entry.node: f"{entry.kind}: {entry.reason}" for entry in missing}
    for plan in state.plan.nodes:
        status = state.node(plan.node)
        said = found.get(plan.node) or reasons.get(plan.node) or "not asked"
        table.add_row(plan.node, plan.rack, status.value, _standing(status, said))
    waves = ", ".join(f"{name} {status.value}" for name, status in state.waves)
    parts: list[RenderableType] = [f"[bold]{escape(state.plan.cluster)}[/bold]: {waves}", table]
    if state.note:
        parts.append(escape(state.note))
    if not asked:
        parts.append("the nodes were not asked (--offline)")
    if any(status in (WaveStatus.IN_PROGRESS, WaveStatus.ROLLING_BACK) for _, status in state.waves):
        parts.append(
            "a wave was broken off: `topo-tune apply RUN_DIR --resume` or `topo-tune rollback RUN_DIR` settles it"
        )
    return parts


def _standing(status: NodeStatus, said: str) -> str:
    expected = "new" if status in (NodeStatus.WRITTEN, NodeStatus.KEPT) else "old"
    words = {"old": "as before the rollout", "new": "tuned", "other": "edited by somebody since"}
    text = words.get(said, said)
    return text if said in (expected, "not asked") else f"[red]{text}[/red]"


def _percent(value: float) -> str:
    return f"{value * 100:+.1f} %"


def _coloured(diff: str) -> str:
    from rich.markup import escape

    lines = []
    for line in diff.splitlines():
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        lines.append(f"[{colour}]{escape(line)}[/]" if colour else escape(line))
    return "\n".join(lines)
