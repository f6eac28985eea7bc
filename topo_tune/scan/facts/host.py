"""What the operating system gives a process: limits, memory, modules, virtualisation."""

from __future__ import annotations

from topo_tune.scan.facts.fact import Fact, SavedKind

FACTS: tuple[Fact, ...] = ()
KINDS: tuple[SavedKind, ...] = ()
