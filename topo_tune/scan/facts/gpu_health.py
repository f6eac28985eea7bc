"""How each GPU is: links, ECC, clocks, limits, from `nvidia-smi -q`."""

from __future__ import annotations

from topo_tune.scan.facts.fact import Fact, SavedKind

FACTS: tuple[Fact, ...] = ()
KINDS: tuple[SavedKind, ...] = ()
