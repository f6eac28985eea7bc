"""Where NCCL variables are set besides the files that NCCL reads: profiles, units, images."""

from __future__ import annotations

from topo_tune.scan.facts.fact import Fact, SavedKind

FACTS: tuple[Fact, ...] = ()
KINDS: tuple[SavedKind, ...] = ()
