"""One node from near: its devices as a tree, and how each pair of GPUs and NICs is joined as a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.tree import Tree

from topo_tune.records.hardware import PciDevice
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.provenance import Reach, SettingOrigin
from topo_tune.records.scan import NodeScan
from topo_tune.report.text import told

_SHOWN_KINDS = frozenset({"gpu", "nic", "nvswitch"})
_LINK_STYLES = {"X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}
_REACH_STYLES = {Reach.WINS: "green", Reach.HIDDEN: "yellow", Reach.NEVER: "red", Reach.DEPENDS: "yellow"}


def node_report(node: NodeScan) -> list[RenderableType]:
    """Tree, matrix, and where each NCCL variable is set; what is not known is left out or said."""
    parts: list[RenderableType] = [node_tree(node)]
    if node.matrix is not None:
        parts.append(
            Group(f"[bold]{told(node.node)}: how devices are joined[/bold]", matrix_table(node.matrix))
        )
    if node.settings:
        parts.append(Group(f"[bold]{told(node.node)}: NCCL variables[/bold]", settings_table(node.settings)))
    return parts


def node_tree(node: NodeScan) -> Tree:
    """NUMA nodes, the bridges that matter, GPUs and NICs. Chains of bridges with one way on are one line."""
    tree = Tree(f"[bold]{told(node.node)}[/bold] {told(_machine(node))}")
    devices = {device.address: device for device in node.pci}
    shown = [device for device in node.pci if device.kind in _SHOWN_KINDS and not device.is_virtual_function]
    if not shown:
        _add_without_pci(tree, node)
        return tree
    below: dict[str | None, list[str]] = {}
    for device in shown:
        _hang(device, devices, below)
    by_numa: dict[int | None, list[str]] = {}
    for root in below.get(None, []):
        by_numa.setdefault(_numa_of(root, devices, below), []).append(root)
    for numa in sorted(by_numa, key=lambda index: (index is None, index or 0)):
        branch = tree.add(told(_numa_words(numa, node)))
        for root in by_numa[numa]:
            _grow(branch, root, devices, below, node)
    return tree


def matrix_table(matrix: TopologyMatrix) -> Table:
    """The matrix of `topo -m`, GPUs first, coloured from near (green) to far (red)."""
    names = (*matrix.gpus, *matrix.nics)
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    made.add_column("")
    for name in names:
        made.add_column(told(name), justify="center", no_wrap=True)
    for name, row in zip(names, matrix.links, strict=True):
        made.add_row(f"[bold]{told(name)}[/bold]", *(_link(word) for word in row))
    return made


def settings_table(settings: Sequence[SettingOrigin]) -> Table:
    """Every place that sets a variable, strongest first, and whether it takes effect."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("variable", "value", "set by", "effect"):
        made.add_column(title, overflow="fold")
    for origin in settings:
        place = origin.layer.value
        if origin.path is not None:
            line = "" if origin.line is None else f":{origin.line}"
            place = f"{origin.path}{line}" if origin.path in place else f"{place} {origin.path}{line}"
        effect = origin.reach.value + (f": {origin.reason}" if origin.reason else "")
        style = _REACH_STYLES[origin.reach]
        made.add_row(told(origin.name), told(origin.value), told(place), f"[{style}]{told(effect)}[/{style}]")
    return made


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


def _hang(device: PciDevice, devices: dict[str, PciDevice], below: dict[str | None, list[str]]) -> None:
    """Enter a device and the bridges above it, each once, below what it hangs from."""
    current: PciDevice | None = device
    for _ in range(32):  # PCI Express knows no deeper tree; a file may hold a circle
        if current is None:
            return
        parent = current.parent if current.parent in devices else None
        siblings = below.setdefault(parent, [])
        if current.address in siblings:
            return
        siblings.append(current.address)
        current = devices[parent] if parent is not None else None


def _numa_of(
    address: str, devices: dict[str, PciDevice], below: dict[str | None, list[str]], depth: int = 0
) -> int | None:
    own = devices[address].numa_node
    if own is not None or depth > 32:
        return own
    found = (_numa_of(child, devices, below, depth + 1) for child in below.get(address, []))
    return next((numa for numa in found if numa is not None), None)


def _grow(
    branch: Tree,
    address: str,
    devices: dict[str, PciDevice],
    below: dict[str | None, list[str]],
    node: NodeScan,
    depth: int = 0,
) -> None:
    chain = [address]
    while len(below.get(chain[-1], [])) == 1 and len(chain) < 32:
        chain.append(below[chain[-1]][0])
    last = devices[chain[-1]]
    bridges = [step for step in chain if devices[step].kind not in _SHOWN_KINDS]
    through = "" if not bridges else f"[dim]{_bridge_words(bridges)}[/dim] "
    label = _device_words(last, node) if last.kind in _SHOWN_KINDS else ""
    grown = branch.add(f"{through}{label}".rstrip())
    if depth < 32:
        for child in below.get(chain[-1], []):
            _grow(grown, child, devices, below, node, depth + 1)


def _bridge_words(bridges: list[str]) -> str:
    return told(bridges[0] if len(bridges) == 1 else f"{bridges[0]} ({len(bridges)} bridges)") + " >"


def _device_words(device: PciDevice, node: NodeScan) -> str:
    words = [f"[bold]{told(_own_name(device, node))}[/bold]", told(device.address)]
    link = device.link
    if link is not None and link.width:
        at_most = "" if link.max_width in (None, link.width) else f" of x{link.max_width}"
        speed = "" if link.speed_gt_per_s is None else f" {link.speed_gt_per_s:g} GT/s"
        words.append(f"[dim]x{link.width}{at_most}{speed}[/dim]")
    return " ".join(words)


def _own_name(device: PciDevice, node: NodeScan) -> str:
    """What people call it: `GPU0 NVIDIA H200`, `mlx5_0 400 Gbit/s infiniband`; else what lspci says."""
    for gpu in node.gpus:
        if gpu.pci_bus_id == device.address:
            return f"GPU{gpu.index} {gpu.name}"
    rdma = next((found.name for found in node.rdma if found.pci_bus_id == device.address), None)
    for nic in node.nics:
        if nic.pci_bus_id == device.address or (rdma is not None and nic.name == rdma):
            speed = "" if nic.speed_gbit_per_s is None else f" {nic.speed_gbit_per_s:g} Gbit/s"
            down = " down" if nic.is_up is False else ""
            return f"{nic.name}{speed} {nic.kind}{down}"
    return device.name or device.kind


def _add_without_pci(tree: Tree, node: NodeScan) -> None:
    """GPUs and NICs below their NUMA nodes, where nobody collected the PCI tree."""
    by_numa: dict[int | None, list[str]] = {}
    for gpu in node.gpus:
        by_numa.setdefault(gpu.numa_node, []).append(f"GPU{gpu.index} {gpu.name}")
    for nic in node.nics:
        if nic.kind not in ("loopback", "other"):
            by_numa.setdefault(nic.numa_node, []).append(f"{nic.name} {nic.kind}")
    for numa in node.numa:
        by_numa.setdefault(numa.index, [])
    for index in sorted(by_numa, key=lambda index: (index is None, index or 0)):
        branch = tree.add(told(_numa_words(index, node)))
        _add_all(branch, by_numa[index])


def _add_all(branch: Tree, labels: Iterable[str]) -> None:
    for label in labels:
        branch.add(told(label))


def _link(word: str) -> str:
    style = "green" if word.startswith("NV") else _LINK_STYLES.get(word)
    return told(word) if style is None else f"[{style}]{told(word)}[/{style}]"
