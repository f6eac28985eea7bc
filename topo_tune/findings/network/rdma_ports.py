"""Rules about RDMA ports: whether they are up, as fast as their like, and of one make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from topo_tune.findings.in_force import in_force
from topo_tune.findings.jobs.job_logs import logs, mixes_fabrics, nodes_of
from topo_tune.findings.network.rdma_fabric import (
    FEWEST_NODES,
    End,
    active,
    by_place,
    card,
    chosen,
    compute,
    ends,
    is_down_everywhere,
    is_slow_everywhere,
    majority,
    make,
    may_use_rdma,
    twins,
)
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.scan import NodeScan, Scan

_SYSFS = "https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband"
_IB_INIT = "NVIDIA/nccl: src/transport/net_ib/init.cc"

# The fastest rate of a card's family, Gbit/s (NVIDIA adapter manuals): ConnectX-4 to -8 by their device ID.
_FASTEST = {
    "MT4115": 100.0,
    "MT4119": 100.0,
    "MT4121": 100.0,
    "MT4123": 200.0,
    "MT4129": 400.0,
    "MT4131": 800.0,
}
_TIMES_BELOW = 3.0
"""Cards of half the family's rate are sold; at a third (FDR's 56 of 200) cable or switch are generations older."""

_MUCH_SLOWER = 0.5
"""A port at or below this part of the fastest one's rate is of another network: management or storage."""


def down_unlike_twins(node: NodeScan) -> list[End]:
    """Ports that are down while most others like them are up."""
    return [end for group in twins(node) for end in _odd_ones_down(group, node)]


def _down(scan: Scan) -> Iterator[Sighting]:
    told: set[tuple[str, str]] = set()
    for node in scan.nodes:
        odd = down_unlike_twins(node)
        told |= {(node.node, end.name) for end in odd}
        everywhere = [end for end in odd if is_down_everywhere(scan, node, end)]
        here = [end for end in odd if end not in everywhere]
        if here:
            what = "an RDMA port is down while others like it are up"
            yield Sighting(what, node.node, tuple(end.shown for end in here))
        if everywhere:
            # A rail whose switch is off, or ports that were never cabled.
            yield Sighting(
                "an RDMA port is down on most nodes, while others like it are up",
                node.node,
                tuple(end.shown for end in everywhere),
                severity=Severity.WARNING,
            )
    yield from _down_unlike_other_nodes(scan, told)


def _odd_ones_down(group: list[End], node: NodeScan) -> list[End]:
    """Ports that are down while most of their twins are up, in the group that carries the jobs.

    A second port that has no cable on any card of its kind is not missed; nor is an unused virtual function.
    """
    up = [end for end in group if end.is_active]
    down = [end for end in group if end.port.state == "Down"]
    fastest = max((end.port.rate_gbit_per_s or 0.0 for end in active(node)), default=0.0)
    is_compute = any((end.port.rate_gbit_per_s or 0.0) >= fastest for end in up)
    if not is_compute or len(up) <= len(down) or any(end.device.is_virtual_function for end in down):
        return []
    half_used = {card(end) for end in up} & {card(end) for end in down}
    fully_used = {card(end) for end in up if len([e for e in group if card(e) == card(end)]) > 1} - half_used
    return [end for end in down if card(end) not in half_used or len(fully_used) > len(half_used)]


def _down_unlike_other_nodes(scan: Scan, told: set[tuple[str, str]]) -> Iterator[Sighting]:
    if len(scan.nodes) < FEWEST_NODES:
        return
    found: dict[str, list[End]] = defaultdict(list)
    for places in by_place(scan).values():
        if majority(end.port.state for _, end in places) != "Active" or len(places) < FEWEST_NODES:
            continue
        for name, end in places:
            is_told = (name, end.name) in told
            if end.port.state == "Down" and not is_told and not end.device.is_virtual_function:
                found[name].append(end)
    for node in scan.nodes:
        down = found.get(node.node, [])
        if down and (active_count := len(active(node))):
            yield Sighting(
                "an RDMA port is down that is up on most other nodes",
                node.node,
                (*(end.shown for end in down), f"{active_count} other ports of the node are active"),
            )


