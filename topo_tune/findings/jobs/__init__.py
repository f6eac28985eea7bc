"""Rules about what NCCL logs, nccl-tests output and the files of jobs show."""

from __future__ import annotations

from topo_tune.findings.jobs import job_failures, job_files, job_paths, job_settings, measured_runs
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (
    *job_failures.RULES,
    *job_paths.RULES,
    *job_settings.RULES,
    *job_files.RULES,
    *measured_runs.RULES,
)
