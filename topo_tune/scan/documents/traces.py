"""PyTorch profiler traces."""

from __future__ import annotations

from topo_tune.scan.facts.fact import SavedKind

KINDS: tuple[SavedKind, ...] = ()
