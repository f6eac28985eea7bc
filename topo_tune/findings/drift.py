"""Rules about nodes that should be alike and are not: one job runs as fast, and as safely, as its odd node."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.catalogue import catalogue
from topo_tune.records.finding import Severity
from topo_tune.records.nodeset import fold, is_node_name
from topo_tune.records.scan import NodeScan, Scan

Told = Callable[[NodeScan], str | None]
"""What a node says about one thing, as words that are equal where nodes are alike; None where it does not say."""

_LENGTH_LIMIT = 200


def _differs(scan: Scan, thing: str, told: Told) -> Iterator[Sighting]:
    """The odd nodes, against what most have; every node where no value has most of them."""
    values = {node.node: value for node in scan.nodes if (value := told(node)) is not None}
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    (usual, most), (_, second) = counts.most_common(2)
    if most == second:
        what = f"nodes differ in {thing}: " + "; ".join(
            f"{_clipped(value)} on {_folded(name for name, own in values.items() if own == value)}"
            for value in counts
        )
        yield from (Sighting(what, name) for name in values)
        return
    for name, value in values.items():
        if value != usual:
            yield Sighting(
                f"{thing}: {_clipped(value)}, where {most} of {len(values)} nodes have {_clipped(usual)}",
                name,
            )


def _clipped(text: str) -> str:
    return text if len(text) <= _LENGTH_LIMIT else text[: _LENGTH_LIMIT - 3] + "..."


def _folded(names: Iterable[str]) -> str:
    names = list(names)
    return fold(names) if all(is_node_name(name) for name in names) else ", ".join(names)


def _nccl(node: NodeScan) -> str | None:
    return node.torch_nccl or next(
        (library.version for library in node.nccl_libraries if library.version), None
    )


def _gpus(node: NodeScan) -> str | None:
    if not node.gpus:
        return None
    return ", ".join(
        f"{count} x {name}" for name, count in sorted(Counter(g.name for g in node.gpus).items())
    )


def _joined(values: Iterable[str | None]) -> str | None:
    """The distinct values in order, as one; None where there is none."""
    return ", ".join(sorted({value for value in values if value})) or None


def _nic_speeds(node: NodeScan) -> str | None:
    """Physical NICs of 10 Gbit/s and more by kind and speed: management ports differ from node to node, harmlessly."""
    counted = Counter(
        f"{nic.kind} {nic.speed_gbit_per_s:g} Gbit/s"
        for nic in node.nics
        if nic.is_up and not nic.is_virtual and nic.kind in ("infiniband", "roce", "ethernet")
        if nic.speed_gbit_per_s is not None and nic.speed_gbit_per_s >= 10
    )
    return ", ".join(f"{count} x {what}" for what, count in sorted(counted.items())) or None


def _rdma_firmware(node: NodeScan) -> str | None:
    by_type = {(device.type or device.board, device.firmware) for device in node.rdma if device.firmware}
    return _joined(f"{kind or 'RDMA device'} {firmware}" for kind, firmware in by_type)


def _links(node: NodeScan) -> str | None:
    if node.matrix is None:
        return None
    gpus = len(node.matrix.gpus)
    # NIC names differ between nodes that are alike; how GPUs are joined must not.
    return "; ".join(" ".join(row[:gpus]) for row in node.matrix.links[:gpus])


def _active_nvlinks(node: NodeScan) -> str | None:
    counts = [sum(link.is_active is True for link in gpu.links) for gpu in node.nvlinks]
    return (
        ", ".join(f"{count} GPUs with {links} links" for links, count in sorted(Counter(counts).items()))
        or None
    )


def _system_files(node: NodeScan) -> str | None:
    """What /etc/nccl.conf sets, by content: whitespace and order mean nothing to NCCL."""
    files = [file for file in node.nccl_files if file.path.endswith("/etc/nccl.conf")]
    if not files:
        return None
    settings = sorted(f"{setting.name}={setting.value}" for file in files for setting in file.settings)
    return " ".join(settings) or "nothing"


def _system_files_differ(scan: Scan) -> Iterator[Sighting]:
    """As bad as the worst variable in which nodes differ: some must be the same on all ranks, others need not."""
    found = list(_differs(scan, "/etc/nccl.conf", _system_files))
    told = {frozenset(value.split()) for node in scan.nodes if (value := _system_files(node)) is not None}
    differing = frozenset.union(*told) - frozenset.intersection(*told) if told else frozenset()
    names = {setting.split("=")[0] for setting in differing}
    variables = [catalogue()[name] for name in names if name in catalogue()]
    severity = Severity.ERROR if any(v.must_match_across_ranks for v in variables) else Severity.WARNING
    return (msgspec.structs.replace(sighting, severity=severity) for sighting in found)


def _module(name: str, node: NodeScan) -> str | None:
    return next((version for module, version in node.host.modules if module == name and version), None)


def _memlock(node: NodeScan) -> str | None:
    limit = node.host.memlock_bytes
    if limit is None:
        return None
    return "unlimited" if limit < 0 else f"{limit} bytes"


def _memory(node: NodeScan) -> str | None:
    """To the nearest 16 GiB: firmware and kernels keep a little of it, differently."""
    if node.memory_bytes is None:
        return None
    return f"{round(node.memory_bytes / (16 << 30)) * 16} GiB"


def _governor(node: NodeScan) -> str | None:
    return _joined(name for name, _ in node.host.governors)


def _environment(node: NodeScan) -> str | None:
    if not node.nccl_environment:
        return None
    # Base images name their own package's version so; NCCL does not read it.
    pairs = (f"{name}={value}" for name, value in node.nccl_environment if name != "NCCL_VERSION")
    return " ".join(sorted(pairs)) or None


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTICE
_ENV_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_GPUDIRECT = "https://docs.nvidia.com/cuda/gpudirect-rdma/"
_NCCL_INIT = "NVIDIA/nccl: src/init.cc (ranks exchange and compare version, CPU and GPU facts at start-up)"


def _rule(
    id: str,
    title: str,
    severity: Severity,
    thing: str,
    told: Told,
    *,
    why: str,
    fix: tuple[str, ...],
    source: str,
) -> Rule:
    return Rule(id, title, severity, why, fix, source, lambda scan: _differs(scan, thing, told))


RULES: tuple[Rule, ...] = (
    _rule(
        "drift-nccl",
        "nodes use different NCCL versions",
        _E,
        "NCCL",
        _nccl,
        why="ranks of one job compare their versions at start-up and a mismatch ends it or, between close "
        "versions, lets each choose algorithms by other rules",
        fix=("install the same torch or the same NCCL package on every node, or use one container image",),
        source=_NCCL_INIT,
    ),
    _rule(
        "drift-torch",
        "nodes use different versions of torch",
        _W,
        "torch",
        lambda node: node.torch,
        why="torch brings its own NCCL, and ranks of one job must not mix them",
        fix=("use one environment or one container image on every node",),
        source="https://pytorch.org/docs/stable/distributed.html",
    ),
    _rule(
        "drift-driver",
        "nodes use different NVIDIA drivers",
        _W,
        "NVIDIA driver",
        lambda node: node.driver,
        why="the driver decides on peer access, NVLink multicast and GPUDirect: what is fast on one node may "
        "be off on the other, and the slowest rank sets the pace",
        fix=("bring the odd nodes to the version of the others, then reboot them",),
        source="https://docs.nvidia.com/deploy/cuda-compatibility/",
    ),
    _rule(
        "drift-gpus",
        "nodes have different GPUs",
        _W,
        "GPUs",
        _gpus,
        why="NCCL plans channels for the weakest GPU of a communicator; a node with fewer GPUs has often "
        "lost one",
        fix=(
            "`nvidia-smi -L` on the odd nodes; where a GPU is gone, `dmesg | grep -i xid` says why",
            "keep different models in different jobs",
        ),
        source=_NCCL_INIT,
    ),
    _rule(
        "drift-vbios",
        "nodes have GPUs with different VBIOS",
        _N,
        "VBIOS",
        lambda node: _joined(gpu.vbios for gpu in node.gpu_health),
        why="power and clock tables live in it, so that GPUs of one model may run at different speeds",
        fix=("ask the vendor whether the odd nodes should be brought to the same firmware",),
        source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    ),
    _rule(
        "drift-topology",
        "nodes join their GPUs differently",
        _W,
        "links between GPUs (`nvidia-smi topo -m`)",
        _links,
        why="NCCL builds one set of rings and trees for all nodes from the least that every node has",
        fix=(
            "compare `nvidia-smi topo -m` of an odd node with a usual one; look for NVLinks that are down, "
            "cards in other slots, and other BIOS settings (NPS, ACS)",
        ),
        source="NVIDIA/nccl: src/init.cc (graphs are reduced to what all ranks have)",
    ),
    _rule(
        "drift-nvlinks",
        "nodes have different numbers of active NVLinks",
        _E,
        "active NVLinks",
        _active_nvlinks,
        why="bandwidth within the odd node is lower, and every collective that spans it waits for it",
        fix=(
            "`nvidia-smi nvlink -s` on the odd nodes; `dmesg | grep -i xid` for Xid 74",
            "reset the GPUs or reseat the bridge; else take the node out",
        ),
        source="https://docs.nvidia.com/deploy/xid-errors/",
    ),
    _rule(
        "drift-nics",
        "nodes have different NICs up",
        _W,
        "NICs",
        _nic_speeds,
        why="a collective's bandwidth between nodes is that of the node with the fewest or slowest ports",
        fix=(
            "`ibstat` or `ip -br link` on the odd nodes: look for a port that is down or trained to a lower rate",
        ),
        source=_TROUBLE,
    ),
    _rule(
        "drift-nic-firmware",
        "nodes have NICs with different firmware",
        _W,
        "NIC firmware",
        _rdma_firmware,
        why="adaptive routing, congestion control and PCIe behaviour change with it",
        fix=("`mlxfwmanager --query` on an odd node; bring it to the version of the others",),
        source=_GPUDIRECT,
    ),
    _rule(
        "drift-nic-driver",
        "nodes use different drivers for their RDMA devices",
        _W,
        "mlx5_core driver",
        functools.partial(_module, "mlx5_core"),
        why="peer memory, dma-buf and relaxed ordering depend on it",
        fix=("install the same DOCA-OFED, or the same kernel, on every node",),
        source=_GPUDIRECT,
    ),
    _rule(
        "drift-kernel",
        "nodes run different kernels",
        _N,
        "kernel",
        lambda node: None if node.kernel == "unknown" else node.kernel,
        why="dma-buf, IOMMU defaults and NIC drivers come with it",
        fix=("bring the odd nodes to the kernel of the others",),
        source=_GPUDIRECT,
    ),
    _rule(
        "drift-cpu-vendor",
        "CPU vendors are mixed",
        _W,
        "CPU vendor",
        lambda node: node.cpu.vendor,
        why="NCCL's model takes inter-socket and PCIe costs from the vendor, and ranks that disagree may choose less",
        fix=("keep nodes of one vendor in a job: a Slurm partition or feature for each",),
        source=_NCCL_INIT,
    ),
    _rule(
        "drift-cpu-model",
        "nodes have different CPU models",
        _N,
        "CPU",
        lambda node: node.cpu.model,
        why="proxy threads and small messages run on the CPU: the slowest sets the pace",
        fix=("nothing to do where it is meant; keep such nodes apart when comparing measurements",),
        source=_TROUBLE,
    ),
    _rule(
        "drift-memory",
        "nodes have different amounts of memory",
        _N,
        "memory",
        _memory,
        why="a node that lost a memory module often lost bandwidth of a whole channel, too",
        fix=("`dmidecode -t memory` on the odd nodes; look for an empty or disabled slot",),
        source=_TROUBLE,
    ),
    Rule(
        "drift-nccl-conf",
        "nodes have different /etc/nccl.conf",
        _E,
        "ranks with different algorithms, protocols or transports disagree about what to send: a hang, or worse",
        ("compare the files and make them the same; `topo-tune apply` writes all nodes of a wave alike",),
        _ENV_GUIDE,
        _system_files_differ,
    ),
    _rule(
        "drift-nccl-environment",
        "nodes have different NCCL variables in their environment",
        _W,
        "NCCL environment",
        _environment,
        why="what a node's login sets reaches jobs that start there, and ranks then differ",
        fix=("find who sets it: `topo-tune scan` lists every variable with its file and line",),
        source=_ENV_GUIDE,
    ),
    _rule(
        "drift-iommu",
        "nodes differ in IOMMU mode",
        _W,
        "IOMMU",
        lambda node: node.host.iommu,
        why="a translating IOMMU slows or breaks GPUDirect on that node alone",
        fix=("compare /proc/cmdline and the BIOS setting; make them the same and reboot",),
        source=_TROUBLE,
    ),
    _rule(
        "drift-memlock",
        "nodes differ in how much memory may be locked",
        _W,
        "memlock limit",
        _memlock,
        why="RDMA registers memory: a job that starts everywhere fails on the node with the small limit",
        fix=(
            "set `LimitMEMLOCK=infinity` for sshd and slurmd, and `* - memlock unlimited` in /etc/security/limits.conf",
        ),
        source=_TROUBLE,
    ),
    _rule(
        "drift-governor",
        "nodes differ in CPU governor",
        _N,
        "CPU governor",
        _governor,
        why="proxy threads on a slow clock delay every message of the node",
        fix=("`cpupower frequency-set -g performance` on the odd nodes",),
        source="https://docs.kernel.org/admin-guide/pm/cpufreq.html",
    ),
    _rule(
        "drift-mig",
        "MIG is on for some nodes only",
        _W,
        "MIG",
        lambda node: _joined(("on" if gpu.mig else "off") for gpu in node.gpu_health if gpu.mig is not None),
        why="a GPU in MIG mode gives a rank a part of itself, without NVLink",
        fix=("`nvidia-smi -mig 0` on the odd nodes once they are drained, then reset the GPUs",),
        source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
    ),
)
