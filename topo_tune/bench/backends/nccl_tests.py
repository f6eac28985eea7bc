"""NVIDIA's nccl-tests, where a site has it: the binary of a collective, run on the nodes as their jobs run."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from topo_tune.bench import tests_command, tests_outcome, tests_reading
from topo_tune.bench.agents import Agent, AgentPool
from topo_tune.bench.answers import was_wrong
from topo_tune.bench.backends.interface import OnLaunch, keep_nothing, measured_one_by_one
from topo_tune.bench.limits import fair_deadline
from topo_tune.bench.sets import utc_now
from topo_tune.bench.tests_command import Binary, Job
from topo_tune.bench.tests_outcome import Ended
from topo_tune.bench.tests_reading import Expected
from topo_tune.errors import HostError, InputError, MissingCapability
from topo_tune.records.bench import BenchPlan, Launch, Layout, Probe, SettingInForce, SizeResult
from topo_tune.records.inventory import BackendName, Inventory, NcclTestsOptions, Node
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.words import clipped

_GRACE_SECONDS = 20.0
"""how much longer than its deadline a node has to end a command and answer"""
_LOOKING_SECONDS = 150.0
"""for two binaries that may each take a minute to say what they know"""
_PROBE_SIZE_BYTES = 8 << 10
_PROBE_SECONDS = 120.0

Found = tuple[Job, tuple[SizeResult, ...], str | None, tuple[str, ...]]
"""where it ran, what came out, why it is of no use, what to say of it"""


class NcclTestsBackend:
    """Launches of nccl-tests: fresh processes each time, results checked by the binary itself."""

    def __init__(self, inventory: Inventory, pool: AgentPool) -> None:
        self._inventory, self._pool = inventory, pool
        self._options = inventory.nccl_tests or NcclTestsOptions()
        self._binaries: dict[tuple[str, str], Binary] = {}
        """(node, collective) to the test that was found there"""
        self._commands = 0
        self._defaults: dict[tuple[tuple[str, ...], BenchPlan], list[Launch]] = {}
        """usable launches of NCCL's default, by nodes and plan: what the deadline is taken from"""
        self._spoiled: set[NcclEnv] = set()
        """settings that gave a wrong result"""

    def measure(
        self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan, *, index: int, purpose: str
    ) -> Launch:
        """One launch; whatever goes wrong in it is its `error`. Raises HostError; see the interface."""
        started_at, clock = utc_now(), time.monotonic()
        job, results, error, notes = self._pool.attempt(lambda: self._launch(nodes, env, plan))
        launch = Launch(
            index=index,
            purpose=purpose,
            nodes=tuple(node.name for node in nodes),
            env=env,
            backend=BackendName.NCCL_TESTS,
            ranks=job.shape.world,
            started_at=started_at,
            wall_seconds=round(time.monotonic() - clock, 3),
            results=results,
            error=error,
            notes=notes,
            collective=plan.collective,
            dtype=plan.dtype,
            layout=plan.layout,
            in_place=plan.in_place,
            communicator_ranks=job.shape.communicator(plan.layout).world,
        )
        if env == DEFAULTS and launch.is_usable:
            self._known_defaults(nodes, plan).append(launch)
        if was_wrong(launch):
            self._spoiled.add(env)
        return launch

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
        """One launch of each setting, each in processes of its own: nccl-tests makes its communicators once."""
        return measured_one_by_one(
            self, nodes, settings, plan, first_index=first_index, purpose=purpose, on_launch=on_launch
        )

    def probe(self, nodes: tuple[Node, ...], env: NcclEnv) -> Probe:
        """Ask NCCL itself, through its log, which variables it took from the environment or its files."""
        at = utc_now()
        plan = BenchPlan(
            backend=BackendName.NCCL_TESTS,
            collective="all_reduce",
            dtype="float32",
            sizes_bytes=(_PROBE_SIZE_BYTES,),
            layout=Layout.WORLD if self._options.launcher or len(nodes) == 1 else Layout.WITHIN_NODE,
        )
        job, ended = self._pool.attempt(lambda: self._probe(nodes, env, plan))
        _, error = tests_outcome.outcome(ended, _expected(job, plan, plan.sizes_bytes, 1))
        return Probe(
            nodes=tuple(node.name for node in nodes),
            at=at,
            ranks=job.shape.world,
            source="nccl log",
            settings=_settings_in_force(job, ended),
            error=error,
            log_of_rank_0=tests_reading.log_of_rank_0(ended[0].reading),
        )

    def can_measure(self, env: NcclEnv) -> bool:
        """Anything can be tried on real processes, but for what gave a wrong result."""
        return env not in self._spoiled

    def notes(self) -> tuple[str, ...]:
        """What a reader must be told about these numbers."""
        how = (
            "started by the launcher" if self._options.launcher else "one process a node with all of its GPUs"
        )
        return (
            f"times are those of nccl-tests, {how}: a sample is the mean of many calls, of the slowest rank where "
            "the binary can tell",
        )

    def close(self) -> None:
        """End the programs on the nodes, and whatever they still run."""
        self._pool.close()

    # --- one launch ---

    def _launch(self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan) -> Found:
        job, agents, binary = self._at_hand(nodes, plan)
        known = [] if env == DEFAULTS else self._known_defaults(nodes, plan)
        until = time.monotonic() + fair_deadline(plan.deadline_seconds, known)
        environment = self._inventory.env.merged(env)
        calls = tests_command.calls_per_sample(job, binary)
        results: tuple[SizeResult, ...] = ()
        notes = dict.fromkeys(_missing(binary, plan))
        for sizes in tests_command.runs_of(plan.sizes_bytes):
            expected = _expected(job, plan, sizes.of(plan.sizes_bytes), calls)
            argv = tests_command.timed(job, binary, environment, plan, sizes)
            ended = self._run(agents, argv, until)
            found, error = tests_outcome.outcome(ended, expected)
            notes |= dict.fromkeys(tests_outcome.versions(ended))
            if error is not None:
                return job, results + found, error, tuple(notes)
            if plan.single_calls and binary.can_time_calls:
                argv = tests_command.call_by_call(job, binary, environment, plan, sizes)
                found = tests_outcome.with_calls(found, self._run(agents, argv, until), expected)
            results += found
        return job, results, None, tuple(notes)

    def _probe(self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan) -> tuple[Job, list[Ended]]:
        job, agents, binary = self._at_hand(nodes, plan)
        argv = tests_command.probing(job, binary, self._inventory.env.merged(env), plan)
        return job, self._run(agents, argv, time.monotonic() + _PROBE_SECONDS)

    def _at_hand(self, nodes: tuple[Node, ...], plan: BenchPlan) -> tuple[Job, list[Agent], Binary]:
        """The job, the nodes that are given commands, and what they run. Raises InputError or MissingCapability."""
        is_launched = bool(self._options.launcher)
        if not is_launched and plan.layout is Layout.WORLD and len(nodes) > 1:
            raise InputError(
                f"without a launcher nccl-tests cannot measure between {len(nodes)} nodes",
                hint="set `nccl_tests: {launcher: ...}` in the cluster file, or measure within nodes: --layout node",
            )
        agents = self._pool.agents(nodes[:1] if is_launched else nodes)
        job = Job(self._options, nodes, self._ranks_per_node(agents))
        job.shape.communicator(plan.layout)  # refused before anything is started
        return job, agents, self._binary(agents[0], plan.collective)

    def _ranks_per_node(self, agents: Sequence[Agent]) -> int:
        if self._inventory.ranks_per_node is not None:
            return self._inventory.ranks_per_node
        counts = {agent.node.name: agent.ready.get("gpus") for agent in agents}
        if len(set(counts.values())) != 1 or not all(counts.values()):
            told = ", ".join(f"{name}: {count or 'unknown'}" for name, count in sorted(counts.items()))
            raise InputError(
                f"how many GPUs each node has is unknown or differs ({told})", hint="set `ranks_per_node`"
            )
        each = int(agents[0].ready["gpus"])
        if each % self._options.gpus_per_process:
            raise InputError(
                f"{each} GPUs a node are no whole number of processes with {self._options.gpus_per_process} each"
            )
        return each

    def _binary(self, agent: Agent, collective: str) -> Binary:
        key = (agent.node.name, collective)
        if key not in self._binaries:
            request = {"op": "look", "candidates": tests_command.candidates(self._options, collective)}
            try:
                answer = agent.ask(request, _LOOKING_SECONDS)
            except HostError:
                self._pool.drop(agent.node)
                raise
            options = tests_command.options_in(answer["help"])
            if answer["found"] is None or not options:
                reason = answer["error"] or f"{answer['found'][0]} names no options: {_last(answer['help'])}"
                raise MissingCapability(
                    f"{agent.node.name}: nccl-tests cannot measure `{collective}`: {reason}",
                    hint="`nccl_tests: {folder: ...}` of the cluster file names the folder of `all_reduce_perf`",
                )
            self._binaries[key] = Binary(tuple(answer["found"]), options)
        return self._binaries[key]

    def _run(self, agents: Sequence[Agent], argv: tuple[str, ...], until: float) -> list[Ended]:
        """The same command on every node that is given commands, side by side. Raises the HostError of a lost one."""
        self._commands += 1
        left = round(max(1.0, until - time.monotonic()), 3)
        request = {"op": "run", "id": self._commands, "argv": argv, "deadline_seconds": left}
        requests = [{**request, "node": agent.node.name} for agent in agents]
        events = self._pool.run_trial(agents, requests, left + _GRACE_SECONDS, lambda index, answers: None)
        by_node = {event["node"]: event for event in events}
        return [tests_outcome.ended(by_node[agent.node.name]) for agent in agents]

    def _known_defaults(self, nodes: tuple[Node, ...], plan: BenchPlan) -> list[Launch]:
        return self._defaults.setdefault((tuple(node.name for node in nodes), plan), [])


