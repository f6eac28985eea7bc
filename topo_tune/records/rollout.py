"""The rollout: what each node's files will become, in which order, and the journal of what was done."""

from __future__ import annotations

import enum

import msgspec

from topo_tune.records.inventory import BackendName, Missing
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.verdict import Verdict


class FileState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file on one node, whole: enough to put it back exactly."""

    path: str
    exists: bool
    content_base64: str | None = None
    sha256: str | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None


class NodePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What changes on one node."""

    node: str
    rack: str
    before: tuple[FileState, ...]
    after: tuple[FileState, ...]
    made_directories: tuple[str, ...] = ()
    """directories that do not exist yet and will be made, outermost first"""
    conflicts: tuple[str, ...] = ()
    """settings of the same names made by somebody else: who and where"""
    notes: tuple[str, ...] = ()
    """what else the write brings about, or what NCCL would misread in other fragments"""

    @property
    def is_change(self) -> bool:
        """Whether anything will be written."""
        return self.before != self.after


class Wave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that change together and are judged together."""

    name: str
    rack: str
    nodes: tuple[str, ...]
    measured: tuple[str, ...]
    """nodes whose launches judge the wave: all of them carry the new setting by then"""


class RolloutPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that will be done, before any of it is."""

    cluster: str
    env: NcclEnv
    backend: BackendName
    nodes: tuple[NodePlan, ...]
    waves: tuple[Wave, ...]
    missing: tuple[Missing, ...] = ()
    must_match: tuple[str, ...] = ()
    """variables that hang a job whose ranks differ in them"""
    edge: float = -0.03
    confined: bool = False
    """whether jobs stay inside one rack, so that every rack is one wave"""
    notes: tuple[str, ...] = ()

    def node(self, name: str) -> NodePlan:
        """The plan of one node. Raises KeyError."""
        return {plan.node: plan for plan in self.nodes}[name]

    def wave(self, name: str) -> Wave:
        """The wave of that name. Raises KeyError."""
        return {wave.name: wave for wave in self.waves}[name]


class Action(enum.Enum):
    """What a journal line is about."""

    PLANNED = "planned"
    WAVE_STARTED = "wave-started"
    MEASURED_BEFORE = "measured-before"
    WRITE_INTENDED = "write-intended"
    WRITTEN = "written"
    WRITE_REFUSED = "write-refused"
    """the node's writer answered that it changed nothing"""
    WRITE_FAILED = "write-failed"
    """no answer: the files may be old or new"""
    PROVED = "proved"
    NOT_PROVED = "not-proved"
    JUDGED = "judged"
    WAVE_KEPT = "wave-kept"
    RESTORE_INTENDED = "restore-intended"
    RESTORED = "restored"
    RESTORE_FAILED = "restore-failed"
    WAVE_PUT_BACK = "wave-put-back"
    """restored because the work was interrupted; the wave may run again"""
    WAVE_ROLLBACK_STARTED = "wave-rollback-started"
    WAVE_ROLLED_BACK = "wave-rolled-back"
    """restored for good: a guard tripped, or somebody asked for it"""
    STOPPED = "stopped"
    FINISHED = "finished"


class JournalEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of the journal: written and synced before or after the action it names."""

    at: str
    """UTC, ISO 8601"""
    action: Action
    wave: str | None = None
    node: str | None = None
    plan: RolloutPlan | None = None
    """only in `planned`"""
    verdict: Verdict | None = None
    """only in `judged`"""
    launches: tuple[int, ...] = ()
    """indices in 61-guard.jsonl that a measurement or verdict rests on"""
    note: str = ""


class NodeStatus(enum.Enum):
    """Where a node stands in a rollout."""

    UNTOUCHED = "untouched"
    WRITING = "writing"
    """a write was begun and not yet acknowledged: its files may be old or new"""
    WRITTEN = "written"
    KEPT = "kept"
    RESTORING = "restoring"
    RESTORED = "restored"


UNSETTLED = (NodeStatus.WRITING, NodeStatus.WRITTEN, NodeStatus.RESTORING)
"""A node left so has settings that nobody proved, or may have."""


class WaveStatus(enum.Enum):
    """Where a wave stands in a rollout."""

    PENDING = "pending"
    IN_PROGRESS = "in progress"
    KEPT = "kept"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"


class RolloutState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a journal says about where everything stands: the fold over its lines."""

    plan: RolloutPlan
    nodes: tuple[tuple[str, NodeStatus], ...]
    """in the plan's order"""
    waves: tuple[tuple[str, WaveStatus], ...]
    """in the plan's order"""
    verdicts: tuple[tuple[str, Verdict], ...] = ()
    """(wave, verdict): the last one of each wave that was judged since it last began"""
    unreached: tuple[tuple[str, str], ...] = ()
    """(node, reason): writes and restores that failed and were not made good since"""
    is_finished: bool = False
    note: str = ""
    """why it stopped, from the last line that says so"""

    def node(self, name: str) -> NodeStatus:
        """The status of one node. Raises KeyError."""
        return dict(self.nodes)[name]

    def wave(self, name: str) -> WaveStatus:
        """The status of one wave. Raises KeyError."""
        return dict(self.waves)[name]

    @property
    def is_over(self) -> bool:
        """Whether no further wave will be written: all are kept, or one is rolled back for good."""
        final = (WaveStatus.ROLLING_BACK, WaveStatus.ROLLED_BACK)
        return self.is_finished or any(status in final for _, status in self.waves)

    def remaining(self) -> tuple[str, ...]:
        """Waves that a resumed rollout would still run, in order."""
        if self.is_over:
            return ()
        return tuple(name for name, status in self.waves if status is not WaveStatus.KEPT)

    def unsettled(self) -> tuple[str, ...]:
        """Nodes whose files may be other than old or kept."""
        return tuple(name for name, status in self.nodes if status in UNSETTLED)


class RolloutResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a rollout, or a rollback, ended."""

    kept: tuple[str, ...]
    """waves whose nodes have the new setting"""
    rolled_back: tuple[str, ...]
    """waves that have their exact old bytes again, but for nodes in `unsettled`"""
    untouched: tuple[str, ...]
    """waves that were never written, or were put back to run again"""
    unsettled: tuple[Missing, ...]
    """nodes whose files may be old or new, because they could not be reached or refused the undo; and why"""
    reason: str
    exit_code: int
    verdicts: tuple[tuple[str, Verdict], ...] = ()
