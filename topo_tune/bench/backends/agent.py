"""Real collectives: the `nccl` and `gloo` back ends, run by agents on the nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from topo_tune.bench.agents import Agent, AgentPool, Event
from topo_tune.bench.answers import cause, settings_in_log, was_wrong
from topo_tune.bench.backends.interface import OnLaunch, keep_nothing
from topo_tune.bench.memory import communicator_bytes
from topo_tune.bench.sets import Asked, SetAtWork, Shape, utc_now
from topo_tune.bench.trials import Processes, Version, alone, order
from topo_tune.errors import HostError, InputError
from topo_tune.on_node.collectives import collective_of, counts_of
from topo_tune.on_node.data_types import DATA_TYPES
from topo_tune.records.bench import BenchPlan, Launch, Probe
from topo_tune.records.catalogue import version_tuple
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv

_GLOO_RANKS_PER_NODE = 2
_GRACE_SECONDS = 20.0
"""how much longer than a trial's deadline the agent has to kill it and answer"""
_PROBE_SIZES_BYTES = (8 << 10, 32 << 20)

_PORT_TAKEN = re.compile("EADDRINUSE|address already in use", re.IGNORECASE)


class AgentBackend:
    """Launches through agents: fresh ranks for each set of processes, exact results checked on every rank."""

    def __init__(self, inventory: Inventory, pool: AgentPool) -> None:
        self._inventory = inventory
        self._pool = pool
        self._trials = 0
        self._defaults: dict[tuple[tuple[str, ...], BenchPlan], list[Launch]] = {}
        """usable launches of NCCL's default, by nodes and plan: what limits are taken from"""
        self._spoiled: dict[NcclEnv, str] = {}
        """settings that gave a wrong result, and which"""

    def measure(
        self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan, *, index: int, purpose: str
    ) -> Launch:
        """One launch; whatever goes wrong in its ranks is its `error`. Raises HostError; see the interface."""
        asked = self._asked(nodes, (env,), plan, index, purpose, keep_nothing)
        asked.waiting.extend(alone(self._inventory.env.merged(env)) for env in asked.settings)
        self._run(asked)
        return msgspec.structs.replace(asked.made[0], processes=None)

    def measure_together(
        self,
        nodes: tuple[Node, ...],
        settings: tuple[NcclEnv, ...],
        plan: BenchPlan,
        *,
        first_index: int,
        purpose: str,
        on_launch: OnLaunch = keep_nothing,
    ) -> tuple[Launch, ...]:
        """One launch of each setting, in few sets of processes. Raises HostError; see the interface."""
        asked = self._asked(nodes, settings, plan, first_index, purpose, on_launch)
        version = self._pool.attempt(lambda: self._nccl_version(nodes))
        asked.waiting.extend(order((self._inventory.env.merged(env) for env in asked.settings), version))
        self._run(asked)
        return tuple(asked.made)

    def probe(self, nodes: tuple[Node, ...], env: NcclEnv) -> Probe:
        """Ask NCCL itself, through its log, which variables it took from the environment or its files."""
        names = tuple(node.name for node in nodes)
        at = utc_now()
        if self._inventory.backend is not BackendName.NCCL:
            return Probe(
                nodes=names, at=at, ranks=0, source="nobody (gloo reads no NCCL variable)", settings=()
            )
        plan = BenchPlan(
            backend=self._inventory.backend,
            collective="all_reduce",
            dtype="bfloat16",
            sizes_bytes=_PROBE_SIZES_BYTES,
        )
        processes = alone(self._inventory.env.merged(env))
        shape, results = self._pool.attempt(lambda: self._probe_trial(nodes, processes, plan))
        answers = sorted((a for r in results for a in r.get("ranks", ())), key=lambda answer: answer["rank"])
        per_host = shape.world // len(nodes)
        settings = tuple(
            setting
            for answer in answers
            for setting in settings_in_log(answer["rank"], names[answer["rank"] // per_host], answer["log"])
        )
        return Probe(
            nodes=names,
            at=at,
            ranks=shape.world,
            source="nccl log",
            settings=settings,
            error=cause(results),
            log_of_rank_0=tuple(line for answer in answers for line in answer["log"] if answer["rank"] == 0),
        )

    def can_measure(self, env: NcclEnv) -> bool:
        """Anything can be tried on real processes, but for what gave a wrong result."""
        return env not in self._spoiled

    def notes(self) -> tuple[str, ...]:
        """What a reader must be told about these numbers."""
        if self._inventory.backend is BackendName.GLOO:
            return (
                "back end gloo on CPUs: NCCL variables do nothing here, so the right answer is to change nothing",
            )
        notes = [
            "NCCL is called by one process a GPU; calls below 2 ms are in a CUDA graph (`mode` says which)"
        ]
        if self._inventory.as_nodes > 1:
            notes.append(
                f"every host acts as {self._inventory.as_nodes} nodes (NCCL_HOSTID): "
                f"the network path is real, the distance is not"
            )
        return tuple(notes)

    def close(self) -> None:
        """End the agents."""
        self._pool.close()

    def _asked(
        self,
        nodes: tuple[Node, ...],
        settings: tuple[NcclEnv, ...],
        plan: BenchPlan,
        first_index: int,
        purpose: str,
        on_launch: OnLaunch,
    ) -> Asked:
        """What is to be measured. A setting that gave a wrong result has its launch at once, and no process more."""
        sound = tuple(env for env in settings if env not in self._spoiled)
        asked = Asked(nodes, sound, plan, first_index, purpose, on_launch)
        for env in settings:
            if env in self._spoiled:
                asked.keep(asked.refused(env, f"not measured again in this run: {self._spoiled[env]}"))
        return asked

    def _run(self, asked: Asked) -> None:
        """Every set of processes that waits, until none does. An agent that is lost costs only what it was at."""
        while asked.waiting:
            self._pool.attempt(lambda: self._one_set(asked))
        # The default is what nodes do by themselves, and that may be another thing after the next write to their files.
        wrong = (launch for launch in asked.made if was_wrong(launch) and launch.env != DEFAULTS)
        self._spoiled |= {launch.env: launch.error or "wrong results" for launch in wrong}

    def _one_set(self, asked: Asked) -> None:
        if not asked.waiting:  # an agent was lost behind the last answer
            return
        agents, shape = self._agents(asked.nodes)
        _refuse_empty_parts(asked.plan, shape.communicator(asked.plan.layout).world)
        at_work = SetAtWork(asked, shape, self._known_defaults(asked.nodes, asked.plan))
        try:
            request = self._request(at_work.processes, at_work.variants(), asked.plan, shape)
            request["plan"]["deadline_seconds"] = at_work.deadline_seconds
            at_work.end(cause(self._meet(agents, request, at_work.on_variant)))
        finally:
            at_work.leave()

    def _probe_trial(
        self, nodes: tuple[Node, ...], processes: Processes, plan: BenchPlan
    ) -> tuple[Shape, list[Event]]:
        agents, shape = self._agents(nodes)
        request = {**self._request(processes, [{"env": {}, "config": {}}], plan, shape), "probe": True}
        return shape, self._meet(agents, request, lambda index, answers: None)

    def _known_defaults(self, nodes: tuple[Node, ...], plan: BenchPlan) -> list[Launch]:
        """Usable launches of NCCL's default on these nodes under this plan; more are added to the list."""
        measuring = msgspec.structs.replace(plan, notes=(), deadline_seconds=0.0, slowest_seconds=())
        return self._defaults.setdefault((tuple(node.name for node in nodes), measuring), [])

    def _request(
        self, processes: Processes, variants: list[dict[str, Any]], plan: BenchPlan, shape: Shape
    ) -> dict[str, Any]:
        """A trial as its agents take it, but for where they meet and what is each node's own."""
        communicator = shape.communicator(plan.layout)
        needs = [
            communicator_bytes(
                variant.setting, plan.collective, ranks=communicator.world, nodes=communicator.nodes
            )
            for variant in processes.variants
        ]
        return {
            "op": "trial",
            "env": processes.env.as_dict(),
            "variants": variants,
            "world_size": shape.world,
            "ranks_per_node": shape.ranks_per_node,
            "as_nodes": self._inventory.as_nodes,
            "probe": False,
            "plan": {
                "collective": plan.collective,
                "dtype": plan.dtype,
                "layout": plan.layout.value,
                "in_place": plan.in_place,
                "sizes_bytes": plan.sizes_bytes,
                "repeats": plan.repeats,
                "single_calls": plan.single_calls,
                "overlap": plan.overlap,
                "slowest_seconds": plan.slowest_seconds,
                "deadline_seconds": plan.deadline_seconds,
                "needs_bytes": max(needs) if self._inventory.backend is BackendName.NCCL else 0,
            },
        }

    def _meet(
        self,
        agents: list[Agent],
        request: dict[str, Any],
        on_variant: Callable[[int, list[Event]], None],
    ) -> list[Event]:
        """The trial on all nodes, once more when its port was taken; the agents' results as they came."""
        results = self._meet_once(agents, request, on_variant)
        if _PORT_TAKEN.search(str(cause(results))):
            # Somebody took the port between the agent's look and rank 0's call; that says nothing of the setting.
            results = self._meet_once(agents, request, on_variant)
        return results

    def _meet_once(
        self,
        agents: list[Agent],
        request: dict[str, Any],
        on_variant: Callable[[int, list[Event]], None],
    ) -> list[Event]:
        self._trials += 1
        try:
            port = agents[0].ask({"op": "port"}, _GRACE_SECONDS)["port"]
        except HostError:
            self._pool.drop(agents[0].node)
            raise
        per_host = request["world_size"] // len(agents)
        requests = [
            {
                **request,
                "id": self._trials,
                "master": [_meeting_address(tuple(agent.node for agent in agents)), port],
                "node": agent.node.name,
                "first_rank": position * per_host,
                "local_ranks": per_host,
            }
            for position, agent in enumerate(agents)
        ]
        patience = request["plan"]["deadline_seconds"] * len(request["variants"]) + _GRACE_SECONDS
        return self._pool.run_trial(agents, requests, patience, on_variant)

    def _agents(self, nodes: tuple[Node, ...]) -> tuple[list[Agent], Shape]:
        """The nodes' agents, and where their ranks stand. Raises HostError or InputError."""
        agents = self._pool.agents(nodes)
        per_host, parts = self._ranks_per_host(agents), self._inventory.as_nodes
        if per_host % parts:
            raise InputError(f"`as_nodes: {parts}` does not divide the {per_host} ranks of a host evenly")
        if per_host * len(nodes) < 2:
            raise InputError(
                f"a collective needs at least 2 ranks; {nodes[0].name} alone has {per_host}",
                hint="add nodes, or set `ranks_per_node`",
            )
        return agents, Shape(len(nodes) * parts, per_host // parts)

    def _ranks_per_host(self, agents: list[Agent]) -> int:
        """As the cluster file says, else one a GPU. Every node must have as many."""
        if self._inventory.ranks_per_node is not None:
            return self._inventory.ranks_per_node
        if self._inventory.backend is BackendName.GLOO:
            return _GLOO_RANKS_PER_NODE
        counts = {agent.node.name: int(agent.ready["gpus"]) for agent in agents}
        if len(set(counts.values())) != 1:
            found = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
            raise InputError(f"nodes have different numbers of GPUs ({found})", hint="set `ranks_per_node`")
        return next(iter(counts.values()))

    def _nccl_version(self, nodes: tuple[Node, ...]) -> Version | None:
        """The oldest NCCL of the nodes; None where one does not tell."""
        told = [agent.ready.get("nccl") for agent in self._pool.agents(nodes)]
        return None if None in told else min(version_tuple(str(text)) for text in told)


def _refuse_empty_parts(plan: BenchPlan, ranks: int) -> None:
    """Raises InputError for a size of which nothing is left for each of `ranks` ranks."""
    if plan.dtype not in DATA_TYPES:
        return  # for the ranks to tell
    collective, item_bytes = collective_of(plan.collective), DATA_TYPES[plan.dtype].item_bytes
    for size_bytes in plan.sizes_bytes:
        try:
            counts_of(collective, size_bytes, ranks, item_bytes)
        except ValueError as exc:
            raise InputError(str(exc), hint="leave smaller sizes out of --sizes") from exc


def _meeting_address(nodes: tuple[Node, ...]) -> str:
    first = nodes[0]
    if all(node.connection is ConnectionKind.LOCAL for node in nodes):
        return "127.0.0.1"
    return first.address
