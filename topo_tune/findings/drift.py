"""Rules about nodes that should be alike and are not: one job runs as fast, and as safely, as its odd node."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

import msgspec

from topo_tune.findings.gpus.gpu_presence import fallen_gpus, lost_gpus, unreachable_gpus
from topo_tune.findings.gpus.nvlinks import missing_links
from topo_tune.findings.machine import gpu_count, rdma_names
from topo_tune.findings.node_names import spelled
from topo_tune.findings.remembered import remembered
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.catalogue import catalogue
from topo_tune.records.finding import Severity
from topo_tune.records.scan import GPUS_ARE_CUT, NodeScan, Scan

Told = Callable[[NodeScan], str | None]
"""What a node says about one thing, as words that are equal where nodes are alike; None where it does not say."""

_WORDS_LIMIT = 60
"""Characters of a value in a headline."""
_LINE_LIMIT = 1000
"""Characters of a value in a line of evidence: a matrix of eight GPUs has some 300."""
_SIDES = 4
"""Values that a headline tells where none of them is the usual one."""
_LINES = 12
"""Values that evidence tells then."""
_FEWEST_KINDS = 3
"""Two nodes with different cards may be of one cluster, which is then worth a warning; with different GPUs hardly."""


def _everybody(_: NodeScan) -> str | None:
    return None


def _differs(scan: Scan, thing: str, told: Told, among: Told = _everybody) -> Iterator[Sighting]:
    """The odd nodes, against what most have; every node where no value has most of them.

    among: nodes of which this says the same are compared with each other, and with no others.
    """
    groups: dict[Hashable, dict[str, str]] = defaultdict(dict)
    kinds = _kinds(scan)
    for node in scan.nodes:
        if (value := told(node)) is not None:
            groups[kinds.get(node.node), among(node)][node.node] = value
    for values in groups.values():
        yield from _odd_ones(thing, values)


def _odd_ones(thing: str, values: Mapping[str, str]) -> Iterator[Sighting]:
    sides: dict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        sides[value].append(name)
    if len(sides) < 2:
        return
    usual, most = max(((value, len(names)) for value, names in sides.items()), key=lambda pair: pair[1])
    if 2 * most <= len(values):
        yield from _all_sides(f"nodes differ in {thing}", sides)
        return
    for value, names in sides.items():
        if value != usual:
            what = f"{thing}: {_clipped(value)}, where {most} of {len(values)} nodes have {_clipped(usual)}"
            is_whole = max(len(value), len(usual)) <= _WORDS_LIMIT
            lines = (
                () if is_whole else (_clipped(value, _LINE_LIMIT), f"usual: {_clipped(usual, _LINE_LIMIT)}")
            )
            yield from (Sighting(what, name, lines) for name in names)


def _all_sides(what: str, sides: Mapping[str, list[str]]) -> Iterator[Sighting]:
    """Every node, against a headline that has each side in short; in full as evidence where it is cut there."""
    shown = list(sides.items())[:_SIDES]
    told = "; ".join(f"{_clipped(value)} on {spelled(names)}" for value, names in shown)
    more = f"; and {len(sides) - _SIDES} more" if len(sides) > _SIDES else ""
    is_whole = not more and all(len(value) <= _WORDS_LIMIT for value, _ in shown)
    lines = tuple(
        f"{spelled(names)}: {_clipped(value, _LINE_LIMIT)}" for value, names in list(sides.items())[:_LINES]
    )
    for names in sides.values():
        yield from (Sighting(f"{what}: {told}{more}", name, () if is_whole else lines) for name in names)


def _clipped(text: str, limit: int = _WORDS_LIMIT) -> str:
    if len(text) <= limit:
        return text
    cut = text[: limit - 3]
    return cut + ("..." if cut.count("`") % 2 == 0 else "...`")


@remembered
def _kinds(scan: Scan) -> Mapping[str, str]:
    """Which kind of machine each node is, as far as no kind has most of them; empty where nodes are alike on the whole.

    By the models of their GPUs; nodes of which those are not known by their RDMA cards, then by how GPUs are joined.
    """
    kinds: dict[str, str] = {}
    left = list(scan.nodes)
    for told, fewest in ((_models, 2), (_cards, _FEWEST_KINDS), (_shape, _FEWEST_KINDS)):
        values = {node.node: value for node in left if (value := told(node)) is not None}
        left = [node for node in left if node.node not in values]
        counted = Counter(values.values())
        if len(counted) >= fewest and 2 * max(counted.values()) <= counted.total():
            kinds |= values
    return kinds


def _models(node: NodeScan) -> str | None:
    """The models of a node's GPUs, however many there are left of each."""
    return _joined(gpu.name for gpu in node.gpus)


def _cards(node: NodeScan) -> str | None:
    return _types(node) or (_rdma_cards(node) if node.rdma else None)


def _shape(node: NodeScan) -> str | None:
    if node.matrix is None:
        return None
    count = len(node.matrix.gpus)
    words = {word for row in node.matrix.links[:count] for word in row[:count]} - {"X"}
    return f"{count} GPUs joined by {', '.join(sorted(words)) or 'nothing'}"


