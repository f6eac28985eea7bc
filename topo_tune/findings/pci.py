"""Rules about PCI Express: links, ACS, IOMMU, where NICs and GPUs sit."""

from __future__ import annotations

from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = ()
