"""The devices of a node as a tree: NUMA nodes, the bridges that matter, GPUs and NICs.

Every label joins what is known of a device, whichever of the node's facts knows it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import msgspec
from rich.tree import Tree

from topo_tune.records.hardware import PciDevice, PcieLink
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import NodeScan
from topo_tune.report.node_row import Port, ports_of
from topo_tune.report.text import told

_SHOWN_KINDS = frozenset({"gpu", "nic", "nvswitch"})
_DEEPEST = 32
"""PCI Express knows no deeper tree; a file may hold a circle."""
_WITHIN_A_NUMA_NODE = frozenset({"PIX", "PXB", "PHB", "NODE"})


class _Device(msgspec.Struct, frozen=True):
    """A GPU or NIC with all that is known of it."""

    name: str
    """`GPU0 NVIDIA H200`, `mlx5_0 400 Gbit/s infiniband`"""
    numa_node: int | None
    address: str | None = None
    link: PcieLink | None = None
    is_gpu: bool = False

    @property
    def label(self) -> str:
        """As markup."""
        address = f" {told(self.address)}" if self.address else ""
        return f"[bold]{told(self.name)}[/bold]{address}{_link_words(self.link)}"


def node_tree(node: NodeScan) -> Tree:
    """NUMA nodes, the bridges that matter, GPUs and NICs. Chains of bridges with one way on are one line."""
    tree = Tree(f"[bold]{told(node.node)}[/bold] {told(_machine(node))}".rstrip())
    known = [*_gpus(node), *_nics(node)]
    bus = _Bus(node, known)
    if not bus.shown:
        _add_by_numa(tree, node, known)
        return tree
    by_numa: dict[int | None, list[str]] = defaultdict(list)
    for root in bus.below.get(None, []):
        by_numa[bus.numa_of(root)].append(root)
    for numa in _in_order(by_numa):
        branch = tree.add(told(_numa_words(numa, node)))
        for root in by_numa[numa]:
            bus.grow(branch, root)
    elsewhere = bus.not_on_it(known)
    if elsewhere:
        branch = tree.add("place on the PCI bus not known")
        for device in elsewhere:
            branch.add(device.label)
    return tree


class _Bus:
    """The PCI tree above the devices that are shown."""

    def __init__(self, node: NodeScan, known: Iterable[_Device]) -> None:
        self.devices = {device.address: device for device in node.pci}
        self.known = {device.address: device for device in known if device.address}
        self.below: dict[str | None, list[str]] = {}
        self.shown = {
            device.address: device
            for device in node.pci
            if device.kind in _SHOWN_KINDS and not device.is_virtual_function
        }
        for device in self.shown.values():
            self._hang(device)

    def _hang(self, device: PciDevice) -> None:
        """Enter a device and the bridges above it, each once, below what it hangs from."""
        current: PciDevice | None = device
        for _ in range(_DEEPEST):
            if current is None:
                return
            parent = current.parent if current.parent in self.devices else None
            siblings = self.below.setdefault(parent, [])
            if current.address in siblings:
                return
            siblings.append(current.address)
            current = self.devices[parent] if parent is not None else None

    def numa_of(self, address: str, depth: int = 0) -> int | None:
        """Its own, or that of the first device below it that has one."""
        own = self.devices[address].numa_node
        if own is None and address in self.known:
            own = self.known[address].numa_node
        if own is not None or depth > _DEEPEST:
            return own
        found = (self.numa_of(child, depth + 1) for child in self.below.get(address, []))
        return next((numa for numa in found if numa is not None), None)

    def grow(self, branch: Tree, address: str, depth: int = 0) -> None:
        """Add a device or bridge, and all below it."""
        chain = [address]
        while len(self.below.get(chain[-1], [])) == 1 and len(chain) < _DEEPEST:
            chain.append(self.below[chain[-1]][0])
        last = self.devices[chain[-1]]
        bridges = [step for step in chain if self.devices[step].kind not in _SHOWN_KINDS]
        through = "" if not bridges else f"[dim]{_bridge_words(bridges)}[/dim] "
        label = self._words(last) if last.kind in _SHOWN_KINDS else ""
        grown = branch.add(f"{through}{label}".rstrip())
        if depth < _DEEPEST:
            for child in self.below.get(chain[-1], []):
                self.grow(grown, child, depth + 1)

    def _words(self, device: PciDevice) -> str:
        known = self.known.get(device.address)
        name = known.name if known is not None else device.name or device.kind
        link = device.link or (known.link if known is not None else None)
        return _Device(name, None, device.address, link).label

    def not_on_it(self, known: Iterable[_Device]) -> list[_Device]:
        """What other facts name and nobody can place. A GPU without an address is taken for one of those shown."""
        has_gpus = any(device.kind == "gpu" for device in self.shown.values())
        return [
            device
            for device in known
            if device.address not in self.shown and not (device.is_gpu and has_gpus and not device.address)
        ]


def _gpus(node: NodeScan) -> list[_Device]:
    """Each with its bus address and link, and with the NUMA node that the driver's matrix names."""
    links = {health.pci_bus_id: health.link for health in node.gpu_health if health.pci_bus_id}
    found = []
    for gpu in node.gpus:
        numa = gpu.numa_node if gpu.numa_node is not None else _affinity(node.matrix, f"GPU{gpu.index}")
        link = links.get(gpu.pci_bus_id) if gpu.pci_bus_id else None
        found.append(_Device(f"GPU{gpu.index} {gpu.name}", numa, gpu.pci_bus_id, link, is_gpu=True))
    if not found and node.matrix is not None:
        return [_Device(name, _affinity(node.matrix, name), is_gpu=True) for name in node.matrix.gpus]
    return found


