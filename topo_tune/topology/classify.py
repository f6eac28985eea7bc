"""Which paths NCCL's messages take, told from a scan; and on what the nodes differ that NCCL needs equal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from topo_tune.errors import InputError, did_you_mean
from topo_tune.records.inventory import BackendName, Inventory
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.nodeset import fold
from topo_tune.records.scan import RDMA_DEVICE_FILES, NodeScan, Scan
from topo_tune.records.topology import Fabric, Topology

_GLOO_RANKS = 2
"""Ranks a node for the gloo back end, where the inventory names none."""


def classify(scan: Scan, inventory: Inventory) -> Topology:
    """The cluster as NCCL will see it: each conclusion with its reason, each disagreement with its nodes."""
    reasons: list[str] = []
    nodes = scan.nodes
    node_count = len(nodes) * inventory.as_nodes
    if inventory.as_nodes > 1:
        reasons.append(
            f"{node_count} nodes by NCCL's count: {len(nodes)} times `as_nodes: {inventory.as_nodes}`"
        )
    if scan.missing:
        reasons.append(f"{fold(node.node for node in scan.missing)} did not answer and is not counted")
    ranks = _ranks_per_host(scan, inventory, reasons)
    islands = _first_islands(nodes)
    nccl = _agreed(nodes, _nccl_version)
    if nccl is not None:
        source = "torch brings it" if all(node.torch_nccl for node in nodes) else "found outside torch"
        reasons.append(f"NCCL {nccl}: {source} on every node")
    return Topology(
        node_count=node_count,
        ranks_per_host=ranks,
        intra_fabric=_intra_fabric(nodes, inventory, ranks, reasons),
        inter_fabric=_inter_fabric(nodes, inventory, node_count, reasons),
        nccl_version=nccl,
        gpu_model=_agreed(nodes, _gpu_model),
        compute_capability=_agreed(nodes, _compute_capability),
        driver=_agreed(nodes, lambda node: node.driver),
        cpu_vendor=_agreed(nodes, lambda node: node.cpu.vendor),
        nvlink_islands=islands,
        reasons=tuple(reasons),
        disagreements=_disagreements(nodes),
    )


def replayed_topology(meta: Mapping[str, str], inventory: Inventory) -> Topology:
    """The topology on which a replayed surface was recorded, from the surface's own description.

    `meta` has the keys nccl, driver, gpu, cpu_vendor, inter_fabric, intra_fabric, node_count, ranks_per_host;
    what it does not say is None, or is taken from the inventory. Raises InputError for an impossible value.
    """
    own_count = len(inventory.nodes()) * inventory.as_nodes
    node_count = _whole(meta, "node_count", own_count)
    reasons = [
        "replayed: this is the cluster on which the surface was recorded, not the one in the cluster file"
    ]
    if node_count != own_count:
        reasons.append(f"recorded on {node_count} nodes; the cluster file has {own_count}")
    return Topology(
        node_count=node_count,
        ranks_per_host=inventory.ranks_per_node or _whole(meta, "ranks_per_host", 1),
        intra_fabric=_fabric(meta, "intra_fabric"),
        inter_fabric=_fabric(meta, "inter_fabric"),
        nccl_version=meta.get("nccl") or None,
        gpu_model=meta.get("gpu") or None,
        compute_capability=None,
        driver=meta.get("driver") or None,
        cpu_vendor=meta.get("cpu_vendor") or None,
        reasons=tuple(reasons),
    )


def nvlink_islands(matrix: TopologyMatrix) -> tuple[tuple[str, ...], ...]:
    """Groups of GPUs joined by NVLink, directly or through others, largest first; no single GPUs."""
    import networkx

    graph = networkx.Graph()
    graph.add_edges_from(
        (one, other)
        for i, one in enumerate(matrix.gpus)
        for other in matrix.gpus[i + 1 :]
        if _link(matrix, one, other).startswith("NV")
    )
    groups = (
        tuple(gpu for gpu in matrix.gpus if gpu in group) for group in networkx.connected_components(graph)
    )
    return tuple(sorted(groups, key=lambda group: (-len(group), matrix.gpus.index(group[0]))))


# --- within a node ----------------------------------------------------------------------------------------


def _intra_fabric(
    nodes: tuple[NodeScan, ...], inventory: Inventory, ranks_per_host: int, reasons: list[str]
) -> Fabric:
    if ranks_per_host // inventory.as_nodes <= 1:
        reasons.append("within a node there is nothing to cross: one rank a node")
        return Fabric.NONE
    if inventory.backend is BackendName.GLOO:
        reasons.append("within a node: gloo uses sockets")
        return Fabric.SOCKET
    fabrics = {node.node: _node_fabric(node, inventory) for node in nodes}
    for fabric, why in dict.fromkeys(fabrics.values()):
        alike = fold(name for name, found in fabrics.items() if found == (fabric, why))
        reasons.append(f"within a node, {fabric.value} on {alike}: {why}")
    # NCCL joins all ranks in one ring: the weakest node decides.
    kinds = {fabric for fabric, _ in fabrics.values()}
    weakest_first = (Fabric.UNKNOWN, Fabric.PCIE, Fabric.NVLINK)
    return next((fabric for fabric in weakest_first if fabric in kinds), Fabric.UNKNOWN)


def _node_fabric(node: NodeScan, inventory: Inventory) -> tuple[Fabric, str]:
    matrix = node.matrix
    disabled = _in_force(node, inventory, "NCCL_P2P_DISABLE")
    if disabled is not None and _is_on(disabled[0]):
        return Fabric.PCIE, f"`NCCL_P2P_DISABLE={disabled[0]}` ({disabled[1]}): through the host's memory"
    if matrix is None:
        return Fabric.UNKNOWN, "no topology matrix"
    pairs = [(one, other) for i, one in enumerate(matrix.gpus) for other in matrix.gpus[i + 1 :]]
    words = [_link(matrix, one, other) for one, other in pairs]
    if not words:
        return Fabric.NONE, "a single GPU"
    if "?" in words:
        return Fabric.UNKNOWN, "the topology matrix is incomplete"
    if all(word.startswith("NV") for word in words):
        return Fabric.NVLINK, f"every pair of GPUs is joined by NVLink ({', '.join(sorted(set(words)))})"
    islands = nvlink_islands(matrix)
    if islands and len(islands[0]) == len(matrix.gpus):
        return Fabric.NVLINK, "NVLink joins all GPUs, some pairs only through others"
    worst = next(word for word in ("SYS", "NODE", "PHB", "PXB", "PIX") if word in words)
    in_islands = (
        f"; NVLink only within groups of {', '.join(str(len(group)) for group in islands)}" if islands else ""
    )
    return Fabric.PCIE, f"not every pair of GPUs is joined by NVLink, the farthest is {worst}{in_islands}"


def _link(matrix: TopologyMatrix, one: str, other: str) -> str:
    """The link word in the direction that the text has."""
    there = matrix.link(one, other)
    return there if there != "?" else matrix.link(other, one)


def _first_islands(nodes: tuple[NodeScan, ...]) -> tuple[int, ...]:
    for node in nodes:
        islands = nvlink_islands(node.matrix) if node.matrix is not None else ()
        if islands:
            return tuple(len(group) for group in islands)
    return ()


# --- between nodes ----------------------------------------------------------------------------------------


def _inter_fabric(
    nodes: tuple[NodeScan, ...], inventory: Inventory, node_count: int, reasons: list[str]
) -> Fabric:
    if node_count <= 1:
        reasons.append("between nodes there is nothing to cross: one node")
        return Fabric.NONE
    if inventory.backend is BackendName.GLOO:
        reasons.append("between nodes: gloo uses sockets")
        return Fabric.SOCKET
    fabrics = {node.node: _node_network(node, inventory) for node in nodes}
    for fabric, why in dict.fromkeys(fabrics.values()):
        alike = fold(name for name, found in fabrics.items() if found == (fabric, why))
        reasons.append(f"between nodes, {fabric.value} on {alike}: {why}")
    kinds = {fabric for fabric, _ in fabrics.values()}
    return kinds.pop() if len(kinds) == 1 else Fabric.UNKNOWN


def _node_network(node: NodeScan, inventory: Inventory) -> tuple[Fabric, str]:
    """What NCCL would choose on one node, and why: RDMA where it may and can, sockets otherwise."""
    disabled = _in_force(node, inventory, "NCCL_IB_DISABLE")
    if disabled is not None and _is_on(disabled[0]):
        return Fabric.SOCKET, f"`NCCL_IB_DISABLE={disabled[0]}` ({disabled[1]})"
    network = _in_force(node, inventory, "NCCL_NET")
    if network is not None and network[0].casefold() == "socket":
        return Fabric.SOCKET, f"`NCCL_NET={network[0]}` ({network[1]})"
    if network is not None and network[0].casefold() != "ib":
        return (
            Fabric.UNKNOWN,
            f"`NCCL_NET={network[0]}` ({network[1]}) names a plugin that is not known here",
        )
    active = [nic for nic in node.nics if nic.kind in {"infiniband", "roce"} and nic.is_up]
    if active and any(absent.what == RDMA_DEVICE_FILES for absent in node.absent):
        return (
            Fabric.SOCKET,
            f"{len(active)} active RDMA devices, but none may be opened in {RDMA_DEVICE_FILES}",
        )
    kinds = sorted({nic.kind for nic in active})
    if kinds:
        # NCCL uses both kinds together; the one with more devices carries more.
        kind = max(kinds, key=lambda name: sum(nic.kind == name for nic in active))
        return Fabric(
            kind
        ), f"{len(active)} active RDMA device{'s' if len(active) > 1 else ''} ({', '.join(kinds)})"
    if any(nic.driver == "efa" and nic.is_up for nic in node.nics):
        return (
            Fabric.UNKNOWN,
            "EFA devices: NCCL needs the OFI plugin for them, and the scan does not look for it yet",
        )
    if not node.nics:
        return Fabric.UNKNOWN, "the scan saw no network interface"
    named = _in_force(node, inventory, "NCCL_SOCKET_IFNAME")
    by_name = f", through `NCCL_SOCKET_IFNAME={named[0]}` ({named[1]})" if named else ""
    return Fabric.SOCKET, f"no active RDMA device{by_name}"


def _in_force(node: NodeScan, inventory: Inventory, name: str) -> tuple[str, str] | None:
    """The value a job would have and who sets it: the cluster file's `env`, then the node's files.

    The environment of topo-tune's own session is not looked at: jobs do not start from it.
    """
    value = inventory.env.as_dict().get(name)
    if value is not None:
        return value, "the cluster file's `env`"
    for file in node.nccl_files:
        # Fragments of the drop-in directory are nothing to NCCL until they are merged.
        if "/conf.d/" not in file.path:
            for setting in file.settings:
                if setting.name == name:
                    # NCCL takes an empty value for "not set", and looks no further.
                    return (setting.value, f"{file.path}, line {setting.line}") if setting.value else None
    return None


def _is_on(value: str) -> bool:
    """Whether NCCL reads a value as something other than 0: it takes the digits and drops what follows."""
    digits = re.match(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)", value.strip())
    return digits is not None and any(digit not in "+-0xX" for digit in digits.group())


# --- what the nodes have in common ------------------------------------------------------------------------


def _ranks_per_host(scan: Scan, inventory: Inventory, reasons: list[str]) -> int:
    if inventory.ranks_per_node is not None:
        return inventory.ranks_per_node
    if inventory.backend is BackendName.GLOO:
        return _GLOO_RANKS
    counts = [_gpu_count(node) for node in scan.nodes]
    if not counts or min(counts) == 0:
        reasons.append("a node without GPUs was seen: one rank a host is assumed")
    return max(min(counts, default=0), 1)


def _gpu_count(node: NodeScan) -> int:
    return len(node.gpus) or (len(node.matrix.gpus) if node.matrix else 0)


def _gpu_model(node: NodeScan) -> str | None:
    return " + ".join(dict.fromkeys(gpu.name for gpu in node.gpus)) or None


def _compute_capability(node: NodeScan) -> str | None:
    found = {gpu.compute_capability for gpu in node.gpus}
    return found.pop() if len(found) == 1 else None


def _nccl_version(node: NodeScan) -> str | None:
    """The NCCL that a job would load: torch's own, else the first one on the library path."""
    if node.torch_nccl is not None:
        return node.torch_nccl
    outside = [
        library for library in node.nccl_libraries if library.found_in in {"LD_LIBRARY_PATH", "system"}
    ]
    return next((library.version for library in outside if library.version is not None), None)


