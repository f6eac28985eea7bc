"""Rules about what the kernel log tells: GPU faults, PCI Express, network cards, processes."""

from __future__ import annotations

from topo_tune.findings.kernel import driver_log, pcie_log, process_log
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (*driver_log.RULES, *pcie_log.RULES, *process_log.RULES)