def _nics(node: NodeScan) -> list[_Device]:
    ports = ports_of(node)
    found = [
        _Device(
            _port_words(port),
            port.numa_node if port.numa_node is not None else _affinity(node.matrix, port.name),
            port.pci_bus_id,
        )
        for port in ports
    ]
    if not found and node.matrix is not None:
        return [_Device(name, _affinity(node.matrix, name)) for name in node.matrix.nics]
    return found


def _affinity(matrix: TopologyMatrix | None, name: str) -> int | None:
    """The NUMA node that `topo -m` names for a GPU; of a NIC, that of a GPU within the same one."""
    if matrix is None:
        return None
    if name in matrix.gpus:
        position = matrix.gpus.index(name)
        said = matrix.numa_affinity[position] if position < len(matrix.numa_affinity) else None
        # `0,3-9` on Grace: the CPU's own first, then those of GPU memory.
        number = re.match(r"\d{1,4}(?!\d)", said or "")
        return int(number.group()) if number else None
    if name not in matrix.nics:
        return None
    near = (gpu for gpu in matrix.gpus if matrix.link(gpu, name) in _WITHIN_A_NUMA_NODE)
    return next((numa for numa in (_affinity(matrix, gpu) for gpu in near) if numa is not None), None)


def _add_by_numa(tree: Tree, node: NodeScan, known: Iterable[_Device]) -> None:
    """GPUs and NICs below their NUMA nodes, where nobody collected the PCI tree."""
    by_numa: dict[int | None, list[_Device]] = defaultdict(list)
    for device in known:
        by_numa[device.numa_node].append(device)
    for numa in node.numa:
        by_numa.setdefault(numa.index, [])
    for index in _in_order(by_numa):
        branch = tree.add(told(_numa_words(index, node)))
        for device in by_numa[index]:
            branch.add(device.label)


def _in_order(numa_nodes: Iterable[int | None]) -> list[int | None]:
    return sorted(numa_nodes, key=lambda index: (index is None, index or 0))


def _machine(node: NodeScan) -> str:
    facts = [node.cpu.model or node.cpu.vendor, node.operating_system, _virtual(node)]
    return ", ".join(fact for fact in facts if fact)


def _virtual(node: NodeScan) -> str | None:
    found = [word for word in (node.host.hypervisor, node.host.container) if word not in (None, "none")]
    return " in ".join(f"{word}" for word in found if word) or None


def _numa_words(index: int | None, node: NodeScan) -> str:
    if index is None:
        return "NUMA node not known"
    numa = next((numa for numa in node.numa if numa.index == index), None)
    if numa is None:
        return f"NUMA node {index}"
    memory = "" if numa.memory_bytes is None else f", {numa.memory_bytes / (1 << 30):.0f} GiB"
    return f"NUMA node {index}: CPUs {numa.cpus}{memory}"


def _bridge_words(bridges: list[str]) -> str:
    return told(bridges[0] if len(bridges) == 1 else f"{bridges[0]} ({len(bridges)} bridges)") + " >"


def _link_words(link: PcieLink | None) -> str:
    if link is None or not link.width:
        return ""
    at_most = "" if link.max_width in (None, link.width) else f" of x{link.max_width}"
    speed = "" if link.speed_gt_per_s is None else f" {link.speed_gt_per_s:g} GT/s"
    return f" [dim]x{link.width}{at_most}{speed}[/dim]"


def _port_words(port: Port) -> str:
    speed = "" if port.speed_gbit_per_s is None else f" {port.speed_gbit_per_s:g} Gbit/s"
    return f"{port.name}{speed} {port.kind}{' down' if port.is_up is False else ''}"
