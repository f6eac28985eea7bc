"""Rules about a GPU's link to its host: width, generation, replays, the window into its memory."""

from __future__ import annotations

import re

from topo_tune.findings.gpus.each_gpu import Trouble, on_each_gpu
from topo_tune.findings.machine import is_grace
from topo_tune.findings.rule import Rule
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import GpuHealth
from topo_tune.records.scan import NodeScan

_MANUAL = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"

REPLAYS_WORTH_KNOWING = 1000
"""Packets sent twice since the last reset. Healthy GPUs show some tens after weeks (a public `nvidia-smi -q` of eight
H100: 63 to 67), a bad riser or retimer thousands an hour."""

_WHOLE_MEMORY_IN_BAR1 = re.compile(r"\b(?:V100|A100|A800|A30|H100|H200|H800|H20|B100|B200|B300)\b")
"""Models whose memory is mapped as a whole unless the firmware has no room for it."""


def _narrow(node: NodeScan, gpu: GpuHealth) -> Trouble | None:
    link = gpu.link
    if link is None or link.width is None or link.max_width is None or link.width >= link.max_width:
        return None
    if is_grace(node):  # its traffic takes C2C
        return None
    return Trouble(
        "a GPU's PCIe link has fewer lanes than both of its ends could use",
        f"x{link.width} of x{link.max_width}",
    )


def _slow(node: NodeScan, gpu: GpuHealth) -> Trouble | None:
    reach = _reachable(gpu)
    if gpu.link is None or gpu.link.speed_gt_per_s is None or reach is None or gpu.performance_state != "P0":
        return None
    if gpu.link.speed_gt_per_s >= reach or (
        "Idle" in gpu.throttle_reasons and not _others_are_fast(node, gpu)
    ):
        return None
    return Trouble(
        "a GPU at full speed has a PCIe link of a lower generation than slot and GPU can do",
        f"{gpu.link.speed_gt_per_s:g} of {reach:g} GT/s",
    )


def _reachable(gpu: GpuHealth) -> float | None:
    speeds = [
        speed for speed in (gpu.link and gpu.link.max_speed_gt_per_s, gpu.host_max_speed_gt_per_s) if speed
    ]
    return min(speeds) if speeds else None


def _others_are_fast(node: NodeScan, gpu: GpuHealth) -> bool:
    """Whether every other GPU of this model, as idle as this one, keeps its link at full speed."""
    others = [
        other
        for other in node.gpu_health
        if other is not gpu and other.name == gpu.name and other.performance_state == gpu.performance_state
    ]
    return len(others) > 1 and all(
        other.link is not None and other.link.speed_gt_per_s == _reachable(other) for other in others
    )


def _slow_slot(node: NodeScan, gpu: GpuHealth) -> Trouble | None:
    own, host = gpu.link.max_speed_gt_per_s if gpu.link else None, gpu.host_max_speed_gt_per_s
    if own is None or host is None or host >= own or is_grace(node):
        return None
    return Trouble(
        "the slot is of a lower PCIe generation than the GPU in it", f"slot {host:g} GT/s, GPU {own:g} GT/s"
    )


def _replays(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    if gpu.pcie_replays is None or gpu.pcie_replays < REPLAYS_WORTH_KNOWING:
        return None
    return Trouble(
        "a GPU's PCIe link had to send many packets twice", f"{gpu.pcie_replays} replays since reset"
    )


def _small_bar1(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    window, memory = gpu.bar1_total_bytes, gpu.memory_total_bytes
    is_meant = gpu.mig or gpu.virtualization_mode == "VGPU" or gpu.addressing_mode == "ATS"
    if window is None or memory is None or window >= memory or is_meant:
        return None
    if not _WHOLE_MEMORY_IN_BAR1.search(gpu.name or ""):
        return None
    return Trouble(
        "a data-centre GPU's BAR1 window is smaller than its memory", f"{window >> 20} of {memory >> 20} MiB"
    )


RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-link-narrow",
        title="a GPU's PCIe link is narrower than it can be",
        severity=Severity.WARNING,
        why="every byte that leaves over the network or to a GPU without NVLink crosses this link; with half "
        "the lanes the rings that NCCL builds through it have half the bandwidth, and all ranks wait for them",
        fix=(
            "`nvidia-smi -q -d PCI` for link width and replays, `lspci -vv -s ADDRESS` for LnkSta of GPU and "
            "bridge",
            "reseat the card or its riser, swap it with a good one to see whether the fault moves with it",
            "look whether the firmware splits the slot (bifurcation)",
        ),
        source=_MANUAL,
        look=on_each_gpu(_narrow),
    ),
    Rule(
        id="gpu-link-slow",
        title="a GPU's PCIe link runs below its generation under load",
        severity=Severity.WARNING,
        why="each generation halves or doubles what the GPU exchanges with NICs and with GPUs it has no "
        "NVLink to; NCCL plans with the speed that the kernel reports",
        fix=(
            "look again while a job runs: an idle GPU lowers the generation by itself",
            "`dmesg | grep -i 'available PCIe bandwidth'` and `lspci -vv -s ADDRESS` name the bridge that "
            "limits it",
            "reseat the card; set the slot's generation in the firmware to `Auto`",
        ),
        source=_MANUAL,
        look=on_each_gpu(_slow),
    ),
    Rule(
        id="gpu-slot-slow",
        title="a GPU sits in a slot of a lower generation",
        severity=Severity.NOTICE,
        why="the host's side of the link is the limit for network and peer traffic; no setting of NCCL "
        "changes it",
        fix=(
            "use a slot of the GPU's generation, or raise the slot's generation in the firmware if it is set low",
        ),
        source=_MANUAL,
        look=on_each_gpu(_slow_slot),
    ),
    Rule(
        id="gpu-pcie-replays",
        title="a GPU's PCIe link sends packets twice",
        severity=Severity.NOTICE,
        why="each replay stalls the link for a moment: latency of small messages suffers first, and the link "
        "may train down later",
        fix=(
            "`nvidia-smi -q -d PCI | grep -i replay` twice, a minute apart under load: does the count grow?",
            "if it does, reseat card and riser and check `dmesg` for AER errors of the bridge above",
        ),
        source=_MANUAL,
        look=on_each_gpu(_replays),
    ),
    Rule(
        id="gpu-bar1-small",
        title="BAR1 is smaller than a data-centre GPU's memory",
        severity=Severity.WARNING,
        why="GPUDirect RDMA registers NCCL's buffers through this window; once it is full, registrations "
        "fail and jobs with large buffers or many communicators break",
        fix=(
            "turn on `Above 4G Decoding` (and a large enough MMIO window) in the host's firmware",
            "in a virtual machine: give its firmware a 64-bit MMIO window of twice all GPUs' memory",
        ),
        source="https://docs.nvidia.com/cuda/gpudirect-rdma/index.html",
        look=on_each_gpu(_small_bar1),
    ),
)
