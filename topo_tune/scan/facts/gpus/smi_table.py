"""Plain `nvidia-smi`, the table that people paste, and `nvidia-smi -L`, the list of GPUs."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import GpuHealth
from topo_tune.records.scan import Gpu
from topo_tune.scan.facts.beginning import beginning
from topo_tune.scan.facts.gpus import smi_errors
from topo_tune.scan.facts.gpus.nvidia_gpus import pci_bus_id
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import said, whole_number

_TABLE = re.compile(r"^[ \t]*\|[ \t]*NVIDIA-SMI[ \t]+\d", re.M)
_LISTED = re.compile(r"^[ \t]*GPU (\d{1,4}): (.{1,100}?) \(UUID: (GPU-[0-9A-Za-z-]{1,60})\)[ \t]*$", re.M)
_NVLINK = re.compile(r"^[ \t]*Link \d", re.M)
_DRIVER = re.compile(r"(?:Driver|KMD) Version\s{0,20}:\s{0,20}(\d{1,4}(?:\.\d{1,4}){1,3})")
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s{0,20}:\s{0,20}(\d{1,3}\.\d{1,3})")
_FIRST_ROW = re.compile(r"(\d{1,4})[ ]{1,10}(\S.{0,100}?)[ ]{1,40}(On|Off|N/A|WDDM|TCC|MCDM|ERR!)$")
_ADDRESS = re.compile(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b")
_BEHIND_GPUS = re.compile(r"\|\s*(?:Processes|MIG devices|GPU\s+GI)", re.I)
_COMPUTE_MODES = {
    "Default": "Default",
    "E. Process": "Exclusive_Process",
    "E. Thread": "Exclusive_Thread",
    "Prohibited": "Prohibited",
}
_ERROR = "ERR!"
_LOST = re.compile(r"GPU is lost|^ERR!\s+ERR!\s+ERR!")
"""Of a GPU that is gone the table shows neither fan nor temperature nor state. One that is there may lack some."""
_MIB = 1 << 20
_GPUS_LIMIT = 512


class Table(msgspec.Struct, frozen=True):
    """The GPUs of one table or list; of a list there is no health."""

    gpus: tuple[Gpu, ...]
    health: tuple[GpuHealth, ...] = ()
    driver: str | None = None
    cuda_driver: str | None = None
    problems: tuple[str, ...] = ()


def is_table(text: str) -> bool:
    """Whether a text has the heading of the table."""
    return _TABLE.search(text) is not None


def is_list(text: str) -> bool:
    """Whether a text is `nvidia-smi -L`, and not `nvidia-smi nvlink`, whose headlines are the same."""
    return _LISTED.search(text) is not None and _NVLINK.search(text) is None


def parse(text: str, *, file: str | None = None) -> Table:
    """What a table or a list says of each GPU. Names end with `...` where the table cut them.

    Raises InputError where there is no GPU in it.
    """
    told = lines_of_one_task(beginning(text))
    lines = [line for _, line in told.lines]
    rows = _rows(lines)
    errors = smi_errors.errors_in(told.lines)
    found = [_of_rows(*row) for row in rows] or [
        _of_list(match) for match in map(_LISTED.match, lines) if match
    ]
    if not found:
        raise InputError(
            "no GPU: expected the table of `nvidia-smi` with rows of GPUs",
            file=file,
            hint="`nvidia-smi -q` tells more, and nothing in it is cut",
        )
    joined = "\n".join(lines[:2000])
    driver, cuda = _DRIVER.search(joined), _CUDA.search(joined)
    return Table(
        gpus=tuple(gpu for gpu, _ in found[:_GPUS_LIMIT] if gpu is not None),
        health=(*(health for _, health in found[:_GPUS_LIMIT] if health is not None), *errors.lost),
        driver=driver.group(1) if driver else None,
        cuda_driver=cuda.group(1) if cuda else None,
        problems=(*told.problems, *errors.problems),
    )


def _rows(lines: list[str]) -> list[tuple[list[str], list[str], list[str]]]:
    """The three lines of each GPU, as cells; lines that a table of an old driver or a cut one lacks are empty."""
    rows: list[tuple[list[str], list[str], list[str]]] = []
    place = 3
    for line in lines:
        if rows and _BEHIND_GPUS.match(line.strip()):
            break
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 2 or not line.lstrip().startswith("|"):
            place = 3
        elif _FIRST_ROW.match(cells[0]) and _ADDRESS.match(cells[1]):
            rows.append((cells, [], []))
            place = 1
        elif place < 3:
            rows[-1][place].extend(cells)
            place += 1
    return rows


def _of_rows(first: list[str], second: list[str], third: list[str]) -> tuple[Gpu | None, GpuHealth | None]:
    match = _FIRST_ROW.match(first[0])
    assert match is not None
    index, name, persistence = int(match.group(1)), match.group(2).strip(), match.group(3)
    bus_id = pci_bus_id(first[1].split()[0])
    if name == _ERROR or any(_LOST.search(cell) for cell in (*second, *third)):
        is_named = name != _ERROR
        lost = GpuHealth(pci_bus_id=bus_id, name=name if is_named else None, is_lost=True)
        return _gpu(index, name, bus_id=bus_id) if is_named else None, lost
    state, memory, use = (*second, "", "", "")[:3]
    memory_mib = re.search(r"/\s*(\d{1,9})MiB", memory)
    memory_bytes = int(memory_mib.group(1)) * _MIB if memory_mib else None
    ecc = first[2] if len(first) > 2 else ""
    performance, limit = re.search(r"\bP\d{1,2}\b", state), re.search(r"/\s*(\d{1,6})W", state)
    degrees = re.search(r"\b(\d{1,3})C\b", state)
    health = GpuHealth(
        pci_bus_id=bus_id,
        name=name,
        persistence={"On": True, "Off": False}.get(persistence),
        mig={"Enabled": True, "Enabled*": True, "Disabled": False, "Disabled*": False}.get(
            third[2] if len(third) > 2 else ""
        ),
        memory_total_bytes=memory_bytes,
        ecc_enabled={"Off": False, "On": True}.get(ecc, True if whole_number(ecc) is not None else None),
        ecc_uncorrected_volatile=whole_number(ecc),
        performance_state=performance.group() if performance else None,
        power_limit_watts=float(limit.group(1)) if limit else None,
        temperature_celsius=int(degrees.group(1)) if degrees else None,
        compute_mode=next((mode for word, mode in _COMPUTE_MODES.items() if use.endswith(word)), None),
    )
    return _gpu(index, name, bus_id=bus_id, memory_bytes=memory_bytes), health


def _of_list(match: re.Match[str]) -> tuple[Gpu, GpuHealth | None]:
    return _gpu(int(match.group(1)), match.group(2).strip(), uuid=said(match.group(3))), None


def _gpu(
    index: int,
    name: str,
    *,
    uuid: str | None = None,
    bus_id: str | None = None,
    memory_bytes: int | None = None,
) -> Gpu:
    return Gpu(index, name, uuid, bus_id, memory_bytes, compute_capability=None, numa_node=None)
