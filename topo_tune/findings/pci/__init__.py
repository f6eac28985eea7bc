"""Rules about PCI Express: links, ACS, IOMMU, where NICs and GPUs sit."""

from __future__ import annotations

from topo_tune.findings.pci import pci_isolation, pci_links, pci_placement, pci_presence
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (*pci_presence.RULES, *pci_links.RULES, *pci_isolation.RULES, *pci_placement.RULES)
