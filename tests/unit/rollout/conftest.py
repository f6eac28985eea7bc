"""A cluster of real folders with the real writer, and launches made up by the test."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from topo_tune.connect.program import find_answer
from topo_tune.errors import NodeProgramFailed
from topo_tune.on_node import nccl_conf, writer
from topo_tune.records.bench import Launch, Probe, SettingInForce, SizeResult, TimingMode
from topo_tune.records.inventory import (
    BackendName,
    ConnectionKind,
    Inventory,
    Node,
    Rack,
    SshOptions,
)
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.records.rollout import FileState, JournalEntry, NodePlan, RolloutPlan, RolloutResult
from topo_tune.records.verdict import Outcome, Verdict
from topo_tune.rollout.execute import Policy, execute, rollback
from topo_tune.rollout.journal import Journal
from topo_tune.rollout.plan import plan_rollout
from topo_tune.rollout.requests import file_states, plan_request, restore_request, write_request

SAFE = nccl_env({"NCCL_SOCKET_NTHREADS": 4, "NCCL_NSOCKS_PERTHREAD": 8})
"""Settings that may differ between ranks."""
RISKY = nccl_env({"NCCL_ALGO": "allreduce:ring", "NCCL_SOCKET_NTHREADS": 4})
"""NCCL_ALGO must be the same on every rank."""
POLICY = Policy(launches=2, more=2, most=6)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def verdict_of(outcome: Outcome) -> Verdict:
    return Verdict(
        outcome=outcome,
        reason=f"made up: {outcome.value}",
        edge=-0.03,
        change=0.1,
        low=0.05,
        high=0.15,
        confidence=0.95,
        launches_before=2,
        launches_after=2,
    )


@dataclass
class Cluster:
    """Racks of nodes, each a folder with files of its own."""

    home: Path
    racks: dict[str, tuple[str, ...]]
    env: NcclEnv = SAFE
    refused: dict[str, Outcome] = field(default_factory=dict)
    """node to the outcome of every wave that is measured with it"""
    source: str = "nccl log"
    run: str = "run"
    events: list[str] = field(default_factory=list)
    launches: int = 0
    before_write: Callable[[str], None] = lambda node: None
    after_write: Callable[[str], None] = lambda node: None
    before_restore: Callable[[str], None] = lambda node: None
    on_measure: Callable[[tuple[str, ...], str], None] = lambda nodes, purpose: None
    on_event: Callable[[JournalEntry], None] = lambda entry: None
    wait_out: Callable[[float], None] = lambda seconds: None
    waited: list[float] = field(default_factory=list)
    passed: float = 0.0
    """seconds since the first entry of the journal"""

    def root(self, node: str) -> Path:
        return self.home / "nodes" / node

    @property
    def run_folder(self) -> Path:
        return self.home / self.run

    @property
    def inventory(self) -> Inventory:
        racks = tuple(
            Rack(
                name,
                tuple(Node(n, name, n, ConnectionKind.LOCAL, root=str(self.root(n))) for n in nodes),
            )
            for name, nodes in self.racks.items()
        )
        return Inventory("test", racks, SshOptions(), BackendName.NCCL)

    def ask(self, node: str, request: dict[str, Any]) -> dict[str, Any]:
        """The real writer's answer, in this process."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            writer.main(io.BytesIO(json.dumps(request).encode()))
        answer = find_answer(out.getvalue().encode())
        assert answer is not None
        if "error" in answer:
            raise NodeProgramFailed(node, answer["error"])
        return answer

    def answers(self) -> dict[str, dict[str, Any]]:
        nodes = [node.name for node in self.inventory.nodes()]
        return {node: self.ask(node, plan_request(str(self.root(node)), self.env)) for node in nodes}

    def plan(self, **options: Any) -> RolloutPlan:
        return plan_rollout(self.inventory, self.env, BackendName.NCCL, self.answers(), (), **options)

    def write(self, plan: NodePlan) -> Sequence[FileState]:
        self.before_write(plan.node)
        states = file_states(plan.node, self.ask(plan.node, write_request(str(self.root(plan.node)), plan)))
        self.after_write(plan.node)
        return states

    def restore(self, plan: NodePlan) -> Sequence[FileState]:
        self.before_restore(plan.node)
        return file_states(plan.node, self.ask(plan.node, restore_request(str(self.root(plan.node)), plan)))

    def measure(self, nodes: tuple[str, ...], purpose: str, count: int) -> tuple[Launch, ...]:
        self.on_measure(nodes, purpose)
        first = self.launches
        self.launches += count
        result = SizeResult(1 << 20, (0.001,), 10, TimingMode.GRAPH, True)
        return tuple(
            Launch(
                index,
                purpose,
                nodes,
                DEFAULTS,
                BackendName.NCCL,
                len(nodes),
                START.isoformat(),
                1.0,
                (result,),
            )
            for index in range(first, first + count)
        )

    def probe(self, nodes: tuple[str, ...]) -> Probe:
        """What NCCL's reading rules give on each node's own files, one rank a node."""
        settings = tuple(
            SettingInForce(rank, node, name, value, where)
            for rank, node in enumerate(nodes)
            for name, (value, where) in nccl_conf.resolve({}, str(self.root(node))).items()
        )
        known = () if self.source.startswith("nobody") else settings
        return Probe(nodes, START.isoformat(), len(nodes), self.source, known)

    def judge(self, before: Sequence[Launch], after: Sequence[Launch]) -> Verdict:
        outcomes = [self.refused[node] for node in after[0].nodes if node in self.refused]
        return verdict_of(outcomes[0] if outcomes else Outcome.IMPROVED)

    def journal(self, **options: Any) -> Journal:
        now = START + datetime.timedelta(seconds=self.passed)
        return Journal(self.run_folder, now=lambda: now, **options)

    def execute(
        self, plan: RolloutPlan, *, policy: Policy = POLICY, consent: bool = True, **options: Any
    ) -> RolloutResult:
        with self.journal(**options) as journal:
            return execute(
                plan,
                journal,
                write=self.write,
                restore=self.restore,
                measure=self.measure,
                probe=self.probe,
                judge=self.judge,
                on_event=self._watch,
                consent=lambda state: consent,
                policy=policy,
                wait_out=self.wait_out,
            )

    def _watch(self, entry: JournalEntry) -> None:
        self.events.append(entry.action.value)
        self.on_event(entry)

    def rollback(self, **options: Any) -> RolloutResult:
        with self.journal() as journal:
            return rollback(
                journal,
                restore=self.restore,
                on_event=lambda entry: None,
                wait_out=self.wait_out,
                **options,
            )

    def bytes_of(self, *nodes: str) -> dict[str, object]:
        """Every path below the nodes' roots: mode, owner, and bytes or link target."""
        return {
            f"{node}/{place.relative_to(self.root(node))}": _seen(place)
            for node in nodes or [node.name for node in self.inventory.nodes()]
            for place in sorted(self.root(node).rglob("*"))
        }


