"""Rules about what holds a GPU's clocks down, and about modes that a job meets at its start."""

from __future__ import annotations

from topo_tune.findings.gpus.each_gpu import Trouble, on_each_gpu
from topo_tune.findings.rule import Rule
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import GpuHealth
from topo_tune.records.scan import NodeScan

_REASONS = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"

_BRAKES = {
    "HW Thermal Slowdown": Severity.ERROR,
    "HW Power Brake Slowdown": Severity.ERROR,
    # Alone it may be the moment of a clock change.
    "HW Slowdown": Severity.WARNING,
    "SW Thermal Slowdown": Severity.WARNING,
}
"""Reasons that are no choice, worst first. `SW Power Cap`, `Idle`, `Sync Boost`, application and display clocks are."""

_COUNTED_BRAKES = ("HW Thermal Slowdown", "HW Power Braking", "SW Thermal Slowdown")

THROTTLED_SECONDS_WORTH_KNOWING = 60.0
"""Since the driver was loaded: less than that is a start under load in a warm room."""

_TOLERATED_WATTS = 1.0


def _braked(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    reason = next((reason for reason in _BRAKES if reason in gpu.throttle_reasons), None)
    if reason is None:
        return None
    clocks = f", SM clock {gpu.sm_clock_mhz} of {gpu.max_sm_clock_mhz} MHz" if gpu.max_sm_clock_mhz else ""
    heat = f", {gpu.temperature_celsius} C" if gpu.temperature_celsius is not None else ""
    return Trouble(
        f"a GPU's clocks are held down: {reason}", f"{reason} is active{clocks}{heat}", _BRAKES[reason]
    )


def _was_braked(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    long = [
        (name, seconds)
        for name, seconds in gpu.throttled_seconds
        if name in _COUNTED_BRAKES and seconds >= THROTTLED_SECONDS_WORTH_KNOWING
    ]
    if not long or any(reason in gpu.throttle_reasons for reason in _BRAKES):
        return None
    names = " and ".join(name for name, _ in long)
    return Trouble(
        f"a GPU's clocks were held down earlier: {names}",
        ", ".join(f"{name} for {seconds:.0f} s" for name, seconds in long),
    )


def _power(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    limit, default = gpu.power_limit_watts, gpu.default_power_limit_watts
    if limit is None or default is None or limit > default - _TOLERATED_WATTS:
        return None
    return Trouble("a GPU's power limit is below its default", f"{limit:g} of {default:g} W")


def _persistence(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    if gpu.persistence is not False:
        return None
    return Trouble("persistence mode is off", "Persistence Mode: Disabled")


def _mig(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    return Trouble("a GPU is in MIG mode", "MIG Mode: Enabled") if gpu.mig else None


def _compute_mode(_: NodeScan, gpu: GpuHealth) -> Trouble | None:
    mode = gpu.compute_mode
    if mode is None or mode == "Default":
        return None
    if mode == "Prohibited":
        return Trouble("a GPU lets no CUDA process in: compute mode Prohibited", mode, Severity.ERROR)
    return Trouble(f"a GPU lets in one process only: compute mode {mode}", mode)


RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-throttled",
        title="a GPU's clocks are held down",
        severity=Severity.ERROR,
        why="NCCL's copies and sums run on the GPU's clocks, halved by a hardware brake; one such GPU slows "
        "every rank, and whatever is measured now says nothing about settings",
        fix=(
            "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` names the reason",
            "thermal: airflow, dust, failed fans, room; power brake: power supplies and the BMC's event log",
            "`ipmitool sel list`, `ipmitool dcmi power get_limit`",
        ),
        source=_REASONS,
        look=on_each_gpu(_braked),
    ),
    Rule(
        id="gpu-throttled-before",
        title="a GPU's clocks were held down earlier",
        severity=Severity.NOTICE,
        why="it happens under load: launches that fall into such a time are slower, and the spread grows",
        fix=("`nvidia-smi -q -d PERFORMANCE` before and after a job: do the counters grow?",),
        source=_REASONS,
        look=on_each_gpu(_was_braked),
    ),
    Rule(
        id="gpu-power-capped",
        title="a GPU's power limit is below its default",
        severity=Severity.WARNING,
        why="under load its clocks fall below those of its peers, and collectives run at the pace of the "
        "slowest rank",
        fix=(
            "`nvidia-smi -pl WATTS` sets it back",
            "`--ignore gpu-power-capped` if all nodes have it on purpose",
        ),
        source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
        look=on_each_gpu(_power),
    ),
    Rule(
        id="gpu-persistence-off",
        title="persistence mode is off",
        severity=Severity.NOTICE,
        why="with no client the driver lets a GPU go, and the next start costs 1 to 3 s for each GPU and "
        "loses power limits and clocks: ranks of one job start far apart",
        fix=("`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` until the next boot",),
        source="https://docs.nvidia.com/deploy/driver-persistence/overview.html",
        look=on_each_gpu(_persistence),
    ),
    Rule(
        id="gpu-mig-on",
        title="a GPU is split by MIG",
        severity=Severity.WARNING,
        why="instances of MIG have neither NVLink nor CUDA IPC with others: NCCL falls back to host memory, "
        "if it accepts two of one GPU at all",
        fix=("`nvidia-smi -mig 0 -i INDEX` on a drained node, where whole GPUs are wanted",),
        source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html",
        look=on_each_gpu(_mig),
    ),
    Rule(
        id="gpu-compute-mode",
        title="a GPU's compute mode keeps processes out",
        severity=Severity.NOTICE,
        why="a second process on the GPU fails with `all CUDA-capable devices are busy or unavailable`: so "
        "does a rank that opens its neighbour's GPU, or a benchmark beside a job",
        fix=("`nvidia-smi -c DEFAULT`",),
        source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
        look=on_each_gpu(_compute_mode),
    ),
)
