"""Rules about NVLink: links that are down, slower than others, or erroneous."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import GpuNvlinks
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import NodeScan, Scan

_CHECKS = "https://docs.nvidia.com/health-validation/reference/checks/nvlink"

ERRORS_THAT_COST = 100
"""On one link. NVIDIA's DCGM minds replays at once and CRC errors from 100 a second on; a total has no time, so that
a few are only worth knowing."""

_LINKS_OF_SWITCHED_BOARDS = (
    (re.compile(r"A100-SXM4"), 12),
    (re.compile(r"A800-SXM4|H800$"), 8),
    (re.compile(r"H100 80GB HBM3|H200$|H20$"), 18),
    (re.compile(r"\bG?B(?:200|300)\b"), 18),
)
"""Links that every GPU of a model has in use on NVIDIA's own boards; those of other models depend on bridges.

A800 and H800 have 400 GB/s, which is eight links: `nvidia-smi topo -m` says NV8 on such machines.
"""

_NV = re.compile(r"NV(\d{1,3})$")
_FEWEST_MATES = 3
"""Fewest other GPUs that must be joined alike, each with each, before one that has fewer links to all is short of some.

On boards without switches pairs may have one link or two by design, and then every GPU has both.
"""

_ON_A_BOARD = re.compile(r"SXM|HBM|H200$|H800$|H20$|\bG?B[123]00\b|GH200")
"""Models that are soldered to or seated on a board with NVLink. Of cards only some may have a bridge."""


def missing_links(node: NodeScan) -> tuple[str, ...]:
    """A line for each GPU with fewer active links than it should have; by the matrix where no more is known."""
    if not node.nvlinks:
        return _short_by_matrix(node.matrix) if node.matrix is not None else ()
    lines: list[str] = []
    for name, gpus in _by_model(node).items():
        counts = {gpu.gpu: _active(gpu) for gpu in gpus}
        most = max(counts.values())
        expected = max(most, _expected(name)) if most else 0
        is_on_board = _ON_A_BOARD.search(name) is not None
        short = [gpu for gpu in gpus if (is_on_board or counts[gpu.gpu]) and counts[gpu.gpu] < expected]
        lines += [_down(gpu, counts[gpu.gpu], expected) for gpu in short]
    return tuple(lines)


def _short_by_matrix(matrix: TopologyMatrix) -> tuple[str, ...]:
    """A line for each GPU that has fewer links to all others than those have to each other."""
    gpus = range(len(matrix.gpus))
    most = [max((_links(matrix.links[i][j]) for j in gpus if j != i), default=0) for i in gpus]
    usual = max(most, default=0)
    mates = [i for i in gpus if most[i] == usual]
    short = [i for i in gpus if 0 < most[i] < usual]
    are_alike = all(_links(matrix.links[i][j]) == usual for i in mates for j in mates if i != j)
    if len(mates) < _FEWEST_MATES or not are_alike:
        return ()
    return tuple(f"{matrix.gpus[i]}: NV{most[i]} to the others, which have NV{usual}" for i in short)


def _links(word: str) -> int:
    """NVLinks between two GPUs, by a word of the matrix."""
    found = _NV.match(word)
    return int(found[1]) if found is not None else 0


def _inactive(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        lines = missing_links(node)
        if lines:
            what = "NVLinks are down that other GPUs of the same model have, or that the model has"
            yield Sighting(what, node.node, evidence=lines)


def _by_model(node: NodeScan) -> dict[str, list[GpuNvlinks]]:
    """GPUs whose links' states are known."""
    models: dict[str, list[GpuNvlinks]] = defaultdict(list)
    for gpu in node.nvlinks:
        if all(link.is_active is not None for link in gpu.links):
            models[gpu.name or ""].append(gpu)
    return models


def _active(gpu: GpuNvlinks) -> int:
    return sum(1 for link in gpu.links if link.is_active)


def _expected(name: str) -> int:
    return next((count for model, count in _LINKS_OF_SWITCHED_BOARDS if model.search(name)), 0)


def _down(gpu: GpuNvlinks, active: int, expected: int) -> str:
    down = ", ".join(str(link.index) for link in gpu.links if not link.is_active)
    which = f"; down: {down}" if down else ""
    return f"GPU {gpu.gpu}: {active} of {expected} links active{which}"


def _speeds(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for gpus in _by_model(node).values():
            speeds = {
                (gpu.gpu, link.index): link.gb_per_s for gpu in gpus for link in gpu.links if link.gb_per_s
            }
            if not speeds or len(set(speeds.values())) == 1:
                continue
            fastest = max(speeds.values())
            slow = [
                f"GPU {gpu} link {link}: {speed:g} GB/s"
                for (gpu, link), speed in speeds.items()
                if speed < fastest
            ]
            yield Sighting(
                f"NVLinks of one model run at different speeds, the fastest at {fastest:g} GB/s",
                node.node,
                evidence=tuple(slow),
            )


def _errors(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        lines = [
            f"GPU {gpu.gpu} link {link.index}: {link.errors} errors"
            for gpu in node.nvlinks
            for link in gpu.links
            if link.errors
        ]
        if not lines:
            continue
        most = max(link.errors or 0 for gpu in node.nvlinks for link in gpu.links)
        is_many = most >= ERRORS_THAT_COST
        yield Sighting(
            "NVLinks count many errors" if is_many else "NVLinks counted a few errors",
            node.node,
            evidence=tuple(lines),
            severity=Severity.WARNING if is_many else Severity.NOTICE,
        )


RULES: tuple[Rule, ...] = (
    Rule(
        id="nvlink-inactive",
        title="some NVLinks are down",
        severity=Severity.ERROR,
        why="NCCL builds its rings and trees over the links that are up: a GPU with fewer is the bottleneck "
        "of all, and with NVSwitch the GPU may drop out of NVLS altogether",
        fix=(
            "`nvidia-smi nvlink -s`, `nvidia-smi nvlink -e`, `dmesg | grep -E 'Xid|SXid'`",
            "drain the node; reset the GPUs (`nvidia-smi --gpu-reset`) or reboot; with NVSwitch restart the "
            "fabric manager first",
            "links that stay down are hardware: board, bridge or switch",
        ),
        source=_CHECKS,
        look=_inactive,
    ),
    Rule(
        id="nvlink-speeds-differ",
        title="some NVLinks are slower than others",
        severity=Severity.WARNING,
        why="NCCL counts links as equals and sends the same share over each; the slowest sets the pace",
        fix=(
            "reset the GPUs or reboot; a link that stays slow has trained down: look at `nvidia-smi nvlink -e`",
        ),
        source=_CHECKS,
        look=_speeds,
    ),
    Rule(
        id="nvlink-errors",
        title="some NVLinks count errors",
        severity=Severity.WARNING,
        why="replays and recoveries stall a link for microseconds to milliseconds, which shows as slow "
        "outliers; a link that needs them often will fail with an Xid",
        fix=(
            "`nvidia-smi nvlink -e` twice under load: only counters that grow matter",
            "`nvidia-smi nvlink -re` sets them to zero; a link that keeps counting needs service",
        ),
        source="https://facebookresearch.github.io/gcm/docs/GCM_Health_Checks/health_checks/check-dcgmi/nvlink",
        look=_errors,
    ),
)
