"""Rules about a GPU's memory: ECC, rows taken out of use, resets that are due."""

from __future__ import annotations

from topo_tune.findings.gpus.each_gpu import Trouble, on_each_gpu
from topo_tune.findings.rule import Rule
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import GpuHealth
from topo_tune.records.scan import NodeScan

_MEMORY_ERRORS = (
    "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html"
)
_DRAIN = "drain the node, end all processes on the GPU and reset it: `nvidia-smi --gpu-reset -i INDEX`"


def _ecc_off(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    # GeForce cards are sold with ECC off, or with none.
    if gpu.ecc_enabled is not False or "GeForce" in (gpu.name or "GeForce"):
        return None
    return Trouble("ECC is off on a GPU that has it", "ECC Mode: Disabled")


def _uncorrected(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    if not gpu.ecc_uncorrected_volatile:
        return None
    waits = ", a row or page waits for its replacement" if gpu.remap_pending else ""
    return Trouble(
        "memory errors that ECC could not correct, since the driver was loaded",
        f"{gpu.ecc_uncorrected_volatile} uncorrectable{waits}",
    )


def _uncorrected_before(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    if not gpu.ecc_uncorrected_aggregate or gpu.ecc_uncorrected_volatile != 0:
        return None
    return Trouble(
        "a GPU had uncorrectable memory errors in its life, none since the driver was loaded",
        f"{gpu.ecc_uncorrected_aggregate} in its life",
    )


def _sram(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    if not gpu.sram_threshold_exceeded:
        return None
    return Trouble(
        "a GPU's own SRAM had more uncorrectable errors than NVIDIA accepts", "SRAM Threshold Exceeded"
    )


def _pending(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    # With errors since the driver was loaded that finding says it, and asks for the same reset.
    if not gpu.remap_pending or gpu.ecc_uncorrected_volatile:
        return None
    return Trouble("bad rows or pages of GPU memory wait for a reset", "remapping or retirement is pending")


def _failed(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    if not gpu.remap_failed:
        return None
    return Trouble("bad rows of GPU memory could not be replaced", "row remapping failed")


def _reset(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    action = gpu.recovery_action if gpu.recovery_action not in (None, "None") else None
    if action is None and not gpu.reset_required:
        return None
    return Trouble(
        "the driver asks for a GPU to be recovered before it is used again",
        f"recovery action: {action}" if action else "reset required",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-ecc-off",
        title="ECC is off",
        severity=Severity.NOTICE,
        why="a flipped bit in a buffer is summed into every rank's result by the next all-reduce, and "
        "nothing reports it",
        fix=(
            "`nvidia-smi -e 1`, then reset the GPU or reboot",
            "`topo-tune scan --ignore gpu-ecc-off` if it is meant",
        ),
        source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
        look=on_each_gpu(_ecc_off),
    ),
    Rule(
        id="gpu-ecc-uncorrected",
        title="uncorrectable memory errors on a GPU",
        severity=Severity.ERROR,
        why="the process that touched the bad memory was ended, and one dead rank hangs or ends the whole "
        "NCCL job; until the reset it may happen again",
        fix=(
            _DRAIN,
            "`nvidia-smi -q -d ECC,ROW_REMAPPER`; if it comes back: `dcgmi diag -r 3`, then replace the GPU",
        ),
        source=_MEMORY_ERRORS,
        look=on_each_gpu(_uncorrected),
    ),
    Rule(
        id="gpu-ecc-history",
        title="a GPU had uncorrectable memory errors",
        severity=Severity.NOTICE,
        why="their rows were taken out of use, so nothing is wrong now; a count that grows is a GPU that "
        "ends jobs",
        fix=("note the count, `nvidia-smi -q -d ECC,ROW_REMAPPER`, and compare it after some weeks",),
        source=_MEMORY_ERRORS,
        look=on_each_gpu(_uncorrected_before),
    ),
    Rule(
        id="gpu-sram-threshold",
        title="a GPU has too many SRAM errors",
        severity=Severity.WARNING,
        why="uncorrectable SRAM errors cannot be mapped away: the GPU will end jobs again",
        fix=(
            "run the field diagnostic (`dcgmi diag -r 4`) on the drained node and ask the vendor for a replacement",
        ),
        source="https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        look=on_each_gpu(_sram),
    ),
    Rule(
        id="gpu-remap-pending",
        title="bad GPU memory waits for a reset",
        severity=Severity.NOTICE,
        why="the driver keeps the bad memory out of use until then, so NCCL works on; the spare row takes its place "
        "at the reset",
        fix=(_DRAIN,),
        source=_MEMORY_ERRORS,
        look=on_each_gpu(_pending),
    ),
    Rule(
        id="gpu-remap-failed",
        title="bad GPU memory cannot be replaced",
        severity=Severity.ERROR,
        why="no spare row is left where one is needed: jobs on this GPU will be ended by memory errors",
        fix=(
            "drain the node and replace the GPU; `nvidia-smi -q -d ROW_REMAPPER` is what the vendor asks for",
        ),
        source=_MEMORY_ERRORS,
        look=on_each_gpu(_failed),
    ),
    Rule(
        id="gpu-reset-required",
        title="a GPU needs a reset",
        severity=Severity.ERROR,
        why="after a fault the driver keeps the GPU in a state in which CUDA calls fail or peers cannot "
        "reach it; a rank on it hangs the communicator",
        fix=(
            _DRAIN,
            "`Reboot`: reboot the node; `Drain P2P`: end the jobs that use peer access, then look again",
        ),
        source=_MEMORY_ERRORS,
        look=on_each_gpu(_reset),
    ),
)
