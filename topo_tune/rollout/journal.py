"""The journal of a rollout: a synced line before and after each action, and the pure fold over it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from topo_tune.errors import BrokenRecord
from topo_tune.records.envelope import append_line, load_lines, save_lines_head
from topo_tune.records.lock import take_lock
from topo_tune.records.rollout import (
    Action,
    JournalEntry,
    NodeStatus,
    RolloutPlan,
    RolloutState,
    WaveStatus,
)
from topo_tune.records.verdict import Verdict

FILE_NAME = "60-journal.jsonl"
LOCK_NAME = ".60-journal.lock"


class Journal:
    """The journal of one run folder, held alone: a context manager that locks the folder while it is open.

    The lock is the run folder's. Two run folders for one cluster do not see each other's lock; there the
    writers refuse, because each expects the files that its own plan saw.
    """

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
        append: Callable[[Path, Any], None] = append_line,
    ) -> None:
        self.path = folder / FILE_NAME
        self._lock_path = folder / LOCK_NAME
        self._now, self._append = now, append
        self._lock: int | None = None
        self._entries: tuple[JournalEntry, ...] = ()

    def __enter__(self) -> Journal:
        """Take the lock, read what is there. Raises Refused when another rollout holds it, BrokenRecord."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = take_lock(
                self._lock_path, busy=f"another rollout is at work in {self._lock_path.parent}"
            )
        except OSError as exc:
            raise BrokenRecord(f"cannot lock {self._lock_path}: {exc.strerror}") from exc
        try:
            if self.path.exists():
                self._entries = read_journal(self.path)
            else:
                save_lines_head(self.path, JournalEntry)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    @property
    def entries(self) -> tuple[JournalEntry, ...]:
        """Every line, oldest first."""
        return self._entries

    def state(self) -> RolloutState | None:
        """Where everything stands; None for a journal without a plan: nothing was done."""
        return fold(self._entries)

    def seconds_since(self, at: str) -> float:
        """Seconds since the time `at` of an entry; below zero when the clock was set back."""
        return (self._now() - datetime.datetime.fromisoformat(at)).total_seconds()

    def append(
        self,
        action: Action,
        *,
        wave: str | None = None,
        node: str | None = None,
        plan: RolloutPlan | None = None,
        verdict: Verdict | None = None,
        launches: Sequence[int] = (),
        note: str = "",
    ) -> JournalEntry:
        """Write one line and sync it. Raises BrokenRecord when it cannot be written."""
        entry = JournalEntry(
            at=self._now().isoformat(timespec="milliseconds"),
            action=action,
            wave=wave,
            node=node,
            plan=plan,
            verdict=verdict,
            launches=tuple(launches),
            note=note,
        )
        try:
            self._append(self.path, entry)
        except OSError as exc:
            raise BrokenRecord(f"cannot write the journal {self.path}: {exc.strerror}") from exc
        self._entries = (*self._entries, entry)
        return entry

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def read_journal(path: Path) -> tuple[JournalEntry, ...]:
    """Every line of a journal, without the lock: for `status`. Raises BrokenRecord."""
    return load_lines(path, JournalEntry)


def fold(entries: Sequence[JournalEntry]) -> RolloutState | None:
    """Where everything stands after these lines; None when they hold no plan. Raises BrokenRecord."""
    if not entries:
        return None
    plan = entries[0].plan
    if plan is None or entries[0].action is not Action.PLANNED:
        raise BrokenRecord("the journal does not begin with a plan")
    folding = _Folding(plan)
    for entry in entries[1:]:
        folding.take(entry)
    return folding.state()


def unanswered_writes(entries: Sequence[JournalEntry]) -> dict[str, str]:
    """Nodes whose last write nobody saw the end of, to the time when it began: it may be under way yet."""
    began: dict[str, str] = {}
    for entry in entries:
        if entry.node is None:
            continue
        if entry.action is Action.WRITE_INTENDED:
            began[entry.node] = entry.at
        elif entry.action in (Action.WRITTEN, Action.WRITE_REFUSED, Action.RESTORED):
            began.pop(entry.node, None)
    return began


_NODE_STATUS = {
    Action.WRITE_INTENDED: NodeStatus.WRITING,
    Action.WRITTEN: NodeStatus.WRITTEN,
    Action.WRITE_REFUSED: NodeStatus.UNTOUCHED,
    Action.WRITE_FAILED: NodeStatus.WRITING,
    Action.RESTORE_INTENDED: NodeStatus.RESTORING,
    Action.RESTORED: NodeStatus.RESTORED,
    Action.RESTORE_FAILED: NodeStatus.RESTORING,
}

_WAVE_STATUS = {
    Action.WAVE_STARTED: WaveStatus.IN_PROGRESS,
    Action.WAVE_KEPT: WaveStatus.KEPT,
    Action.WAVE_PUT_BACK: WaveStatus.PENDING,
    Action.WAVE_ROLLBACK_STARTED: WaveStatus.ROLLING_BACK,
    Action.WAVE_ROLLED_BACK: WaveStatus.ROLLED_BACK,
}


class _Folding:
    """The state while lines are added to it."""

    def __init__(self, plan: RolloutPlan) -> None:
        self.plan = plan
        self.nodes = {node.node: NodeStatus.UNTOUCHED for node in plan.nodes}
        self.waves = {wave.name: WaveStatus.PENDING for wave in plan.waves}
        self.verdicts: dict[str, Verdict] = {}
        self.unreached: dict[str, str] = {}
        self.is_finished = False
        self.note = ""

    def take(self, entry: JournalEntry) -> None:
        self._check(entry)
        if entry.node is not None and entry.action in _NODE_STATUS:
            self._node(entry.node, entry)
        if entry.wave is not None and entry.action in _WAVE_STATUS:
            self._wave(entry.wave, entry.action)
        if entry.wave is not None and entry.verdict is not None:
            self.verdicts[entry.wave] = entry.verdict
        if entry.action in (Action.STOPPED, Action.FINISHED):
            self.is_finished = entry.action is Action.FINISHED
            self.note = entry.note

    def state(self) -> RolloutState:
        return RolloutState(
            plan=self.plan,
            nodes=tuple(self.nodes.items()),
            waves=tuple(self.waves.items()),
            verdicts=tuple(self.verdicts.items()),
            unreached=tuple(self.unreached.items()),
            is_finished=self.is_finished,
            note=self.note,
        )

    def _node(self, node: str, entry: JournalEntry) -> None:
        self.nodes[node] = _NODE_STATUS[entry.action]
        if entry.action in (Action.WRITE_FAILED, Action.RESTORE_FAILED):
            self.unreached[node] = entry.note
        elif entry.action in (Action.RESTORED, Action.WRITTEN):
            self.unreached.pop(node, None)

    def _wave(self, wave: str, action: Action) -> None:
        self.waves[wave] = _WAVE_STATUS[action]
        if action is Action.WAVE_ROLLBACK_STARTED:
            self.is_finished = False
        if action is Action.WAVE_STARTED:
            self.verdicts.pop(wave, None)
        if action is Action.WAVE_KEPT:
            self.nodes.update(dict.fromkeys(self.plan.wave(wave).nodes, NodeStatus.KEPT))

    def _check(self, entry: JournalEntry) -> None:
        if entry.action is Action.PLANNED:
            raise BrokenRecord("the journal holds two plans")
        if entry.node is not None and entry.node not in self.nodes:
            raise BrokenRecord(f"the journal names the node `{entry.node}`, which is not in its plan")
        if entry.wave is not None and entry.wave not in self.waves:
            raise BrokenRecord(f"the journal names the wave `{entry.wave}`, which is not in its plan")