def _none_active(scan: Scan) -> Iterator[Sighting]:
    yield from _alone_without(scan)
    with_ports = [node for node in scan.nodes if any(end.port.state for end in ends(node))]
    without = [node for node in with_ports if not active(node)]
    if not without or 2 * len(without) >= len(with_ports):
        return
    like_active_ones = {make(node) for node in with_ports if active(node)}
    for node in without:
        yield Sighting(
            "no RDMA port is active, while most other nodes have active ones",
            node.node,
            tuple(end.shown for end in ends(node)),
            # With other cards it may be of another cluster, or for other things.
            severity=None if make(node) in like_active_ones else Severity.WARNING,
        )


def _alone_without(scan: Scan) -> Iterator[Sighting]:
    """A node that cannot be compared with others: whether its ports were ever cabled is not known."""
    if len(scan.nodes) != 1:
        return
    (node,) = scan.nodes
    physical = [end for end in ends(node) if not end.device.is_virtual_function]
    # Ports that NCCL_IB_HCA names are told with it.
    is_meant = may_use_rdma(node) and in_force(node, "NCCL_IB_HCA") is None
    if physical and is_meant and all(end.port.state == "Down" for end in ends(node)):
        shown = tuple(end.shown for end in physical)
        yield Sighting("every RDMA port is down", node.node, shown, severity=Severity.WARNING)


def _slow(scan: Scan) -> Iterator[Sighting]:
    told: set[tuple[str, str]] = set()
    for node in scan.nodes:
        for group in twins(node):
            slow = _slower_than_most([end for end in group if end.is_active])
            told |= {(node.node, end.name) for end in slow}
            everywhere = [end for end in slow if is_slow_everywhere(scan, node, end)]
            here = [end for end in slow if end not in everywhere]
            if here:
                yield _is_slow("others like it on the node", node.node, here)
            if everywhere:
                # Ports for storage on the same cards, or a rail whose switch is slow.
                yield _is_slow("others like it, on most nodes", node.node, everywhere, Severity.WARNING)
    for places in by_place(scan).values():
        up = [(name, end) for name, end in places if end.is_active]
        slow_there = {id(end) for end in _slower_than_most([end for _, end in up])}
        for name, end in up:
            if id(end) in slow_there and (name, end.name) not in told:
                yield _is_slow("the same port of most other nodes", name, [end])


def _slower_than_most(up: list[End]) -> list[End]:
    """Those below the rate that more than half have, of three or more."""
    rates = [end.port.rate_gbit_per_s for end in up if end.port.rate_gbit_per_s is not None]
    usual = majority(rates)
    if usual is None or len(rates) < FEWEST_NODES:
        return []
    return [end for end in up if end.port.rate_gbit_per_s is not None and end.port.rate_gbit_per_s < usual]


def _is_slow(than: str, node: str, slow: list[End], severity: Severity | None = None) -> Sighting:
    shown = tuple(end.shown for end in slow)
    return Sighting(f"an RDMA port runs slower than {than}", node, shown, severity=severity)


