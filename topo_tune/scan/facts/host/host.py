"""What the operating system gives a process: limits, memory, modules, virtualisation, services, Slurm."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from topo_tune.records.hardware import Host
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import Command, Fact, Files, Gathered, SavedKind, with_absent
from topo_tune.scan.facts.host import cpu, kernel_modules, kernel_options, limits, numa, uname, virtualization
from topo_tune.scan.facts.words import clipped, whole_number

SERVICES = (
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "nvidia-imex",
    "openibd",
    "irqbalance",
    "slurmd",
)
"""In the order in which `systemctl` is asked, since its answer names none of them."""

_LIMITS = Files("/proc/self/limits")
_STATUS = Files("/proc/self/status", keep=r"^Cpus_allowed_list:")
_GOVERNORS = Files("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", limit_bytes=32)
_HUGE_PAGES = Files("/proc/meminfo", keep=r"^HugePages_Total:")
_TRANSPARENT = Files("/sys/kernel/mm/transparent_hugepage/enabled", limit_bytes=64)
_BALANCING = Files("/proc/sys/kernel/numa_balancing", limit_bytes=16)
_GDRCOPY_DEVICE = Files("/dev/gdrdrv", mode="exists")
_IMEX_CHANNELS = Files("/dev/nvidia-caps-imex-channels/channel*", mode="exists")
# src/graph/topo.cc: NCCL_TOPO_XML_FILE
_VIRTUAL_TOPOLOGY = Files("/var/run/nvidia-topologyd/virtualTopology.xml", mode="exists")

_SHARED_MEMORY = Command(("df", "-B1", "--output=target,size,avail", "/dev/shm"))
_ACTIVE = Command(("systemctl", "is-active", *SERVICES))
_SLURM_VERSION = Command(("sinfo", "--version"))

_ENVIRONMENT = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_CLUSTER_NAME",
    "SLURM_CONF",
    "SLURM_JOB_PARTITION",
)
_STATES = (
    "active",
    "reloading",
    "inactive",
    "failed",
    "activating",
    "deactivating",
    "maintenance",
    "unknown",
)


def tell(scan: NodeScan, gathered: Gathered) -> NodeScan:
    """The host as /proc, /sys and a few commands describe it; what they do not tell stays None."""
    options = kernel_options.parse(_one(gathered, kernel_options.CMDLINE))
    modules = kernel_modules.modules(gathered)
    nvidia = kernel_modules.parse_nvidia(_one(gathered, kernel_modules.NVIDIA))
    if nvidia is not None:
        modules = tuple((name, nvidia.version if name == "nvidia" else version) for name, version in modules)
    is_open = None if nvidia is None else nvidia.is_open
    shared_bytes, free_bytes = _shared_memory(gathered.output(*_SHARED_MEMORY.argv).stdout)
    talkers = frozenset(device.address for device in scan.pci if device.kind in ("gpu", "nic"))
    host = Host(
        shm_bytes=shared_bytes,
        shm_free_bytes=free_bytes,
        hypervisor=virtualization.hypervisor(gathered),
        container=virtualization.container(gathered),
        allowed_cpus=_allowed_cpus(_one(gathered, _STATUS)),
        governors=_governors(gathered),
        huge_pages=_after_colon(_one(gathered, _HUGE_PAGES)),
        transparent_huge_pages=_in_brackets(_one(gathered, _TRANSPARENT)),
        numa_balancing=_is_on(_one(gathered, _BALANCING)),
        iommu=kernel_options.iommu(gathered, options, talkers),
        kernel_options=options,
        modules=modules,
        is_open_nvidia_module=is_open,
        dma_buf=kernel_modules.has_dma_buf(
            scan.kernel, is_open=is_open, driver=nvidia.version if nvidia else None
        ),
        gdrcopy=_gdrcopy(gathered, modules),
        services=_services(gathered.output(*_ACTIVE.argv).stdout),
        slurm=_slurm(gathered),
        is_in_kubernetes=virtualization.is_in_kubernetes(gathered) if gathered.files else None,
        machine=virtualization.machine(gathered),
        has_virtual_topology=_is_there(gathered, _VIRTUAL_TOPOLOGY),
        has_imex_channel=_is_there(gathered, _IMEX_CHANNELS),
    )
    host = limits.parse_proc(_one(gathered, _LIMITS), host)
    scan = msgspec.structs.replace(scan, host=host)
    if shared_bytes is None:
        reason = gathered.output(*_SHARED_MEMORY.argv).failure() or "`df` named no size"
        scan = with_absent(scan, "/dev/shm", reason)
    return scan


def _one(gathered: Gathered, files: Files) -> str:
    return gathered.texts(files.pattern).get(files.pattern, "")


def _is_there(gathered: Gathered, files: Files) -> bool | None:
    """Whether a file was found; None where nothing was looked for, or where it could not be."""
    if gathered.texts(files.pattern):
        return True
    return None if not gathered.files or gathered.problems(files.pattern) else False


def _shared_memory(text: str) -> tuple[int | None, int | None]:
    """Size and free bytes in the answer of `df -B1 --output=target,size,avail /dev/shm`."""
    match = re.search(r"^/dev/shm\s{1,40}(\d{1,18})\s{1,40}(\d{1,18})\s*$", text[:4096], re.M)
    return (int(match.group(1)), int(match.group(2))) if match else (None, None)


def _allowed_cpus(text: str) -> str | None:
    match = re.search(r"Cpus_allowed_list:\s{0,20}([\d,-]{1,2000})\s*$", text[:4096], re.M)
    return match.group(1) if match else None


def _governors(gathered: Gathered) -> tuple[tuple[str, int], ...]:
    texts = gathered.texts(_GOVERNORS.pattern).values()
    return tuple(sorted(Counter(clipped(text, 30) for text in texts if text.strip()).items()))[:16]


def _after_colon(text: str) -> int | None:
    return whole_number(text.partition(":")[2])


def _in_brackets(text: str) -> str | None:
    match = re.search(r"\[(\w{1,20})\]", text[:200])
    return match.group(1) if match else None


def _is_on(text: str) -> bool | None:
    """A switch of /proc/sys: 0 is off; NUMA balancing has several ways of being on."""
    number = whole_number(text)
    return None if number is None else number != 0


def _gdrcopy(gathered: Gathered, modules: tuple[tuple[str, str | None], ...]) -> str | None:
    """The version of GDRCopy's driver, or `loaded` where it has none to tell."""
    versions = dict(modules)
    if "gdrdrv" in versions or gathered.texts(_GDRCOPY_DEVICE.pattern):
        return versions.get("gdrdrv") or "loaded"
    return None


