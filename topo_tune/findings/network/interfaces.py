"""Rules about network interfaces: addresses, subnets, bonds, and whether nodes are alike."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from topo_tune.findings.network.rdma_fabric import FEWEST_NODES, carries_jobs, majority
from topo_tune.findings.network.sockets import interfaces
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.network import is_host_only
from topo_tune.records.scan import Nic, NodeScan, Scan

# The service processor's network on the host's USB has one and the same address on every node.
_SERVICE = re.compile(r"usb|bmc|idrac|ilo\d|enx|tmfifo_net")
_SERVICE_DRIVERS = frozenset({"cdc_ether", "cdc_ncm", "rndis_host", "cdc_subset"})


def _real(node: NodeScan) -> list[Nic]:
    """Interfaces with a wire: no loopback, nothing of containers and tunnels, no RDMA devices."""
    return [nic for nic in node.nics if nic.kind == "ethernet" and not is_host_only(nic.name)]


def _is_routed_by_source(nic: Nic) -> bool:
    """AWS and HPE Slingshot put all interfaces of a machine into one subnet, and see to the routes themselves."""
    return nic.driver == "ena" or (nic.driver or "").startswith("cxi") or nic.name.startswith("hsn")


def _networks(nic: Nic) -> set[str]:
    """IPv4 subnets of an interface: `10.0.0.0/24`."""
    return {network for text in nic.addresses if (network := _network(text)) is not None}


@functools.lru_cache(maxsize=1 << 18)
def _network(text: str) -> str | None:
    """The IPv4 subnet of an address in which others can be: no link-local or loopback one, none of a single address.

    Kept, since several rules ask for each of a cluster's hundred thousand addresses.
    """
    try:
        interface = ipaddress.IPv4Interface(text)
    except ValueError:
        return None
    is_own = interface.is_link_local or interface.is_loopback
    is_shared = "/" in text and interface.network.prefixlen < 31 and not is_own
    return str(interface.network) if is_shared else None


def _same_subnet(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if not carries_jobs(scan, node):
            continue
        members: dict[str, list[Nic]] = defaultdict(list)
        for nic in interfaces(node):
            # IP over InfiniBand has the same trouble; a VLAN or bond is one more interface, too.
            if (
                nic.is_up is not False
                and nic.kind != "loopback"
                and not is_host_only(nic.name)
                and nic.master is None
                and not _is_routed_by_source(nic)
            ):
                for network in _networks(nic):
                    members[network].append(nic)
        shared = {net: nics for net, nics in members.items() if len({nic.name for nic in nics}) > 1}
        if shared:
            # The ports of one InfiniBand fabric are often in one subnet; RDMA itself does not go by it.
            is_ipoib = all(nic.name.startswith("ib") for nics in shared.values() for nic in nics)
            yield Sighting(
                "several interfaces of a node are in one IPv4 subnet",
                node.node,
                tuple(f"{net}: {', '.join(nic.name for nic in nics)}" for net, nics in shared.items()),
                severity=Severity.NOTICE if is_ipoib else None,
            )


def _no_shared_subnet(scan: Scan) -> Iterator[Sighting]:
    networks = {
        node.node: {
            network for nic in interfaces(node) if not is_host_only(nic.name) for network in _networks(nic)
        }
        for node in scan.nodes
    }
    known = {node: own for node, own in networks.items() if own}
    counted = Counter(network for own in known.values() for network in own)
    shared = {network for network, count in counted.items() if 2 * count > len(known)}
    if len(known) < FEWEST_NODES or not shared:
        return
    for node, own in known.items():
        if not own & shared:
            lines = (
                f"here: {', '.join(sorted(own))}",
                f"most nodes: {', '.join(sorted(shared))}",
            )
            yield Sighting("a node has no address in any subnet that most nodes share", node, lines)


def _address_twice(scan: Scan) -> Iterator[Sighting]:
    addresses = {node.node: _own_addresses(node) for node in scan.nodes}
    hostnames = {node.node: node.hostname for node in scan.nodes}
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    # A link within the machine has the same address on every node, and nobody else is in its subnet.
    peers: dict[str, set[str]] = defaultdict(set)
    for node, own in addresses.items():
        for address, (interface, network) in own.items():
            owners[address][node] = interface
            peers[network].add(address)
    for address, places in sorted(owners.items()):
        if len(places) < 2:
            continue
        # One machine that was scanned under two names has its addresses twice, all of them.
        machines = {(hostnames[name], tuple(addresses[name])) for name in places}
        if len({hostname for hostname, _ in machines}) < 2 or len({own for _, own in machines}) < 2:
            continue
        network = addresses[next(iter(places))][address][1]
        if len(peers[network]) < 2:
            continue
        for name, interface in places.items():
            yield Sighting(f"several nodes have the address {address}", name, (f"{interface}: {address}",))


def _own_addresses(node: NodeScan) -> dict[str, tuple[str, str]]:
    """IPv4 address to (interface, subnet): of real interfaces, without the link to the own service processor."""
    return {
        text.split("/")[0]: (nic.name, network)
        for nic in interfaces(node)
        if nic.is_up is not False
        and (nic.kind == "ethernet" or nic.name.startswith("ib"))
        and not is_host_only(nic.name)
        and not _SERVICE.match(nic.name)
        and nic.driver not in _SERVICE_DRIVERS
        for text in nic.addresses
        if (network := _network(text)) is not None
    }


def _mtu_differs(scan: Scan) -> Iterator[Sighting]:
    seen: dict[str, list[tuple[str, Nic]]] = defaultdict(list)
    for node in scan.nodes:
        for nic in interfaces(node):
            if nic.mtu_bytes is not None and nic.is_up is not False and not is_host_only(nic.name):
                for network in _networks(nic):
                    seen[network].append((node.node, nic))
    for places in seen.values():
        mtus = [nic.mtu_bytes for _, nic in places]
        if len(set(mtus)) < 2 or len({node for node, _ in places}) < 2:
            continue
        usual = majority(mtus)
        for name, nic in places:
            if nic.mtu_bytes != usual:
                than = f", most nodes have {usual}" if usual else ""
                what = "interfaces in one subnet have different MTUs"
                yield Sighting(what, name, (f"{nic.name}: MTU {nic.mtu_bytes}{than}",))


def _slower(scan: Scan) -> Iterator[Sighting]:
    seen: dict[str, list[tuple[str, Nic]]] = defaultdict(list)
    for node in scan.nodes:
        for nic in _real(node):
            if nic.is_up and nic.speed_gbit_per_s is not None:
                seen[nic.name].append((node.node, nic))
    for places in seen.values():
        usual = majority(nic.speed_gbit_per_s for _, nic in places)
        if usual is None or len(places) < FEWEST_NODES:
            continue
        for name, nic in places:
            if nic.speed_gbit_per_s is not None and nic.speed_gbit_per_s < usual:
                what = "an interface is slower than the one of that name on most other nodes"
                yield Sighting(what, name, (f"{nic.name}: {nic.speed_gbit_per_s:g} of {usual:g} Gbit/s",))


def _bond_member_down(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        bonds: dict[str, list[Nic]] = defaultdict(list)
        for nic in _real(node):
            if nic.master is not None and not is_host_only(nic.master):
                bonds[nic.master].append(nic)
        down = [
            f"{bond}: {nic.name} is down"
            for bond, members in bonds.items()
            if len(members) > 1 and any(member.is_up for member in members)
            for nic in members
            if nic.is_up is False
        ]
        if down:
            yield Sighting("a member of a bond is down", node.node, tuple(down))


RULES: tuple[Rule, ...] = (
    Rule(
        "interfaces-same-subnet",
        "several interfaces share a subnet",
        Severity.WARNING,
        "Linux answers for any of its addresses on any of its interfaces and sends by the first route: "
        "traffic of several NICs ends up on one, and connections of NCCL and RDMA fail or go the wrong way",
        (
            "give each rail a subnet of its own",
            "or, for each interface: `sysctl net.ipv4.conf.IF.arp_ignore=1 net.ipv4.conf.IF.arp_announce=2 "
            "net.ipv4.conf.IF.rp_filter=2`, and a routing table by source address",
        ),
        "https://github.com/NVIDIA/nccl/issues/1581",
        _same_subnet,
    ),
    Rule(
        "interface-no-shared-subnet",
        "a node is in none of the others' subnets",
        Severity.WARNING,
        "NCCL's bootstrap connects each rank to the next over the interfaces taken: where no route leads "
        "from this node's subnet to the others', jobs that use it hang at their start",
        ("compare `ip -br addr` and `ip route` with another node", "test it: `ping -I IF OTHER_NODE`"),
        "NVIDIA/nccl: src/bootstrap.cc",
        _no_shared_subnet,
    ),
    Rule(
        "address-twice",
        "nodes have the same address",
        Severity.ERROR,
        "packets for one node reach the other, now and then: connections break, and measurements mean nothing",
        ("give each node its own address: `ip -br addr`",),
        "https://www.rfc-editor.org/rfc/rfc5227",
        _address_twice,
    ),
    Rule(
        "interface-mtu-differs",
        "interfaces of one subnet have different MTUs",
        Severity.WARNING,
        "large packets towards the smaller MTU are lost without a word: bootstrap, whose messages are small, "
        "works, and the first large message stalls",
        ("give all nodes and switches of the subnet one MTU: `ip link set IF mtu 9000`",),
        "https://www.rfc-editor.org/rfc/rfc2923",
        _mtu_differs,
    ),
    Rule(
        "interface-slower",
        "an interface is slower than on the other nodes",
        Severity.WARNING,
        "what NCCL sends over this interface, and what the job reads over it, moves at the slower pace for "
        "all ranks",
        ("see what was negotiated: `ethtool IF`; reseat or replace the cable, check the switch port",),
        "https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net",
        _slower,
    ),
    Rule(
        "bond-member-down",
        "a member of a bond is down",
        Severity.WARNING,
        "the bond works on with less bandwidth, and an RDMA device on it (mlx5_bond_0) with one port",
        ("see the bond: `cat /proc/net/bonding/BOND`; look at cable and switch port of the member",),
        "https://docs.kernel.org/networking/bonding.html",
        _bond_member_down,
    ),
)
