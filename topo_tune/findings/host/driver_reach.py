"""Rules about a driver that `nvidia-smi` cannot reach, or that shows it no GPU."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from topo_tune.findings.gpus.gpu_presence import fallen_gpus, may_hide_gpus
from topo_tune.findings.machine import pci_gpus
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import KernelEventKind
from topo_tune.records.scan import NodeScan, Scan

_GUIDELINES = "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html"
_LOST_ACCESS = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48"


class _Reason(enum.Enum):
    """Why `nvidia-smi` reached no GPU."""

    VERSIONS = enum.auto()
    NOT_LOADED = enum.auto()
    NO_GPU = enum.auto()
    NO_LIBRARY = enum.auto()
    NO_ACCESS = enum.auto()
    OTHER = enum.auto()


_WORDS = (
    ("version mismatch", _Reason.VERSIONS),
    ("Driver Not Loaded", _Reason.NOT_LOADED),
    ("communicate with the NVIDIA driver", _Reason.NOT_LOADED),
    ("No devices", _Reason.NO_GPU),
    ("NVIDIA-SMI couldn't find", _Reason.NO_LIBRARY),
    ("NVML: Unknown Error", _Reason.NO_ACCESS),
    ("Insufficient Permissions", _Reason.NO_ACCESS),
)
_BOUND_ELSEWHERE = ("vfio-pci", "nouveau")
"""Drivers that take a GPU from NVIDIA's: for virtual machines, which is meant, or as told by a rule of its own."""


def _reason(node: NodeScan) -> _Reason | None:
    """Why the driver was not reached; None where it was, by whatever else the node told."""
    if node.gpus or not node.driver_trouble:
        return None
    said = "\n".join(node.driver_trouble)
    return next((reason for words, reason in _WORDS if words in said), _Reason.OTHER)


def _has_gpus(node: NodeScan) -> bool | None:
    """Whether GPUs are on the bus that NVIDIA's driver should have; None where the bus was not looked at."""
    if not node.pci:
        return None
    return any(device.driver not in _BOUND_ELSEWHERE for device in pci_gpus(node))


def _not_loaded(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        has_nouveau = any(module == "nouveau" for module, _ in node.host.modules)
        if _reason(node) is _Reason.NOT_LOADED and _has_gpus(node) is not False and not has_nouveau:
            yield Sighting("NVIDIA's driver is not loaded", node.node, _shown(node))


def _not_found(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        has_gpus = _has_gpus(node)
        if _reason(node) is not _Reason.NO_GPU or has_gpus is False or may_hide_gpus(node):
            continue
        if _is_told_by_the_kernel(node) or (has_gpus and all(one.is_dead for one in pci_gpus(node))):
            continue
        if has_gpus:
            what = "GPUs are on the PCI bus, and NVIDIA's driver finds none"
            yield Sighting(what, node.node, (*_shown(node), *(one.address for one in pci_gpus(node)[:8])))
        else:
            yield Sighting("NVIDIA's driver finds no GPU", node.node, _shown(node), severity=Severity.WARNING)


def _is_told_by_the_kernel(node: NodeScan) -> bool:
    return bool(fallen_gpus(node)) or any(
        event.kind is KernelEventKind.DRIVER and ("RmInitAdapter" in event.text or "probe" in event.text)
        for event in node.kernel_events
    )


def _out_of_reach(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        reason = _reason(node)
        if reason in (_Reason.NO_LIBRARY, _Reason.NO_ACCESS, _Reason.OTHER) and _has_gpus(node) is not False:
            fix = {_Reason.NO_LIBRARY: _GIVE_LIBRARY, _Reason.NO_ACCESS: _GIVE_ACCESS}.get(reason)
            yield Sighting("`nvidia-smi` cannot reach NVIDIA's driver", node.node, _shown(node), fix=fix)


def _shown(node: NodeScan) -> tuple[str, ...]:
    return tuple(f"nvidia-smi: {sentence}" for sentence in node.driver_trouble[:2])


_GIVE_LIBRARY = (
    "on a host: install the driver's libraries of the module's version (`cat /proc/driver/nvidia/version`), "
    "then `ldconfig -p | grep nvidia-ml`",
    "in a container: start it with NVIDIA's runtime and `NVIDIA_DRIVER_CAPABILITIES=compute,utility`",
)
_GIVE_ACCESS = (
    "in a container that had GPUs before: start it anew; a `systemctl daemon-reload` on the host takes its "
    "devices away where systemd manages the control groups",
    "on a host: `ls -l /dev/nvidia*`, `dmesg | grep -E 'NVRM|Xid'`",
)

RULES: tuple[Rule, ...] = (
    Rule(
        id="driver-not-loaded",
        title="NVIDIA's driver is not loaded",
        severity=Severity.ERROR,
        why="without the kernel module there is no GPU for CUDA, and no rank of NCCL can start on the node",
        fix=(
            "`modprobe nvidia`, and `dmesg | grep -i nvrm` says why it does not load",
            "after an update of the kernel: `dkms status`; build the module for `uname -r` or install the "
            "driver anew, then reboot",
            "with Secure Boot the module must be signed with a key that is enrolled: `mokutil --sb-state`",
        ),
        source=_GUIDELINES,
        look=_not_loaded,
    ),
    Rule(
        id="driver-finds-no-gpu",
        title="NVIDIA's driver finds no GPU",
        severity=Severity.ERROR,
        why="the driver runs and has started no GPU: no rank of NCCL can start on the node",
        fix=(
            "`dmesg | grep -E 'NVRM|Xid'` says why: firmware, power, a GPU that the driver is too old for",
            "`lspci -nnk -d 10de:` shows which driver has the GPUs; then power the node off and on",
        ),
        source=_GUIDELINES,
        look=_not_found,
    ),
    Rule(
        id="driver-out-of-reach",
        title="`nvidia-smi` cannot reach the driver",
        severity=Severity.ERROR,
        why="what keeps `nvidia-smi` from the driver keeps CUDA from it as well: no rank of NCCL can start there",
        fix=("`dmesg | grep -E 'NVRM|Xid'`, `lsmod | grep nvidia`, `ls -l /dev/nvidia*`",),
        source=_LOST_ACCESS,
        look=_out_of_reach,
    ),
)
