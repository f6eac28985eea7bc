"""Rules about the ways that a job's data took, by its log: network, GPUDirect, peer to peer, NVLS."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.findings.jobs.job_logs import (
    logs,
    mixes_fabrics,
    nodes_of,
    nvlink_joins_all,
    rdma_by_fabric,
    spans_nodes,
    usable_rdma,
    value_of,
)
from topo_tune.findings.machine import lacks_direct_rdma
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import listed
from topo_tune.records.document import Document
from topo_tune.records.finding import Severity
from topo_tune.records.nccl_documents import CauseKind, LogNic, NcclLog
from topo_tune.records.scan import NodeScan, Scan

_NETWORKING = "NVIDIA/nccl: docs/userguide/source/troubleshooting/networking_troubleshooting.rst"
_VARIABLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

_MANY_RANKS = 64
"""Eight nodes of eight GPUs: from there on one TCP network is shared by so many that nobody means it."""
_VIRTUAL = re.compile(
    r"(?:docker|veth|virbr|br-|cali|cilium|flannel|cni|tunl|vxlan|lxc|lxd|podman|kube-|weave|tailscale|tun\d|tap\d)"
)
_GPU_DIRECT_NICS = re.compile(r"mlx5|rocep|ibp|bnxt_re|rdmap|efa")
"""Devices whose drivers can reach GPU memory; Omni-Path's `hfi1` cannot."""


def _asked_for_sockets(log: NcclLog) -> bool:
    return value_of(log, "NCCL_NET") == "Socket" or value_of(log, "NCCL_IB_DISABLE") == "1"


_FIX_OF_EFA = (
    "`fi_info -p efa` inside the job's container must list the devices: `/dev/infiniband` must be there and EFA's "
    "libfabric installed",
    "run once with `NCCL_DEBUG=INFO` and read the lines of NET/OFI: the first warning says why the plugin gave up",
    '`NCCL_NET="AWS Libfabric"` turns the silent fall-back into an error',
)
"""Where the plugin of AWS was tried and gave up: its devices are none that NCCL's own RDMA transport could use."""


