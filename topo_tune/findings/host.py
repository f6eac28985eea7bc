"""Rules about limits, shared memory, modules, CPU."""

from __future__ import annotations

from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = ()
