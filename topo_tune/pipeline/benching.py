"""Stage 4 alone: some settings against NCCL's default, block by block, until enough is known."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from topo_tune import __version__
from topo_tune.bench.answers import was_wrong
from topo_tune.bench.backends.interface import Backend
from topo_tune.bench.plan import weights_of
from topo_tune.bench.record import MeasureAll, RecordedLaunches, conditions_of
from topo_tune.bench.surface import append_to_surface, facts_of
from topo_tune.errors import HostError, MeasurementFailed
from topo_tune.pipeline.cluster import Cluster, Watch
from topo_tune.records.bench import BenchPlan, Launch
from topo_tune.records.inventory import BackendName, Inventory, Node
from topo_tune.records.lock import held_alone
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.progress import Progress
from topo_tune.records.topology import Topology
from topo_tune.stats.needed import EXPECTED_CVS, USUAL_CV, launch_noise, visible_change
from topo_tune.stats.objective import mean_log_seconds, shares
from topo_tune.stats.stopping import Answer, Rule, look, plan_looks

PURPOSE = "bench"

MOST_LAUNCHES = 12
"""of each setting, where something else than their number ends the measurement; stats/stopping.py says why"""


class BenchOptions(msgspec.Struct, frozen=True):
    """What an operator may choose about a measurement."""

    launches: int = 3
    """of each setting, at most"""
    share_processes: bool = False
    """settings that allow it run in one set of processes"""
    until: float | None = None
    """stop when each setting is seen to differ from the default, or its interval is narrower than this to each side"""
    budget_seconds: float | None = None
    """start no block that would end later than this"""


def bench(
    cluster: Cluster,
    settings: tuple[NcclEnv, ...],
    plans: tuple[BenchPlan, ...],
    output: Path | None,
    options: BenchOptions,
    watch: Watch,
) -> tuple[tuple[Launch, ...], tuple[str, ...]]:
    """Launches of the default and of some settings, in the order in which they were made, and the back end's notes.

    NCCL's default is always among them. A block holds each setting once, of each plan; the order turns round from block
    to block, so that a steady drift favours no setting. `plans` differ in their collective. A setting that gave a
    wrong result is not measured again. Raises Refused when `output` holds launches of another measurement.
    """
    order = tuple(dict.fromkeys((DEFAULTS, *settings)))
    with (
        contextlib.nullcontext() if output is None else held_alone(output.with_name(f".{output.name}.lock")),
        told_what_is_kept(output),
        cluster.backend() as backend,
        tempfile.TemporaryDirectory(prefix="topo-tune-") as nowhere,
    ):
        record = RecordedLaunches(
            output if output is not None else Path(nowhere) / "30-bench.jsonl",
            lambda env, purpose, index: backend.measure(
                cluster.inventory.nodes(), env, plans[0], index=index, purpose=purpose
            ),
            conditions=conditions_of(cluster.inventory, *plans),
        )
        session = _Session(cluster.inventory, backend, record, order, plans, options, watch)
        if record.recorded:
            watch.say(f"{min(record.recorded, session.asked)} of {session.asked} launches come from {output}")
        session.say_what_it_can_show()
        return session.run(), backend.notes()


class _Session:
    """The blocks of one measurement."""

    def __init__(
        self,
        inventory: Inventory,
        backend: Backend,
        record: RecordedLaunches,
        order: tuple[NcclEnv, ...],
        plans: tuple[BenchPlan, ...],
        options: BenchOptions,
        watch: Watch,
    ) -> None:
        self._inventory, self._backend, self._record, self._watch = inventory, backend, record, watch
        self._order, self._plans, self._options = order, plans, options
        self._rule = _rule(options, comparisons=len(plans) * (len(order) - 1))
        self._blocks: list[tuple[Launch, ...]] = []
        self._wrong: set[NcclEnv] = set()
        self._told = 0

    @property
    def asked(self) -> int:
        """Launches in all, unless something ends them sooner."""
        return self._options.launches * len(self._order) * len(self._plans)

    def say_what_it_can_show(self) -> None:
        """Before anything is measured: the smallest change that these launches will show."""
        if len(self._order) == 1:
            return
        if self._rule is None:
            self._watch.say(
                "one launch of each setting shows no change of any size: nothing tells how launches differ"
            )
            return
        told: dict[str, list[str]] = {}
        for plan in self._plans:
            recorded = [
                value
                for launch in self._record.launches
                if launch.env == DEFAULTS and (value := self._log_seconds(launch, plan)) is not None
            ]
            noise = launch_noise(recorded, expected_cv=_expected_cv(self._inventory))
            visible = visible_change(self._options.launches, noise, confidence=self._rule.confidences[-1])
            told.setdefault(visible.in_words(), []).append(plan.collective)
        for words, collectives in told.items():
            self._watch.say(f"{', '.join(collectives)}: {words}")

    def run(self) -> tuple[Launch, ...]:
        """All blocks, or as many as are needed."""
        began = time.monotonic()
        longest = 0.0
        for number in range(self._options.launches):
            block_began = time.monotonic()
            self._blocks.append(self._block(number))
            longest = max(longest, time.monotonic() - block_began)
            reason = self._enough(time.monotonic() - began + longest)
            if reason is not None and number + 1 < self._options.launches:
                self._watch.say(
                    f"stopped after {number + 1} of {self._options.launches} launches of each setting: {reason}"
                )
                break
        return tuple(launch for block in self._blocks for launch in block)

    def _block(self, number: int) -> tuple[Launch, ...]:
        made: list[Launch] = []
        for plan in self._plans:
            order = [env for env in self._order if env not in self._wrong]
            if number % 2:
                order.reverse()
            measured = self._record.evaluate_all(order, PURPOSE, plan.collective, self._measure(plan))
            for launch in measured:
                self._tell(launch)
            made += measured
        return tuple(made)

    def _measure(self, plan: BenchPlan) -> MeasureAll:
        nodes: tuple[Node, ...] = self._inventory.nodes()

        def measure(settings: tuple[NcclEnv, ...], first: int, keep: Callable[[Launch], None]) -> None:
            def keep_and_tell(launch: Launch) -> None:
                keep(launch)
                self._tell(launch)

            if self._options.share_processes:
                self._backend.measure_together(
                    nodes, settings, plan, first_index=first, purpose=PURPOSE, on_launch=keep_and_tell
                )
                return
            for index, env in enumerate(settings, start=first):
                keep_and_tell(self._backend.measure(nodes, env, plan, index=index, purpose=PURPOSE))

        return measure

    def _tell(self, launch: Launch) -> None:
        """Say once that a launch has ended, whether it was measured now or read from the file."""
        if launch.index < self._told:
            return
        self._told = launch.index + 1
        text = f"{launch.env}" if launch.error is None else f"{launch.env}: {launch.error}"
        self._watch.on_progress(Progress(PURPOSE, self._told, self.asked, text))
        if was_wrong(launch):
            self._wrong.add(launch.env)
            self._watch.say(f"{launch.env}: {launch.error}; it is not measured again")

    def _enough(self, ends_at_seconds: float) -> str | None:
        """Why no further block is needed, or affordable; None where one is."""
        budget = self._options.budget_seconds
        if budget is not None and ends_at_seconds > budget:
            return f"another block would end after the {budget:g} s that were given"
        if DEFAULTS in self._wrong:
            return "the default itself gives wrong results, and nothing can be compared with it"
        if self._options.until is not None and self._rule is not None and self._all_decided(self._rule):
            return "each setting differs visibly from the default, or its interval is narrow enough"
        return None

    def _all_decided(self, rule: Rule) -> bool:
        """Whether no comparison needs another launch; of what never gave a number, none is expected."""
        answers = [
            look(differences, rule).answer
            for plan in self._plans
            for env in self._order[1:]
            if (differences := self._differences(env, plan))
        ]
        return bool(answers) and Answer.GO_ON not in answers

    def _differences(self, env: NcclEnv, plan: BenchPlan) -> list[float]:
        """Baseline less setting, in logs, of each block that has both."""
        found = []
        for block in self._blocks:
            sides = [self._of_block(block, side, plan) for side in (DEFAULTS, env)]
            if sides[0] is not None and sides[1] is not None:
                found.append(sides[0] - sides[1])
        return found

    def _of_block(self, block: Sequence[Launch], env: NcclEnv, plan: BenchPlan) -> float | None:
        values = [self._log_seconds(launch, plan) for launch in block if launch.env == env]
        return next((value for value in values if value is not None), None)

    def _log_seconds(self, launch: Launch, plan: BenchPlan) -> float | None:
        """One number of a launch: its weighted mean log time; None where it is none of the plan's, or not usable."""
        if launch.collective != plan.collective or not launch.is_usable:
            return None
        # What was measured may be a little less than what was asked, where ranks share a size evenly: two sizes that
        # were asked for may have become one.
        medians = {
            asked: statistics.median(result.samples_seconds)
            for asked, result in zip(plan.sizes_bytes, launch.results, strict=False)
        }
        return mean_log_seconds(medians, shares(plan.sizes_bytes, weights_of(self._inventory, plan)))


