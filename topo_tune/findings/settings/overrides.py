"""Rules about values that switch off or force what NCCL would choose better: mostly left over from debugging."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.findings.in_force import Setting, in_force, number
from topo_tune.findings.machine import is_rack_scale, joins_all_by_nvlink, nccl_version, rdma_names
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.settings.lint_errors import is_in_error
from topo_tune.records.finding import Severity
from topo_tune.records.scan import NodeScan, Scan

_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

_SCOPED_SINCE = (2, 24)
"""From here on NCCL_ALGO can name functions, and what cannot do a function no longer falls back to ring."""
_FOR_ALL_REDUCE_ONLY = {"tree", "nvlstree"}
_HOPPER = (9, 0)
"""NVLink SHARP needs compute capability 9.0 and NVSwitches of the third generation."""


def _off(node: NodeScan, name: str) -> Setting | None:
    setting = in_force(node, name)
    return setting if number(setting) == 0 else None


def _on(node: NodeScan, name: str) -> Setting | None:
    setting = in_force(node, name)
    value = number(setting)
    return setting if value is not None and value != 0 else None


def _debug_log(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = in_force(node, "NCCL_DEBUG")
        level = setting.value.strip().upper() if setting else ""
        if setting is not None and level in {"INFO", "TRACE"}:
            is_heavy = level == "TRACE"
            yield Sighting(
                f"`NCCL_DEBUG={level}` is in force for every job",
                node.node,
                (str(setting),),
                severity=Severity.WARNING if is_heavy else None,
            )


def _no_p2p(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        level = in_force(node, "NCCL_P2P_LEVEL")
        is_local = level is not None and level.value.strip().upper() in {"LOC", "0"}
        setting = _on(node, "NCCL_P2P_DISABLE") or (level if is_local else None)
        if setting is None or len(node.gpus) == 1:
            continue
        has_links = _has_nvlink(node)
        yield Sighting(
            f"`{setting.name}={setting.value}` keeps GPUs from reaching each other directly"
            + (", although NVLink joins them" if has_links else ""),
            node.node,
            (str(setting),),
            severity=Severity.ERROR if has_links else None,
        )


def _no_shm(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = _on(node, "NCCL_SHM_DISABLE")
        # Where NVLink joins everything, in a node and beyond, shared memory is not needed, and profiles turn it off.
        if setting is not None and not is_rack_scale(node):
            yield Sighting(
                "`NCCL_SHM_DISABLE` sends traffic inside the node through the network",
                node.node,
                (str(setting),),
            )


def _sockets_instead_of_rdma(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        net = in_force(node, "NCCL_NET")
        is_socket = net is not None and net.value.strip().casefold() == "socket"
        no_ib = _on(node, "NCCL_IB_DISABLE")
        setting = net if is_socket else no_ib
        devices = rdma_names(node)
        if setting is None or not devices or not _may_be_up(node):
            continue
        if setting is no_ib and _has_net_plugin(node):
            # The plugin carries the traffic; NCCL's own transport is rightly off.
            continue
        is_infiniband = any(nic.kind == "infiniband" and nic.is_up for nic in node.nics)
        yield Sighting(
            f"`{setting.name}={setting.value}` makes NCCL use TCP sockets, although RDMA devices are there",
            node.node,
            (str(setting), f"RDMA devices: {', '.join(devices[:8])}"),
            severity=Severity.ERROR if is_infiniband else None,
        )


def _forced_choice(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for name in ("NCCL_ALGO", "NCCL_PROTO"):
            setting = in_force(node, name)
            if setting is None or setting.value.startswith("^") or ":" in setting.value:
                continue
            # Several names are a choice that is left to NCCL; the worst ones have rules of their own.
            if "," in setting.value or _enables_ll128(setting.value) or _lacks_algorithms(node, setting):
                continue
            if is_in_error(node, setting):
                continue
            yield Sighting(
                f"`{name}={setting.value}` holds for every collective and every size",
                node.node,
                (str(setting),),
            )


def _tree_for_all(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting, version = in_force(node, "NCCL_ALGO"), nccl_version(node)
        if setting is not None and version is not None and _lacks_algorithms(node, setting):
            yield Sighting(
                f"`NCCL_ALGO={setting.value}` leaves broadcast, reduce, all-gather and reduce-scatter without an "
                "algorithm: they fail",
                node.node,
                (str(setting), f"NCCL of jobs: {'.'.join(map(str, version))}"),
            )


def _lacks_algorithms(node: NodeScan, setting: Setting) -> bool:
    """Whether NCCL_ALGO allows nothing but what all-reduce alone can use, in an NCCL that does not fall back."""
    version = nccl_version(node)
    if setting.name != "NCCL_ALGO" or version is None or version < _SCOPED_SINCE:
        return False
    first = setting.value.split(";")[0].strip().casefold()
    words = {word.strip() for word in first.split(",") if word.strip()}
    is_plain = ":" not in first and not first.startswith("^")
    return is_plain and bool(words) and words <= _FOR_ALL_REDUCE_ONLY


def _forced_ll128(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = in_force(node, "NCCL_PROTO")
        if setting is None or not _enables_ll128(setting.value):
            continue
        joined = joins_all_by_nvlink(node.matrix)
        if joined:
            what = f"`NCCL_PROTO={setting.value}` forces LL128 on, also on paths where NCCL would not use it"
        else:
            why = (
                "GPUs are not all joined by NVLink" if joined is False else "it is not known to be safe here"
            )
            what = f"`NCCL_PROTO={setting.value}` forces LL128 on, and {why}: results may be corrupted"
        yield Sighting(what, node.node, (str(setting),), severity=_LL128[joined])


_LL128 = {True: Severity.NOTICE, None: Severity.WARNING, False: Severity.ERROR}
"""By whether NVLink joins all GPUs; providers name LL128 among others for machines where it does."""


def _enables_ll128(value: str) -> bool:
    """Whether any group names LL128, or excludes others and not LL128, which turns it on as well."""
    for group in value.casefold().split(";"):
        words = group.rpartition(":")[2].strip()
        named = {word.strip() for word in words.removeprefix("^").split(",")}
        if ("ll128" in named) != words.startswith("^"):
            return True
    return False


def _gpudirect_off(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        level = in_force(node, "NCCL_NET_GDR_LEVEL")
        is_off = level is not None and level.value.strip().upper() in {"LOC", "0"}
        setting = level if is_off else _off(node, "NCCL_NET_GDR_READ") if _has_nvlink(node) else None
        if setting is not None and rdma_names(node):
            how = "between GPU and network" if setting is level else "when GPUs send"
            yield Sighting(
                f"`{setting.name}={setting.value}` turns GPUDirect RDMA off {how}",
                node.node,
                (str(setting),),
                severity=None if setting is level else Severity.NOTICE,
            )


def _rack_nvlink_off(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = _off(node, "NCCL_MNNVL_ENABLE") or _off(node, "NCCL_CUMEM_ENABLE")
        if setting is not None and is_rack_scale(node):
            yield Sighting(
                f"`{setting.name}=0` keeps NCCL from using NVLink between nodes",
                node.node,
                (str(setting),),
                severity=None if len(scan.nodes) > 1 else Severity.WARNING,
            )


def _nvls_off(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = _off(node, "NCCL_NVLS_ENABLE") or _off(node, "NCCL_CUMEM_ENABLE")
        if setting is not None and _has_nvlink_sharp(node) and not is_rack_scale(node):
            yield Sighting(
                f"`{setting.name}=0` turns NVLink SHARP off on a machine that has it",
                node.node,
                (str(setting),),
            )


def _channels_limited(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"):
            setting = in_force(node, name)
            value = number(setting)
            if setting is not None and value is not None and 0 < value < 8 and _has_nvlink(node):
                yield Sighting(
                    f"`{name}={setting.value}` leaves too few channels to fill NVLink",
                    node.node,
                    (str(setting),),
                )


def _has_nvlink(node: NodeScan) -> bool:
    if any(link.is_active for gpu in node.nvlinks for link in gpu.links):
        return True
    matrix = node.matrix
    return matrix is not None and any(
        word.startswith("NV") for row in matrix.links[: len(matrix.gpus)] for word in row
    )


def _has_nvlink_sharp(node: NodeScan) -> bool:
    """Whether NVSwitches join GPUs of compute capability 9.0 or newer: every pair has the same many links."""
    capabilities = [
        tuple(map(int, re.findall(r"\d{1,3}", gpu.compute_capability or ""))) for gpu in node.gpus
    ]
    is_new = bool(capabilities) and all(capability >= _HOPPER for capability in capabilities)
    return is_new and len(node.gpus) >= 4 and joins_all_by_nvlink(node.matrix) is True


def _has_net_plugin(node: NodeScan) -> bool:
    return any(p.kind == "net" and p.exists and p.found_in != "usual folder" for p in node.plugins)


def _may_be_up(node: NodeScan) -> bool:
    """Whether an RDMA device works, as far as the scan tells."""
    states = [(port.state or "").casefold() for device in node.rdma for port in device.ports]
    up = [nic.is_up for nic in node.nics if nic.kind in {"infiniband", "roce"}]
    if any(state == "active" for state in states) or any(up):
        return True
    return not any(states) and all(is_up is None for is_up in up)


RULES: tuple[Rule, ...] = (
    Rule(
        id="override-debug-log",
        title="NCCL's debug log is on for every job",
        severity=Severity.NOTICE,
        why="INFO writes thousands of lines a job on stdout, TRACE one for every call, which slows small "
        "collectives down",
        fix=(
            "set `NCCL_DEBUG=WARN` where it is set now",
            "for one job: `NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log` in its own environment",
        ),
        source=_DOCS + "#nccl-debug",
        look=_debug_log,
    ),
    Rule(
        id="override-p2p-off",
        title="direct traffic between GPUs is switched off",
        severity=Severity.WARNING,
        why="all traffic inside the node goes through host memory: on NVLink machines several times slower",
        fix=(
            "delete `NCCL_P2P_DISABLE` and `NCCL_P2P_LEVEL`",
            "if it was set against hangs on PCIe machines, turn off ACS or the IOMMU instead",
        ),
        source=_DOCS + "#nccl-p2p-disable",
        look=_no_p2p,
    ),
    Rule(
        id="override-shm-off",
        title="shared memory between processes of a node is switched off",
        severity=Severity.WARNING,
        why="where GPUs cannot reach each other directly NCCL then goes through the network card, inside one "
        "node",
        fix=(
            "delete `NCCL_SHM_DISABLE`",
            "if it was set because `/dev/shm` is small in containers: `docker run --shm-size=16g` or "
            "`--ipc=host`",
        ),
        source=_DOCS + "#nccl-shm-disable",
        look=_no_shm,
    ),
    Rule(
        id="override-sockets",
        title="NCCL is told to use TCP sockets on a machine with RDMA devices",
        severity=Severity.WARNING,
        why="traffic between nodes goes through the kernel and the CPUs in place of the adapters: typically "
        "ten times slower",
        fix=(
            "delete `NCCL_IB_DISABLE` and `NCCL_NET`",
            "where only some devices are meant for NCCL, name them: `NCCL_IB_HCA==mlx5_0,mlx5_1`",
        ),
        source=_DOCS + "#nccl-ib-disable",
        look=_sockets_instead_of_rdma,
    ),
    Rule(
        id="override-forced-choice",
        title="one algorithm or protocol is forced for everything",
        severity=Severity.WARNING,
        why="NCCL's own choice depends on size and collective; one value for all makes the sizes slow that "
        "it does not suit",
        fix=(
            "delete the variable and measure with `topo-tune bench`",
            "if it is needed, narrow it: `NCCL_ALGO=allreduce:ring` (NCCL 2.24 and later), or a tuner table "
            "by size",
        ),
        source=_DOCS + "#nccl-algo",
        look=_forced_choice,
    ),
    Rule(
        id="override-tree-for-all",
        title="`NCCL_ALGO` allows only algorithms that all-reduce alone can use",
        severity=Severity.ERROR,
        why="from NCCL 2.24 on there is no fall-back to ring: every other collective ends with `No "
        "algorithm/protocol available`",
        fix=("write `NCCL_ALGO=allreduce:tree`, or add `ring`", "or delete the variable"),
        source=_DOCS + "#nccl-algo",
        look=_tree_for_all,
    ),
    Rule(
        id="override-ll128",
        title="the LL128 protocol is forced on",
        severity=Severity.ERROR,
        why="LL128 relies on 128-byte stores arriving whole; NCCL turns it on where they do; forced "
        "elsewhere it can corrupt data without an error",
        fix=("delete `NCCL_PROTO`; NCCL uses LL128 by itself where it is safe",),
        source=_DOCS + "#nccl-proto",
        look=_forced_ll128,
    ),
    Rule(
        id="override-gpudirect-off",
        title="a variable switches GPUDirect RDMA off",
        severity=Severity.WARNING,
        why="data between GPU and network card is copied through host memory, which halves the bandwidth "
        "between nodes or worse",
        fix=("delete `NCCL_NET_GDR_LEVEL` and `NCCL_NET_GDR_READ`",),
        source=_DOCS + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
        look=_gpudirect_off,
    ),
    Rule(
        id="override-rack-nvlink-off",
        title="a variable switches NVLink between nodes off",
        severity=Severity.ERROR,
        why="NVLink between nodes needs cuMem handles; without it all traffic between the nodes of a rack "
        "goes over the network",
        fix=(
            "delete `NCCL_CUMEM_ENABLE` and `NCCL_MNNVL_ENABLE`; inference servers may set them themselves",
        ),
        source="https://github.com/vllm-project/vllm/pull/16992",
        look=_rack_nvlink_off,
    ),
    Rule(
        id="override-nvls-off",
        title="a variable switches NVLink SHARP off",
        severity=Severity.NOTICE,
        why="NVSwitches add up the data themselves with it (it needs cuMem): all-reduce of large messages is "
        "slower without",
        fix=(
            "delete `NCCL_NVLS_ENABLE` and `NCCL_CUMEM_ENABLE`, unless it is off on purpose (it takes GPU "
            "memory)",
            "measure both with `topo-tune bench`",
        ),
        source=_DOCS + "#nccl-nvls-enable",
        look=_nvls_off,
    ),
    Rule(
        id="override-few-channels",
        title="the number of channels is limited below what NVLink needs",
        severity=Severity.NOTICE,
        why="one channel moves some 20 GB/s; a handful of them leaves most of NVLink unused; it frees SMs "
        "for computing, which may be meant",
        fix=("delete the variable, or raise it and measure with `topo-tune bench`",),
        source=_DOCS + "#nccl-max-nchannels",
        look=_channels_limited,
    ),
)
