"""Rules about the MTU of RDMA ports and of the interfaces below RoCE."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from topo_tune.findings.machine import is_virtual
from topo_tune.findings.network.rdma_fabric import End, carries_jobs, compute, majority
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.scan import NodeScan, Scan

_LARGEST_BYTES = 4096
"""The largest MTU of the InfiniBand specification; RoCE has the same steps."""

_COSTLY_BYTES = 1024

_VIRTUAL_TYPES = {"MT4114", "MT4116", "MT4118", "MT4120", "MT4122", "MT4124", "MT4126"}
"""Virtual functions of ConnectX-4 and later by their device ID (pci-ids.ucw.cz)."""

_ROCE_MTU = "https://www.ibm.com/docs/en/linux-on-systems?topic=functions-set-mtu"
_FOR_LARGEST_BYTES = 4200
"""MTU of the interface that leaves room for 4096 bytes and RoCE's headers."""


def _small(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        is_certain = carries_jobs(scan, node)
        if not is_certain and _is_of_a_guest(node):
            continue
        small = [
            end
            for end in compute(node)
            if end.port.active_mtu_bytes is not None
            and end.port.active_mtu_bytes < min(_LARGEST_BYTES, end.port.max_mtu_bytes or _LARGEST_BYTES)
        ]
        if small:
            layer = "RoCE" if small[0].is_roce else "InfiniBand"
            yield Sighting(
                f"the active MTU of {layer} ports is below {_LARGEST_BYTES} bytes",
                node.node,
                tuple(_shown(end, node) for end in small),
                fix=_RAISE_ROCE if small[0].is_roce else _RAISE_INFINIBAND,
                severity=None if is_certain and any(map(_is_costly, small)) else Severity.NOTICE,
            )


def _is_of_a_guest(node: NodeScan) -> bool:
    """Whether a single port is that of a virtual machine, which often carries no jobs."""
    return is_virtual(node) or any(
        end.device.is_virtual_function or end.device.type in _VIRTUAL_TYPES for end in compute(node)
    )


def _is_costly(end: End) -> bool:
    """Whether the MTU costs bandwidth in earnest; 2048 bytes, the default of many InfiniBand fabrics, hardly do."""
    return (end.port.active_mtu_bytes or 0) <= _COSTLY_BYTES


def _shown(end: End, node: NodeScan) -> str:
    mtu = _interface_mtu(end, node)
    below = f", interface {end.port.netdev} has {mtu}" if mtu is not None else ""
    return f"{end.name}: {end.port.active_mtu_bytes} bytes of {end.port.max_mtu_bytes or '?'}{below}"


def _interface_mtu(end: End, node: NodeScan) -> int | None:
    return next(
        (nic.mtu_bytes for nic in node.nics if nic.name == end.port.netdev and nic.kind != "roce"), None
    )


def _differs(scan: Scan) -> Iterator[Sighting]:
    mtus = {
        node.node: {end.name: end.port.active_mtu_bytes for end in compute(node) if end.port.active_mtu_bytes}
        for node in scan.nodes
    }
    if len({mtu for ports in mtus.values() for mtu in ports.values()}) < 2:
        return
    usual = majority(mtu for ports in mtus.values() for mtu in ports.values())
    for node, ports in mtus.items():
        by_mtu: dict[int, list[str]] = defaultdict(list)
        for name, mtu in ports.items():
            if mtu != usual:
                by_mtu[mtu].append(name)
        for mtu, names in by_mtu.items():
            than = f", most have {usual}" if usual else ""
            yield Sighting(
                "RDMA ports that exchange data have different active MTUs",
                node,
                (f"{', '.join(names)}: {mtu} bytes{than}",),
            )


def _small_interface(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if not carries_jobs(scan, node):
            continue
        small = [
            f"{end.port.netdev} (of {end.name}): MTU {mtu}"
            for end in compute(node)
            # With the active MTU known there is a finding already.
            if end.is_roce
            and end.port.active_mtu_bytes is None
            and (mtu := _interface_mtu(end, node)) is not None
            and mtu < _FOR_LARGEST_BYTES
        ]
        if small:
            what = f"the interface below a RoCE port has an MTU too small for {_LARGEST_BYTES} bytes of RoCE"
            yield Sighting(what, node.node, tuple(small))


_RAISE_ROCE = (
    "raise the MTU of the interface, and of every switch port on the way first: `ip link set IF mtu 9000`",
    "see what RoCE makes of it: `ibv_devinfo | grep active_mtu`",
)
_RAISE_INFINIBAND = (
    "raise the partition's MTU in the subnet manager: `mtu=5` (4096) in its `partitions.conf`",
    "see what the port makes of it: `ibv_devinfo | grep active_mtu`",
)

RULES: tuple[Rule, ...] = (
    Rule(
        "rdma-mtu-small",
        "the active MTU of an RDMA port is small",
        Severity.WARNING,
        "every packet carries the same headers, and costs the NIC the same work: at 1024 bytes a fast port "
        "does not reach its rate",
        _RAISE_ROCE,
        _ROCE_MTU,
        _small,
    ),
    Rule(
        "rdma-mtu-differs",
        "RDMA ports have different MTUs",
        Severity.WARNING,
        "NCCL takes the smaller MTU of both ends of a connection, so one port slows all that talk to it; "
        "where the switches' MTU is the smaller one, large messages are lost and the job stalls",
        ("give all nodes and switches of the fabric one MTU; see it with `ibv_devinfo | grep active_mtu`",),
        "NVIDIA/nccl: src/transport/net_ib/connect.cc",
        _differs,
    ),
    Rule(
        "roce-interface-mtu",
        "the interface below RoCE has a small MTU",
        Severity.WARNING,
        "RoCE takes the largest of 1024, 2048 and 4096 bytes that fits: with an MTU of 1500 that is 1024",
        _RAISE_ROCE,
        _ROCE_MTU,
        _small_interface,
    ),
)