def _services(text: str) -> tuple[tuple[str, str], ...]:
    """The state of each service, where `systemctl` told one for each; in containers it tells none."""
    states = [line.strip() for line in text[:4096].split("\n") if line.strip()]
    if len(states) != len(SERVICES) or not all(state in _STATES for state in states):
        return ()
    return tuple(zip(SERVICES, states, strict=True))


def _slurm(gathered: Gathered) -> tuple[tuple[str, str], ...]:
    found = [(name, clipped(value, 500)) for name, value in gathered.environment if name in _ENVIRONMENT]
    match = re.match(r"slurm[\w-]* ([\w.-]{1,40})", gathered.output(*_SLURM_VERSION.argv).stdout[:200])
    return (*found, *((("version", match.group(1)),) if match else ()))


FACTS: tuple[Fact, ...] = (
    Fact(
        name="host",
        tell=tell,
        commands=(
            _SHARED_MEMORY,
            virtualization.DETECT_MACHINE,
            virtualization.DETECT_CONTAINER,
            _ACTIVE,
            _SLURM_VERSION,
        ),
        files=(
            _LIMITS,
            _STATUS,
            _GOVERNORS,
            _HUGE_PAGES,
            _TRANSPARENT,
            _BALANCING,
            _GDRCOPY_DEVICE,
            _IMEX_CHANNELS,
            _VIRTUAL_TOPOLOGY,
            kernel_options.CMDLINE,
            kernel_options.GROUP_TYPES,
            kernel_options.UNITS,
            kernel_options.GROUP_OF_DEVICE,
            kernel_modules.LOADED,
            *kernel_modules.VERSIONS,
            kernel_modules.NVIDIA,
            *virtualization.FILES,
        ),
        environment=(*_ENVIRONMENT, virtualization.KUBERNETES),
    ),
)
KINDS: tuple[SavedKind, ...] = (
    *limits.KINDS,
    *kernel_modules.KINDS,
    *cpu.KINDS,
    *numa.KINDS,
    *uname.KINDS,
)
