"""The PCI tree of a node as rules ask for it: what is above a device, and what is below a bridge."""

from __future__ import annotations

from collections.abc import Iterable

from topo_tune.findings.remembered import remembered
from topo_tune.records.hardware import PciDevice, PcieLink
from topo_tune.records.scan import NodeScan

_DEPTH_LIMIT = 64
"""Bridges above a device. Real machines have up to ten."""


class PciTree:
    """The devices of one node. Where parents are not known, nothing is above anything."""

    def __init__(self, devices: Iterable[PciDevice]) -> None:
        self._by_address = {device.address: device for device in devices}
        self._members: dict[str, list[PciDevice]] = {}
        self._children: dict[str, list[PciDevice]] = {}
        for device in self._by_address.values():
            if device.parent is not None:
                self._children.setdefault(device.parent, []).append(device)
            for bridge in self.above(device) if device.kind in ("gpu", "nic") else ():
                self._members.setdefault(bridge.address, []).append(device)

    @property
    def is_known(self) -> bool:
        """Whether any device's parent was told."""
        return bool(self._children)

    def above(self, device: PciDevice) -> tuple[PciDevice, ...]:
        """The bridges between a device and its CPU, the nearest first."""
        found: list[PciDevice] = []
        seen = {device.address}
        parent = device.parent
        while parent in self._by_address and parent not in seen and len(found) < _DEPTH_LIMIT:
            seen.add(parent)
            found.append(self._by_address[parent])
            parent = found[-1].parent
        return tuple(found)

    def below(self, bridge: PciDevice) -> tuple[PciDevice, ...]:
        """GPUs and network cards under a bridge."""
        return tuple(self._members.get(bridge.address, ()))

    def children(self, bridge: PciDevice) -> tuple[PciDevice, ...]:
        """Devices directly under a bridge."""
        return tuple(self._children.get(bridge.address, ()))

    def port(self, device: PciDevice) -> PcieLink:
        """The link of the bridge above: what the other end of the device's link can do."""
        nearest = self._by_address.get(device.parent or "")
        return PcieLink() if nearest is None or nearest.link is None else nearest.link


@remembered
def tree_of(node: NodeScan) -> PciTree:
    """The tree of a node's devices."""
    return PciTree(node.pci)
