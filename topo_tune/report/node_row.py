"""What makes nodes alike at a glance: the cells of one node in the table of all nodes, as short as they can be said."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from topo_tune.records.network import RdmaDevice
from topo_tune.records.scan import Cpu, Nic, NodeScan
from topo_tune.report.text import folded

UNKNOWN = "-"
"""Nobody told."""

COLUMNS = ("GPUs", "driver", "NCCL", "NICs up", "CPU", "kernel")

_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "ARM": "Arm"}
# What makers write into a CPU's name besides its name.
_CPU_NOISE = re.compile(
    r"\((?:R|TM|r|tm)\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*|^\s*(?:Intel|AMD)\b|\b\d+th Gen\b"
)
_LINK_LAYERS = {"InfiniBand": "infiniband", "Ethernet": "roce"}
_SHORT_KINDS = {"infiniband": "IB", "roce": "RoCE", "rdma": "RDMA"}
_NOT_COUNTED = ("loopback", "other")
"""kinds of `Nic`: bridges and the like carry nobody's messages by themselves, unless they are RDMA devices"""


class Port(msgspec.Struct, frozen=True):
    """A network card by the name that NCCL would call it."""

    name: str
    kind: str
    """infiniband, roce, rdma (which of the two is not told) or ethernet"""
    is_up: bool | None
    speed_gbit_per_s: float | None
    numa_node: int | None = None
    pci_bus_id: str | None = None

    @property
    def label(self) -> str:
        """`RoCE 400G`"""
        kind = _SHORT_KINDS.get(self.kind, self.kind)
        return kind if self.speed_gbit_per_s is None else f"{kind} {self.speed_gbit_per_s:g}G"


def node_row(node: NodeScan) -> tuple[str, ...]:
    """A cell for each of COLUMNS; UNKNOWN where nobody told."""
    version = node.torch_nccl or next((lib.version for lib in node.nccl_libraries if lib.version), None)
    return (
        gpus_told(node),
        node.driver or UNKNOWN,
        version or UNKNOWN,
        ports_up_told(node),
        cpu_told(node.cpu),
        UNKNOWN if node.kernel == "unknown" else node.kernel,
    )


def gpus_told(node: NodeScan) -> str:
    """By name where the driver told, else by what else names them; `none` only where somebody asked."""
    if node.gpus:
        counts = Counter(gpu.name.removeprefix("NVIDIA ") for gpu in node.gpus)
        return ", ".join(f"{count}x {name}" for name, count in counts.items())
    if node.matrix is not None and node.matrix.gpus:
        return f"{len(node.matrix.gpus)} (by the topology matrix)"
    on_the_bus = sum(device.kind == "gpu" and not device.is_virtual_function for device in node.pci)
    if on_the_bus:
        return f"{on_the_bus} (by {'the PCI bus, not the driver' if _was_asked(node) else 'lspci'})"
    return "none" if _was_asked(node) or node.gpu_source is not None else UNKNOWN


def ports_up_told(node: NodeScan) -> str:
    """A line for each kind and speed that is up; then how many are not, or how many nobody could tell of."""
    ports = ports_of(node)
    if not ports:
        return _without_names(node)
    up: dict[str, list[str]] = defaultdict(list)
    for port in ports:
        if port.is_up:
            up[port.label].append(port.name)
    lines = [f"{len(names)}x {label} ({folded(names)})" for label, names in up.items()]
    down = [port for port in ports if port.is_up is False]
    # Beside links that work, an Ethernet socket without a cable is nobody's trouble; an RDMA device may be.
    rdma_down = [port for port in down if port.kind != "ethernet"]
    if down and not up:
        lines.append(f"none of {len(down)} up")
    elif rdma_down:
        lines.append(f"{len(rdma_down)} down")
    untold = sum(port.is_up is None for port in ports)
    return "\n".join([*lines, *([f"{untold} of unknown state"] if untold else [])])


def _without_names(node: NodeScan) -> str:
    if node.matrix is not None and node.matrix.nics:
        return f"{len(node.matrix.nics)} (by the topology matrix)"
    on_the_bus = sum(device.kind == "nic" and not device.is_virtual_function for device in node.pci)
    if on_the_bus:
        return f"{on_the_bus} (by lspci)"
    return "none" if _was_asked(node) else UNKNOWN


def ports_of(node: NodeScan) -> list[Port]:
    """Interfaces and RDMA devices of a node, each once, with what any of its facts knows of it."""
    devices = {device.name: _port(device) for device in node.rdma}
    ports = [
        _joined(nic, devices.get(nic.name))
        for nic in node.nics
        if nic.kind not in _NOT_COUNTED or nic.name in devices
    ]
    known = {nic.name for nic in node.nics}
    return [*ports, *(port for name, port in devices.items() if name not in known)]


def cpu_told(cpu: Cpu) -> str:
    """`2x Xeon Platinum 8480C, 224 threads`; without a model its vendor, else its architecture."""
    model = short_cpu_name(cpu.model) if cpu.model else ""
    name = model or (_VENDORS.get(cpu.vendor, cpu.vendor) if cpu.vendor else "")
    if not name and cpu.architecture != "unknown":
        name = cpu.architecture
    sockets = f"{cpu.sockets}x {name}" if name and cpu.sockets and cpu.sockets > 1 else name
    threads = f"{cpu.threads} threads" if cpu.threads else ""
    return ", ".join(part for part in (sockets, threads) if part) or UNKNOWN


def short_cpu_name(model: str) -> str:
    """`Xeon Platinum 8480C` of `Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz`."""
    return " ".join(_CPU_NOISE.sub(" ", model).split())


def is_told(column: int, rows: Iterable[tuple[str, ...]]) -> bool:
    """Whether any row says something there."""
    return any(row[column] != UNKNOWN for row in rows)


def _port(device: RdmaDevice) -> Port:
    layer = next((port.link_layer for port in device.ports if port.link_layer), "")
    states = [port.state for port in device.ports if port.state]
    rates = [port.rate_gbit_per_s for port in device.ports if port.rate_gbit_per_s is not None]
    return Port(
        device.name,
        _LINK_LAYERS.get(layer, "rdma"),
        "Active" in states if states else None,
        max(rates, default=None),
        device.numa_node,
        device.pci_bus_id,
    )


def _joined(nic: Nic, device: Port | None) -> Port:
    # A device whose link layer nobody told is `other` among the interfaces.
    kind = device.kind if device is not None and nic.kind in _NOT_COUNTED else nic.kind
    own = Port(nic.name, kind, nic.is_up, nic.speed_gbit_per_s, nic.numa_node, nic.pci_bus_id)
    if device is None:
        return own
    missing = {
        name: getattr(device, name)
        for name in ("is_up", "speed_gbit_per_s", "numa_node", "pci_bus_id")
        if getattr(own, name) is None
    }
    return msgspec.structs.replace(own, **missing)


def _was_asked(node: NodeScan) -> bool:
    """Whether the collector ran there: then what it did not find is not there."""
    return node.collected_in_seconds is not None
