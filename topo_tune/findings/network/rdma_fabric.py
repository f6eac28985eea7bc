"""The RDMA ports of a node as NCCL's own transport sees them: which it can drive, and which carry a job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

import msgspec

from topo_tune.findings.in_force import in_force, name_list, number
from topo_tune.findings.remembered import remembered
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.scan import NodeScan, Scan

Value = TypeVar("Value", bound=Hashable)

# NCCL drives what opens as verbs device. EFA needs a plugin; software devices carry no fabric.
_NOT_NCCLS = frozenset({"efa", "rdma_rxe", "siw", "usnic_verbs"})
_SOFTWARE = ("rxe", "siw")


class End(msgspec.Struct, frozen=True):
    """One port of one device."""

    device: RdmaDevice
    port: RdmaPort

    @property
    def name(self) -> str:
        """`mlx5_0`, or `mlx5_0:2` where the device has several ports."""
        return self.device.name if len(self.device.ports) == 1 else f"{self.device.name}:{self.port.port}"

    @property
    def is_active(self) -> bool:
        """Whether NCCL would use it: it leaves out what is not active (src/transport/net_ib/init.cc)."""
        return self.port.state == "Active"

    @property
    def is_roce(self) -> bool:
        """Whether it is an Ethernet port."""
        return self.port.link_layer == "Ethernet"

    @property
    def shown(self) -> str:
        """The port with what was seen of it, for evidence."""
        rate = self.port.rate_gbit_per_s
        words = [self.port.state, self.port.physical_state, self.port.link_layer, self.device.type]
        told = [word for word in words if word] + ([f"{rate:g} Gbit/s"] if rate is not None else [])
        return f"{self.name}: {', '.join(told)}"


@remembered
def ends(node: NodeScan) -> tuple[End, ...]:
    """Every port that NCCL's own transport could drive if it were active."""
    return tuple(
        End(device, port)
        for device in node.rdma
        if device.driver not in _NOT_NCCLS and not device.name.startswith(_SOFTWARE)
        for port in device.ports
    )


@remembered
def active(node: NodeScan) -> tuple[End, ...]:
    """The active ones of them."""
    return tuple(end for end in ends(node) if end.is_active)


def chosen(node: NodeScan) -> tuple[End, ...]:
    """The active ports that NCCL_IB_HCA leaves NCCL, all of them where it is unset."""
    setting = in_force(node, "NCCL_IB_HCA")
    if setting is None:
        return active(node)
    names = name_list(setting.value)
    return tuple(end for end in active(node) if names.takes(end.device.name, end.port.port))


def may_use_rdma(node: NodeScan) -> bool:
    """Whether no variable keeps NCCL from its own RDMA transport."""
    net = in_force(node, "NCCL_NET")
    is_off = (number(in_force(node, "NCCL_IB_DISABLE")) or 0) != 0
    return not is_off and (net is None or net.value.strip().casefold() == "ib")


@remembered
def compute(node: NodeScan) -> tuple[End, ...]:
    """The fastest of the ports that NCCL would use: those that carry a job. All, where no rate is known."""
    candidates = chosen(node)
    top = max((end.port.rate_gbit_per_s or 0.0 for end in candidates), default=0.0)
    return tuple(end for end in candidates if (end.port.rate_gbit_per_s or 0.0) == top)


def carries_jobs(scan: Scan, node: NodeScan) -> bool:
    """Whether traffic of jobs between nodes is to be expected: on a virtual machine with one function it is not."""
    return len(scan.nodes) > 1 or len(compute(node)) > 1


@remembered
def twins(node: NodeScan) -> list[list[End]]:
    """Ports that should be alike: same kind of card with the same number of ports on it, same link layer."""
    on_card = Counter(device.system_guid for device in node.rdma for _ in device.ports)
    groups: dict[Hashable, list[End]] = defaultdict(list)
    for end in ends(node):
        device = end.device
        count = on_card[device.system_guid] if device.system_guid else None
        kind = (device.type, device.board, end.port.link_layer, device.is_virtual_function, count)
        groups[kind].append(end)
    return list(groups.values())


def card(end: End) -> str:
    """What the ports of one card share; its own name where the scan does not tell."""
    return end.device.system_guid or end.device.name


FEWEST_NODES = 3
"""Below three, no node is the odd one out."""


@remembered
def make(node: NodeScan) -> Hashable:
    """What nodes of one kind have in common: how many cards of which types and boards."""
    cards = Counter((device.type, device.board) for device in node.rdma)
    return frozenset(cards.items())


def _place(node: NodeScan, end: End) -> Hashable:
    return make(node), end.device.name, end.port.port, end.port.link_layer


@remembered
def by_place(scan: Scan) -> dict[Hashable, list[tuple[str, End]]]:
    """Ports of the same name, over all nodes that have the same cards: (node, port) of each."""
    places: dict[Hashable, list[tuple[str, End]]] = defaultdict(list)
    for node in scan.nodes:
        for end in ends(node):
            places[_place(node, end)].append((node.node, end))
    return places


@remembered
def _usual(scan: Scan) -> dict[Hashable, tuple[str | None, float | None]]:
    """State and rate that more than half of the nodes show of each port, of three nodes or more."""
    return {
        place: (
            majority(end.port.state for _, end in found),
            majority(end.port.rate_gbit_per_s for _, end in found),
        )
        for place, found in by_place(scan).items()
        if len(found) >= FEWEST_NODES
    }


def is_down_everywhere(scan: Scan, node: NodeScan, end: End) -> bool:
    """Whether most nodes have this very port down: not this node is the odd one."""
    return _usual(scan).get(_place(node, end), (None, None))[0] == "Down"


def is_slow_everywhere(scan: Scan, node: NodeScan, end: End) -> bool:
    """Whether most nodes have this very port at this rate: not this node is the odd one."""
    rate = end.port.rate_gbit_per_s
    return rate is not None and _usual(scan).get(_place(node, end), (None, None))[1] == rate


def majority(values: Iterable[Value]) -> Value | None:
    """The value that more than half have, or None."""
    counted = Counter(values)
    if not counted:
        return None
    value, count = counted.most_common(1)[0]
    return value if 2 * count > counted.total() else None
