"""Which elements of an NCCL topology file are CPUs, GPUs and nets, in the order in which they are numbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from topo_tune.scan.documents import pci_elements
from topo_tune.scan.documents.topology_tree import places
from topo_tune.scan.documents.xml_elements import Element, whole

_DEVICES_LIMIT = 1024

_Item = TypeVar("_Item")


class Devices:
    """The devices of a file, and where each hangs."""

    def __init__(self, root: Element) -> None:
        self.problems: list[str] = []
        self.places = places(root)
        """of every element below the root"""
        self.kinds = {e: pci_elements.kind(e) for e in self.places if e.name == "pci"}
        """of every `<pci>`"""
        self.cpus = self._limited([e for e in self.places if e.name == "cpu"], "CPUs")
        self.gpus = self._limited(self._gpus(), "GPUs")
        """(`<pci>`, its `<gpu>`: None where its class alone tells that it is one)"""
        self.nets = self._limited(self._nets(), "nets")
        """all elements of each: one net may be listed below several CPUs"""
        self._known = {self.identity(pci, pci.get("busid")) for pci, _ in self.gpus}
        self._tell_strays(root)

    def identity(self, pci: Element, address: str | None) -> str:
        """An address together with the host of `pci`: hosts of one NVLink domain use the same addresses."""
        return f"{self.places[pci].cpu.get('host_hash')} {pci_elements.address(address)}"

    def is_peer(self, pci: Element, address: str | None) -> bool:
        """Whether a GPU of this file has the address, on the host of `pci`."""
        return self.identity(pci, address) in self._known

    def _gpus(self) -> list[tuple[Element, Element | None]]:
        found: list[tuple[Element, Element | None]] = []
        for pci, kind in self.kinds.items():
            if kind == "gpu":
                found.extend((pci, gpu) for gpu in (pci.all("gpu") or (None,)))
        return _in_order(found, own_numbers(gpu for _, gpu in found))

    def _nets(self) -> list[list[Element]]:
        """One net for all elements of one host, `dev` and name; a NIC that only its class tells is one, too."""
        groups: dict[tuple[object, ...], list[Element]] = {}
        for element, place in self.places.items():
            if element.name == "net":
                told = (element.get("dev"), element.get("name"))
                key = (place.cpu.get("host_hash"), *told) if any(told) else (element,)
                groups.setdefault(key, []).append(element)
            elif self.kinds.get(element) == "nic" and not any(nic.all("net") for nic in element.all("nic")):
                groups[(element,)] = [element]
        found = list(groups.values())
        return _in_order(found, own_numbers(elements[0] for elements in found))

    def _limited(self, found: list[_Item], what: str) -> list[_Item]:
        if len(found) > _DEVICES_LIMIT:
            self.problems.append(f"{len(found)} {what}: those after the first {_DEVICES_LIMIT} are left out")
        return found[:_DEVICES_LIMIT]

    def _tell_strays(self, root: Element) -> None:
        """Devices that hang where NCCL does not look for them."""
        for pci in root.all("pci")[:1]:
            self.problems.append(f"line {pci.line}: a `<pci>` outside of any `<cpu>`, which NCCL leaves out")
        strays = [e for e, place in self.places.items() if e.name == "gpu" and place.pci is None]
        for gpu in strays[:1]:
            self.problems.append(f"line {gpu.line}: a `<gpu>` outside of any `<pci>` is left out")


def own_numbers(devices: Iterable[Element | None]) -> list[int] | None:
    """`dev` of every device, or None unless each has one that no other has."""
    devs = [None if device is None else whole(device.get("dev")) for device in devices]
    known = [dev for dev in devs if dev is not None and dev >= 0]
    return known if len(set(known)) == len(devs) else None


def _in_order(found: list[_Item], numbers: Sequence[int] | None) -> list[_Item]:
    """By `dev`; as they stand in the file where that is not known."""
    if numbers is None:
        return found
    return [found[index] for index in sorted(range(len(found)), key=numbers.__getitem__)]
