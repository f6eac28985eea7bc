"""Rules about RoCE: GID tables, and the settings that keep Ethernet from losing packets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from topo_tune.findings.in_force import Setting, in_force, number
from topo_tune.findings.machine import nccl_version
from topo_tune.findings.network.rdma_fabric import End, carries_jobs, compute, ends, majority
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.network import Gid, RoceSettings
from topo_tune.records.scan import NodeScan, Scan

_CONNECT = "NVIDIA/nccl: src/transport/net_ib/connect.cc"
_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_QOS = "https://docs.nvidia.com/networking/display/mlnxenv23106161lts/quality-of-service-(qos)"

_LINK_LOCAL = "fe80:"
_FINDS_THE_ROW_SINCE = (2, 21)
_CHOOSE_GIDS = ("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_GID_INDEX")
"""Where one of these is set, somebody thought about the GID table."""


def _roce_ends(node: NodeScan) -> list[End]:
    """RoCE ports that carry jobs, or may do so, and whose GID table the scan saw with types."""
    candidates = compute(node) or tuple(end for end in ends(node) if end.port.state is None)
    return [
        end for end in candidates if end.is_roce and end.port.gids and all(gid.type for gid in end.port.gids)
    ]


def _no_routable(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if not carries_jobs(scan, node) or any(in_force(node, name) is not None for name in _CHOOSE_GIDS):
            continue
        without = [end for end in _roce_ends(node) if not any(gid.is_routable for gid in end.port.gids)]
        # Where no port has one, the fabric may be one of IPv6.
        is_ipv6 = all(any(_is_global_ipv6(gid) for gid in end.port.gids) for end in without)
        if without:
            yield Sighting(
                "RoCE ports have no GID of RoCE v2 with an IPv4 address"
                + (", and NCCL was not told to take IPv6" if is_ipv6 else ""),
                node.node,
                tuple(f"{end.name}: rows {_rows(end)}" for end in without),
                fix=_TAKE_IPV6 if is_ipv6 else None,
            )


def _is_global_ipv6(gid: Gid) -> bool:
    return gid.type == "RoCE v2" and gid.ipv4 is None and not gid.gid.startswith(_LINK_LOCAL)


def _rows(end: End) -> str:
    return ", ".join(f"{gid.index} ({gid.type}, {gid.ipv4 or 'IPv6'})" for gid in end.port.gids[:6])


def _wrong_index(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        setting = in_force(node, "NCCL_IB_GID_INDEX")
        index = number(setting)
        if setting is None or index is None or index < 0:
            continue
        wrong = [
            (end, gid)
            for end in _roce_ends(node)
            if not _is_good(gid := next((gid for gid in end.port.gids if gid.index == index), None))
        ]
        if wrong:
            yield Sighting(
                f"`NCCL_IB_GID_INDEX={setting.value}` is no routable GID of RoCE v2 on ports that NCCL would use",
                node.node,
                (*(_wrong_row(end, gid) for end, gid in wrong), str(setting)),
                fix=_right_index([end for end, _ in wrong]),
                # RoCE v1 and link-local rows work between neighbours; an empty row works nowhere.
                severity=None if any(gid is None for _, gid in wrong) else Severity.WARNING,
            )


def _is_good(gid: Gid | None) -> bool:
    return gid is not None and gid.type == "RoCE v2" and not gid.gid.startswith(_LINK_LOCAL)


def _wrong_row(end: End, gid: Gid | None) -> str:
    good = [str(row.index) for row in end.port.gids if row.is_routable]
    there = "an empty row" if gid is None else f"{gid.type}, {gid.ipv4 or gid.gid}"
    return f"{end.name}: {there}; RoCE v2 with IPv4 is row {', '.join(good) or 'none'}"


def _right_index(wrong: list[End]) -> tuple[str, ...]:
    common = _common_indexes(wrong)
    leave = "remove the line: NCCL 2.21 and later find the right row of each port by themselves"
    return (leave, f"or, for an older NCCL: `NCCL_IB_GID_INDEX={min(common)}`") if common else (leave,)


def _common_indexes(ports: list[End]) -> set[int]:
    rows = [{gid.index for gid in end.port.gids if gid.is_routable} for end in ports]
    return set.intersection(*rows) if rows else set()


def _no_common_index(scan: Scan) -> Iterator[Sighting]:
    by_node = {node.node: _without_choice(node) for node in scan.nodes}
    ports = [end for own in by_node.values() for end in own if any(gid.is_routable for gid in end.port.gids)]
    if len(ports) < 2 or _common_indexes(ports):
        return
    usual = majority(min(_common_indexes([end])) for end in ports)
    for node, own in by_node.items():
        odd = [
            f"{end.name}: row {', '.join(map(str, sorted(rows)))}"
            for end in own
            if (rows := _common_indexes([end])) and usual not in rows
        ]
        if odd:
            yield Sighting("no one GID index is right on every RoCE port", node, tuple(odd))


def _without_choice(node: NodeScan) -> list[End]:
    """Ports of a node whose NCCL would want an index and has none: newer ones find the row, a wrong one is told."""
    version = nccl_version(node)
    if in_force(node, "NCCL_IB_GID_INDEX") or (version is not None and version >= _FINDS_THE_ROW_SINCE):
        return []
    used = compute(node)
    return [end for end in _roce_ends(node) if end in used]


def _settings(node: NodeScan) -> list[RoceSettings]:
    """Of the interfaces whose ports carry jobs; all, where the scan does not tell which those are."""
    interfaces = {end.port.netdev for end in compute(node) if end.is_roce and end.port.netdev}
    return [one for one in node.roce if not interfaces or one.netdev in interfaces] or list(node.roce)


def _has_roce(node: NodeScan) -> bool:
    """False only where the scan saw ports, and none of those that carry jobs is of Ethernet."""
    return any(end.is_roce for end in compute(node)) or not ends(node)


def _each(scan: Scan) -> Iterator[tuple[NodeScan, list[RoceSettings]]]:
    for node in scan.nodes:
        if node.roce and _has_roce(node):
            yield node, _settings(node)


def _is_on_anywhere(scan: Scan, field: str) -> bool:
    """Whether some interface has it on: then those that have it off differ, which is a finding of its own."""
    return any(any(getattr(one, field) or ()) for _, settings in _each(scan) for one in settings)


def _pfc_off(scan: Scan) -> Iterator[Sighting]:
    if _is_on_anywhere(scan, "pfc"):
        return
    for node, settings in _each(scan):
        off = [one for one in settings if one.pfc is not None and not any(one.pfc)]
        if off:
            has_ecn = all(one.ecn is not None and any(one.ecn) for one in off)
            yield Sighting(
                "priority flow control is off on RoCE interfaces"
                + (", congestion notification is on" if has_ecn else ""),
                node.node,
                tuple(f"{one.netdev}: no priority" for one in off),
                severity=Severity.NOTICE if has_ecn else None,
            )


def _ecn_off(scan: Scan) -> Iterator[Sighting]:
    if _is_on_anywhere(scan, "ecn"):
        return
    for node, settings in _each(scan):
        off = [one.netdev for one in settings if one.ecn is not None and not any(one.ecn)]
        if off:
            what = "congestion notification (ECN) is off for every priority of RoCE interfaces"
            yield Sighting(what, node.node, (", ".join(off),))


def _differ(scan: Scan, field: str, what: str) -> Iterator[Sighting]:
    values: dict[str, dict[str, object]] = defaultdict(dict)
    for node, settings in _each(scan):
        for one in settings:
            value = getattr(one, field)
            if value is not None:
                values[node.node][one.netdev] = value
    told = [_words(value) for own in values.values() for value in own.values()]
    if len(set(told)) < 2:
        return
    usual = majority(told)
    for name, own in values.items():
        odd = [f"{netdev}: {_words(value)}" for netdev, value in own.items() if _words(value) != usual]
        if odd:
            than = f" (most: {usual})" if usual else ""
            yield Sighting(what + than, name, tuple(odd))


def _words(value: object) -> str:
    """`priorities 3, 5` or the word itself."""
    if not isinstance(value, tuple):
        return str(value)
    on = [str(priority) for priority, is_on in enumerate(value) if is_on]
    return f"priorities {', '.join(on)}" if on else "no priority"


def _pfc_differs(scan: Scan) -> Iterator[Sighting]:
    return _differ(scan, "pfc", "priority flow control differs between RoCE interfaces that exchange data")


def _ecn_differs(scan: Scan) -> Iterator[Sighting]:
    return _differ(
        scan, "ecn", "congestion notification (ECN) differs between RoCE interfaces that exchange data"
    )


def _trust_differs(scan: Scan) -> Iterator[Sighting]:
    return _differ(scan, "trust", "what RoCE interfaces sort packets by differs: DSCP or VLAN priority")


def _class(node: NodeScan, one: RoceSettings) -> tuple[int, str] | None:
    """The traffic class byte that NCCL's packets get, and who sets it; None where nothing sets one.

    A class set for the whole device wins over what the queue pair asks for.
    """
    if one.traffic_class is not None:
        return one.traffic_class, f"traffic_class of the device is {one.traffic_class}"
    setting = in_force(node, "NCCL_IB_TC")
    value = number(setting)
    return None if setting is None or value is None or not 0 <= value < 256 else (value, str(setting))


def _trust_pcp(scan: Scan) -> Iterator[Sighting]:
    for node, settings in _each(scan):
        found = [(one, _class(node, one)) for one in settings if one.trust == "pcp"]
        lines = [f"{one.netdev}: trust pcp; {told[1]}" for one, told in found if told and told[0]]
        if lines:
            what = "a traffic class is set, and the RoCE interface sorts packets by VLAN priority"
            yield Sighting(what, node.node, tuple(lines))


def _not_lossless(scan: Scan) -> Iterator[Sighting]:
    for node, settings in _each(scan):
        lines = []
        for one in settings:
            told = _class(node, one)
            if told is None or one.trust != "dscp" or one.pfc is None or not any(one.pfc):
                continue
            priority = _priority(one, told[0])
            if not one.pfc[priority]:
                lines.append(
                    f"{one.netdev}: {told[1]} is DSCP {told[0] >> 2}, priority {priority}; flow control is on for "
                    f"{_words(one.pfc)}"
                )
        if lines:
            what = "NCCL's traffic class leads to a priority without flow control, and others have it"
            yield Sighting(what, node.node, tuple(lines))


def _priority(one: RoceSettings, traffic_class: int) -> int:
    """DSCP is the upper six bits of the byte; by default its upper three are the priority."""
    dscp = traffic_class >> 2
    return dict(one.dscp_to_priority).get(dscp, dscp >> 3)


def _class_unset(scan: Scan) -> Iterator[Sighting]:
    for node, settings in _each(scan):
        if not _asks_for_class(in_force(node, "NCCL_IB_TC")):
            lossless = [
                one
                for one in settings
                if one.trust == "dscp"
                and one.traffic_class is None
                and one.pfc is not None
                and any(one.pfc)
                and not one.pfc[_priority(one, 0)]
            ]
            if lossless:
                yield Sighting(
                    "no traffic class is set, so NCCL's packets miss the priority that has flow control",
                    node.node,
                    tuple(f"{one.netdev}: flow control on {_words(one.pfc)}" for one in lossless),
                    fix=_set_class(lossless[0]),
                )


def _asks_for_class(setting: Setting | None) -> bool:
    value = number(setting)
    return value is not None and value >= 0


def _set_class(one: RoceSettings) -> tuple[str, ...]:
    """A value of NCCL_IB_TC that leads to the first priority with flow control."""
    assert one.pfc is not None
    priority = one.pfc.index(True)
    codes = [dscp for dscp in range(64) if dict(one.dscp_to_priority).get(dscp, dscp >> 3) == priority]
    # 26 (AF31) is what RoCE set-ups use by convention where it fits.
    code = 26 if 26 in codes else codes[0] if codes else priority << 3
    return (
        f"set the class that switches keep lossless, here `NCCL_IB_TC={(code << 2) | 2}` (DSCP {code}, ECN capable)",
        "measure before and after: the switches must sort by DSCP, too",
    )


_TAKE_IPV6 = ("tell NCCL to take IPv6: `NCCL_IB_ADDR_FAMILY=AF_INET6` (NCCL 2.21 and later)",)
_FLOW = (
    "agree with the switches on one priority, usually 3, then: `mlnx_qos -i IF --trust dscp --pfc 0,0,0,1,0,0,0,0`",
    "make it stay after a restart, and set `NCCL_IB_TC` to the class",
)

RULES: tuple[Rule, ...] = (
    Rule(
        "roce-no-ipv4-gid",
        "a RoCE port has no routable GID",
        Severity.WARNING,
        "NCCL looks for a RoCE v2 GID with an IPv4 address; without one it takes row 0, a link-local address "
        "that no router passes on, and connections time out",
        (
            "give the interface below the port an address: `ip addr add ADDRESS/PREFIX dev IF`",
            "see the table: `show_gids DEVICE`",
        ),
        _CONNECT,
        _no_routable,
    ),
    Rule(
        "roce-gid-index-wrong",
        "`NCCL_IB_GID_INDEX` names a wrong row",
        Severity.ERROR,
        "NCCL takes the row as it is told, on every port: with a wrong one queue pairs fail, or packets go "
        "out with an address that does not reach the other node",
        ("remove the line: NCCL 2.21 and later find the right row of each port by themselves",),
        "https://github.com/NVIDIA/nccl/issues/769",
        _wrong_index,
    ),
    Rule(
        "roce-no-common-gid-index",
        "no GID index is right on every port",
        Severity.NOTICE,
        "one `NCCL_IB_GID_INDEX` cannot serve all ports; rows move when addresses and VLANs come and go",
        (
            "leave `NCCL_IB_GID_INDEX` unset: NCCL 2.21 and later find the right row of each port by themselves",
        ),
        _CONNECT,
        _no_common_index,
    ),
    Rule(
        "roce-pfc-off",
        "no priority flow control on RoCE",
        Severity.WARNING,
        "when many nodes send to one, switches drop what does not fit; RoCE resends from the first packet "
        "lost, and a collective waits for it",
        _FLOW,
        _QOS,
        _pfc_off,
    ),
    Rule(
        "roce-pfc-differs",
        "priority flow control differs between nodes",
        Severity.WARNING,
        "a port that does not pause for the priority its peers use loses their packets, and its own",
        _FLOW,
        _QOS,
        _pfc_differs,
    ),
    Rule(
        "roce-ecn-off",
        "no congestion notification on RoCE",
        Severity.NOTICE,
        "without it senders slow down only when flow control stops them, and pauses spread through the fabric",
        ("`echo 1 > /sys/class/net/IF/ecn/roce_np/enable/PRIORITY`, and the same for `roce_rp`",),
        _QOS,
        _ecn_off,
    ),
    Rule(
        "roce-ecn-differs",
        "congestion notification differs between nodes",
        Severity.WARNING,
        "nodes that do not slow down take the bandwidth of those that do, so ranks of one job run at "
        "different pace",
        ("set `/sys/class/net/IF/ecn/roce_np/enable/PRIORITY` and `roce_rp` alike on all nodes",),
        _QOS,
        _ecn_differs,
    ),
    Rule(
        "roce-trust-differs",
        "interfaces below RoCE trust different marks",
        Severity.WARNING,
        "the same traffic class is lossless on one node and not on another",
        ("set it alike on all nodes, as the switches have it: `mlnx_qos -i IF --trust dscp`",),
        _QOS,
        _trust_differs,
    ),
    Rule(
        "roce-traffic-class-ignored",
        "the traffic class has no effect",
        Severity.WARNING,
        "with trust `pcp` an interface sorts by the VLAN tag's priority: without a tag all packets are of "
        "priority 0, whatever `NCCL_IB_TC` says",
        ("`mlnx_qos -i IF --trust dscp`, and the same on the switches",),
        _QOS,
        _trust_pcp,
    ),
    Rule(
        "roce-traffic-class-lossy",
        "NCCL's traffic class is not the lossless one",
        Severity.WARNING,
        "NCCL's packets travel in a priority that switches may drop, beside one that is kept lossless for "
        "them",
        ("set `NCCL_IB_TC` to four times the DSCP that leads to the lossless priority, plus 2 for ECN",),
        _ENV,
        _not_lossless,
    ),
    Rule(
        "roce-traffic-class-unset",
        "flow control is set up and NCCL does not use it",
        Severity.WARNING,
        "without `NCCL_IB_TC` NCCL sends with class 0: its packets are of the lossy priority",
        ("set `NCCL_IB_TC` to the class that the switches keep lossless",),
        _ENV,
        _class_unset,
    ),
)
