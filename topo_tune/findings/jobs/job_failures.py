"""Rules about jobs that failed, by their logs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.findings.jobs.job_logs import logs
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import listed
from topo_tune.records.finding import Severity
from topo_tune.records.scan import Scan

_TROUBLESHOOTING = "NVIDIA/nccl: docs/userguide/source/troubleshooting/runtime_and_mpi_issues.rst"

_WENT_ON = (
    "the job ran on without what it could not set up: on another network or path, slower than the machine is"
)


def _failed(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        cause = log.cause
        if cause is None:
            continue
        evidence = [f"{document.file}:{cause.line}: {cause.text}"]
        if cause.code is not None:
            evidence.append(f"it returned {cause.code} ({cause.code_name})")
        if cause.hosts:
            evidence.append(f"on {listed(list(cause.hosts))}")
        ended = "a job failed" if cause.is_fatal else "a job went on with less than it should have had"
        yield Sighting(
            f"{ended}: {cause.kind.value}",
            document.node,
            tuple(evidence),
            fix=(cause.advice,) if cause.advice else None,
            why=None if cause.is_fatal else _WENT_ON,
            severity=Severity.ERROR if cause.is_fatal else Severity.WARNING,
        )


def _versions(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        numbers = {_number(version) for version in log.versions}
        if len(numbers) > 1:
            yield Sighting(
                "one job's log names several NCCL versions, where all ranks must load the same",
                document.node,
                (f"{document.file}: {listed(sorted(log.versions))}",),
            )


def _number(version: str) -> str:
    """The part that NCCL compares: `2.21.5` of `2.21.5+cuda12.4`."""
    found = re.match(r"[\d.]+", version)
    return found.group() if found else version


RULES: tuple[Rule, ...] = (
    Rule(
        id="job-failed",
        title="a job's log shows a failure",
        severity=Severity.ERROR,
        why="until the cause is gone, jobs of this kind fail again, and a benchmark over the same nodes "
        "measures nothing",
        fix=("run again with `NCCL_DEBUG=INFO` on all ranks and read the first warning",),
        source=_TROUBLESHOOTING,
        look=_failed,
    ),
    Rule(
        id="job-nccl-versions",
        title="ranks of one job load different NCCL versions",
        severity=Severity.ERROR,
        why="NCCL refuses such a communicator, or, before it could tell, hangs or corrupts its exchange",
        fix=(
            "compare `python -c 'import torch; print(torch.cuda.nccl.version())'` and `echo "
            "$LD_LIBRARY_PATH` on all nodes",
            "use one image, or one NCCL, on all nodes; where the file holds several jobs, save each log on "
            "its own",
        ),
        source="NVIDIA/nccl: src/init.cc (`Mismatched NCCL version detected`)",
        look=_versions,
    ),
)
