"""Rules about GPUs that cannot reach each other directly."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from topo_tune.findings.machine import is_virtual
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import P2pMatrix
from topo_tune.records.scan import NodeScan, Scan

_STATES = (
    "NVIDIA/nccl: docs/userguide/source/troubleshooting/gpu_troubleshooting.rst (GPU-to-GPU communication)"
)

_MEANINGS = {
    "CNS": ("the chipset does not support it", Severity.WARNING),
    "TNS": ("not over this path through the machine", Severity.NOTICE),
    "GNS": ("the GPU or its driver does not offer it", Severity.NOTICE),
    "NS": ("it is not supported", Severity.NOTICE),
    "DR": ("a registry key of the driver turns it off", Severity.WARNING),
}
"""State to what it means, and how bad it is for GPUs without NVLink between them."""

_NVLINK = re.compile(r"NV\d")
Pairs = dict[tuple[str, str], str]


def _nvlink_without_access(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        refused = {
            pair: state for pair, state in _refused(node, "r", "w").items() if _has_nvlink(node, *pair)
        }
        if refused:
            yield Sighting(
                "GPUs that are joined by NVLink may not reach each other's memory",
                node.node,
                evidence=_lines(refused),
            )


def _without_access(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        by_state: dict[str, Pairs] = defaultdict(dict)
        for pair, state in _refused(node, "r", "w", "rw", "?").items():
            if not _has_nvlink(node, *pair):
                by_state[state][pair] = state
        for state, pairs in by_state.items():
            meaning, severity = _MEANINGS[state]
            if is_virtual(node):  # what the hypervisor lets through is nothing that a guest can set
                severity = Severity.NOTICE
            yield Sighting(
                f"GPUs cannot reach each other's memory: {state}, {meaning}",
                node.node,
                evidence=_lines(pairs),
                severity=severity,
            )


def _refused(node: NodeScan, *capabilities: str) -> Pairs:
    """Pairs that are not OK by any of the matrices; a matrix of unknown question counts only where no other is OK.

    What was asked may have been peer access over PCIe, which is `NS` wherever there is NVLink.
    """
    found: Pairs = {}
    for matrix in node.p2p:
        if matrix.capability not in capabilities or (
            matrix.capability == "?" and _is_ok_elsewhere(node, matrix)
        ):
            continue
        for i, one in enumerate(matrix.gpus):
            for j in range(i):
                state = next((s for s in (matrix.states[i][j], matrix.states[j][i]) if s in _MEANINGS), None)
                if state is not None and not (matrix.capability == "?" and state == "NS"):
                    found.setdefault((matrix.gpus[j], one), state)
    return found


def _is_ok_elsewhere(node: NodeScan, matrix: P2pMatrix) -> bool:
    return any(
        other is not matrix and any("OK" in row for row in other.states) and other.gpus == matrix.gpus
        for other in node.p2p
    )


def _has_nvlink(node: NodeScan, one: str, other: str) -> bool:
    """By the topology matrix, or by the peer states of NVLink itself."""
    if node.matrix is not None and one in node.matrix.gpus and other in node.matrix.gpus:
        return _NVLINK.match(node.matrix.link(one, other)) is not None
    for matrix in node.p2p:
        if matrix.capability == "n" and one in matrix.gpus and other in matrix.gpus:
            return matrix.states[matrix.gpus.index(one)][matrix.gpus.index(other)] == "OK"
    return False


def _lines(pairs: Pairs) -> tuple[str, ...]:
    first = [f"{one} and {other}: {state}" for (one, other), state in list(pairs.items())[:6]]
    rest = len(pairs) - len(first)
    return (*first, f"and {rest} more pairs") if rest else tuple(first)


RULES: tuple[Rule, ...] = (
    Rule(
        id="p2p-off-over-nvlink",
        title="peer access is off where NVLink is there",
        severity=Severity.ERROR,
        why="NCCL asks CUDA for peer access before it uses a link: without it, traffic between these GPUs "
        "goes through host memory, at a tenth of NVLink's bandwidth",
        fix=(
            "`nvidia-smi topo -p2p r`, `nvidia-smi nvlink -s`; with NVSwitch: is the fabric `Completed`?",
            "look for `NVreg_RegistryDwords` in `/etc/modprobe.d` and for MIG or confidential-computing mode",
            "in a virtual machine or container: are all GPUs of the board in one isolation group?",
        ),
        source="NVIDIA/nccl: src/graph/paths.cc (ncclTopoCheckP2p)",
        look=_nvlink_without_access,
    ),
    Rule(
        id="p2p-off",
        title="no peer access between GPUs",
        severity=Severity.NOTICE,
        why="without NVLink NCCL would copy over PCIe from GPU to GPU; where peer access is off it goes "
        "through host memory (SHM), which costs bandwidth and CPU memory traffic",
        fix=(
            "where it says CNS: turn off ACS, and the IOMMU or its translation (`iommu=pt`); in virtual machines it is "
            "common",
            "where it says GNS: nothing to set, GeForce cards do not offer it; NCCL takes SHM by itself",
            "where it says TNS: nothing to set between GPUs behind different sockets; NCCL takes SHM by itself",
            "where it says DR: remove the key from `NVreg_RegistryDwords` in `/etc/modprobe.d`, reload the driver",
        ),
        source=_STATES,
        look=_without_access,
    ),
)
