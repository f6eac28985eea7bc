"""One agent a node, each through the node's own connection (local or SSH): no scheduler needed."""

from __future__ import annotations

from topo_tune.connect.interface import Command
from topo_tune.connect.program import program_command
from topo_tune.records.inventory import Node

# The agent lives as long as its input is open; a command needs some deadline, and no session lasts a week.
_AGENT_DEADLINE_SECONDS = 7 * 86400.0


class PerNodeLauncher:
    """Builds the agent's command for every node; ranks are forked by the agents, so N ranks need one command a node."""

    def commands(self, nodes: tuple[Node, ...], program: str) -> dict[str, Command]:
        """Node name to the command that starts `program` there."""
        return {
            node.name: program_command(node.python, program, deadline_seconds=_AGENT_DEADLINE_SECONDS)
            for node in nodes
        }