def _expected(job: Job, plan: BenchPlan, sizes_bytes: tuple[int, ...], calls_per_sample: int) -> Expected:
    is_launched = bool(job.options.launcher)
    world = job.shape.world if is_launched else job.ranks_per_node
    return Expected(
        sizes_bytes=sizes_bytes,
        ranks=world,
        nodes=len(job.nodes) if is_launched else 1,
        communicators=world // job.shape.communicator(plan.layout).world,
        in_place=plan.in_place,
        calls_per_sample=calls_per_sample,
    )


def _settings_in_force(job: Job, ended: Sequence[Ended]) -> tuple[SettingInForce, ...]:
    names = [node.name for node in job.nodes]
    if job.options.launcher:
        return tests_reading.settings_in_force(ended[0].reading, names, job.ranks_per_node)
    # Every node has a job of its own, whose ranks begin at 0.
    return tuple(
        msgspec.structs.replace(setting, rank=number * job.ranks_per_node + setting.rank)
        for number, (name, one) in enumerate(zip(names, ended, strict=True))
        for setting in tests_reading.settings_in_force(one.reading, [name], job.ranks_per_node)
    )


def _missing(binary: Binary, plan: BenchPlan) -> list[str]:
    """What was asked for and is not to be had from this binary."""
    notes = []
    if plan.repeats > 1 and not binary.can_repeat:
        notes.append("this nccl-tests measures each size once a launch: it does not know `-N`")
    if plan.single_calls and not binary.can_time_calls:
        notes.append("this nccl-tests does not time calls one by one: it does not know `-I`, or not `-J`")
    if plan.overlap:
        notes.append("nccl-tests runs no matrix product beside a collective")
    return notes


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return clipped(lines[-1], 200) if lines else "it printed nothing"
