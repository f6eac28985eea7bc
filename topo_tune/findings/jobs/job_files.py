"""A rule about the files that jobs are started with: batch scripts, launcher options, manifests."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import of_kind
from topo_tune.records.finding import Severity
from topo_tune.records.nccl_documents import JobSettings
from topo_tune.records.scan import Scan

_EVIDENCE_LIMIT = 8


def _linted(scan: Scan) -> Iterator[Sighting]:
    for document, job in of_kind(scan, JobSettings):
        worst_first = sorted(job.messages, key=lambda message: message.severity.rank)
        lines = [f"{document.file}:{message.line}: {message.text}" for message in worst_first]
        if len(lines) > _EVIDENCE_LIMIT:
            lines[_EVIDENCE_LIMIT - 1 :] = [f"and {len(lines) - _EVIDENCE_LIMIT + 1} more in {document.file}"]
        if lines:
            yield Sighting("what a job's own file sets is wrong or risky", document.node, tuple(lines))


RULES: tuple[Rule, ...] = (
    Rule(
        id="job-settings-lint",
        title="a job's own file sets what has no effect, or another one than meant",
        severity=Severity.WARNING,
        why="jobs that are started with this file run with other settings than its author thinks; it goes "
        "before `/etc/nccl.conf` on every node",
        fix=("`topo-tune lint FILE` shows each line with the next step",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        look=_linted,
    ),
)
