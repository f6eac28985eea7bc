"""Rules about GPUs: links, ECC, clocks, NVLink, fabric."""

from __future__ import annotations

from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = ()