def _machines_differ(scan: Scan) -> Iterator[Sighting]:
    sides: dict[str, list[str]] = defaultdict(list)
    for name, kind in _kinds(scan).items():
        sides[kind].append(name)
    if sides:
        yield from _all_sides("these look like different machines", sides)


def _nccl(node: NodeScan) -> str | None:
    return node.torch_nccl or next(
        (library.version for library in node.nccl_libraries if library.version), None
    )


def _source_of_nccl(node: NodeScan) -> str | None:
    """Where `_nccl` has its word from: what torch brings on one node is not to be held against another's system."""
    return "torch" if node.torch_nccl else "system"


def _gpus(node: NodeScan) -> str | None:
    """None also where a GPU is known to be lost, which is a finding of its own, and where the text is cut."""
    if not node.gpus or _is_cut(node) or lost_gpus(node) or fallen_gpus(node) or unreachable_gpus(node):
        return None
    return ", ".join(
        f"{count} x {name}" for name, count in sorted(Counter(g.name for g in node.gpus).items())
    )


def _is_cut(node: NodeScan) -> bool:
    """Whether a text about its GPUs ends, or has a gap, before the last of them."""
    return any(GPUS_ARE_CUT in one.reason for one in node.absent)


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


def _rdma_cards(node: NodeScan) -> str | None:
    """RDMA ports by the card's type, up or down: a port that is down or slow is told by the rules about ports."""
    counted = Counter(
        device.type or device.driver or "RDMA device"
        for device in node.rdma
        if not device.is_virtual_function
    )
    if not counted:
        return "none" if node.nics and not rdma_names(node) else None
    return ", ".join(f"{count} x {what}" for what, count in sorted(counted.items()))


def _types(node: NodeScan) -> str | None:
    return _joined(device.type or device.board for device in node.rdma)


def _nics_differ(scan: Scan) -> Iterator[Sighting]:
    told = _rdma_cards if any(node.rdma for node in scan.nodes) else _nic_speeds
    # Nodes without GPUs are for other things, and have other cards.
    return _differs(scan, "NICs", told, lambda node: "with GPUs" if gpu_count(node) else None)


def _rdma_firmware(node: NodeScan) -> str | None:
    by_type = {(device.type or device.board, device.firmware) for device in node.rdma if device.firmware}
    return _joined(f"{kind or 'RDMA device'} {firmware}" for kind, firmware in by_type)


def _links(node: NodeScan) -> str | None:
    """None also where some of the node's own links are down, which is a finding of its own."""
    if node.matrix is None or missing_links(node):
        return None
    gpus = len(node.matrix.gpus)
    # NIC names differ between nodes that are alike; how GPUs are joined must not.
    return "; ".join(" ".join(row[:gpus]) for row in node.matrix.links[:gpus])


def _active_nvlinks(node: NodeScan) -> str | None:
    """None where some of the node's own links are down, which is a finding of its own."""
    if missing_links(node):
        return None
    counts = Counter(sum(link.is_active is True for link in gpu.links) for gpu in node.nvlinks)
    return ", ".join(f"{count} GPUs with {links} links" for links, count in sorted(counts.items())) or None


_OF_ONE_NODE = frozenset({"NCCL_VERSION", "NCCL_HOSTID"})
"""Base images name their own package's version so, which NCCL does not read; the other is meant to differ."""


def _system_files(node: NodeScan) -> frozenset[str] | None:
    """What /etc/nccl.conf sets, by content: whitespace and order mean nothing to NCCL."""
    files = [file for file in node.nccl_files if file.path.endswith("/etc/nccl.conf")]
    if not files:
        return None
    return frozenset(f"{setting.name}={setting.value}" for file in files for setting in file.settings)


def _environment(node: NodeScan) -> frozenset[str] | None:
    pairs = (f"{name}={value}" for name, value in node.nccl_environment if name not in _OF_ONE_NODE)
    return frozenset(pairs) or None


def _settings_differ(
    scan: Scan, thing: str, told: Callable[[NodeScan], frozenset[str] | None]
) -> tuple[list[Sighting], set[str]]:
    """The odd nodes by what they do not have in common with all others, and the names in which nodes differ."""
    found = {node.node: settings for node in scan.nodes if (settings := told(node)) is not None}
    common = frozenset.intersection(*found.values()) if found else frozenset()
    own = {
        name: ", ".join(f"`{setting}`" for setting in sorted(settings - common)) or "none of it"
        for name, settings in found.items()
    }
    names = {setting.split("=")[0] for settings in found.values() for setting in settings - common}
    return list(_odd_ones(thing, own)), names


def _system_files_differ(scan: Scan) -> Iterator[Sighting]:
    """As bad as the worst variable in which nodes differ: some must be the same on all ranks, others need not."""
    found, names = _settings_differ(scan, "`/etc/nccl.conf`", _system_files)
    variables = [catalogue()[name] for name in names if name in catalogue()]
    severity = Severity.ERROR if any(v.must_match_across_ranks for v in variables) else Severity.WARNING
    return (msgspec.structs.replace(sighting, severity=severity) for sighting in found)


