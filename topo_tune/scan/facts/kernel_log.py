"""What the kernel log says of GPUs, PCI Express and network cards."""

from __future__ import annotations

from topo_tune.scan.facts.fact import Fact, SavedKind

FACTS: tuple[Fact, ...] = ()
KINDS: tuple[SavedKind, ...] = ()
