"""How two devices of an NCCL topology file are joined, told from where they hang in its tree.

The words are those of `nvidia-smi topo -m`: PIX for at most one PCI bridge between two devices, PXB for several,
PHB through the CPU of one NUMA node, SYS between NUMA nodes, NV12 for twelve NVLinks; besides XGMI2 for AMD's
links and NET between hosts. A file has no host bridges below its CPUs, so NODE cannot be told from PHB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from topo_tune.scan.documents.pci_elements import is_host_bridge
from topo_tune.scan.documents.xml_elements import Element

PLACES_LIMIT = 384
"""Places of devices that are compared with each other: a domain of 72 GPUs and 144 NICs fits, within 0.3 s."""

_ORDER = ("PIX", "PXB", "PHB", "SYS", "NET", "?")


class Place(msgspec.Struct, frozen=True):
    """Where a device hangs."""

    cpu: Element
    """the root where the device hangs below no CPU"""
    bridges: tuple[Element, ...]
    """`<pci>` elements from the CPU down to the device itself; empty for what hangs below the CPU without one"""

    @property
    def pci(self) -> Element | None:
        """The device's own `<pci>`."""
        return self.bridges[-1] if self.bridges else None


class Device(msgspec.Struct, frozen=True):
    """A GPU or a network device: a net may be listed below several CPUs."""

    places: tuple[Place, ...]
    address: str | None = None
    """of a GPU, as its peers name it"""
    peer_links: Mapping[str, int] = msgspec.field(default_factory=dict)
    """of a GPU: number of links by the address of the GPU they lead to"""
    switch_links: int = 0
    """of a GPU: number of links to switches"""
    link_word: str = "NV"


def places(root: Element) -> dict[Element, Place]:
    """Where every element below the root hangs, in the order of the file."""
    found: dict[Element, Place] = {}
    waiting = [(child, Place(root, ())) for child in reversed(root.children)]
    while waiting:
        element, place = waiting.pop()
        if element.name == "cpu":
            place = Place(element, ())
        elif element.name == "pci":
            place = Place(place.cpu, (*place.bridges, element))
        found[element] = place
        waiting.extend((child, place) for child in reversed(element.children))
    return found


def words(devices: Sequence[Device]) -> tuple[tuple[str, ...], ...]:
    """words[i][j]: how devices i and j are joined; X on the diagonal."""
    rows = [["X"] * len(devices) for _ in devices]
    for i, one in enumerate(devices):
        for j in range(i):
            rows[i][j] = rows[j][i] = _word(one, devices[j])
    return tuple(tuple(row) for row in rows)


def _word(one: Device, other: Device) -> str:
    links = _links(one, other)
    if links:
        return f"{one.link_word}{links}"
    joined = (_joined(a, b) for a in one.places for b in other.places)
    return min(joined, key=_ORDER.index, default="?")


def _links(one: Device, other: Device) -> int:
    """Links between two GPUs: direct ones, or those that both have to switches.

    As NCCL does, all switches count as one: those of a DGX-2's two boards are joined by links of their own, and in a
    virtual machine the same switch may be seen by one GPU and be unknown to another.
    """
    direct = max(one.peer_links.get(other.address or "", 0), other.peer_links.get(one.address or "", 0))
    return direct or min(one.switch_links, other.switch_links)


def _joined(one: Place, other: Place) -> str:
    if one.cpu is not other.cpu:
        same_host = one.cpu.get("host_hash") == other.cpu.get("host_hash")
        return "SYS" if same_host else "NET"
    common = 0
    for a, b in zip(one.bridges, other.bridges, strict=False):
        if a is not b:
            break
        common += 1
    if common == 0:
        return "PHB"
    meeting = one.bridges[common - 1]
    if meeting not in {one.pci, other.pci} and is_host_bridge(meeting):
        return "PHB"
    crossed = [bridge for place in (one, other) for bridge in place.bridges[common:-1]]
    if meeting not in {one.pci, other.pci}:
        crossed.append(meeting)
    return "PIX" if len(crossed) <= 1 else "PXB"
