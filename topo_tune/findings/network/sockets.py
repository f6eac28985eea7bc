"""Rules about the interfaces that NCCL's bootstrap and socket transport would take."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.in_force import in_force, name_list
from topo_tune.findings.machine import rdma_names
from topo_tune.findings.network.rdma_fabric import active, ends, may_use_rdma
from topo_tune.findings.remembered import remembered
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.network import is_host_only
from topo_tune.records.scan import Nic, NodeScan, Scan

_SOCKET = "NVIDIA/nccl: src/misc/socket.cc"
_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

_SLOW_GBIT_PER_S = 10.0
_MUCH_FASTER = 4.0
"""Times as fast: less than that may be the other half of a plan."""
_JUMBO_FROM_GBIT_PER_S = 25.0
"""Below this rate a CPU keeps up with 1500-byte packets."""
_USUAL_MTU_BYTES = 1500


@remembered
def interfaces(node: NodeScan) -> tuple[Nic, ...]:
    """Interfaces with an address, which are those that NCCL looks at; none where the scan saw no address at all."""
    return tuple(nic for nic in node.nics if nic.addresses and nic.kind not in {"infiniband", "roce"})


@remembered
def taken(node: NodeScan) -> tuple[Nic, ...]:
    """The interfaces that NCCL would take, by its own rules (src/misc/socket.cc).

    Unset: names that begin with `ib`; else all but docker, lo and virbr; else docker; else lo; else virbr.
    """
    found = interfaces(node)
    setting = in_force(node, "NCCL_SOCKET_IFNAME")
    if setting is not None and len(setting.value) > 1:
        names = name_list(setting.value)
        return tuple(nic for nic in found if names.takes(nic.name))
    for value in ("ib", "^docker,lo,virbr", "docker", "lo", "virbr"):
        names = name_list(value)
        if chosen := tuple(nic for nic in found if names.takes(nic.name)):
            return chosen
    return ()


def _uses_sockets(node: NodeScan) -> bool:
    """Whether data between nodes goes over sockets: NCCL may not use RDMA, or no device has an active port.

    Not known, and so False, where a plugin carries the data (EFA, Slingshot, TCPX), or no port was told of a device.
    """
    net = in_force(node, "NCCL_NET")
    if net is not None and net.value.strip().casefold() == "socket":
        return True
    if net is not None and net.value.strip().casefold() != "ib":
        return False
    if _has_network_plugin(node):
        return False
    return not may_use_rdma(node) or not (active(node) or (rdma_names(node) and not ends(node)))


def _has_network_plugin(node: NodeScan) -> bool:
    is_efa = any(nic.driver == "efa" for nic in node.nics) or any(one.driver == "efa" for one in node.rdma)
    return is_efa or any(
        one.kind == "net" and one.exists and one.found_in != "usual folder" for one in node.plugins
    )


def _is_set(node: NodeScan) -> bool:
    setting = in_force(node, "NCCL_SOCKET_IFNAME")
    return setting is not None and len(setting.value) > 1


def _missing(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = in_force(node, "NCCL_SOCKET_IFNAME")
        if setting is None or not _is_set(node) or not interfaces(node) or taken(node):
            continue
        there = ", ".join(nic.name for nic in interfaces(node))
        yield Sighting(
            f"`NCCL_SOCKET_IFNAME={setting.value}` takes no interface that has an address",
            node.node,
            (str(setting), f"interfaces with an address: {there}"),
        )


def _down(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        chosen = taken(node)
        setting = in_force(node, "NCCL_SOCKET_IFNAME")
        if setting is not None and _is_set(node) and chosen and all(nic.is_up is False for nic in chosen):
            yield Sighting(
                "every interface that `NCCL_SOCKET_IFNAME` takes is down",
                node.node,
                (*(f"{nic.name}: down" for nic in chosen), str(setting)),
            )


def _loopback(scan: Scan) -> Iterator[Sighting]:
    if len(scan.nodes) < 2:
        return
    for node in scan.nodes:
        chosen = taken(node)
        setting = in_force(node, "NCCL_SOCKET_IFNAME")
        if setting is not None and _is_set(node) and chosen and all(nic.kind == "loopback" for nic in chosen):
            what = "`NCCL_SOCKET_IFNAME` takes the loopback interface alone, on a cluster of several nodes"
            yield Sighting(what, node.node, (str(setting),))


def _host_only(scan: Scan) -> Iterator[Sighting]:
    if len(scan.nodes) < 2:
        return
    for node in scan.nodes:
        chosen = taken(node)
        odd = [nic for nic in chosen if is_host_only(nic.name)]
        real = [nic for nic in chosen if not is_host_only(nic.name) and nic.kind != "loopback"]
        if odd and real:
            yield Sighting(
                "NCCL would take interfaces of containers, virtual machines or tunnels beside the real ones",
                node.node,
                tuple(f"{nic.name}: {', '.join(nic.addresses[:2])}" for nic in odd),
                fix=_name_interface(real[0]),
                # Bootstrap takes the first interface alone, which is seldom one of those that came later.
                severity=None if _uses_sockets(node) else Severity.NOTICE,
            )


def _name_interface(nic: Nic) -> tuple[str, ...]:
    return (
        f"name the interface that all nodes reach: `NCCL_SOCKET_IFNAME=={nic.name}` in `/etc/nccl.conf` "
        "(each node may name its own)",
    )


def _ipoib(scan: Scan) -> Iterator[Sighting]:
    if len(scan.nodes) < 2:
        return
    for node in scan.nodes:
        chosen = [nic for nic in taken(node) if nic.name.startswith("ib") and nic.kind == "other"]
        others = [nic for nic in interfaces(node) if nic.kind == "ethernet" and nic.is_up]
        if _is_set(node) or not chosen or not others or not active(node):
            continue
        if _uses_sockets(node):
            yield Sighting(
                "data between nodes goes over IP on InfiniBand, since NCCL may not use the RDMA ports",
                node.node,
                tuple(nic.name for nic in chosen),
                severity=Severity.WARNING,
            )
        else:
            what = "NCCL's bootstrap takes IP over InfiniBand, since its names come first"
            yield Sighting(what, node.node, tuple(nic.name for nic in chosen))


def _slow(scan: Scan) -> Iterator[Sighting]:
    if len(scan.nodes) < 2:
        return
    for node in scan.nodes:
        if not _uses_sockets(node):
            continue
        slow = [nic for nic in _with_speed(taken(node)) if _speed(nic) < _SLOW_GBIT_PER_S]
        fastest = max(_with_speed(interfaces(node)), key=_speed, default=None)
        if slow and fastest is not None and _speed(fastest) >= _MUCH_FASTER * max(map(_speed, slow)):
            yield Sighting(
                "data between nodes goes over slow interfaces, and a much faster one has an address",
                node.node,
                (
                    *(f"{nic.name}: {_speed(nic):g} Gbit/s" for nic in slow),
                    f"{fastest.name}: {_speed(fastest):g} Gbit/s",
                ),
                fix=_name_interface(fastest),
            )


def _with_speed(nics: tuple[Nic, ...]) -> list[Nic]:
    """Real interfaces that are up and tell their speed: bridges and veths claim one."""
    return [
        nic
        for nic in nics
        if nic.is_up and nic.speed_gbit_per_s and nic.kind == "ethernet" and not is_host_only(nic.name)
    ]


def _speed(nic: Nic) -> float:
    return nic.speed_gbit_per_s or 0.0


def _mtu(scan: Scan) -> Iterator[Sighting]:
    if len(scan.nodes) < 2:
        return
    for node in scan.nodes:
        if not _uses_sockets(node):
            continue
        small = [
            nic
            for nic in _with_speed(taken(node))
            if _speed(nic) >= _JUMBO_FROM_GBIT_PER_S
            and nic.mtu_bytes is not None
            and nic.mtu_bytes <= _USUAL_MTU_BYTES
        ]
        if small:
            what = "data between nodes goes over fast Ethernet with small packets"
            lines = (f"{nic.name}: {_speed(nic):g} Gbit/s, MTU {nic.mtu_bytes}" for nic in small)
            yield Sighting(what, node.node, tuple(lines))


RULES: tuple[Rule, ...] = (
    Rule(
        "socket-ifname-missing",
        "`NCCL_SOCKET_IFNAME` takes no interface",
        Severity.ERROR,
        "NCCL ends every job at its start with `no socket interface found`: bootstrap needs one even over "
        "RDMA",
        (
            "list the interfaces: `ip -br addr`; correct the name, or remove the line so that NCCL looks for itself",
        ),
        _SOCKET,
        _missing,
    ),
    Rule(
        "socket-ifname-down",
        "`NCCL_SOCKET_IFNAME` takes interfaces that are down",
        Severity.ERROR,
        "ranks offer an address that nobody reaches, and the job hangs at its start or ends with a time-out",
        ("bring the interface up: `ip link set IF up`; or name another one",),
        _SOCKET,
        _down,
    ),
    Rule(
        "socket-ifname-loopback",
        "`NCCL_SOCKET_IFNAME` takes the loopback interface",
        Severity.ERROR,
        "each node offers 127.0.0.1 to the others: jobs over several nodes do not start",
        ("name the interface that all nodes reach, or remove the line",),
        "https://github.com/NVIDIA/nccl/issues/286",
        _loopback,
    ),
    Rule(
        "socket-host-only",
        "NCCL would take interfaces that no other node reaches",
        Severity.WARNING,
        "unless told otherwise NCCL leaves out `docker`, `lo` and `virbr` alone; bootstrap takes the first "
        "interface that is left, and jobs hang at their start where that is a bridge or veth of the host",
        ("name the interface that all nodes reach in `NCCL_SOCKET_IFNAME`",),
        "https://github.com/NVIDIA/nccl/issues/913",
        _host_only,
    ),
    Rule(
        "socket-ipoib",
        "NCCL takes IP over InfiniBand for its sockets",
        Severity.NOTICE,
        "names that begin with `ib` are taken first; for bootstrap that does no harm while IP over "
        "InfiniBand works on every node; for data it is far slower than RDMA on the same port",
        (
            "to keep bootstrap on Ethernet: `NCCL_SOCKET_IFNAME==IF`",
            "for data: remove `NCCL_IB_DISABLE` and `NCCL_NET`",
        ),
        _SOCKET,
        _ipoib,
    ),
    Rule(
        "socket-slow-interface",
        "NCCL's sockets use a slow interface",
        Severity.WARNING,
        "socket data goes over the interfaces taken, up to 16 of them, each for a NIC of its own: the slow "
        "one holds up the others",
        ("name the fast interface in `NCCL_SOCKET_IFNAME`",),
        _ENV,
        _slow,
    ),
    Rule(
        "socket-mtu-small",
        "NCCL's sockets use small packets",
        Severity.NOTICE,
        "at 1500 bytes the CPU's work for each packet, not the link, sets the bandwidth of socket transport",
        (
            "raise the MTU on all nodes and switches together: `ip link set IF mtu 9000`; clouds may forbid it",
        ),
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/network_mtu.html",
        _mtu,
    ),
)
