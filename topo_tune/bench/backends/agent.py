"""Real collectives: the `nccl` and `gloo` back ends, run by agents on the nodes."""

from __future__ import annotations

import datetime
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from topo_tune.bench.agents import Agent, AgentPool
from topo_tune.errors import HostError, InputError
from topo_tune.records.bench import BenchPlan, Launch, Probe, SettingInForce, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv

_GLOO_RANKS_PER_NODE = 2
_GRACE_SECONDS = 20.0
"""how much longer than a trial's deadline the agent has to kill it and answer"""
_FAIR_SHARE = 8
"""a setting that takes this many times as long as the default's launches is of no use, whatever it would show"""
_SHORTEST_DEADLINE_SECONDS = 15.0
_PROBE_SIZES_BYTES = (8 << 10, 32 << 20)

# NCCL ends the line of an integer with a period and that of a string without one (src/misc/param.cc, src/debug.cc).
_SET = re.compile(r"(NCCL_\w+) set by environment to (?:(-?\d+)\.|(.+))$")

# What a rank tells when its peer has gone, and an agent when another node has failed: never the cause.
_CONSEQUENCE = re.compile(r"^aborted|connection (closed|reset) by peer|broken pipe", re.IGNORECASE)

_PORT_TAKEN = re.compile("EADDRINUSE|address already in use", re.IGNORECASE)


