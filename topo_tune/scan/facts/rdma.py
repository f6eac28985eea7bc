"""RDMA devices with their ports, GIDs and counters, from /sys and from the tools that list them."""

from __future__ import annotations

from topo_tune.scan.facts.fact import Fact, SavedKind

FACTS: tuple[Fact, ...] = ()
KINDS: tuple[SavedKind, ...] = ()