def _fell_back(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        devices = _unused_devices(scan, document, log)
        if devices:
            yield Sighting(
                "a job over several nodes used TCP sockets although there are RDMA devices",
                document.node,
                (
                    f"{document.file}: `Using network Socket`, {log.ranks or '?'} ranks",
                    f"RDMA devices: {listed(devices)}",
                ),
            )


def _missed_devices(scan: Scan) -> Iterator[Sighting]:
    """Jobs over TCP that looked for RDMA devices, where nobody told which there are."""
    for document, log in logs(scan):
        sign = _sign_of_missing_rdma(scan, document, log)
        if sign is not None:
            what = "a job over several nodes used TCP sockets since NCCL found no RDMA device that it may use"
            evidence = (f"{document.file}: `Using network Socket`, {log.ranks or '?'} ranks", sign)
            fix = _FIX_OF_EFA if any("aws-ofi-nccl" in plugin for plugin in log.failed_plugins) else None
            yield Sighting(what, document.node, evidence, fix=fix, severity=Severity.WARNING)


def _sign_of_missing_rdma(scan: Scan, document: Document, log: NcclLog) -> str | None:
    """The line that shows that RDMA was looked for in vain; None where it was not, or where more is known."""
    is_over_tcp = log.network == "Socket" and spans_nodes(log) and not _asked_for_sockets(log)
    is_told = log.cause is not None and log.cause.kind is CauseKind.RDMA_DEVICES
    if not is_over_tcp or is_told or _unused_devices(scan, document, log):
        return None
    wanted = value_of(log, "NCCL_IB_HCA")
    if wanted and not wanted.startswith("^"):
        return f"{document.file}: NCCL_IB_HCA={wanted}"
    # On a cluster that has nothing but Ethernet it is no news.
    is_known = any(node.nics or node.rdma for node in nodes_of(scan, document, log))
    return f"{document.file}: `NET/IB : No device found`" if log.finds_no_rdma and not is_known else None


def _over_tcp(scan: Scan) -> Iterator[Sighting]:
    yield from _fell_back(scan)
    yield from _missed_devices(scan)


def _unused_devices(scan: Scan, document: Document, log: NcclLog) -> list[str]:
    """RDMA devices that a job over several nodes passed by, without having been told to."""
    if log.network != "Socket" or not spans_nodes(log) or _asked_for_sockets(log):
        return []
    if log.cause is not None and log.cause.kind is CauseKind.RDMA_DEVICES:
        return []
    devices = {name for node in nodes_of(scan, document, log) for name in usable_rdma(node)}
    return sorted(devices) or [nic.name for nic in log.nics if nic.kind != "Socket"]


def _many_on_sockets(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        if _unused_devices(scan, document, log) or _sign_of_missing_rdma(scan, document, log):
            continue
        if log.network == "Socket" and spans_nodes(log) and (log.ranks or 0) >= _MANY_RANKS:
            yield Sighting(
                f"a job of {_MANY_RANKS} ranks or more used TCP sockets between nodes",
                document.node,
                (f"{document.file}: {log.ranks} ranks, `Using network Socket`",),
            )


def _finds_none(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        if not log.finds_no_rdma or any(nic.kind != "Socket" for nic in log.nics) or _asked_for_sockets(log):
            continue
        if _unused_devices(scan, document, log):
            continue
        for node in nodes_of(scan, document, log):
            devices = usable_rdma(node)
            if devices:
                yield Sighting(
                    "NCCL found no RDMA device on a node that has such devices up",
                    node.node,
                    (f"{document.file}: `NET/IB : No device found`", f"up: {listed(devices)}"),
                )


def _direct_in_part(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        edges = dict(log.transports)
        for name, plain in edges.items():
            direct = edges.get(f"{name}/GDRDMA", 0)
            if name.startswith("NET/") and name != "NET/Socket" and direct:
                yield Sighting(
                    "some network connections of a job use GPUDirect RDMA and others do not",
                    document.node,
                    (f"{document.file}: {plain} edges via {name}, {direct} via {name}/GDRDMA",),
                )


def _direct_off(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        nics = [nic for nic in log.nics if nic.kind != "Socket" and _GPU_DIRECT_NICS.match(nic.name)]
        off = [nic.name for nic in nics if nic.gpu_direct is False]
        nodes = nodes_of(scan, document, log)
        # Where the nodes themselves show why, that is told instead.
        if off and len(off) == len(nics) and not (_are_geforce(nodes) or any(map(lacks_direct_rdma, nodes))):
            yield Sighting(
                "GPUDirect RDMA is disabled for every RDMA device of a job",
                document.node,
                (f"{document.file}: disabled for {listed(off)}",),
            )


def _are_geforce(nodes: list[NodeScan]) -> bool:
    """Whether the GPUs are of a kind that NVIDIA gives no GPUDirect RDMA."""
    return any("GeForce" in gpu.name for node in nodes for gpu in node.gpus)


def _no_peer_to_peer(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        shared = sum(count for name, count in log.transports if name.startswith("SHM"))
        if not (shared or log.p2p_unsupported) or value_of(log, "NCCL_P2P_DISABLE") == "1":
            continue
        for node in nodes_of(scan, document, log):
            if nvlink_joins_all(node):
                evidence = [f"{document.file}: {shared} edges via shared memory"] if shared else []
                if log.p2p_unsupported:
                    evidence.append(
                        f"{document.file}: P2P not supported between {log.p2p_unsupported} pairs of GPUs"
                    )
                yield Sighting(
                    "a job did not use peer-to-peer between GPUs that NVLink joins",
                    node.node,
                    tuple(evidence),
                )


def _virtual_bootstrap(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        name = log.out_of_band
        if name is not None and spans_nodes(log) and (_VIRTUAL.match(name) or name == "lo"):
            yield Sighting(
                "ranks on several nodes meet over a virtual interface",
                document.node,
                (f"{document.file}: `Bootstrap: Using {name}`",),
            )


def _virtual_sockets(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        if log.network != "Socket" or not spans_nodes(log):
            continue
        virtual = [nic.name for nic in log.nics if nic.kind == "Socket" and _VIRTUAL.match(nic.name)]
        if virtual:
            yield Sighting(
                "NCCL counts virtual interfaces among those that carry a job's data",
                document.node,
                (f"{document.file}: {listed(virtual)}",),
            )


def _mixed(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        roce, infiniband = rdma_by_fabric(log)
        if mixes_fabrics(log):
            yield Sighting(
                "NCCL uses RoCE and InfiniBand ports of a node together",
                document.node,
                (
                    f"{document.file}: RoCE {listed(roce)}",
                    f"{document.file}: InfiniBand {listed(infiniband)}",
                ),
                fix=_name_one_fabric(log),
            )


def _name_one_fabric(log: NcclLog) -> tuple[str, ...]:
    """A step for each fabric, with its ports as the log names them; the one with most ports first."""
    ports = [[_port(nic) for nic in log.nics if nic.name in names] for names in rdma_by_fabric(log)]
    by_count = sorted(zip(("RoCE", "InfiniBand"), ports, strict=True), key=lambda pair: -len(pair[1]))
    return tuple(
        f"{'or' if index else 'to use'} {fabric} alone: `NCCL_IB_HCA=={','.join(dict.fromkeys(names))}`"
        for index, (fabric, names) in enumerate(by_count)
    )


def _port(nic: LogNic) -> str:
    return nic.name if nic.port is None else f"{nic.name}:{nic.port}"


def _no_multicast(scan: Scan) -> Iterator[Sighting]:
    for document, log in logs(scan):
        if log.nvls is not False or value_of(log, "NCCL_NVLS_ENABLE") == "0":
            continue
        for node in nodes_of(scan, document, log):
            if _should_have_multicast(node):
                yield Sighting(
                    "NVLS is not available on a node with NVSwitches",
                    node.node,
                    (f"{document.file}: `NVLS multicast support is not available`",),
                )


def _should_have_multicast(node: NodeScan) -> bool:
    """NVSwitches and GPUs of Hopper or later, more than one of them."""
    capable = [gpu for gpu in node.gpus if _major(gpu.compute_capability) >= 9]
    return len(capable) > 1 and any(device.kind == "nvswitch" for device in node.pci)


def _major(capability: str | None) -> int:
    return int((capability or "0").split(".")[0])


RULES: tuple[Rule, ...] = (
    Rule(
        id="job-socket-fallback",
        title="a job uses TCP although RDMA devices are there",
        severity=Severity.ERROR,
        why="NCCL falls back to TCP sockets without an error when RDMA cannot be set up: often a tenth of "
        "the bandwidth or less, on the CPU's account",
        fix=(
            "run once with `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET` and read the lines of NET/IB and "
            "NET/Plugin",
            "check `ibv_devinfo` inside the job's container: `/dev/infiniband` must be there and libibverbs "
            "installed",
            "look for `NCCL_NET`, `NCCL_IB_DISABLE` and `NCCL_IB_HCA` in the environment and in "
            "`/etc/nccl.conf`",
            "`NCCL_NET=IB` turns the silent fall-back into an error",
        ),
        source=_NETWORKING,
        look=_over_tcp,
    ),
    Rule(
        id="job-sockets-at-scale",
        title="a large job uses TCP between nodes",
        severity=Severity.WARNING,
        why="TCP moves every byte through the CPU and main memory; at this size the network decides how long "
        "a step takes",
        fix=(
            "use the RDMA network or the cloud's NCCL plugin (EFA, GPUDirect-TCPX) where there is one",
            "where TCP is all there is: tune `NCCL_SOCKET_NTHREADS` and `NCCL_NSOCKS_PERTHREAD` with "
            "`topo-tune recommend`",
        ),
        source=_VARIABLES + "#nccl-socket-nthreads",
        look=_many_on_sockets,
    ),
    Rule(
        id="job-ib-finds-nothing",
        title="NCCL finds no RDMA device where there are some",
        severity=Severity.WARNING,
        why="what the node has is not what the job sees; jobs over several nodes will use TCP",
        fix=(
            "compare `ls /dev/infiniband` and `ibv_devices` on the node and inside the job's container",
            "check that `NCCL_IB_HCA` does not name devices of another node type",
        ),
        source="NVIDIA/nccl: src/transport/net_ib (`NET/IB : No device found.`)",
        look=_finds_none,
    ),
    Rule(
        id="job-gdr-in-part",
        title="GPUDirect RDMA is used on some connections only",
        severity=Severity.WARNING,
        why="connections without it copy through main memory, and a ring runs at the pace of its slowest "
        "connection",
        fix=(
            "`nvidia-smi topo -m`: NCCL uses GPUDirect only where GPU and NIC are close; "
            "`NCCL_NET_GDR_LEVEL` sets how far",
            "check `lsmod | grep nvidia_peermem` (or DMA-BUF) on every node: one without it is enough",
        ),
        source=_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
        look=_direct_in_part,
    ),
    Rule(
        id="job-gdr-disabled",
        title="GPUDirect RDMA is disabled for all devices",
        severity=Severity.WARNING,
        why="every message is copied through main memory on both sides: more latency, and less bandwidth "
        "than the NIC has",
        fix=(
            "`modprobe nvidia_peermem`, and add it to `/etc/modules-load.d`; or use the open driver with a "
            "kernel that has DMA-BUF",
            "`dmesg | grep -i peermem` shows why it does not load: often the RDMA driver was installed after "
            "it",
        ),
        source="NVIDIA/nccl: src/graph/topo.cc (`GPU Direct RDMA Enabled|Disabled for HCA`)",
        look=_direct_off,
    ),
    Rule(
        id="job-no-p2p",
        title="peer-to-peer is not used between GPUs with NVLink",
        severity=Severity.WARNING,
        why="shared memory goes over PCIe and the host's memory, an order of magnitude below NVLink",
        fix=(
            "`nvidia-smi topo -p2p n` must say OK; in a container all GPUs of the node must be visible to "
            "each process",
            "look for `NCCL_P2P_DISABLE` and `NCCL_P2P_LEVEL`; check the fabric manager on NVSwitch machines",
        ),
        source="NVIDIA/nccl: src/graph/paths.cc (`P2P is disabled between`, ncclTopoCheckP2p)",
        look=_no_peer_to_peer,
    ),
    Rule(
        id="job-bootstrap-virtual",
        title="ranks meet over a virtual interface",
        severity=Severity.WARNING,
        why="bridges and container interfaces have the same addresses on every node, so ranks hang or "
        "connect to themselves; where it works it is by luck of the order of interfaces",
        fix=(
            "`ip -br addr` shows the interface that all nodes share; set `NCCL_SOCKET_IFNAME==NAME` to it "
            "(one `=` more takes the name literally)",
        ),
        source=_VARIABLES + "#nccl-socket-ifname",
        look=_virtual_bootstrap,
    ),
    Rule(
        id="job-sockets-virtual",
        title="virtual interfaces carry a job's data",
        severity=Severity.WARNING,
        why="NCCL spreads its sockets over all interfaces that it lists; those that reach no other node "
        "stall the job, and a bridge claims 10 Gbit/s whatever is behind it",
        fix=(
            "`NCCL_SOCKET_IFNAME=^docker,lo,veth,br-,cali,virbr` or, better, the names of the real ones with "
            "`=`",
        ),
        source=_VARIABLES + "#nccl-socket-ifname",
        look=_virtual_sockets,
    ),
    Rule(
        id="job-mixed-links",
        title="ports of RoCE and InfiniBand are used together",
        severity=Severity.WARNING,
        why="ports of two fabrics do not reach each other; NCCL pairs them by distance to the GPU and "
        "connects the wrong ones, or runs at the slower fabric's pace",
        fix=(
            "name the ports of one fabric in `NCCL_IB_HCA==DEVICE:PORT,...`; `ibstat` tells each port's link layer",
        ),
        source=_VARIABLES + "#nccl-ib-hca",
        look=_mixed,
    ),
    Rule(
        id="job-nvls-unavailable",
        title="NVLS is not available although there are NVSwitches",
        severity=Severity.NOTICE,
        why="without NVLink SHARP all-reduce within a node is up to a third slower and needs more SMs",
        fix=(
            "`nvidia-smi -q | grep -A3 Fabric` must say `Completed` and `Success`; multicast also needs IMEX "
            "on multi-node NVLink, and is off in some virtual machines",
            "NVLS needs driver 525 and CUDA 12.1 or later, and all GPUs of a partition",
        ),
        source=_VARIABLES + "#nccl-nvls-enable",
        look=_no_multicast,
    ),
)
