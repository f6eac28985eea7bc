"""A rollout for people: the plan with its diff, what happened, and where everything stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType

from topo_tune.records.inventory import BackendName, Missing
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
from topo_tune.report.text import folded, listed, notes, replayed, table, told


def plan_report(plan: RolloutPlan, diffs: Sequence[tuple[str, str]]) -> list[RenderableType]:
    """Waves and who is left out, then the diff of each kind of node, then what one must know."""
    waves = "1 wave" if len(plan.waves) == 1 else f"{len(plan.waves)} waves"
    title = f"[bold]Rollout on {told(plan.cluster)}[/bold]{replayed(plan.backend)}: {waves}"
    rule = (
        f"A wave is kept only if throughput falls by less than {_percent(-plan.edge)}, else it is put back."
    )
    made = table("wave", "nodes", "judged on")
    for number, wave in enumerate(plan.waves, start=1):
        made.add_row(f"{number}. {told(wave.name)}", told(folded(wave.nodes)), told(folded(wave.measured)))
    for missing in plan.missing:
        made.add_row("left out", told(missing.node), f"[red]{told(missing.kind)}[/red]")
    parts: list[RenderableType] = [Group(title, rule), made]
    for nodes, text in diffs:
        parts.append(f"[bold]{told(nodes)}[/bold]\n" + _coloured(text or "nothing to write"))
    if plan.notes:
        parts.append(notes(plan.notes))
    return parts


def entry_line(entry: JournalEntry, backend: BackendName) -> str | None:
    """What a journal line means to somebody watching; None for lines that only matter after a crash."""
    wave, node = entry.wave, entry.node
    if entry.action is Action.JUDGED and entry.verdict is not None:
        return f"{wave}: {verdict_line(entry.verdict, backend)}"
    words = {
        Action.WAVE_STARTED: f"{wave}: begins; measuring as the nodes are",
        Action.WRITTEN: f"{wave}: {node} written",
        Action.RESTORE_INTENDED: f"{wave}: {node}: {entry.note}" if entry.note else "",
        Action.WRITE_REFUSED: f"{wave}: {node} refused the write: {entry.note}{_way_in(entry.note)}",
        Action.WRITE_FAILED: f"{wave}: {node} may be half written: {entry.note}",
        Action.PROVED: f"{wave}: every rank has the setting, {entry.note}",
        Action.NOT_PROVED: f"{wave}: not in force: {entry.note}",
        Action.WAVE_KEPT: f"{wave}: kept",
        Action.RESTORED: f"{wave}: {node} has its old bytes again",
        Action.RESTORE_FAILED: f"{wave}: {node} was NOT restored: {entry.note}",
        Action.WAVE_PUT_BACK: f"{wave}: put back ({_cause(entry.note)})",
        Action.WAVE_ROLLED_BACK: f"{wave}: rolled back ({_cause(entry.note)})",
    }
    return words.get(entry.action) or None


def _way_in(note: str) -> str:
    denied = "Permission denied" in note
    return "; set `ssh.become: sudo` in the cluster file, or log in as root" if denied else ""


def verdict_line(verdict: Verdict, backend: BackendName) -> str:
    """`regressed: throughput -11.2 % (-13.0 % to -9.3 %, 95 %), 5 launches before and 5 after; edge -3 %`.

    Numbers of a replay say so.
    """
    if verdict.change is None:
        return f"{verdict.outcome.value}: {verdict.reason}"
    interval = ""
    if verdict.low is not None and verdict.high is not None:
        confidence = f"{verdict.confidence * 100:.4g} %"
        interval = f" ({_change(verdict.low)} to {_change(verdict.high)}, {confidence})"
    source = ", replay" if backend is BackendName.REPLAY else ""
    return (
        f"{verdict.outcome.value}: throughput {_change(verdict.change)}{interval}, {verdict.launches_before} launches "
        f"before and {verdict.launches_after} after{source}; edge {_percent(verdict.edge)}"
    )


def result_report(
    result: RolloutResult, backend: BackendName, missing: Sequence[Missing] = ()
) -> list[RenderableType]:
    """How it ended: a row for each wave, each node left out and each that needs a hand; then why."""
    verdicts = dict(result.verdicts)
    made = table("", "", "")
    made.show_header = False
    for names, said, colour in (
        (result.kept, "kept", "green"),
        (result.rolled_back, "rolled back", "red"),
        (result.untouched, "untouched", "default"),
    ):
        for name in names:
            # The record does not say which wave an unsettled node is of: as long as there is one, none is called done.
            word = "partly back" if said == "rolled back" and result.unsettled else said
            verdict = verdicts.get(name)
            # A wave that passed and was rolled back all the same was so for another reason: see the last line.
            is_why = verdict is not None and (said == "kept") == verdict.lets_go_on
            why = verdict_line(verdict, backend) if verdict is not None and is_why else ""
            made.add_row(f"[{colour}]{word}[/]", told(name), told(why))
    for entry in result.unsettled:
        made.add_row(
            "[bold red]needs a hand[/bold red]", told(entry.node), told(f"{entry.kind}; {entry.reason}")
        )
    for entry in missing:
        made.add_row("[red]left out[/red]", told(entry.node), told(f"{entry.kind}: {entry.reason}"))
    reason = told(_without_verdicts(result))
    return [made, reason] if made.row_count else [reason]


def status_report(
    state: RolloutState, found: Mapping[str, str], missing: Sequence[Missing], *, asked: bool
) -> list[RenderableType]:
    """Where a rollout stands by its journal, beside what the nodes say themselves."""
    verdicts = dict(state.verdicts)
    waves = table("wave", "stands", "judged")
    for name, status in state.waves:
        verdict = verdicts.get(name)
        judged = told(verdict_line(verdict, state.plan.backend)) if verdict is not None else "not yet"
        waves.add_row(told(name), status.value, judged)
    title = f"[bold]Rollout on {told(state.plan.cluster)}[/bold]{replayed(state.plan.backend)}"
    parts: list[RenderableType] = [
        title,
        listed("Setting:", [(f"{name}={value}",) for name, value in state.plan.env.settings]),
        waves,
        _nodes_table(state, found, missing),
    ]
    if not asked:
        parts.append("The nodes were not asked (--offline).")
    if state.unsettled() or any(status in _BROKEN_OFF for _, status in state.waves):
        parts.append(
            "A wave was broken off, or is at work now. If nothing is: `apply --resume` or `rollback` with this run "
            "folder settles it."
        )
    return parts


_BROKEN_OFF = (WaveStatus.IN_PROGRESS, WaveStatus.ROLLING_BACK)
_TUNED = (NodeStatus.WRITTEN, NodeStatus.KEPT)
_UNCERTAIN = (NodeStatus.WRITING, NodeStatus.RESTORING)


def as_journal_says(status: NodeStatus, found: str) -> bool:
    """Whether files that were found `old`, `new` or `other` are what the journal expects of the node."""
    if status in _UNCERTAIN:
        return found in ("old", "new")
    return found == ("new" if status in _TUNED else "old")


def _nodes_table(state: RolloutState, found: Mapping[str, str], missing: Sequence[Missing]) -> RenderableType:
    reasons = {entry.node: f"{entry.kind}: {entry.reason}" for entry in missing}
    rows: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for plan in state.plan.nodes:
        said = found.get(plan.node)
        absent = told(reasons.get(plan.node, "not asked"))
        status = state.node(plan.node)
        standing = absent if said is None else _standing(status, said)
        rows[told(plan.rack), status.value, standing].append(plan.node)
    made = table("nodes", "rack", "by the journal", "files on the node")
    for row, nodes in rows.items():
        made.add_row(told(folded(nodes)), *row)
    for entry in state.plan.missing:
        made.add_row(told(entry.node), "", "left out", told(f"{entry.kind} when it was planned"))
    return made


def _standing(status: NodeStatus, said: str) -> str:
    words = {"old": "as before the rollout", "new": "tuned", "other": "edited by somebody since"}
    text = told(words.get(said, said))
    return text if as_journal_says(status, said) else f"[red]{text}[/red]"


def _cause(note: str) -> str:
    """Why, in short where a verdict stands in the line before with its numbers.

    An inconclusive one has advice in its reason, which the numbers do not tell.
    """
    regressed = Outcome.REGRESSED.value
    return regressed if note.startswith(f"{regressed}: ") else note


def _without_verdicts(result: RolloutResult) -> str:
    reason = result.reason
    for _, verdict in result.verdicts:
        if verdict.outcome is Outcome.REGRESSED:
            reason = reason.replace(f": {verdict.outcome.value}: {verdict.reason}", "")
    return reason


def _change(value: float) -> str:
    return f"{value * 100:+.1f} %"


def _percent(value: float) -> str:
    return f"{value * 100:.3g} %"


def _coloured(diff: str) -> str:
    lines = []
    for line in diff.splitlines():
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        lines.append(f"[{colour}]{told(line)}[/]" if colour else told(line))
    return "\n".join(lines)
