"""Rules about NCCL topology, graph and tuner files."""

from __future__ import annotations

from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = ()
