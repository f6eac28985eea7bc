"""Host files and Ansible inventories."""

from __future__ import annotations

from topo_tune.scan.facts.fact import SavedKind

KINDS: tuple[SavedKind, ...] = ()
