"""An inventory that can be reached: connections, fan-out and the back end, and where progress goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import msgspec

from topo_tune.bench.agents import AgentPool
from topo_tune.bench.backends import BACKENDS, node_program
from topo_tune.bench.backends.interface import Backend
from topo_tune.connect import Connections, NodeEvent
from topo_tune.connect.interface import Connection
from topo_tune.errors import InputError
from topo_tune.launch import LAUNCHERS
from topo_tune.records.inventory import Inventory, Missing, Node, Rack
from topo_tune.records.nodeset import expand
from topo_tune.records.progress import NodeProgress, Progress

Result = TypeVar("Result")
SEED = 1


class Watch(Protocol):
    """Where progress goes."""

    def on_progress(self, event: Progress) -> None:
        """A stage moved on."""

    def on_node(self, event: NodeProgress) -> None:
        """A node of a fan-out moved on."""

    def say(self, text: str) -> None:
        """One line that stays."""


class Cluster:
    """An inventory whose nodes can be reached: connections and, once asked for, a back end."""

    def __init__(self, inventory: Inventory, connections: Connections, watch: Watch) -> None:
        self.inventory, self.connections, self._watch = inventory, connections, watch

    def on_each_node(
        self, work: Callable[[Connection], Result], *, stage: str, nodes: tuple[Node, ...] | None = None
    ) -> tuple[dict[str, Result], tuple[Missing, ...]]:
        """Do a piece of work with every node's connection, side by side."""

        def on_event(event: NodeEvent) -> None:
            self._watch.on_node(NodeProgress(stage, event.node, event.state.value, event.reason))

        return self.connections.fan_out(
            self.inventory.nodes() if nodes is None else nodes,
            work,
            parallel=self.inventory.ssh.parallel,
            on_event=on_event,
        )

    @contextlib.contextmanager
    def backend(self, seed: int = SEED) -> Iterator[Backend]:
        """The inventory's back end; its agents end with the block."""
        launcher = LAUNCHERS[self.inventory.nodes()[0].connection.value]()
        program = node_program(self.inventory.backend)
        pool = AgentPool(
            self.inventory.backend,
            lambda node: launcher.commands((node,), program)[node.name],
            lambda node, command: self.connections.to(node).start(command),
        )
        backend = BACKENDS[self.inventory.backend](self.inventory, pool, seed)
        try:
            yield backend
        finally:
            backend.close()


@contextlib.contextmanager
def reach(inventory: Inventory, watch: Watch) -> Iterator[Cluster]:
    """Connections to the inventory's nodes, opened when used and closed at the end."""
    with Connections(inventory.ssh) as connections:
        yield Cluster(inventory, connections, watch)


def narrowed(
    inventory: Inventory, limit: str | None, exclude: str | None, *, for_search: bool = False
) -> Inventory:
    """The inventory with only some nodes. Raises InputError for a node it does not have, or when none is left.

    `for_search`: of the nodes that a search measures on one must be left, too.
    """
    known = {node.name for node in inventory.nodes()}
    wanted = set(expand(limit)) if limit else set(known)
    unwanted = set(expand(exclude)) if exclude else set()
    unknown = sorted((wanted | unwanted) - known)
    if unknown:
        raise InputError(
            f"the cluster file has no node `{unknown[0]}`", hint=f"it has {inventory.describe()}"
        )
    racks = tuple(
        Rack(rack.name, kept)
        for rack in inventory.racks
        if (kept := tuple(n for n in rack.nodes if n.name in wanted - unwanted))
    )
    if not racks:
        raise InputError("no node is left", hint="check --limit and --exclude")
    left = tuple(name for name in inventory.bench_nodes if name in wanted - unwanted)
    if for_search and inventory.bench_nodes and not left:
        raise InputError(
            "none of the cluster file's `bench.nodes` is left", hint="check --limit and --exclude"
        )
    return msgspec.structs.replace(inventory, racks=racks, bench_nodes=left)
