"""Rules about nccl-tests output: runs that measured nothing, wrong results, and runs far below their twins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations

from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import listed, of_kind
from topo_tune.records.document import Document
from topo_tune.records.finding import Severity
from topo_tune.records.nccl_documents import MeasuredRun, NcclTests
from topo_tune.records.scan import Scan

_PERFORMANCE = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"

_TWIN_RATIO = 2.0
"""A twin at half the speed differs by more than any noise between launches, which stays near 10 %."""
_LEAST_SIZES = 3
_LEAST_BUSBW_GB_PER_S = 1.0
"""Below, small messages and rounding to two decimals decide."""


def _runs(scan: Scan) -> Iterator[tuple[Document, MeasuredRun]]:
    for document, tests in of_kind(scan, NcclTests):
        for run in tests.runs:
            yield document, run


def _each(what: str, holds: Callable[[MeasuredRun], str | None]) -> Callable[[Scan], Iterator[Sighting]]:
    """A look at every run by itself: `holds` tells the evidence, or None where there is nothing to tell."""

    def look(scan: Scan) -> Iterator[Sighting]:
        for document, run in _runs(scan):
            evidence = holds(run)
            if evidence is not None:
                yield Sighting(what, document.node, (f"{document.file}: {evidence}",))

    return look


def _wrong(run: MeasuredRun) -> str | None:
    told = [problem for problem in run.problems if "wrong" in problem]
    return listed(told) if run.wrong_results else None


def _alone(run: MeasuredRun) -> str | None:
    if run.repeated_ranks or run.ranks != 1:
        return None
    return "1 rank, best busbw " + (
        "not measured" if run.best_busbw_gb_per_s is None else f"{run.best_busbw_gb_per_s:g} GB/s"
    )


def _apart(run: MeasuredRun) -> str | None:
    return f"{run.ranks} lists of ranks that each begin with 0" if run.repeated_ranks else None


def _shared(run: MeasuredRun) -> str | None:
    if run.repeated_ranks or run.ranks is None or run.devices is None or run.devices >= run.ranks:
        return None
    return f"{run.ranks} ranks, {run.devices} GPU" + ("s" if run.devices > 1 else "")


def _unchecked(run: MeasuredRun) -> str | None:
    halves = [half for row in run.rows for half in (row.out_of_place, row.in_place) if half is not None]
    if run.validation is False:
        return "`validation: 0`"
    if run.validation is None and halves and all(half.wrong is None for half in halves):
        return "no result was checked (N/A)"
    return None


def _unfinished(run: MeasuredRun) -> str | None:
    told = [problem for problem in run.problems if "closing" in problem or "cut, the first" in problem]
    return listed(told) if told else None


def _not_started(scan: Scan) -> Iterator[Sighting]:
    for document, tests in of_kind(scan, NcclTests):
        # What NCCL itself says of a failure is told as the job's.
        is_told = tests.log is not None and tests.log.cause is not None and tests.log.cause.is_fatal
        if tests.cause is not None and not is_told:
            fix = next((steps for words, steps in _CURES if words.search(tests.cause)), None)
            evidence = (f"{document.file}: {tests.cause}",)
            yield Sighting("nccl-tests did not run through", document.node, evidence, fix=fix)


_CURES = (
    (
        re.compile(r"slots|srun|slurmstepd"),
        (
            "match the launcher's slots with its hosts: `mpirun -np N -H node1:8,node2:8`, `srun -N 2 "
            "--ntasks-per-node=8`",
        ),
    ),
    (
        re.compile(r"shared libraries"),
        (
            "`ldd all_reduce_perf` shows what is missing: add its folder to `LD_LIBRARY_PATH`, on every node "
            "(`mpirun -x LD_LIBRARY_PATH`)",
        ),
    ),
    (
        re.compile(r"executable file|command not found|No such file"),
        ("give the whole path of the program, one that is there on every node; build it with `make MPI=1`",),
    ),
    (
        re.compile(r"number of GPUs|invalid device ordinal", re.I),
        (
            "ask for no more GPUs than a process sees: `-g 1` with a process for each GPU; check "
            "`CUDA_VISIBLE_DEVICES` and `--gpus-per-task`",
        ),
    ),
    (
        re.compile(r"out of memory", re.I),
        (
            "`nvidia-smi` shows what else is on the GPUs: end it, or measure smaller sizes (`-e 1G`); the test "
            "needs some three times its largest size",
        ),
    ),
    (
        re.compile(r"driver version is insufficient|no CUDA-capable device|system not yet initialized", re.I),
        (
            "`nvidia-smi` must show the GPUs and a CUDA version that is not older than the program's; on "
            "machines with NVSwitches `systemctl status nvidia-fabricmanager` must be active",
        ),
    ),
    (
        re.compile(r"error|invalid|illegal|fault|fail", re.I),
        (
            "run once with `NCCL_DEBUG=WARN`: NCCL's first warning, on any rank, has the reason",
            "where it names CUDA: `dmesg | grep -E 'NVRM|Xid'` on the node of that rank",
        ),
    ),
)
"""What helps, by what the program or its launcher said; the first that fits."""


def _slower_than_twin(scan: Scan) -> Iterator[Sighting]:
    """Pairs of alike runs: a scan holds a handful of them, and each is compared with each."""
    for (one_file, one), (other_file, other) in combinations(list(_runs(scan))[:200], 2):
        size = _largest_common_size(one, other)
        if one_file.file == other_file.file or size is None:
            continue
        speeds = sorted(
            ((_busbw(one, size), one_file), (_busbw(other, size), other_file)), key=lambda pair: pair[0]
        )
        (slow, slow_file), (fast, fast_file) = speeds
        if slow > 0 and fast >= _LEAST_BUSBW_GB_PER_S and fast / slow >= _TWIN_RATIO:
            yield Sighting(
                "a run of nccl-tests is far slower than another run of the same test",
                slow_file.node,
                (
                    f"{slow_file.file}: {slow:g} GB/s busbw at {size} bytes",
                    f"{fast_file.file}: {fast:g} GB/s busbw at {size} bytes",
                ),
            )


def _largest_common_size(one: MeasuredRun, other: MeasuredRun) -> int | None:
    """Where both are runs of the same test on alike ranks over the same sizes; None where they are not."""
    shape = [
        (
            run.test,
            run.ranks,
            len(run.hosts),
            run.gpu_names,
            run.is_graph,
            [row.size_bytes for row in run.rows],
        )
        for run in (one, other)
    ]
    if shape[0] != shape[1] or len(one.rows) < _LEAST_SIZES:
        return None
    kinds = [{(row.type, row.redop, row.root) for row in run.rows} for run in (one, other)]
    return one.rows[-1].size_bytes if kinds[0] == kinds[1] else None


def _busbw(run: MeasuredRun, size: int) -> float:
    """The better half of the last row of this size."""
    row = next(row for row in reversed(run.rows) if row.size_bytes == size)
    halves = [half.busbw_gb_per_s for half in (row.out_of_place, row.in_place) if half is not None]
    return max((value for value in halves if value is not None), default=0.0)


RULES: tuple[Rule, ...] = (
    Rule(
        id="test-wrong-results",
        title="nccl-tests found wrong results",
        severity=Severity.ERROR,
        why="the collective returned other sums than it should: no speed is worth having, and training would "
        "be silently wrong",
        fix=(
            "unset `NCCL_PROTO` and `NCCL_ALGO` first: forced LL128 corrupts data where NVLink does not keep "
            "128 bytes whole",
            "where nothing is forced: test GPUs and links one by one (`dcgmi diag -r 3`, pairs of nodes)",
        ),
        source="https://github.com/NVIDIA/nccl/issues/831",
        look=_each("nccl-tests found wrong results", _wrong),
    ),
    Rule(
        id="test-one-rank",
        title="nccl-tests ran with one rank",
        severity=Severity.ERROR,
        why="one rank communicates with nobody: busbw is 0 and algbw is the speed of a copy; the run "
        "measured nothing",
        fix=(
            "`all_reduce_perf -g 8` for the GPUs of one node, or one task a GPU: `srun --ntasks-per-node=8 "
            "--mpi=pmix`",
            "across nodes nccl-tests must be built with `make MPI=1`",
        ),
        source=_PERFORMANCE,
        look=_each("a run of nccl-tests had one rank only: it measured no communication", _alone),
    ),
    Rule(
        id="test-ranks-apart",
        title="processes of nccl-tests did not form one job",
        severity=Severity.ERROR,
        why="each process ran the test alone, as rank 0 of its own: what looks like a run over several nodes "
        "is none",
        fix=("build with `make MPI=1 MPI_HOME=...` and start it with an MPI that fits (`srun --mpi=list`)",),
        source="https://github.com/NVIDIA/nccl-tests/issues/107",
        look=_each("the processes of a run of nccl-tests did not form one job", _apart),
    ),
    Rule(
        id="test-gpu-shared",
        title="ranks of nccl-tests share a GPU",
        severity=Severity.ERROR,
        why="ranks on one GPU take turns on it and do not use the links between GPUs: the numbers say "
        "nothing of the machine",
        fix=(
            "one GPU for each rank: check `CUDA_VISIBLE_DEVICES`, `--gpus-per-task`, and that ranks a node "
            "match its GPUs",
        ),
        source=_PERFORMANCE,
        look=_each("ranks of a run of nccl-tests share a GPU", _shared),
    ),
    Rule(
        id="test-did-not-start",
        title="nccl-tests did not run through",
        severity=Severity.ERROR,
        why="there is no result, or only a part of one",
        fix=(
            "match the launcher's slots with its hosts: `mpirun -np N -H node1:8,node2:8`, `srun -N 2 "
            "--ntasks-per-node=8`",
            "run once with `NCCL_DEBUG=WARN` for the reason behind a `Test NCCL failure`",
        ),
        source="https://github.com/NVIDIA/nccl-tests/blob/master/README.md",
        look=_not_started,
    ),
    Rule(
        id="test-slower-than-twin",
        title="a run is far slower than its twin",
        severity=Severity.WARNING,
        why="the same test with as many ranks over the same sizes ran at half the speed or less: another "
        "network was used, or a node, link or setting is bad",
        fix=(
            "compare `NCCL_DEBUG=INFO` of both: `Using network`, `via NET/...`, `GDRDMA`, and the variables "
            "in force",
            "a factor of ten or more is nearly always TCP instead of RDMA",
        ),
        source=_PERFORMANCE,
        look=_slower_than_twin,
    ),
    Rule(
        id="test-unfinished",
        title="a run of nccl-tests is cut off",
        severity=Severity.NOTICE,
        why="rows are missing, so the average and the largest sizes are not those of the run",
        fix=("save the whole output; keep NCCL's own lines out of it with `NCCL_DEBUG_FILE=nccl.%h.%p.log`",),
        source="https://github.com/NVIDIA/nccl-tests/blob/master/README.md",
        look=_each("rows of a run of nccl-tests are missing or cut", _unfinished),
    ),
    Rule(
        id="test-unchecked",
        title="results of nccl-tests were not checked",
        severity=Severity.NOTICE,
        why="a setting that computes wrong sums faster looks like a gain when checking is off",
        fix=("leave `-c` at 1; for the largest sizes, check once and measure without",),
        source="https://github.com/NVIDIA/nccl-tests/blob/master/README.md",
        look=_each("a run of nccl-tests did not check its results", _unchecked),
    ),
)