def _seen(place: Path) -> tuple[object, ...]:
    status = place.lstat()
    if place.is_symlink():
        return ("link", os.readlink(place))
    held = place.read_bytes() if place.is_file() else None
    return (oct(status.st_mode), status.st_uid, status.st_gid, held)


def _old_files(cluster: Cluster) -> None:
    """Nodes begin with files of different kinds, by turns."""
    kinds = (_absent, _without_final_newline, _private, _link, _carriage_returns_and_a_fragment)
    for index, node in enumerate(cluster.inventory.nodes()):
        etc = cluster.root(node.name) / "etc"
        etc.mkdir(parents=True)
        kinds[index % len(kinds)](etc)


def _absent(etc: Path) -> None:
    pass


def _without_final_newline(etc: Path) -> None:
    (etc / "nccl.conf").write_bytes(b"NCCL_DEBUG=WARN")


def _private(etc: Path) -> None:
    (etc / "nccl.conf").write_bytes(b"NCCL_DEBUG=WARN\n")
    (etc / "nccl.conf").chmod(0o600)


def _link(etc: Path) -> None:
    (etc / "site.conf").write_bytes(b"NCCL_DEBUG=WARN\n")
    (etc / "nccl.conf").symlink_to("site.conf")


def _carriage_returns_and_a_fragment(etc: Path) -> None:
    (etc / "nccl/conf.d").mkdir(parents=True)
    (etc / "nccl/conf.d/10-site.conf").write_bytes(b"NCCL_CROSS_NIC=1\n")
    (etc / "nccl.conf").write_bytes(b"# site\r\nNCCL_DEBUG=WARN\r\n")


@pytest.fixture
def make_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/home/me")
    # What a disk does is not in question here, and there are thousands of syncs.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def make(racks: dict[str, tuple[str, ...]] | None = None, **options: Any) -> Cluster:
        cluster = Cluster(tmp_path, racks or {"a": ("a1", "a2", "a3"), "b": ("b1", "b2")}, **options)
        _old_files(cluster)
        return cluster

    return make


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Rack a with three nodes, rack b with two."""
    return make_cluster()
