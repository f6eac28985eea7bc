"""The seam that starts one bench agent on each node: it builds the commands, a connection or a scheduler runs them."""

from __future__ import annotations

from typing import Protocol

from topo_tune.connect.interface import Command
from topo_tune.records.inventory import Node


class Launcher(Protocol):
    """Builds what starts a node program on every node of a job."""

    def commands(self, nodes: tuple[Node, ...], program: str) -> dict[str, Command]:
        """Node name to the command that starts `program` there, its source already on its standard input."""
