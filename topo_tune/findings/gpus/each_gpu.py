"""Looking at a node's GPUs one by one: what several of them show becomes one sighting of the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from topo_tune.findings.rule import Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import GpuHealth
from topo_tune.records.scan import NodeScan, Scan


class Trouble(msgspec.Struct, frozen=True):
    """What one GPU shows."""

    what: str
    """the same words for every GPU that shows the same"""
    evidence: str
    """behind the GPU's name: its own numbers"""
    severity: Severity | None = None
    """instead of the rule's own"""


def on_each_gpu(
    told: Callable[[NodeScan, GpuHealth], Trouble | None],
) -> Callable[[Scan], Iterator[Sighting]]:
    """A rule's `look`: every node's GPUs of which `told` has something to say, those that show the same together."""

    def look(scan: Scan) -> Iterator[Sighting]:
        for node in scan.nodes:
            groups: dict[tuple[str, Severity | None], list[str]] = {}
            for health in node.gpu_health:
                trouble = told(node, health)
                if trouble is not None:
                    line = f"{name_of(node, health)}: {trouble.evidence}"
                    groups.setdefault((trouble.what, trouble.severity), []).append(line)
            for (what, severity), lines in groups.items():
                yield Sighting(what, node.node, evidence=tuple(lines), severity=severity)

    return look


def name_of(node: NodeScan, health: GpuHealth) -> str:
    """`GPU 3`, or its address where no list of GPUs has it."""
    for gpu in node.gpus:
        is_same = health.uuid is not None and gpu.uuid == health.uuid
        if is_same or (health.pci_bus_id is not None and gpu.pci_bus_id == health.pci_bus_id):
            return f"GPU {gpu.index}"
    return f"GPU {health.pci_bus_id or node.gpu_health.index(health)}"
