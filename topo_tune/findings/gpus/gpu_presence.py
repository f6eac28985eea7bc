"""Rules about which GPUs a node has: lost ones, and models that do not belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.findings.gpus.each_gpu import name_of
from topo_tune.findings.kernel.xids import OFF_THE_BUS
from topo_tune.findings.machine import pci_gpus
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import KernelEventKind
from topo_tune.records.scan import Gpu, NodeScan, Scan

_CUT = "..."  # how the table of `nvidia-smi` ends a name that does not fit
_DISPLAY_SHARE = 0.25  # a card with less than this share of the largest memory only drives a screen

_SLEEPS = re.compile(r"Mobile|Max-Q")


def lost_gpus(node: NodeScan) -> list[str]:
    """Addresses of GPUs that are on the bus, bound to the driver, and not shown by it."""
    seen = {gpu.pci_bus_id for gpu in node.gpus}
    if not node.gpus or None in seen or may_hide_gpus(node):
        return []
    return [
        device.address
        for device in node.pci
        if device.kind == "gpu"
        and device.vendor_id == "10de"
        and device.driver == "nvidia"
        and not device.is_virtual_function
        and device.address not in seen
    ]


def unreachable_gpus(node: NodeScan) -> dict[str | None, list[str]]:
    """GPUs that the driver has lost or that answer the bus no more, by address, with what shows it."""
    found: dict[str | None, list[str]] = {}
    for health in node.gpu_health:
        if health.is_lost:
            line = f"{name_of(node, health)}: the driver cannot reach it any more"
            found.setdefault(health.pci_bus_id, []).append(line)
    alive = {gpu.pci_bus_id for gpu in node.gpus} - set(found)
    for device in pci_gpus(node):
        # The GPU of a laptop sleeps like that.
        if device.is_dead and device.address not in alive and not _SLEEPS.search(device.name or ""):
            line = f"{device.address}: it answers the PCI bus no more (`rev ff`)"
            found.setdefault(device.address, []).append(line)
    return found


def _lost(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        fallen, unreachable = fallen_gpus(node), unreachable_gpus(node)
        # A line of the log without an address may be about any of them.
        gone = [lines for address, lines in unreachable.items() if not {address, None} & fallen]
        if gone:
            evidence = tuple(line for lines in gone for line in lines)
            yield Sighting("a GPU that was there is lost", node.node, evidence, fix=_POWER_CYCLE)
        lost = [address for address in lost_gpus(node) if address not in fallen | set(unreachable)]
        if lost:
            yield Sighting(
                "GPUs are on the PCI bus, bound to NVIDIA's driver, and the driver does not show them",
                node.node,
                evidence=(f"{len(node.gpus)} GPUs are shown", *(f"{address} is not" for address in lost)),
                # Nobody knows of a saved file whether it was made inside of a container.
                severity=None if node.host.container == "none" else Severity.WARNING,
            )


def fallen_gpus(node: NodeScan) -> set[str | None]:
    """GPUs that fell off the bus by the kernel log, which is a finding of its own."""
    return {
        event.device
        for event in node.kernel_events
        if event.kind is KernelEventKind.GPU_LOST
        or (event.kind is KernelEventKind.XID and event.code == OFF_THE_BUS)
    }


def may_hide_gpus(node: NodeScan) -> bool:
    """Whether a container or a job may have fewer GPUs than the machine whose /sys it sees."""
    is_contained = node.host.container not in (None, "none")
    return is_contained or any(name.startswith("SLURM_JOB") for name, _ in node.host.slurm)


def _mixed(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        names = sorted({gpu.name for gpu in _computing(node.gpus)})
        if len(names) < 2 or all(_is_one_name(names[0], name) for name in names[1:]):
            continue
        yield Sighting("GPUs of different models in one node: " + ", ".join(names), node.node)


def _computing(gpus: tuple[Gpu, ...]) -> list[Gpu]:
    """Without cards for a screen, such as the one of a DGX Station."""
    most = max((gpu.memory_bytes or 0 for gpu in gpus), default=0)
    return [
        gpu
        for gpu in gpus
        if "Display" not in gpu.name
        and (gpu.memory_bytes is None or gpu.memory_bytes >= _DISPLAY_SHARE * most)
    ]


def _is_one_name(one: str, other: str) -> bool:
    if one.endswith(_CUT) or other.endswith(_CUT):
        length = min(len(one.removesuffix(_CUT)), len(other.removesuffix(_CUT)))
        return one[:length] == other[:length]
    return one == other


_POWER_CYCLE = (
    "drain the node, power it off and on (a warm reboot often does not bring the GPU back)",
    "`dmesg | grep -E 'NVRM|Xid|AER'` for what came before; if it comes back: reseat or replace riser, cables and GPU",
)

RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-lost",
        title="a GPU is lost, or is on the bus and not shown by the driver",
        severity=Severity.ERROR,
        why="a job that asks for all GPUs does not start, or starts with uneven ranks a node, which NCCL's "
        "rings and trees are not made for",
        fix=(
            "`dmesg | grep -E 'NVRM|Xid|fallen off'`, `nvidia-smi -L`, `lspci -d 10de:`",
            "drain the node and power it off and on (a warm reboot often does not bring the GPU back)",
        ),
        source="https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        look=_lost,
    ),
    Rule(
        id="gpus-mixed",
        title="different models of GPUs in one node",
        severity=Severity.WARNING,
        why="NCCL picks one algorithm and channel count for all ranks, which is right for none; the slowest "
        "model sets the pace, and P2P between models may be missing",
        fix=("give a job GPUs of one model: `CUDA_VISIBLE_DEVICES`, a Slurm gres type, a node label",),
        source="NVIDIA/nccl: src/graph/tuning.cc (minimum of the ranks' compute capabilities)",
        look=_mixed,
    ),
)
