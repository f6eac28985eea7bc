"""Which GPUs a node has: `nvidia-smi --query-gpu`, its table's heading, and NVML."""

from __future__ import annotations

import csv
import io
import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import GpuHealth
from topo_tune.records.scan import Gpu, NodeScan
from topo_tune.scan.facts.fact import SavedKind, matches, with_absent
from topo_tune.scan.facts.gpus import query_health
from topo_tune.scan.facts.gpus.known_gpus import with_health
from topo_tune.scan.facts.words import clipped, said, whole_number, without_escapes

FIELDS = ("index", "name", "uuid", "pci.bus_id", "memory.total", "driver_version", "compute_cap")
"""What the collector asks `nvidia-smi` for, in this order; used where the text has no header line."""

_MIB = 1 << 20


class Gpus(msgspec.Struct, frozen=True):
    """The GPUs of a node and the driver behind them."""

    gpus: tuple[Gpu, ...]
    driver: str | None
    cuda_driver: str | None = None
    problems: tuple[str, ...] = ()
    health: tuple[GpuHealth, ...] = ()
    """of those GPUs of which further columns tell it"""


def parse(text: str, *, file: str | None = None) -> Gpus:
    """The answer of `nvidia-smi --query-gpu=... --format=csv`, with or without header line and units.

    Raises InputError where no line is about a GPU.
    """
    fields: tuple[str, ...] = FIELDS
    problems: list[str] = []
    gpus: list[Gpu] = []
    drivers: list[str | None] = []
    states: list[GpuHealth] = []
    for number, cells in _lines(text):
        if cells[0] == "index":
            fields = tuple(cell.split(" [")[0] for cell in cells)
            continue
        row = dict(zip(fields, cells, strict=False))
        index = whole_number(row.get("index"))
        name = said(row.get("name"))
        # `[GPU is lost]`, `[Unknown Error]`, `[Insufficient Permissions]`: no GPU's name is in brackets.
        name = None if name is not None and name.startswith("[") else name
        if index is None or name is None:
            problems.append(f"line {number}: `{clipped(', '.join(cells))}` is not about a GPU")
            continue
        gpus.append(_gpu(index, name, row))
        state = query_health.health(gpus[-1], row)
        states += [state] if state is not None else []
        drivers.append(said(row.get("driver_version")))
    if not gpus:
        first = next((", ".join(cells) for _, cells in _lines(text)), "nothing")
        raise InputError(
            f"no GPU: expected lines of `{', '.join(FIELDS)}`, found `{clipped(first)}`",
            file=file,
            hint="`nvidia-smi --query-gpu=index,name,uuid,pci.bus_id,memory.total,driver_version,compute_cap"
            " --format=csv` writes them",
        )
    return Gpus(tuple(gpus), drivers[0], problems=tuple(problems), health=tuple(states))


def parse_heading(text: str) -> str | None:
    """The highest CUDA version the driver takes, from the heading of plain `nvidia-smi`, or None."""
    match = re.search(r"CUDA Version\s*:\s*(\d{1,3}\.\d{1,3})", text)
    return match.group(1) if match else None


def _lines(text: str) -> list[tuple[int, list[str]]]:
    """Line number and cells of every line that holds something."""
    found = []
    for number, line in enumerate(without_escapes(text).replace("\0", "").split("\n"), start=1):
        # One line at a time: a quote that is never closed must not swallow the rest.
        cells = next(csv.reader(io.StringIO(line[:4096]), quoting=csv.QUOTE_NONE), [])
        if any(cell.strip() for cell in cells):
            found.append((number, [cell.strip() for cell in cells]))
    return found


def _gpu(index: int, name: str, row: dict[str, str]) -> Gpu:
    memory = whole_number(row.get("memory.total"))
    capability = said(row.get("compute_cap"))
    return Gpu(
        index=index,
        name=name,
        uuid=said(row.get("uuid")),
        pci_bus_id=pci_bus_id(row.get("pci.bus_id")),
        memory_bytes=None if memory is None else min(memory, 1 << 40) * _MIB,
        compute_capability=capability if capability and re.match(r"\d{1,3}\.\d$", capability) else None,
        numa_node=None,
    )


def pci_bus_id(text: str | None) -> str | None:
    """A PCI address as the kernel writes it, `0000:18:00.0`; NVIDIA's tools write eight digits in front."""
    match = re.match(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$", (text or "").strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def _tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    found = parse(text, file=file)
    for problem in found.problems:
        scan = with_absent(scan, file, problem)
    scan = with_health(scan, found.health)
    if scan.gpus:
        # NVML, or an earlier file, told the same and more
        return msgspec.structs.replace(scan, driver=scan.driver or found.driver)
    return msgspec.structs.replace(
        scan, gpus=found.gpus, gpu_source="nvidia-smi", driver=scan.driver or found.driver
    )


KINDS = (
    SavedKind(
        "`nvidia-smi --query-gpu` output", matches(r"^index, name\b|^\d{1,4}, [^,\n]{1,100}, GPU-"), _tell
    ),
)
