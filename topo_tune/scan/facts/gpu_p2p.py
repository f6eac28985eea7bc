"""Which pairs of GPUs can reach each other directly, from `nvidia-smi topo -p2p`."""

from __future__ import annotations

from topo_tune.scan.facts.fact import Fact, SavedKind

FACTS: tuple[Fact, ...] = ()
KINDS: tuple[SavedKind, ...] = ()
