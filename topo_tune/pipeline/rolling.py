"""From the recommendation to the nodes' files, wave by wave, and back to the old bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from topo_tune.bench.backends.interface import Backend
from topo_tune.bench.plan import weights_of
from topo_tune.bench.record import RecordedLaunches
from topo_tune.connect.interface import Connection
from topo_tune.connect.program import run_program
from topo_tune.errors import BrokenRecord, InputError, Refused
from topo_tune.judge.throughput import judge_throughput
from topo_tune.pipeline.cluster import Cluster, Watch, reach
from topo_tune.pipeline.journey import scan
from topo_tune.records.bench import BenchPlan, Launch, Probe
from topo_tune.records.envelope import append_line, load, save_lines_head
from topo_tune.records.inventory import Inventory, Missing, Node
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.progress import Progress
from topo_tune.records.recommendation import Advice, Recommendation
from topo_tune.records.rollout import (
    FileState,
    JournalEntry,
    NodePlan,
    NodeStatus,
    RolloutPlan,
    RolloutResult,
    RolloutState,
)
from topo_tune.records.run_folder import RunFolder
from topo_tune.records.scan import NodeScan
from topo_tune.records.topology import Topology
from topo_tune.records.verdict import Verdict
from topo_tune.rollout.execute import Policy, execute
from topo_tune.rollout.execute import rollback as execute_rollback
from topo_tune.rollout.journal import Journal, fold, read_journal
from topo_tune.rollout.plan import check_agreement, check_conflicts, plan_rollout
from topo_tune.rollout.requests import (
    PROGRAM,
    file_states,
    inspect_request,
    plan_request,
    restore_request,
    standing,
    write_request,
)

WRITE_DEADLINE_SECONDS = 60.0

OnEntry = Callable[[JournalEntry], None]


class ApplyOptions(msgspec.Struct, frozen=True):
    """What an operator may choose about a rollout."""

    canary: int = 2
    drained: bool = False
    confined: bool = False
    edge: float = -0.03
    policy: Policy = Policy()
    ignore_fingerprint: bool = False


class NothingToApply(Exception):
    """The recommendation is to change nothing."""


def load_recommendation(folder: RunFolder) -> Recommendation:
    """The recommendation to roll out. Raises NothingToApply when it is to change nothing."""
    recommendation = load(folder.need(folder.recommendation, "init"), Recommendation)
    if recommendation.advice is Advice.CHANGE_NOTHING:
        raise NothingToApply(recommendation.reason)
    return recommendation


def plan_apply(
    folder: RunFolder, cluster: Cluster, recommendation: Recommendation, options: ApplyOptions
) -> RolloutPlan:
    """What a rollout would do: the nodes are asked what their files would become; nothing is written.

    Raises Refused for conflicts, for ranks that could disagree, and when the nodes are not those that the
    recommendation holds for.
    """
    found, topology = scan(cluster)
    if not options.ignore_fingerprint:
        _check_fingerprint(topology, recommendation)

    def ask(connection: Connection) -> dict[str, Any]:
        request = plan_request(connection.node.root, recommendation.env)
        return _writer(connection, request)

    # Of a node that the scan did not see nobody knows whether it is in the fingerprint, or what its login sets.
    seen = tuple(node for node in cluster.inventory.nodes() if found.node(node.name) is not None)
    answers, unanswered = cluster.on_each_node(ask, stage="plan", nodes=seen)
    missing = (*found.missing, *unanswered)
    plan = plan_rollout(
        cluster.inventory,
        recommendation.env,
        recommendation.backend,
        {
            name: _with_login_conflicts(answer, found.node(name), recommendation.env)
            for name, answer in answers.items()
        },
        missing,
        canary=options.canary,
        confined=options.confined,
        edge=options.edge,
        notes=load(folder.plan, BenchPlan).notes,
    )
    check_conflicts(plan)
    check_agreement(plan, drained=options.drained, confined=options.confined)
    return plan


def apply(
    folder: RunFolder,
    cluster: Cluster,
    plan: RolloutPlan,
    options: ApplyOptions,
    *,
    consent: Callable[[RolloutState], bool],
    on_entry: OnEntry,
    watch: Watch,
) -> RolloutResult:
    """Carry a plan out, or go on where its journal stops; see `rollout/execute.py` for what can happen.

    Raises Refused when the options do not make up for ranks that could disagree.
    """
    check_resume(plan, options, recorded_state(folder))
    bench_plan = load(folder.plan, BenchPlan)
    weights = weights_of(cluster.inventory, bench_plan)

    def judge(before: Sequence[Launch], after: Sequence[Launch]) -> Verdict:
        return judge_throughput(before, after, weights=weights, edge=plan.edge, looks=options.policy.looks)

    with Journal(folder.path) as journal, cluster.backend() as backend:
        guard = _Guard(folder, cluster, backend, bench_plan, watch)
        return execute(
            plan,
            journal,
            write=lambda node: _write(cluster, node),
            restore=lambda node: _restore(cluster, node, force=False),
            measure=guard.measure,
            probe=guard.probe,
            judge=judge,
            on_event=on_entry,
            consent=consent,
            policy=options.policy,
        )


def check_resume(plan: RolloutPlan, options: ApplyOptions, state: RolloutState | None) -> None:
    """Refuse to go on with a rollout that has waves to come unless the options, given anew, make it safe.

    Whether jobs run is a fact of today: what was said when the plan was made does not hold for a resume.
    """
    if state is None or state.remaining():
        check_agreement(plan, drained=options.drained, confined=options.confined)


def rollback(
    folder: RunFolder,
    *,
    waves: Sequence[str],
    racks: Sequence[str],
    force: bool,
    on_entry: OnEntry,
    watch: Watch,
) -> RolloutResult:
    """Put the old bytes back, of everything or of some waves or racks. Raises Refused where there is no rollout."""
    inventory = load(folder.inventory, Inventory)
    if recorded_state(folder) is None:
        raise InputError(
            f"{folder.path} holds no rollout", hint="nothing was written, so nothing needs undoing"
        )
    with reach(inventory, watch) as cluster, Journal(folder.path) as journal:
        return execute_rollback(
            journal,
            restore=lambda node: _restore(cluster, node, force=force),
            on_event=on_entry,
            waves=waves,
            racks=racks,
        )


def recorded_state(folder: RunFolder) -> RolloutState | None:
    """Where the journal says everything stands; None when nothing was ever planned.

    Raises BrokenRecord when the journal is gone, or holds no plan, beside the launches of a rollout: then nobody can
    say here what was written, and least of all that nothing was.
    """
    state = fold(read_journal(folder.journal)) if folder.journal.exists() else None
    if state is None and (folder.guard.exists() or folder.proofs.exists()):
        raise BrokenRecord(
            f"{folder.journal} is missing or cut short, but a rollout took place: {folder.guard.name} or "
            f"{folder.proofs.name} is there",
            hint="put the journal back from a copy; without one, see docs/how-to/roll-back.md for undoing it by hand",
        )
    return state


def is_undone(state: RolloutState) -> bool:
    """Whether a rollout is over and every node has its old bytes, so that another may begin."""
    settled = (NodeStatus.UNTOUCHED, NodeStatus.RESTORED)
    return state.is_over and all(status in settled for _, status in state.nodes)


def put_aside(folder: RunFolder) -> None:
    """Keep the files of an undone rollout under a number, so that another can begin in the same run folder."""
    number = 1
    while folder.journal.with_suffix(f".{number}.jsonl").exists():
        number += 1
    for path in (folder.guard, folder.proofs, folder.journal):
        if path.exists():
            path.rename(path.with_suffix(f".{number}.jsonl"))


def standings(cluster: Cluster, plan: RolloutPlan) -> tuple[dict[str, str], tuple[Missing, ...]]:
    """What the nodes themselves say: their files are `old`, `new` or `other`, by node name; and who did not answer."""

    def look(connection: Connection) -> str:
        answer = _writer(connection, inspect_request(connection.node.root))
        name = connection.node.name
        return standing(plan.node(name), file_states(name, answer))

    nodes = tuple(cluster.inventory.node(node.node) for node in plan.nodes)
    return cluster.on_each_node(look, stage="status", nodes=nodes)


class _Guard:
    """Measures and probes as jobs run: nothing of the setting in the launch environment, files alone decide."""

    def __init__(
        self, folder: RunFolder, cluster: Cluster, backend: Backend, plan: BenchPlan, watch: Watch
    ) -> None:
        self._proofs = folder.proofs
        self._cluster, self._backend, self._plan, self._watch = cluster, backend, plan, watch
        self._nodes: tuple[str, ...] = ()
        self._launches = RecordedLaunches(folder.guard, self._launch, append_only=True)

    def measure(self, nodes: tuple[str, ...], purpose: str, count: int) -> tuple[Launch, ...]:
        self._nodes = nodes
        made = []
        for number in range(1, count + 1):
            made.append(self._launches.evaluate(DEFAULTS, purpose))
            self._watch.on_progress(Progress(purpose, number, count, made[-1].error or "measured"))
        return tuple(made)

    def probe(self, nodes: tuple[str, ...]) -> Probe:
        found = self._backend.probe(self._at(nodes), DEFAULTS)
        # Kept with NCCL's own log lines: before a write they are as much evidence as after it.
        if not self._proofs.exists():
            save_lines_head(self._proofs, Probe)
        append_line(self._proofs, found)
        return found

    def _launch(self, env: NcclEnv, purpose: str, index: int) -> Launch:
        return self._backend.measure(self._at(self._nodes), env, self._plan, index=index, purpose=purpose)

    def _at(self, names: tuple[str, ...]) -> tuple[Node, ...]:
        return tuple(self._cluster.inventory.node(name) for name in names)


def _with_login_conflicts(answer: dict[str, Any], found: NodeScan | None, env: NcclEnv) -> dict[str, Any]:
    """The writer's answer with conflicts of the login account added.

    Under sudo the writer sees root's environment and root's home; jobs start from the account's, which the scan saw.
    """
    if found is None:
        return answer
    set_by = [(name, value, "the login environment") for name, value in found.nccl_environment]
    set_by += [
        (setting.name, setting.value, f"{file.path}:{setting.line}")
        for file in found.nccl_files
        if file.path.endswith("/.nccl.conf")
        for setting in file.settings
    ]
    known = "\n".join(answer.get("conflicts", ()))
    added = [
        f"`{name}` is set to `{value}` by {where}"
        for name, value, where in set_by
        if name in env.names() and f"`{name}`" not in known
    ]
    return {**answer, "conflicts": [*answer.get("conflicts", ()), *added]}


def _check_fingerprint(topology: Topology, recommendation: Recommendation) -> None:
    now = topology.fingerprint()
    # A rollout may reach fewer nodes than the search did; everything else must be as it was.
    changed = [
        f"{name}: recommended for {value}, found {now.get(name, 'nothing')}"
        for name, value in recommendation.fingerprint
        if name != "nodes" and now.get(name) != value
    ]
    if changed:
        raise Refused(
            "the recommendation does not hold for these nodes any more: " + "; ".join(changed),
            hint="run `topo-tune init` again, or give --ignore-fingerprint if you know why it still holds",
        )


def _writer(connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
    return run_program(connection, PROGRAM, request, deadline_seconds=WRITE_DEADLINE_SECONDS, become=True)


def _write(cluster: Cluster, plan: NodePlan) -> tuple[FileState, ...]:
    connection = cluster.connections.to(cluster.inventory.node(plan.node))
    answer = _writer(connection, write_request(connection.node.root, plan))
    return file_states(plan.node, answer)


def _restore(cluster: Cluster, plan: NodePlan, *, force: bool) -> tuple[FileState, ...]:
    connection = cluster.connections.to(cluster.inventory.node(plan.node))
    answer = _writer(connection, restore_request(connection.node.root, plan, force=force))
    return file_states(plan.node, answer)
