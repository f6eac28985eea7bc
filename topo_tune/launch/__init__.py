"""Start a program on N nodes. `LAUNCHERS` is the explicit table: name -> lazy factory."""

from __future__ import annotations

from collections.abc import Callable

from topo_tune.launch.interface import Launcher


def _per_node() -> Launcher:
    from topo_tune.launch.per_node import PerNodeLauncher

    return PerNodeLauncher()


LAUNCHERS: dict[str, Callable[[], Launcher]] = {"local": _per_node, "ssh": _per_node}
"""By connection kind: both start one agent a node; they differ in the connection that carries it."""
