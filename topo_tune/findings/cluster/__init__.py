"""Rules about files of the whole cluster: host lists, Slurm's devices, health checks, traces; and its switches."""

from __future__ import annotations

from topo_tune.findings.cluster import fabric_maps, saved_lists
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (*fabric_maps.RULES, *saved_lists.RULES)