def _environments_differ(scan: Scan) -> Iterator[Sighting]:
    return iter(_settings_differ(scan, "NCCL environment", _environment)[0])


def _module(name: str, node: NodeScan) -> str | None:
    return next((version for module, version in node.host.modules if module == name and version), None)


def _memory(node: NodeScan) -> str | None:
    """To the nearest 16 GiB: firmware and kernels keep a little of it, differently."""
    if node.memory_bytes is None:
        return None
    return f"{round(node.memory_bytes / (16 << 30)) * 16} GiB"


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTICE
_ENV_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLE = "NVIDIA/nccl: docs/userguide/source/troubleshooting/networking_troubleshooting.rst"
_GPUDIRECT = "https://docs.nvidia.com/cuda/gpudirect-rdma/"
_NCCL_INIT = "NVIDIA/nccl: src/init.cc (ranks exchange and compare version, CPU and GPU facts at start-up)"


def _rule(
    id: str,
    title: str,
    severity: Severity,
    thing: str,
    told: Told,
    *,
    among: Told = _everybody,
    why: str,
    fix: tuple[str, ...],
    source: str,
) -> Rule:
    return Rule(id, title, severity, why, fix, source, lambda scan: _differs(scan, thing, told, among))


RULES: tuple[Rule, ...] = (
    Rule(
        "drift-machines",
        "nodes look like different machines",
        _N,
        "a job over all of them runs at the pace of the slowest kind; what else differs between kinds is not told, "
        "since it could hardly be the same",
        (
            "nothing to do where files of several machines were read at once",
            "else run jobs, and `topo-tune`, on nodes of one kind: a Slurm feature, a label, or `--limit`",
        ),
        _NCCL_INIT,
        _machines_differ,
    ),
    _rule(
        "drift-nccl",
        "nodes use different NCCL versions",
        _E,
        "NCCL",
        _nccl,
        among=_source_of_nccl,
        why="ranks of one job compare their versions at start-up, and a mismatch ends the job: "
        "`Mismatched NCCL version detected`",
        fix=("install the same torch or the same NCCL package on every node, or use one container image",),
        source=_NCCL_INIT,
    ),
    _rule(
        "drift-torch",
        "nodes use different versions of torch",
        _N,
        "torch",
        lambda node: node.torch,
        among=_nccl,
        why="the NCCL that they bring is the same, but what calls it is not: bucket sizes, streams and watchdogs "
        "change with torch, so ranks of one job may wait for each other",
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
        among=_gpus,
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
        among=_gpus,
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
        among=_gpus,
        why="bandwidth within the odd node is lower, and every collective that spans it waits for it",
        fix=(
            "`nvidia-smi nvlink -s` on the odd nodes; `dmesg | grep -i xid` for Xid 74",
            "reset the GPUs or reseat the bridge; else take the node out",
        ),
        source="https://docs.nvidia.com/deploy/xid-errors/",
    ),
    Rule(
        "drift-nics",
        "nodes have different NICs",
        _W,
        "a collective's bandwidth between nodes is that of the node with the fewest or slowest ports",
        (
            "`ls /sys/class/infiniband` and `lspci | grep -iE 'infiniband|ethernet'` on the odd nodes: look for a card "
            "that is gone or of another model",
        ),
        _TROUBLE,
        _nics_differ,
    ),
    _rule(
        "drift-nic-firmware",
        "nodes have NICs with different firmware",
        _W,
        "NIC firmware",
        _rdma_firmware,
        among=_types,
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
        among=lambda node: node.cpu.vendor,
        why="proxy threads and small messages run on the CPU: the slowest sets the pace",
        fix=("nothing to do where it is meant; keep such nodes apart when comparing measurements",),
        source="NVIDIA/nccl: docs/userguide/source/troubleshooting/performance_and_tuning.rst",
    ),
    _rule(
        "drift-memory",
        "nodes have different amounts of memory",
        _N,
        "memory",
        _memory,
        why="a node that lost a memory module often lost bandwidth of a whole channel, too",
        fix=("`dmidecode -t memory` on the odd nodes; look for an empty or disabled slot",),
        source="https://docs.kernel.org/driver-api/edac.html",
    ),
    Rule(
        "drift-nccl-conf",
        "nodes have different `/etc/nccl.conf`",
        _E,
        "ranks with different algorithms, protocols or transports disagree about what to send: a hang, or worse",
        ("compare the files and make them the same; `topo-tune apply` writes all nodes of a wave alike",),
        _ENV_GUIDE,
        _system_files_differ,
    ),
    Rule(
        "drift-nccl-environment",
        "nodes have different NCCL variables in their environment",
        _W,
        "what a node's login sets reaches jobs that start there, and ranks then differ",
        ("find who sets it: `topo-tune scan` lists every variable with its file and line",),
        _ENV_GUIDE,
        _environments_differ,
    ),
)
