"""Rules about limits, shared memory, modules, CPU."""

from __future__ import annotations

from topo_tune.findings.host import driver_reach, host_cpu, host_drivers, host_limits
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (*host_limits.RULES, *host_drivers.RULES, *driver_reach.RULES, *host_cpu.RULES)
