"""From the cluster file to the recommendation: scan, topology, bench, search, recommend.

Stages never see each other; what one needs from another is passed in here as an argument. Every step leaves its record
in the run folder before the next begins, so that a run can be interrupted anywhere and go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from topo_tune.bench.backends.interface import Backend
from topo_tune.bench.plan import plan_bench, weights_of
from topo_tune.bench.record import MEASURING_FIELDS, RecordedLaunches
from topo_tune.bench.surface import load_surface
from topo_tune.errors import (
    InputError,
    MissingCapability,
    Refused,
    did_you_mean,
)
from topo_tune.findings.judge import rules_without
from topo_tune.pipeline.benching import told_what_is_kept
from topo_tune.pipeline.cluster import SEED, Cluster, Watch, reach
from topo_tune.pipeline.judged import judged, notes_on, refuse_over_errors
from topo_tune.recommend.choose import recommend as choose
from topo_tune.recommend.conf import fragment, snippets
from topo_tune.records.bench import BenchPlan, Launch
from topo_tune.records.envelope import load, load_lines, save, write_whole
from topo_tune.records.inventory import BackendName, Inventory, Node
from topo_tune.records.lock import held_alone
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.nodeset import fold
from topo_tune.records.progress import Progress
from topo_tune.records.recommendation import Advice, Recommendation
from topo_tune.records.run_folder import RunFolder
from topo_tune.records.scan import Scan
from topo_tune.records.search import SearchTrace
from topo_tune.records.topology import Topology
from topo_tune.scan.collect import scan_cluster
from topo_tune.search.loop import SearchEvent, search
from topo_tune.search.space import build_space
from topo_tune.search.strategies import DEFAULT_STRATEGY, STRATEGIES
from topo_tune.topology.classify import classify, replayed_topology

FRAGMENT_PATH = "/etc/nccl/conf.d/50-topo-tune.conf"

# Base images name their package's version so; NCCL does not read it.
_SET_BY_NOBODY = frozenset({"NCCL_VERSION"})


class SearchOptions(msgspec.Struct, frozen=True):
    """What an operator may choose about a search."""

    strategy: str = DEFAULT_STRATEGY
    candidates: int = 48
    blocks: int = 6
    seed: int = SEED
    deadline_seconds: float = 60.0
    tolerance: float = 0.03
    minimum_gain: float = 0.03
    despite_findings: bool = False
    """go on over error findings of the scan"""
    ignored_rules: tuple[str, ...] = ()


def scan(cluster: Cluster, *, ignored: Collection[str] = ()) -> tuple[Scan, Topology]:
    """Stages 2 and 3: ask every node once, say what is wrong there, and what NCCL will see.

    ignored: IDs of rules that are not asked. Raises MissingCapability when no node answered.
    """
    rules_without(ignored)  # a wrong ID is said before a node is asked for anything
    found = scan_cluster(cluster.inventory, lambda work: cluster.on_each_node(work, stage="scan"))
    if not found.nodes:
        reasons = "; ".join(f"{missing.node}: {missing.reason}" for missing in found.missing[:3])
        hint = next((missing.hint for missing in found.missing if missing.hint), None)
        raise MissingCapability(f"no node answered the scan ({reasons})", hint=hint)
    found = judged(found, cluster.inventory, ignored=ignored)
    return found, topology_of(found, cluster.inventory)


def topology_of(found: Scan, inventory: Inventory) -> Topology:
    """The topology from a scan; of a replay, that of the machine which was recorded."""
    if inventory.backend is BackendName.REPLAY:
        assert inventory.replay is not None, "the reader of the cluster file demands a replay block"
        return replayed_topology(load_surface(inventory.replay.surface).facts, inventory)
    return classify(found, inventory)


def init(inventory: Inventory, output: Path, options: SearchOptions, watch: Watch) -> Recommendation:
    """From the cluster file to the recommendation; goes on where an interrupted run of the same folder stopped."""
    if options.strategy not in STRATEGIES:  # said before a node is asked for anything
        raise InputError(
            f"`{options.strategy}` is not a search strategy", hint=did_you_mean(options.strategy, STRATEGIES)
        )
    folder = RunFolder.create(output, inventory)
    with held_alone(folder.lock):
        with reach(inventory, watch) as cluster:
            now, _ = scan(cluster, ignored=options.ignored_rules)
            if folder.scan.exists():
                found = load(folder.scan, Scan)
                _check_same_nodes(found, now, inventory, output)
            else:
                found = now
                save(folder.scan, found, made_from=(folder.inventory,))
            # Always made from the file, so that a run which was interrupted between the two goes on as well.
            topology = topology_of(found, inventory)
            save(folder.topology, topology, made_from=(folder.scan,))
            wanted = inventory.bench_nodes or tuple(node.name for node in inventory.nodes())
            answering = tuple(
                n for n in inventory.nodes() if n.name in wanted and found.node(n.name) is not None
            )
            if not answering:
                raise MissingCapability(f"none of the nodes to measure on answered: {fold(wanted)}")
            if not options.despite_findings:
                refuse_over_errors(now, [node.name for node in answering], doing="measure")
            with cluster.backend(options.seed) as backend, told_what_is_kept(output):
                _search(folder, inventory, topology, found, answering, backend, options, watch)
        recommendation = recommend(
            folder,
            tolerance=options.tolerance,
            minimum_gain=options.minimum_gain,
            despite_findings=options.despite_findings,
        )
        keep(folder, recommendation)
    return recommendation


def _search(
    folder: RunFolder,
    inventory: Inventory,
    topology: Topology,
    found: Scan,
    nodes: tuple[Node, ...],
    backend: Backend,
    options: SearchOptions,
    watch: Watch,
) -> None:
    plan = plan_bench(inventory, deadline_seconds=options.deadline_seconds)
    in_place = settings_in_place(found)
    notes = backend.notes()
    notes += tuple(
        f"without {m.node}, which did not answer the scan ({m.kind}): {m.reason}" for m in found.missing
    )
    if inventory.bench_nodes:
        notes += (
            f"searched on {fold(node.name for node in nodes)} only; a rollout judges every other rack itself",
        )
    notes += notes_on(found, [node.name for node in nodes])
    if in_place.settings:
        notes += (f"`default` is the nodes as they are; they already set {in_place}, which is not searched",)
    plan = msgspec.structs.replace(plan, notes=notes)
    if folder.plan.exists():
        _check_same_plan(load(folder.plan, BenchPlan), plan, folder.path)
    save(folder.plan, plan, made_from=(folder.inventory, folder.topology))
    for note in plan.notes:
        watch.say(f"note: {note}")
    space = build_space(
        topology, pinned=in_place.merged(inventory.env), can_measure=_limit_of(inventory, backend)
    )
    watch.say(
        f"search space: {len(space.variables)} dimensions, {space.combinations} combinations; "
        f"the best that are found meet the default in {options.blocks} blocks of fresh launches"
    )
    launches = RecordedLaunches(
        folder.launches,
        lambda env, purpose, index: backend.measure(nodes, env, plan, index=index, purpose=purpose),
    )
    if launches.recorded:
        watch.say(f"going on after {launches.recorded} recorded launches")

    def on_event(event: SearchEvent) -> None:
        watch.on_progress(Progress(event.phase, event.done, event.planned, _launch_text(event.launch)))

    trace = search(
        space,
        launches.evaluate,
        seed=options.seed,
        weights=weights_of(inventory, plan),
        strategy_name=options.strategy,
        budget=options.candidates,
        can_measure=_limit_of(inventory, backend),
        tolerance=options.tolerance,
        blocks=options.blocks,
        on_event=on_event,
    )
    save(folder.search, trace, made_from=(folder.plan, folder.launches))


def _check_same_nodes(then: Scan, now: Scan, inventory: Inventory, path: Path) -> None:
    """Refuse to go on with a search on nodes that are not as they were when it began."""
    names = {node.node for node in then.nodes}
    # A node that joins in only now was not measured on, and is not from here on either.
    now = msgspec.structs.replace(
        now, nodes=tuple(node for node in now.nodes if node.node in names), missing=then.missing
    )
    answering = {node.node for node in now.nodes}
    changed = [f"{fold(gone)} did not answer the scan this time"] if (gone := names - answering) else []
    if not changed:
        was, is_now = (
            topology_of(scanned, inventory).fingerprint()
            | {name: f"`{value}`" for name, value in settings_in_place(scanned).settings}
            for scanned in (then, now)
        )
        changed = [
            f"{name}: {was.get(name, 'nothing')} then, {is_now.get(name, 'nothing')} now"
            for name in sorted(was | is_now)
            if was.get(name) != is_now.get(name)
        ]
    if changed:
        raise Refused(
            f"the nodes are not as they were when the search in {path} began: {'; '.join(changed)}",
            hint="make them as they were, or search again with another --output",
        )


def _check_same_plan(then: BenchPlan, now: BenchPlan, path: Path) -> None:
    changed = [
        f"`{name}`: {getattr(then, name)} then, {getattr(now, name)} now"
        for name in MEASURING_FIELDS
        if getattr(then, name) != getattr(now, name)
    ]
    if changed:
        raise Refused(
            f"the launches in {path} were measured otherwise: {'; '.join(changed)}",
            hint="choose another --output",
        )


def settings_in_place(found: Scan) -> NcclEnv:
    """What the nodes set already, in their environment or in the files NCCL reads: in force under every measurement.

    Raises Refused when an earlier rollout's fragment is in place: a search on top of it would recommend a change
    relative to it, and writing that would drop it.
    """
    tuned = [
        n.node for n in found.nodes for f in n.nccl_files if f.path.endswith(FRAGMENT_PATH) and f.settings
    ]
    if tuned:
        raise Refused(
            f"an earlier rollout of topo-tune is in place on {fold(tuned)}",
            hint="`topo-tune rollback RUN_DIR` puts the old bytes back; search again after that",
        )
    settings: dict[str, str] = {}
    for node in found.nodes:
        for file in node.nccl_files:
            settings |= {s.name: s.value for s in file.settings if s.name.startswith("NCCL_")}
        settings |= {name: value for name, value in node.nccl_environment if name not in _SET_BY_NOBODY}
    return NcclEnv(tuple(sorted(settings.items())))


def recommend(
    folder: RunFolder, *, tolerance: float, minimum_gain: float, despite_findings: bool = False
) -> Recommendation:
    """Stage 6 from the files of a run folder alone: needs no node and no GPU, and writes nothing.

    Raises Refused where the folder's scan has error findings about nodes that were measured on.
    """
    inventory = load(folder.need(folder.inventory, "init"), Inventory)
    plan = load(folder.need(folder.plan, "init"), BenchPlan)
    if not despite_findings:
        measured = inventory.bench_nodes or tuple(node.name for node in inventory.nodes())
        refuse_over_errors(load(folder.need(folder.scan, "init"), Scan), measured, doing="recommend")
    return choose(
        load(folder.need(folder.search, "init"), SearchTrace),
        load_lines(folder.need(folder.launches, "init"), Launch),
        cluster=inventory.name,
        plan=plan,
        topology=load(folder.need(folder.topology, "init"), Topology),
        weights=weights_of(inventory, plan),
        tolerance=tolerance,
        minimum_gain=minimum_gain,
        notes=plan.notes,
    )


def keep(folder: RunFolder, recommendation: Recommendation) -> None:
    """Make an answer the one that `apply` rolls out: the record, the fragment, and what launchers take."""
    save(
        folder.recommendation,
        recommendation,
        made_from=(folder.inventory, folder.topology, folder.plan, folder.launches, folder.search),
    )
    if recommendation.advice is Advice.CHANGE:
        write_whole(folder.fragment, fragment(recommendation.env).encode())
        text = "".join(f"## {s.title}\n\n```\n{s.text}```\n\n" for s in snippets(recommendation.env))
        write_whole(folder.snippets, f"# The settings, as launchers take them\n\n{text}".encode())
    else:
        # A fragment of an earlier answer must not outlive it.
        folder.fragment.unlink(missing_ok=True)
        folder.snippets.unlink(missing_ok=True)


def examine(
    cluster: Cluster, *, ignored: Collection[str] = (), despite_findings: bool = False
) -> tuple[Topology, tuple[str, ...]]:
    """The topology of nodes that are to be measured, and what the numbers must say of error findings there.

    Raises Refused over such findings, unless they are to be measured over.
    """
    found, topology = scan(cluster, ignored=ignored)
    names = [node.name for node in cluster.inventory.nodes()]
    if not despite_findings:
        refuse_over_errors(found, names, doing="measure")
    return topology, notes_on(found, names)


def _limit_of(inventory: Inventory, backend: Backend) -> Callable[[NcclEnv], bool] | None:
    return backend.can_measure if inventory.backend is BackendName.REPLAY else None


def _launch_text(launch: Launch) -> str:
    if launch.error is not None:
        return f"{launch.env}: {launch.error}"
    return f"{launch.env}"
