"""Scanning nodes that can be reached: one program, one round trip a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from topo_tune.connect.interface import Connection
from topo_tune.connect.program import run_program
from topo_tune.errors import InputError, NodeProgramFailed
from topo_tune.records.inventory import Inventory, Missing
from topo_tune.records.scan import NodeScan, Scan
from topo_tune.scan.answer import node_scan_from_raw
from topo_tune.scan.questions import FACTS

Result = TypeVar("Result")

_COMMAND_DEADLINE_SECONDS = 10.0
"""For one command. `nvidia-smi` may have to wake every GPU first, where persistence mode is off."""


class OnEachNode(Protocol):
    """Does a piece of work with the connection of every node of the inventory."""

    def __call__(
        self, work: Callable[[Connection], Result], /
    ) -> tuple[dict[str, Result], tuple[Missing, ...]]:
        """Results by node name, and who is missing."""


def scan_cluster(inventory: Inventory, on_each_node: OnEachNode) -> Scan:
    """The scan of every node of the inventory, in its order; a node that does not answer is `missing`."""
    deadline = inventory.ssh.command_timeout_seconds
    scans, missing = on_each_node(lambda connection: collect(connection, deadline_seconds=deadline))
    ordered = (scans.get(node.name) for node in inventory.nodes())
    return Scan(inventory.name, tuple(scan for scan in ordered if scan is not None), missing)


def collect(connection: Connection, *, deadline_seconds: float) -> NodeScan:
    """The scan of one node, in one round trip. Raises HostError."""
    request = collector_request(connection.node.root, deadline_seconds)
    raw = run_program(connection, "collector", request, deadline_seconds=deadline_seconds)
    try:
        return node_scan_from_raw(connection.node.name, raw)
    except InputError as exc:
        raise NodeProgramFailed(connection.node.name, exc.message, command="collector") from exc


def collector_request(root: str, deadline_seconds: float) -> dict[str, Any]:
    """What to send the collector so that it is done, with whatever it has, before its command is stopped."""
    own = 0.8 * deadline_seconds
    return {
        "root": root,
        "home": None,
        "command_deadline_seconds": min(_COMMAND_DEADLINE_SECONDS, own / 2),
        # Without persistence mode each call of `nvidia-smi` takes seconds, and facts ask it a dozen times. What
        # hangs is given up far sooner, so that only a node that is at work uses all of it.
        "deadline_seconds": own,
        "commands": [msgspec.to_builtins(command) for fact in FACTS for command in fact.commands],
        "files": [msgspec.to_builtins(files) for fact in FACTS for files in fact.files],
        "environment": [name for fact in FACTS for name in fact.environment],
    }