def _rule(options: BenchOptions, comparisons: int) -> Rule | None:
    """When to look, and how sure each look must be; None where there will be nothing to look at."""
    if options.launches < 2 or comparisons < 1:
        return None
    usual = plan_looks(options.launches, comparisons=comparisons)
    return usual if options.until is None else usual._replace(narrow_enough=options.until)


def _expected_cv(inventory: Inventory) -> float:
    """What launches are expected to differ by before any was made."""
    if len(inventory.nodes()) * inventory.as_nodes == 1:
        return EXPECTED_CVS["nvlink"]
    # Sockets are the noisiest of the fabrics between nodes, and which it is nobody has asked here.
    return EXPECTED_CVS["socket"] if inventory.backend is not BackendName.GLOO else USUAL_CV


def record_surface(
    path: Path, launches: Sequence[Launch], inventory: Inventory, topology: Topology, dtype: str
) -> int:
    """Add launches to a recorded surface; how many were not in it yet. Raises as `append_to_surface` does.

    A measurement that goes on tells of its first launches again: they are known by the moment at which they began.
    """
    known = _moments(path) if path.exists() else set()
    launches = [launch for launch in launches if launch.started_at not in known]
    if not launches:
        return 0
    facts = {
        **facts_of(topology),
        "ranks": str(launches[0].ranks),
        "dtype": dtype,
        "recorded_at": launches[0].started_at[:10],
        "source": f"topo-tune {__version__} bench, {inventory.describe()}, back end {inventory.backend.value}",
    }
    return append_to_surface(path, launches, facts)


class _Moment(msgspec.Struct):
    at: str = ""


def _moments(path: Path) -> set[str]:
    """When the launches of a surface began. Lines that are none are for `append_to_surface` to refuse."""
    found = set()
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.add(msgspec.json.decode(line, type=_Moment).at)
    return found


@contextlib.contextmanager
def told_what_is_kept(output: Path | None) -> Iterator[None]:
    """Says, when a node was lost for good, that no setting is blamed for it and how to go on."""
    try:
        yield
    except HostError as exc:
        kept = (
            ""
            if output is None
            else (
                f"what was measured is kept: once the node answers, the same command with --output {output} goes on"
            )
        )
        raise MeasurementFailed(
            f"a node was lost, and again with fresh agents, so this launch counts for nothing: {exc.message}",
            hint="; ".join(filter(None, (exc.hint, kept))) or None,
        ) from exc