def _below_card(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        slow = [
            end
            for end in active(node)
            if end.port.link_layer == "InfiniBand"
            and not end.device.is_virtual_function
            and end.port.rate_gbit_per_s
            and end.port.rate_gbit_per_s * _TIMES_BELOW <= _FASTEST.get(end.device.type or "", 0.0)
        ]
        if slow:
            what = "an InfiniBand port runs at a third or less of what its kind of card can do"
            yield Sighting(what, node.node, tuple(end.shown for end in slow))


def _waiting_for_manager(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        waiting = [
            end
            for end in ends(node)
            if end.port.state in {"Init", "Armed"} and end.port.link_layer in {"InfiniBand", None}
        ]
        if waiting:
            # Beside active ports of another kind it may be a cable that nobody uses.
            is_needed = not active(node) or any(
                end in group and any(twin.is_active for twin in group)
                for group in twins(node)
                for end in waiting
            )
            what = "an RDMA port has a link and waits for a subnet manager"
            severity = None if is_needed else Severity.WARNING
            yield Sighting(what, node.node, tuple(end.shown for end in waiting), severity=severity)


def _no_manager(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        alone = [
            end
            for end in active(node)
            if end.port.link_layer == "InfiniBand"
            and end.port.sm_lid == 0
            and not end.device.is_virtual_function
        ]
        if alone:
            what = "an active InfiniBand port knows no subnet manager"
            yield Sighting(what, node.node, tuple(f"{end.name}: SM LID 0" for end in alone))


def _mixed_layers(scan: Scan) -> Iterator[Sighting]:
    # A job that did use both is told by its log.
    told = {
        node.node
        for document, log in logs(scan)
        if mixes_fabrics(log)
        for node in nodes_of(scan, document, log)
    }
    for node in scan.nodes:
        if node.node in told:
            continue
        layers: dict[str, list[str]] = defaultdict(list)
        for end in compute(node):
            if end.port.link_layer:
                layers[end.port.link_layer].append(end.name)
        if len(layers) > 1:
            yield Sighting(
                "InfiniBand and Ethernet ports of the same rate are active, and NCCL would use both",
                node.node,
                tuple(f"{layer}: {', '.join(names)}" for layer, names in sorted(layers.items())),
                fix=_name_devices(max(layers.values(), key=len)),
            )


def _slow_among_fast(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        fast = compute(node)
        top = fast[0].port.rate_gbit_per_s if fast else None
        if top is None or len(fast) < 2:
            continue
        slow = [
            end
            for end in chosen(node)
            if end.port.rate_gbit_per_s is not None
            and end.port.rate_gbit_per_s <= _MUCH_SLOWER * top
            and not _is_told_as_slow(end, node)
        ]
        if slow:
            yield Sighting(
                "slower RDMA ports, of management or storage by their rate, are among those that NCCL would use",
                node.node,
                tuple(end.shown for end in slow),
                fix=_name_devices([end.name for end in fast]),
            )


def _is_told_as_slow(end: End, node: NodeScan) -> bool:
    """A compute port whose link came up slowly has its own finding; leaving it out is no cure."""
    own = next(group for group in twins(node) if end in group)
    return end in _slower_than_most([twin for twin in own if twin.is_active])


def _name_devices(names: list[str]) -> tuple[str, ...]:
    return (f"name the devices that carry jobs: `NCCL_IB_HCA={'='}{','.join(names)}` in `/etc/nccl.conf`",)


def _firmware(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for group in twins(node):
            # The first number is the family's: of one type, it is one card's.
            families: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
            for end in group:
                if end.device.type and end.device.firmware:
                    family = end.device.firmware.split(".")[0]
                    families[family][end.device.firmware].append(end.name)
            for versions in families.values():
                if len(versions) > 1:
                    what = "RDMA cards of one kind run different firmware"
                    lines = (f"{version}: {', '.join(names)}" for version, names in sorted(versions.items()))
                    yield Sighting(what, node.node, tuple(lines))


def _functions(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if in_force(node, "NCCL_IB_HCA") is not None:
            continue
        virtual = [end.name for end in active(node) if end.device.is_virtual_function]
        physical = [end.name for end in active(node) if end.device.is_virtual_function is False]
        if virtual and physical:
            yield Sighting(
                "virtual functions are active beside the physical ones whose wire they share",
                node.node,
                (f"virtual: {', '.join(virtual)}", f"physical: {', '.join(physical)}"),
                fix=_name_devices(physical),
            )


RULES: tuple[Rule, ...] = (
    Rule(
        "rdma-port-down",
        "an RDMA port is down",
        Severity.ERROR,
        "NCCL leaves out ports that are not active: the GPUs beside it go through another GPU's port, and "
        "every ring and tree runs at the pace of the node with the fewest ports",
        (
            "look at the link: `ibstat DEVICE` (Polling: no signal; Disabled: switched off)",
            "switch it on where it is disabled: `ip link set IF up` (Ethernet) or `ibportstate` (InfiniBand)",
            "reseat or replace cable and transceiver: `mlxlink -d DEVICE -m` tells what the module says",
            "until then drain the node, or leave it out with `--exclude`",
        ),
        _IB_INIT,
        _down,
    ),
    Rule(
        "rdma-none-active",
        "no RDMA port of a node is active",
        Severity.ERROR,
        "NCCL on this node falls back to TCP sockets, or the job fails where other ranks come with "
        "InfiniBand or RoCE",
        ("look at the links: `ibstat`, `rdma link`", "drain the node, or leave it out with `--exclude`"),
        _IB_INIT,
        _none_active,
    ),
    Rule(
        "rdma-port-slow",
        "an RDMA port runs slower than its like",
        Severity.ERROR,
        "a ring moves at the pace of its slowest link, so one port at half rate halves the bandwidth of "
        "every job over this node",
        (
            "see what was negotiated and why: `mlxlink -d DEVICE -m -c -e`",
            "bring the link up anew; then reseat or replace cable and transceiver, and try another switch port",
        ),
        _SYSFS,
        _slow,
    ),
    Rule(
        "rdma-rate-below-card",
        "an InfiniBand port is far slower than its card",
        Severity.WARNING,
        "the fabric, not the card, sets NCCL's bandwidth between nodes; it takes the link's rate for its "
        "model",
        ("check generation and width of cable and switch port: `iblinkinfo`, `mlxlink -d DEVICE -m`",),
        _SYSFS,
        _below_card,
    ),
    Rule(
        "rdma-port-initializing",
        "an RDMA port waits for the subnet manager",
        Severity.ERROR,
        "the port carries nothing before a subnet manager has set it active, and NCCL leaves it out",
        (
            "see whether one runs: `sminfo`",
            "start it on the switch or on one host: `systemctl start opensm` (or the fabric manager's own service)",
            "if others of the fabric are active: reset this port with `ibportstate` and look at the cable",
        ),
        _SYSFS,
        _waiting_for_manager,
    ),
    Rule(
        "rdma-no-subnet-manager",
        "an InfiniBand port has no subnet manager",
        Severity.WARNING,
        "links that are up stay up, but no path changes and no port that goes down comes back",
        ("see whether one runs: `sminfo`", "start it on the switch or on one host: `systemctl start opensm`"),
        _SYSFS,
        _no_manager,
    ),
    Rule(
        "rdma-mixed-link-layers",
        "ports of InfiniBand and of Ethernet are used side by side",
        Severity.NOTICE,
        "NCCL takes every active port, whatever its link layer; an InfiniBand port cannot reach an Ethernet "
        "one",
        ("name the devices that carry jobs in `NCCL_IB_HCA`",),
        _IB_INIT,
        _mixed_layers,
    ),
    Rule(
        "rdma-slow-among-fast",
        "slower ports are among those NCCL uses",
        Severity.NOTICE,
        "NCCL counts every active port as a NIC: a slow one that its search takes holds up the others, and its network "
        "may not reach the other nodes' compute ports",
        ("name the devices that carry jobs in `NCCL_IB_HCA`",),
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        _slow_among_fast,
    ),
    Rule(
        "rdma-firmware-differs",
        "RDMA cards of one kind run different firmware",
        Severity.WARNING,
        "cards of one node then differ in adaptive routing, congestion control and known faults, and NCCL "
        "spreads one message over all of them",
        ("bring all to one version: `mlxfwmanager --query`, then `mlxfwmanager -u` and a cold restart",),
        "https://docs.nvidia.com/networking/display/mftv4310/mlxfwmanager+%E2%80%93+Firmware+Update+and+Query+Tool",
        _firmware,
    ),
    Rule(
        "rdma-virtual-functions",
        "virtual functions beside the physical ones",
        Severity.WARNING,
        "NCCL takes each function for a NIC of its own with the full rate, and puts several channels on one "
        "wire",
        ("name the physical functions in `NCCL_IB_HCA`",),
        _IB_INIT,
        _functions,
    ),
)
