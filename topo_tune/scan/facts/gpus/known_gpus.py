"""What several tools tell of the same GPU, brought together: the more exact one stands, the others fill its gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from topo_tune.records.hardware import GpuHealth
from topo_tune.records.scan import Gpu, NodeScan

CUT = "..."
"""How the table of `nvidia-smi` ends a name that does not fit."""

Told = TypeVar("Told", Gpu, GpuHealth)

_NOTHING: tuple[Any, ...] = (None, ())


def with_gpus(
    scan: NodeScan, gpus: Sequence[Gpu], driver: str | None = None, cuda_driver: str | None = None
) -> NodeScan:
    """The scan with these GPUs where it has none, and with what they add to its own where it has."""
    known = scan.gpus or tuple(gpus)
    merged = tuple(_completed(gpu, _same_gpu(gpu, gpus)) for gpu in known)
    return msgspec.structs.replace(
        scan,
        gpus=merged,
        gpu_source=scan.gpu_source or ("nvidia-smi" if merged else None),
        driver=scan.driver or driver,
        cuda_driver=scan.cuda_driver or cuda_driver,
    )


def with_health(scan: NodeScan, told: Sequence[GpuHealth]) -> NodeScan:
    """The scan with the health of these GPUs; what an earlier output told of the same ones stands."""
    merged = list(scan.gpu_health)
    for health in told:
        at = next((i for i, known in enumerate(merged) if _is_same_card(known, health)), None)
        if at is None:
            merged.append(health)
        else:
            merged[at] = _completed(merged[at], health)
    return msgspec.structs.replace(scan, gpu_health=tuple(merged))


def _same_gpu(gpu: Gpu, others: Sequence[Gpu]) -> Gpu | None:
    """The one with the same UUID or address; by index where neither is told."""
    for other in others:
        if _is_same_card(gpu, other):
            return other
    same_index = next((other for other in others if other.index == gpu.index), None)
    return same_index if same_index is not None and not _contradict(gpu, same_index) else None


def _is_same_card(one: Gpu | GpuHealth, other: Gpu | GpuHealth) -> bool:
    if one.uuid is not None and other.uuid is not None:
        return one.uuid == other.uuid
    return one.pci_bus_id is not None and one.pci_bus_id == other.pci_bus_id


def _contradict(one: Gpu, other: Gpu) -> bool:
    pairs = ((one.uuid, other.uuid), (one.pci_bus_id, other.pci_bus_id))
    return any(mine is not None and its is not None and mine != its for mine, its in pairs)


def _completed(known: Told, other: Told | None) -> Told:
    """`known` with its unknown fields from `other`, and with the whole name where its own is cut."""
    if other is None:
        return known
    changes = {
        field: getattr(other, field)
        for field in known.__struct_fields__
        if getattr(known, field) in _NOTHING and getattr(other, field) not in _NOTHING
    }
    if known.name is not None and known.name.endswith(CUT) and other.name and not other.name.endswith(CUT):
        changes["name"] = other.name
    return msgspec.structs.replace(known, **changes)
