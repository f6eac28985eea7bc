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
    notes: tuple[str, ...] = ()

    def node(self, name: str) -> NodePlan:
        """The plan of one node. Raises KeyError."""
        return {plan.node: plan for plan in self.nodes}[name]


class Action(enum.Enum):
    """What a journal line is about."""

    PLANNED = "planned"
    WAVE_STARTED = "wave-started"
    MEASURED_BEFORE = "measured-before"
    WRITE_INTENDED = "write-intended"
    WRITTEN = "written"
    PROVED = "proved"
    JUDGED = "judged"
    WAVE_KEPT = "wave-kept"
    RESTORE_INTENDED = "restore-intended"
    RESTORED = "restored"
    WAVE_ROLLED_BACK = "wave-rolled-back"
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
