"""NVIDIA's fabric manager: whether it runs, and what its log says."""

from __future__ import annotations

from topo_tune.scan.facts.fact import Fact, SavedKind

FACTS: tuple[Fact, ...] = ()
KINDS: tuple[SavedKind, ...] = ()
