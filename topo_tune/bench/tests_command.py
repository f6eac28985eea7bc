"""Commands that run nccl-tests: which sizes in which run, what the binary knows, and who starts its processes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from topo_tune.bench.sets import Shape
from topo_tune.errors import InputError
from topo_tune.records.bench import BenchPlan, Layout
from topo_tune.records.inventory import NcclTestsOptions, Node
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.units import DATA_TYPES

CALLS = 20
"""calls that are issued together, and captured together in a CUDA graph: nccl-tests' own default"""
GRAPH_LAUNCHES = 4
"""graphs of one sample: what launching and awaiting them costs the host is spread over 80 calls"""
WARMUP_CALLS = 5
_SLOWEST_RANK = 3
"""nccl-tests' word for the time of the slowest rank, where it otherwise reports the mean over ranks"""
REPORT = "{report}"
"""stands in a command for the path of the JSON file, which the node chooses"""

_OPTION = re.compile(r"\[-(\w),--\w+")


class Sizes(NamedTuple):
    """Sizes of one run, as `-b`, `-e` and a factor or a step between them."""

    first_bytes: int
    last_bytes: int
    rows: int
    factor: int = 0
    """0: `step_bytes` apart, or a single size"""
    step_bytes: int = 0

    def of(self, sizes_bytes: Sequence[int]) -> tuple[int, ...]:
        """Those of these sizes that the run measures."""
        return tuple(size for size in sizes_bytes if self.first_bytes <= size <= self.last_bytes)

    def arguments(self) -> tuple[str, ...]:
        """As options of nccl-tests."""
        between = ("-f", str(self.factor)) if self.factor else ("-i", str(self.step_bytes))
        return "-b", str(self.first_bytes), "-e", str(self.last_bytes), *(between if self.rows > 1 else ())


class Binary(NamedTuple):
    """A test that was found on a node."""

    argv: tuple[str, ...]
    options: frozenset[str]
    """letters of the options that its help names; older ones know fewer"""

    @property
    def can_repeat(self) -> bool:
        """Whether one run can measure the sizes several times, for several samples of each."""
        return "N" in self.options

    @property
    def can_time_calls(self) -> bool:
        """Whether it can time each call and write the times down."""
        return {"I", "J"} <= self.options


class Job(NamedTuple):
    """Where a run takes place."""

    options: NcclTestsOptions
    nodes: tuple[Node, ...]
    ranks_per_node: int

    @property
    def shape(self) -> Shape:
        """How many ranks stand where."""
        return Shape(len(self.nodes), self.ranks_per_node)

    @property
    def processes_per_node(self) -> int:
        """One, where no launcher starts more."""
        return self.ranks_per_node // self.options.gpus_per_process if self.options.launcher else 1


def runs_of(sizes_bytes: Sequence[int]) -> tuple[Sizes, ...]:
    """Ascending sizes as few runs: each a row of sizes with one factor, or one step, between them."""
    runs = []
    left = list(sizes_bytes)
    while left:
        longest = max((_by_factor(left), _by_step(left)), key=lambda run: run.rows)
        runs.append(longest)
        left = left[longest.rows :]
    return tuple(runs)


def _by_factor(sizes: Sequence[int]) -> Sizes:
    factor = sizes[1] // sizes[0] if len(sizes) > 1 else 0
    if factor < 2 or sizes[0] * factor != sizes[1]:
        return Sizes(sizes[0], sizes[0], 1)
    count = 2
    while count < len(sizes) and sizes[count - 1] * factor == sizes[count]:
        count += 1
    return Sizes(sizes[0], sizes[count - 1], count, factor=factor)


def _by_step(sizes: Sequence[int]) -> Sizes:
    # Any two sizes are a step apart; only more make a row that saves a run without spoiling the next.
    count = 1
    while count < len(sizes) and sizes[count] - sizes[count - 1] == sizes[1] - sizes[0]:
        count += 1
    if count < 3:
        return Sizes(sizes[0], sizes[0], 1)
    return Sizes(sizes[0], sizes[count - 1], count, step_bytes=sizes[1] - sizes[0])


def candidates(options: NcclTestsOptions, collective: str) -> tuple[tuple[str, ...], ...]:
    """Where the test of a collective may be; builds with MPI may have a name of their own."""
    names = [f"{collective}_perf", f"{collective}_perf_mpi"]
    if options.launcher:
        names.reverse()
    return tuple((f"{options.folder.rstrip('/')}/{name}" if options.folder else name,) for name in names)


def options_in(help_text: str) -> frozenset[str]:
    """Letters of the options that a test's help names."""
    return frozenset(_OPTION.findall(help_text))


