"""Rules about variables that are set, hidden, misread or without effect; libraries and plugins."""

from __future__ import annotations

from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = ()
