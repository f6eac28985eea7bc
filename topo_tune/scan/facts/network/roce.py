"""Lossless Ethernet settings of RoCE ports, as far as /sys tells them; `mlnx_qos` tells the rest.

Congestion notification and the traffic class that a device puts on RDMA traffic are files of the mlx5 driver. Priority
flow control is not: it is asked by a message to the kernel (`dcb`, `mlnx_qos`) that needs the interface's name.
"""

from __future__ import annotations

import re
from collections import defaultdict

from topo_tune.records.network import RoceSettings
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import Fact, Files, Gathered, SavedKind, with_absent
from topo_tune.scan.facts.network import mlnx_qos
from topo_tune.scan.facts.words import whole_number

_NOTIFY = Files("/sys/class/net/*/ecn/roce_np/enable/[0-7]")
_REACT = Files("/sys/class/net/*/ecn/roce_rp/enable/[0-7]")
_TRUST = Files("/sys/class/net/*/qos/trust")
_CLASS = Files("/sys/class/infiniband/*/tc/*/traffic_class", keep="Global tclass")
_TOS = Files("/sys/kernel/config/rdma_cm/*/ports/*/default_roce_tos")


def tell(scan: NodeScan, gathered: Gathered) -> NodeScan:
    """The scan with the settings of every interface of a RoCE port."""
    ports = {
        (device.name, port.port): port.netdev
        for device in scan.rdma
        for port in device.ports
        if port.link_layer == "Ethernet" and port.netdev is not None
    }
    if not ports:
        return scan
    notify, react = _priorities(gathered, _NOTIFY), _priorities(gathered, _REACT)
    trust = {path.split("/")[4]: text.strip() for path, text in gathered.texts(_TRUST.pattern).items()}
    classes, tos = _by_port(gathered, _CLASS, ports), _by_port(gathered, _TOS, ports)
    found = tuple(
        RoceSettings(
            netdev=netdev,
            trust=trust.get(netdev) if trust.get(netdev) in {"pcp", "dscp"} else None,
            ecn=_both(notify.get(netdev), react.get(netdev)),
            traffic_class=classes.get(netdev),
            default_tos=tos.get(netdev),
        )
        for netdev in dict.fromkeys(ports.values())
    )
    reason = "asked by name only: save `mlnx_qos -i IF` of each RoCE interface beside the other files"
    return with_absent(mlnx_qos.with_settings(scan, found), "priority flow control of RoCE ports", reason)


def _priorities(gathered: Gathered, files: Files) -> dict[str, dict[int, bool]]:
    """Interface to what it has by priority."""
    found: dict[str, dict[int, bool]] = defaultdict(dict)
    for path, text in gathered.texts(files.pattern).items():
        number = whole_number(text)
        if number is not None:
            found[path.split("/")[4]][int(path[-1])] = number != 0
    return found


def _both(notify: dict[int, bool] | None, react: dict[int, bool] | None) -> tuple[bool, ...] | None:
    """Congestion notification works where a port both sends notifications and reacts to them."""
    known = [side for side in (notify, react) if side and len(side) == mlnx_qos.PRIORITIES]
    if not known:
        return None
    return tuple(all(side[priority] for side in known) for priority in range(mlnx_qos.PRIORITIES))


def _by_port(gathered: Gathered, files: Files, ports: dict[tuple[str, int], str]) -> dict[str, int]:
    """Interface to the number in the file of its RDMA device and port."""
    found = {}
    for path, text in gathered.texts(files.pattern).items():
        match = re.search(r"/(?:infiniband|rdma_cm)/([^/]+)/(?:tc|ports)/(\d{1,3})/", path)
        netdev = ports.get((match.group(1), int(match.group(2)))) if match else None
        value = whole_number(text.rsplit("=", 1)[-1])
        if netdev is not None and value is not None and value < 256:
            found[netdev] = value
    return found


FACTS: tuple[Fact, ...] = (Fact("RoCE settings", tell, files=(_NOTIFY, _REACT, _TRUST, _CLASS, _TOS)),)
KINDS: tuple[SavedKind, ...] = mlnx_qos.KINDS
