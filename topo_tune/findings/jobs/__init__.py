"""Rules about what NCCL logs and nccl-tests output show."""

from __future__ import annotations

from topo_tune.findings.jobs import job_failures, job_paths, job_settings, measured_runs
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (*job_failures.RULES, *job_paths.RULES, *job_settings.RULES, *measured_runs.RULES)