class AgentBackend:
    """Launches through agents: fresh ranks each time, exact sums checked on every rank."""

    def __init__(self, inventory: Inventory, pool: AgentPool) -> None:
        self._inventory = inventory
        self._pool = pool
        self._trials = 0
        self._trial_seconds = 0.0
        self._slowest_default_seconds: float | None = None

    def measure(
        self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan, *, index: int, purpose: str
    ) -> Launch:
        """One launch; whatever goes wrong in its ranks is its `error`. Raises HostError; see the interface."""
        started_at = utc_now()
        clock = time.monotonic()
        fair = self._with_fair_deadline(plan, env)
        ranks, error, answers = self._pool.attempt(lambda: self._trial(nodes, env, fair, probe=False))
        results = () if error else merge_ranks(answers)
        if error is None and env == DEFAULTS:
            self._slowest_default_seconds = max(self._trial_seconds, self._slowest_default_seconds or 0.0)
        return Launch(
            index=index,
            purpose=purpose,
            nodes=tuple(node.name for node in nodes),
            env=env,
            backend=self._inventory.backend,
            ranks=ranks,
            started_at=started_at,
            wall_seconds=round(time.monotonic() - clock, 3),
            results=results,
            error=error or wrong_sums(results),
            setup_seconds=tuple(sorted(answers[0]["setup"].items())) if answers else (),
        )

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
        ranks, error, answers = self._pool.attempt(lambda: self._trial(nodes, env, plan, probe=True))
        per_node = ranks // len(nodes)
        settings = tuple(
            setting
            for answer in answers
            for setting in settings_in_log(answer["rank"], names[answer["rank"] // per_node], answer["log"])
        )
        lines = tuple(line for answer in answers for line in answer["log"] if answer["rank"] == 0)
        return Probe(
            nodes=names,
            at=at,
            ranks=ranks,
            source="nccl log",
            settings=settings,
            error=error,
            log_of_rank_0=lines,
        )

    def can_measure(self, env: NcclEnv) -> bool:
        """Anything can be tried on real processes."""
        return True

    def notes(self) -> tuple[str, ...]:
        """What a reader must be told about these numbers."""
        if self._inventory.backend is BackendName.GLOO:
            return (
                "back end gloo on CPUs: NCCL variables do nothing here, so the right answer is to change nothing",
            )
        notes = ["times below 2 ms are of calls in a CUDA graph through torch, which adds about 5 us to each"]
        if self._inventory.as_nodes > 1:
            notes.append(
                f"every host acts as {self._inventory.as_nodes} nodes (NCCL_HOSTID): "
                f"the network path is real, the distance is not"
            )
        return tuple(notes)

    def close(self) -> None:
        """End the agents."""
        self._pool.close()

    def _with_fair_deadline(self, plan: BenchPlan, env: NcclEnv) -> BenchPlan:
        """The plan with a deadline that a hanging setting cannot stretch: some times what the default takes."""
        if env == DEFAULTS or self._slowest_default_seconds is None:
            return plan
        fair = max(_SHORTEST_DEADLINE_SECONDS, round(_FAIR_SHARE * self._slowest_default_seconds))
        return msgspec.structs.replace(plan, deadline_seconds=min(plan.deadline_seconds, fair))

    def _ranks_on(self, nodes: tuple[Node, ...]) -> int:
        """Ranks per node: as the cluster file says, else one a GPU. Every node must have as many."""
        if self._inventory.ranks_per_node is not None:
            return self._inventory.ranks_per_node
        if self._inventory.backend is BackendName.GLOO:
            return _GLOO_RANKS_PER_NODE
        counts = {agent.node.name: int(agent.ready["gpus"]) for agent in self._pool.agents(nodes)}
        if len(set(counts.values())) != 1:
            found = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
            raise InputError(f"nodes have different numbers of GPUs ({found})", hint="set `ranks_per_node`")
        return next(iter(counts.values()))

    def _trial(
        self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan, *, probe: bool
    ) -> tuple[int, str | None, list[dict[str, Any]]]:
        agents = self._pool.agents(nodes)
        per_node = self._ranks_on(nodes)
        self._check_parts(per_node)
        world = per_node * len(nodes)
        if world < 2:
            raise InputError(
                f"a collective needs at least 2 ranks; {nodes[0].name} alone has {world}",
                hint="add nodes, or set `ranks_per_node`",
            )
        replies = self._meet_and_run(agents, env, plan, per_node, probe)
        if _PORT_TAKEN.search(str(_cause(replies))):
            # Somebody took the port between the agent's look and rank 0's call; that says nothing of the setting.
            replies = self._meet_and_run(agents, env, plan, per_node, probe)
        answers = sorted((answer for r in replies for answer in r.get("ranks", ())), key=lambda a: a["rank"])
        return world, _cause(replies), answers

    def _meet_and_run(
        self, agents: list[Agent], env: NcclEnv, plan: BenchPlan, per_node: int, probe: bool
    ) -> list[dict[str, Any]]:
        """One trial on a fresh port; the agents' results in the order in which they came."""
        self._trials += 1
        try:
            port = agents[0].ask({"op": "port"}, _GRACE_SECONDS)["port"]
        except HostError:
            self._pool.drop(agents[0].node)
            raise
        request = {
            "op": "trial",
            "id": self._trials,
            "env": self._inventory.env.merged(env).as_dict(),
            "master": [_meeting_address(tuple(agent.node for agent in agents)), port],
            "world_size": per_node * len(agents),
            "local_ranks": per_node,
            "as_nodes": self._inventory.as_nodes,
            "probe": probe,
            "plan": {
                "sizes_bytes": plan.sizes_bytes,
                "dtype": plan.dtype,
                "repeats": plan.repeats,
                "deadline_seconds": plan.deadline_seconds,
            },
        }
        clock = time.monotonic()
        replies = self._run_everywhere(agents, request, per_node, plan.deadline_seconds)
        self._trial_seconds = time.monotonic() - clock
        return replies

    def _check_parts(self, per_node: int) -> None:
        if per_node % self._inventory.as_nodes:
            raise InputError(
                f"`as_nodes: {self._inventory.as_nodes}` does not divide the {per_node} ranks of a host evenly"
            )

    def _run_everywhere(
        self, agents: list[Agent], request: dict[str, Any], per_node: int, deadline_seconds: float
    ) -> list[dict[str, Any]]:
        """What the agents tell of their ranks, in the order in which it came. Raises the HostError of a lost one."""
        failed = threading.Event()
        replies: list[dict[str, Any]] = []
        lost: list[HostError] = []

        def run_on(position: int) -> None:
            agent = agents[position]
            reply: dict[str, Any] = {"ok": False, "error": "interrupted"}
            try:
                agent.send({**request, "node": agent.node.name, "first_rank": position * per_node})
                reply = self._await_result(agent, request["id"], deadline_seconds + _GRACE_SECONDS, failed)
                replies.append(reply)
            except HostError as exc:
                lost.append(exc)
                self._pool.drop(agent.node)
            finally:
                # Whatever came up here, the other nodes do not wait for this one until the deadline.
                if not reply["ok"]:
                    failed.set()

        with ThreadPoolExecutor(max_workers=len(agents), thread_name_prefix="trial") as threads:
            try:
                list(threads.map(run_on, range(len(agents))))
            except BaseException:
                # Ctrl-C in the waiting thread: tell the others to abort before the pool joins them.
                failed.set()
                raise
        if lost:
            raise lost[0]
        return replies

    def _await_result(
        self, agent: Agent, identity: int, timeout_seconds: float, failed: threading.Event
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_seconds
        aborted = False
        while time.monotonic() < deadline:
            give_up = None if aborted else failed.is_set
            event = agent.next_event(deadline - time.monotonic(), give_up)
            if event is None:
                if failed.is_set() and not aborted:
                    agent.send({"op": "abort", "id": identity, "reason": "another node failed"})
                    aborted = True
                continue
            # A result of an older, abandoned trial may still be in the pipe.
            if event.get("event") == "result" and event.get("id") == identity:
                return event
        raise HostError(
            agent.node.name, f"the bench agent did not answer within {timeout_seconds:g} s, dropped"
        )


def utc_now() -> str:
    """The time as records carry it: UTC, ISO 8601, milliseconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")


def merge_ranks(answers: list[dict[str, Any]]) -> tuple[SizeResult, ...]:
    """One result a size from all ranks: sample by sample the slowest rank's time, correct only if all are."""
    merged = []
    for of_size in zip(*(answer["results"] for answer in answers), strict=True):
        first = of_size[0]
        merged.append(
            SizeResult(
                size_bytes=first["size_bytes"],
                samples_seconds=tuple(
                    max(s) for s in zip(*(r["samples_seconds"] for r in of_size), strict=True)
                ),
                calls_per_sample=first["calls_per_sample"],
                mode=TimingMode(first["mode"]),
                is_correct=all(r["is_correct"] for r in of_size),
                warmup_seconds=tuple(
                    max(s) for s in zip(*(r["warmup_seconds"] for r in of_size), strict=True)
                ),
            )
        )
    return tuple(merged)


def wrong_sums(results: tuple[SizeResult, ...]) -> str | None:
    """An error text when a sum was wrong, or None."""
    wrong = [result.size_bytes for result in results if result.is_correct is False]
    return f"wrong sum at {', '.join(str(size) for size in wrong)} bytes" if wrong else None


def settings_in_log(rank: int, node: str, lines: list[str]) -> tuple[SettingInForce, ...]:
    """The variables that a rank's NCCL log says it took; the first line of a name is kept as the evidence."""
    found: dict[str, SettingInForce] = {}
    for line in lines:
        match = _SET.search(line)
        if match and match[1] not in found:
            found[match[1]] = SettingInForce(
                rank=rank, node=node, name=match[1], value=match[2] or match[3], evidence=line
            )
    return tuple(found.values())


def _cause(replies: list[dict[str, Any]]) -> str | None:
    """Why a trial failed, or None: the error that came first, since the others most likely follow from it."""
    errors = [str(reply["error"]) for reply in replies if not reply["ok"]]
    return next(iter(sorted(errors, key=lambda text: _CONSEQUENCE.search(text) is not None)), None)


def _meeting_address(nodes: tuple[Node, ...]) -> str:
    first = nodes[0]
    if all(node.connection is ConnectionKind.LOCAL for node in nodes):
        return "127.0.0.1"
    return first.address
