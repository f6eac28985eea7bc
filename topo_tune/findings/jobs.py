"""Rules about what NCCL logs and nccl-tests output show."""

from __future__ import annotations

from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = ()
