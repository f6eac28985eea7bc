"""Rules about variables that are set: hidden, set twice, misread, left over, or read by nobody; and about libraries."""

from __future__ import annotations

from topo_tune.findings.rule import Rule
from topo_tune.findings.settings import layers, lint_errors, nccl_versions, overrides

RULES: tuple[Rule, ...] = (*layers.RULES, *lint_errors.RULES, *overrides.RULES, *nccl_versions.RULES)