def timed(job: Job, binary: Binary, env: NcclEnv, plan: BenchPlan, sizes: Sizes) -> tuple[str, ...]:
    """The command that takes the samples of a run."""
    words = ["-n", str(CALLS), "-w", str(WARMUP_CALLS), "-c", "1"]
    words += ["-G", str(GRAPH_LAUNCHES)] if "G" in binary.options else []
    words += ["-N", str(plan.repeats)] if binary.can_repeat and plan.repeats > 1 else []
    # Of an option that is given twice the last one counts.
    return _command(job, binary, env, plan, (*sizes.arguments(), *words, *job.options.arguments))


def calls_per_sample(job: Job, binary: Binary) -> int:
    """How many calls one sample of `timed` is the mean of."""
    graphs = GRAPH_LAUNCHES if "G" in binary.options else 0
    arguments = job.options.arguments
    return _given(arguments, "n", "iters", CALLS) * max(1, _given(arguments, "G", "cudagraph", graphs))


def call_by_call(job: Job, binary: Binary, env: NcclEnv, plan: BenchPlan, sizes: Sizes) -> tuple[str, ...]:
    """The command that times calls one by one, which nccl-tests does outside of graphs only."""
    words = ["-n", str(plan.single_calls), "-w", str(WARMUP_CALLS), "-c", "0", "-G", "0", "-I", "1"]
    return _command(job, binary, env, plan, (*job.options.arguments, *sizes.arguments(), *words))


def probing(job: Job, binary: Binary, env: NcclEnv, plan: BenchPlan) -> tuple[str, ...]:
    """The command that lets NCCL tell what it took, and times nothing."""
    log = NcclEnv((("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,TUNING,GRAPH")))
    (sizes,) = runs_of(plan.sizes_bytes[:1])
    words = ("-n", "1", "-w", "1", "-c", "0")
    return _command(job, binary, env.merged(log), plan, (*job.options.arguments, *sizes.arguments(), *words))


def _command(
    job: Job, binary: Binary, env: NcclEnv, plan: BenchPlan, words: Sequence[str]
) -> tuple[str, ...]:
    known = DATA_TYPES.get(plan.dtype)
    if known is None:
        raise InputError(f"nccl-tests has no type `{plan.dtype}`")
    own = ["-d", known.nccl_tests, "-g", str(job.ranks_per_node // job.processes_per_node)]
    own += ["-a", str(_SLOWEST_RANK)] if "a" in binary.options else []
    own += ["-J", REPORT] if "J" in binary.options else []
    return (*_launched(job), "env", *_environment(job, env, plan.layout), *binary.argv, *words, *own)


def _given(arguments: Sequence[str], letter: str, name: str, default: int) -> int:
    """The number that an operator gave for an option, as `-n 50`, `-n50`, `--iters 50` or `--iters=50`."""
    text = " ".join(arguments)
    found = re.findall(rf"(?:^| )(?:-{letter} ?|--{name}[ =])(\d{{1,9}})(?= |$)", text)
    return int(found[-1]) if found else default


def _environment(job: Job, env: NcclEnv, layout: Layout) -> list[str]:
    """Words for `env`, which stands in front of the test: they reach every process, whatever a launcher passes on."""
    split = _split(job, layout)
    return [f"{name}={value}" for name, value in env.settings] + (
        [f"NCCL_TESTS_SPLIT={split}"] if split else []
    )


def _split(job: Job, layout: Layout) -> str | None:
    """How nccl-tests divides the processes of a job. Raises InputError for what it cannot do here."""
    if layout is Layout.WORLD:
        return None
    job.shape.communicator(layout)  # refuses what would leave ranks alone
    if not job.options.launcher:
        if layout is Layout.WITHIN_NODE:
            return None
        raise InputError(
            f"layout `{layout.value}` needs a process for each rank",
            hint="set `nccl_tests: {launcher: ...}` in the cluster file",
        )
    if layout is Layout.WITHIN_NODE:
        return f"DIV {job.processes_per_node}"
    if job.options.gpus_per_process > 1:
        raise InputError(
            f"layout `{layout.value}` needs a process for each rank",
            hint="set `nccl_tests: {gpus_per_process: 1}` in the cluster file",
        )
    return f"MOD {job.processes_per_node}" if layout is Layout.RAILS else "DIV 2"


def _launched(job: Job) -> tuple[str, ...]:
    each = job.processes_per_node
    words = {
        "nodes": ",".join(node.name for node in job.nodes),
        "addresses": ",".join(node.address for node in job.nodes),
        "slots": ",".join(f"{node.address}:{each}" for node in job.nodes),
        "ranks": str(job.shape.world),
        "processes": str(each * len(job.nodes)),
        "node_count": str(len(job.nodes)),
        "processes_per_node": str(each),
    }
    return tuple(_filled(word, words) for word in job.options.launcher)


def _filled(word: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(f"{{{name}}}", value)
    return word
