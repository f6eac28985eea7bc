"""The replay of a recorded surface: real node processes and real files, times from the recording.

Which setting is in force is read on the nodes by NCCL's own rules (environment, ~/.nccl.conf, /etc/nccl.conf); only the
time comes from the recording. A setting with five or more recorded launches gives one of them as it was. A setting
recorded less often gives its recording times the launch-to-launch noise of the default, drawn from the default's
launches with all sizes together, because the sizes of one launch move together.
"""

from __future__ import annotations

import random
import statistics
import time

from topo_tune.bench.agents import AgentPool
from topo_tune.bench.backends.interface import OnLaunch, keep_nothing, measured_one_by_one
from topo_tune.bench.plan import recorded
from topo_tune.bench.sets import utc_now
from topo_tune.bench.surface import Recording, Surface, canonical
from topo_tune.errors import HostError, InputError
from topo_tune.records.bench import BenchPlan, Launch, Probe, SettingInForce, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName, Inventory, Node
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv

_ENOUGH_RECORDINGS = 5
"""launches of one setting that show its own noise"""

# Variables that say where NCCL writes or how the recording was set up, and change no time.
_WITHOUT_EFFECT = frozenset(
    {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_CONF_FILE", "NCCL_HOSTID", "NCCL_VERSION"}
)
_ANSWER_SECONDS = 20.0


class ReplayBackend:
    """Draws times from a surface for the setting that the nodes really have in force."""

    def __init__(self, inventory: Inventory, pool: AgentPool, surface: Surface, seed: int) -> None:
        assert inventory.replay is not None, "the reader of the cluster file demands a replay block"
        self._inventory, self._pool, self._surface, self._seed = inventory, pool, surface, seed
        self._faults = inventory.replay.faults

    def measure(
        self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan, *, index: int, purpose: str
    ) -> Launch:
        """One replayed launch; a setting that was not recorded, or nodes that differ, is its `error`.

        Raises HostError; see the interface.
        """
        started_at = utc_now()
        clock = time.monotonic()
        results, error, notes = self._draw(nodes, env, plan, index, purpose)
        ranks, communicator_ranks = self._ranks(plan)
        return Launch(
            index=index,
            purpose=purpose,
            nodes=tuple(node.name for node in nodes),
            env=env,
            backend=BackendName.REPLAY,
            ranks=ranks,
            started_at=started_at,
            wall_seconds=round(time.monotonic() - clock, 3),
            results=results,
            error=error,
            notes=notes,
            collective=plan.collective,
            dtype=plan.dtype,
            layout=plan.layout,
            in_place=plan.in_place,
            communicator_ranks=communicator_ranks,
        )

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
        """One replayed launch after the other: recorded ones share no processes. Raises HostError."""
        return measured_one_by_one(
            self, nodes, settings, plan, first_index=first_index, purpose=purpose, on_launch=on_launch
        )

    def probe(self, nodes: tuple[Node, ...], env: NcclEnv) -> Probe:
        """Which variables each node's processes would have, by NCCL's reading rules on the node's own files."""
        names = tuple(node.name for node in nodes)
        at = utc_now()
        source = "nccl's reading rules (replay)"
        in_force = self._in_force(nodes, env)
        settings = tuple(
            SettingInForce(rank=rank, node=name, name=setting, value=value, evidence=where)
            for rank, name in enumerate(names)
            for setting, (value, where) in sorted(in_force[name].items())
        )
        return Probe(nodes=names, at=at, ranks=len(names), source=source, settings=settings)

    def can_measure(self, env: NcclEnv) -> bool:
        """Whether the setting was recorded."""
        return canonical(env) in self._surface.recordings

    def notes(self) -> tuple[str, ...]:
        """What a reader must be told: that this is a replay, of what, and with which faults."""
        facts = self._surface.facts
        found = [
            f"replay of `{self._surface.name}` ({facts.get('source', 'unknown source')}): "
            f"times are recorded ones, not this machine's"
        ]
        for fault in self._faults:
            found.append(
                f"replay with a fault put in: on {', '.join(fault.racks)} any tuned setting takes "
                f"{fault.tuned_time_factor:g} times the default's time"
            )
        return tuple(found)

    def close(self) -> None:
        """End the node processes."""
        self._pool.close()

    def _ranks(self, plan: BenchPlan) -> tuple[int, int | None]:
        """Ranks of what was recorded, and those of one communicator, on which bus bandwidth depends."""
        usual = int(self._surface.facts.get("ranks", 0))
        try:
            defaults = recorded(self._surface, plan).recordings[DEFAULTS]
        except InputError:
            return usual, None
        one = next((recording for recording in defaults if recording.error is None), defaults[0])
        return one.ranks or usual, one.communicator_ranks

    def _in_force(self, nodes: tuple[Node, ...], env: NcclEnv) -> dict[str, dict[str, tuple[str, str]]]:
        return self._pool.attempt(lambda: self._ask_each(nodes, env))

    def _ask_each(self, nodes: tuple[Node, ...], env: NcclEnv) -> dict[str, dict[str, tuple[str, str]]]:
        request = {"op": "resolve", "env": self._inventory.env.merged(env).as_dict()}
        in_force = {}
        for agent in self._pool.agents(nodes):
            try:
                answer = agent.ask(request, _ANSWER_SECONDS)
            except HostError:
                self._pool.drop(agent.node)
                raise
            in_force[agent.node.name] = {
                name: (str(pair[0]), str(pair[1])) for name, pair in answer["settings"].items()
            }
        return in_force

    def _draw(
        self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan, index: int, purpose: str
    ) -> tuple[tuple[SizeResult, ...], str | None, tuple[str, ...]]:
        try:
            surface = recorded(self._surface, plan)
        except InputError as exc:
            return (), exc.message, ()
        in_force = self._in_force(nodes, env)
        effective = {name: self._effective(found, plan.collective) for name, found in in_force.items()}
        if len(set(effective.values())) > 1:
            listed = "; ".join(f"{name}: {found}" for name, found in effective.items())
            return (), f"nodes differ in their settings, which can hang NCCL: {listed}", ()
        setting = next(iter(effective.values()))
        unknown = sorted(set(setting.names()) - surface.variables)
        if unknown or setting not in surface.recordings:
            return (), f"not recorded in `{surface.name}`: {setting}", ()
        rng = random.Random(f"{self._seed}/{purpose}/{index}/{setting.short_hash()}")
        factor = self._fault_factor(nodes, setting)
        recording, times = _one_launch(surface, DEFAULTS if factor is not None else setting, rng)
        if recording.error is not None:
            return (), recording.error, ()
        results = []
        for size in plan.sizes_bytes:
            if size not in times:
                return (), f"size {size} was not recorded in `{surface.name}`", ()
            results.append(
                SizeResult(
                    size_bytes=size,
                    samples_seconds=tuple(
                        sample * (1.0 if factor is None else factor) for sample in times[size]
                    ),
                    calls_per_sample=1,
                    mode=TimingMode.REPLAY,
                    is_correct=None,
                )
            )
        return tuple(results), None, (f"in force: {setting}",)

    def _effective(self, settings: dict[str, tuple[str, str]], collective: str) -> NcclEnv:
        """What decides the time: without the inventory's own variables, which the recording had too."""
        common = set(self._inventory.env.settings)
        kept = {
            name: value
            for name, (value, _) in settings.items()
            if name not in _WITHOUT_EFFECT and (name, value) not in common
        }
        return canonical(NcclEnv(tuple(sorted(kept.items()))), collective)

    def _fault_factor(self, nodes: tuple[Node, ...], setting: NcclEnv) -> float | None:
        if setting == DEFAULTS:
            return None
        factors = [f.tuned_time_factor for f in self._faults for node in nodes if node.rack in f.racks]
        # A collective runs at the pace of its slowest node.
        return max(factors, default=None)


def _one_launch(
    surface: Surface, setting: NcclEnv, rng: random.Random
) -> tuple[Recording, dict[int, tuple[float, ...]]]:
    recordings = surface.recordings[setting]
    recording = rng.choice(recordings)
    if recording.error is not None or len(recordings) >= _ENOUGH_RECORDINGS:
        return recording, recording.samples
    noise = _noise(surface, rng)
    return recording, {
        size: tuple(sample * noise.get(size, 1.0) for sample in samples)
        for size, samples in recording.samples.items()
    }


def _noise(surface: Surface, rng: random.Random) -> dict[int, float]:
    """One of the default's launches over their median, size by size."""
    launches = [r for r in surface.recordings[DEFAULTS] if r.error is None]
    drawn = rng.choice(launches)
    return {
        size: statistics.median(drawn.samples[size])
        / statistics.median(
            statistics.median(launch.samples[size]) for launch in launches if size in launch.samples
        )
        for size in drawn.samples
    }
