"""Rules about nodes that should be alike and are not."""

from __future__ import annotations

from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = ()