def _agreed(nodes: tuple[NodeScan, ...], fact: Callable[[NodeScan], str | None]) -> str | None:
    found = {fact(node) for node in nodes}
    return found.pop() if len(found) == 1 else None


def _disagreements(nodes: tuple[NodeScan, ...]) -> tuple[str, ...]:
    facts: tuple[tuple[str, Callable[[NodeScan], str | None]], ...] = (
        ("NCCL version", _nccl_version),
        ("NVIDIA driver", lambda node: node.driver),
        ("GPU model", _gpu_model),
        ("number of GPUs", lambda node: str(_gpu_count(node))),
    )
    return tuple(f"{name}: {differ}" for name, fact in facts if (differ := _differ(nodes, fact)) is not None)


def _differ(nodes: tuple[NodeScan, ...], fact: Callable[[NodeScan], str | None]) -> str | None:
    """`2.28.9 on n[1-3], none on n4`, or None where all nodes say the same."""
    by_value: dict[str | None, list[str]] = {}
    for node in nodes:
        by_value.setdefault(fact(node), []).append(node.node)
    if len(by_value) <= 1:
        return None
    commonest_first = sorted(by_value.items(), key=lambda item: (-len(item[1]), str(item[0])))
    return ", ".join(f"{value or 'none'} on {fold(names)}" for value, names in commonest_first)


# --- the description of a surface -------------------------------------------------------------------------


def _whole(meta: Mapping[str, str], name: str, default: int) -> int:
    text = meta.get(name)
    if text is None:
        return default
    if not re.match(r"[1-9][0-9]{0,8}$", text):
        raise InputError(f"`{text[:40]}` is not a number of {name.replace('_', ' ')}", field=name)
    return int(text)


def _fabric(meta: Mapping[str, str], name: str) -> Fabric:
    text = meta.get(name)
    if text is None:
        return Fabric.UNKNOWN
    known = {fabric.value: fabric for fabric in Fabric}
    if text not in known:
        raise InputError(f"`{text}` is no fabric", field=name, hint=did_you_mean(text, known))
    return known[text]
