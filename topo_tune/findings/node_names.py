"""Names of nodes as different files spell them: `gpu001`, `GPU001.cluster.local`, an address."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topo_tune.findings.remembered import remembered
from topo_tune.records.nodeset import fold, is_node_name
from topo_tune.records.scan import NodeScan

_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|.*:.*:.*")


def short_name(name: str) -> str:
    """The name without domain, in lower case; an address stays whole."""
    return name if _ADDRESS.fullmatch(name) else name.split(".", 1)[0].casefold()


@remembered
def aliases(node: NodeScan) -> frozenset[str]:
    """Every short name and address that a file may know a scanned node by."""
    addresses = {address.split("/", 1)[0] for nic in node.nics for address in nic.addresses}
    return frozenset({short_name(node.node), short_name(node.hostname), *addresses})


def has_gpus(node: NodeScan) -> bool:
    """Whether the node is known to have GPUs: a login node need not be in anybody's list."""
    return bool(node.gpus or node.gpu_health or (node.matrix and node.matrix.gpus))


def spelled(names: Iterable[str]) -> str:
    """A set of names in the shortest form."""
    listed = list(names)
    return fold(listed) if all(is_node_name(name) for name in listed) else ", ".join(listed)
