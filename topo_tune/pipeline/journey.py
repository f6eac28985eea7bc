"""From the cluster file to the recommendation: scan, topology, bench, search, recommend.

Stages never see each other; what one needs from another is passed in here as an argument. Every step leaves its record
in the run folder before the next begins, so that a run can be interrupted anywhere and go on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from topo_tune.bench.backends.interface import Backend
from topo_tune.bench.plan import plan_bench, weights_of
from topo_tune.bench.record import RecordedLaunches
from topo_tune.bench.surface import load_surface
from topo_tune.errors import MissingCapability
from topo_tune.pipeline.cluster import SEED, Cluster, Watch, reach
from topo_tune.recommend.choose import recommend as choose
from topo_tune.recommend.conf import fragment, snippets
from topo_tune.records.bench import BenchPlan, Launch
from topo_tune.records.envelope import load, load_lines, save, write_whole
from topo_tune.records.inventory import BackendName, Inventory, Node
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.progress import Progress
from topo_tune.records.recommendation import Advice, Recommendation
from topo_tune.records.run_folder import RunFolder
from topo_tune.records.scan import Scan
from topo_tune.records.search import SearchTrace
from topo_tune.records.topology import Topology
from topo_tune.scan.collect import scan_cluster
from topo_tune.search.loop import SearchEvent, search
from topo_tune.search.space import build_space
from topo_tune.topology.classify import classify, replayed_topology


class SearchOptions(msgspec.Struct, frozen=True):
    """What an operator may choose about a search."""

    strategy: str = "halving"
    candidates: int = 48
    blocks: int = 6
    seed: int = SEED
    deadline_seconds: float = 60.0
    tolerance: float = 0.03
    minimum_gain: float = 0.03


def scan(cluster: Cluster) -> tuple[Scan, Topology]:
    """Stages 2 and 3: ask every node once, and say what NCCL will see.

    Raises MissingCapability when no node answered.
    """
    found = scan_cluster(cluster.inventory, lambda work: cluster.on_each_node(work, stage="scan"))
    if not found.nodes:
        reasons = "; ".join(f"{missing.node}: {missing.reason}" for missing in found.missing[:3])
        raise MissingCapability(f"no node answered the scan ({reasons})")
    return found, topology_of(found, cluster.inventory)


def topology_of(found: Scan, inventory: Inventory) -> Topology:
    """The topology from a scan; of a replay, that of the machine which was recorded."""
    if inventory.backend is BackendName.REPLAY:
        assert inventory.replay is not None, "the reader of the cluster file demands a replay block"
        return replayed_topology(load_surface(inventory.replay.surface).facts, inventory)
    return classify(found, inventory)


def init(inventory: Inventory, output: Path, options: SearchOptions, watch: Watch) -> Recommendation:
    """From the cluster file to the recommendation; goes on where an interrupted run of the same folder stopped."""
    folder = RunFolder.create(output, inventory)
    with reach(inventory, watch) as cluster:
        if folder.scan.exists():
            found, topology = load(folder.scan, Scan), load(folder.topology, Topology)
        else:
            found, topology = scan(cluster)
            save(folder.scan, found, made_from=(folder.inventory,))
            save(folder.topology, topology, made_from=(folder.scan,))
        answering = tuple(node for node in inventory.nodes() if found.node(node.name) is not None)
        for missing in found.missing:
            watch.say(f"going on without {missing.node}: {missing.reason}")
        with cluster.backend(options.seed) as backend:
            _search(folder, inventory, topology, answering, backend, options, watch)
    return recommend(folder, tolerance=options.tolerance, minimum_gain=options.minimum_gain)


def _search(
    folder: RunFolder,
    inventory: Inventory,
    topology: Topology,
    nodes: tuple[Node, ...],
    backend: Backend,
    options: SearchOptions,
    watch: Watch,
) -> None:
    plan = plan_bench(inventory, deadline_seconds=options.deadline_seconds)
    plan = msgspec.structs.replace(plan, notes=backend.notes())
    save(folder.plan, plan, made_from=(folder.inventory, folder.topology))
    for note in plan.notes:
        watch.say(f"note: {note}")
    space = build_space(topology, pinned=inventory.env, can_measure=_limit_of(inventory, backend))
    watch.say(
        f"search space: {len(space.variables)} dimensions, {space.combinations} combinations; "
        f"trying {min(options.candidates, space.combinations)}, then {options.blocks} blocks against the default"
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


def recommend(folder: RunFolder, *, tolerance: float, minimum_gain: float) -> Recommendation:
    """Stage 6 from the files of a run folder alone: needs no node and no GPU."""
    inventory = load(folder.need(folder.inventory, "init"), Inventory)
    plan = load(folder.need(folder.plan, "init"), BenchPlan)
    recommendation = choose(
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
    save(
        folder.recommendation,
        recommendation,
        made_from=(folder.inventory, folder.topology, folder.plan, folder.launches, folder.search),
    )
    if recommendation.advice is Advice.CHANGE:
        write_whole(folder.fragment, fragment(recommendation.env).encode())
        write_whole(folder.snippets, snippets(recommendation.env).encode())
    else:
        # A fragment of an earlier answer must not outlive it.
        folder.fragment.unlink(missing_ok=True)
        folder.snippets.unlink(missing_ok=True)
    return recommendation


def bench(
    cluster: Cluster,
    settings: tuple[NcclEnv, ...],
    launches: int,
    plan: BenchPlan,
    output: Path | None,
    watch: Watch,
) -> tuple[tuple[Launch, ...], tuple[str, ...]]:
    """Stage 4 alone: some settings, interleaved, each in as many launches, and the back end's notes on them.

    NCCL's default is always among them.
    """
    made: list[Launch] = []
    order = (DEFAULTS, *(env for env in settings if env != DEFAULTS))
    nodes = cluster.inventory.nodes()
    with cluster.backend() as backend:
        record = RecordedLaunches(
            output if output is not None else _nowhere(),
            lambda env, purpose, index: backend.measure(nodes, env, plan, index=index, purpose=purpose),
        )
        for block in range(launches):
            # The order turns round from block to block, so that a steady drift favours no setting.
            for env in order if block % 2 == 0 else tuple(reversed(order)):
                made.append(record.evaluate(env, "bench"))
                watch.on_progress(
                    Progress("bench", len(made), launches * len(order), _launch_text(made[-1]))
                )
        return tuple(made), backend.notes()


def _limit_of(inventory: Inventory, backend: Backend) -> Callable[[NcclEnv], bool] | None:
    return backend.can_measure if inventory.backend is BackendName.REPLAY else None


def _launch_text(launch: Launch) -> str:
    if launch.error is not None:
        return f"{launch.env}: {launch.error}"
    return f"{launch.env}"


def _nowhere() -> Path:
    return Path(tempfile.mkdtemp(prefix="topo-tune-")) / "30-bench.jsonl"
