"""NCCL and RCCL topology files: what a job dumps with NCCL_TOPO_DUMP_FILE, or is given with NCCL_TOPO_FILE.

Files made for virtual machines hold only PCI devices and their classes; dumps name GPUs and nets. Both may be mixed,
edited by hand, or cut. Real ones are in tests/golden/facts/topo-xml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from topo_tune.errors import InputError
from topo_tune.records.document import DocumentBody
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.nccl_documents import TopologyFile, XmlCpu, XmlGpu, XmlLink, XmlNet
from topo_tune.scan.documents import pci_elements
from topo_tune.scan.documents.topology_devices import Devices, own_numbers
from topo_tune.scan.documents.topology_tree import PLACES_LIMIT, Device, words
from topo_tune.scan.documents.xml_elements import Element, XmlText, begins_with_root, read, whole
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped

ROOT = "system"
_HINT = "a job writes its node's topology with `NCCL_TOPO_DUMP_FILE=topology.xml`"
_LINKS = ("nvlink", "xgmi")
_TARGETS_LIMIT = 128
"""Targets of one GPU's links: a domain has 72 GPUs."""
_COUNT_LIMIT = 1000
_MASK_LIMIT = 512
"""Words of a CPU mask: 16384 CPUs."""
_DISTINCT_LIMIT = 64
_NAME_LIMIT = 100
_Item = TypeVar("_Item")

# Interfaces that the kernel or a container network makes up, by the names that they are given.
_VIRTUAL = re.compile(
    r"(veth|cali|docker|br-|virbr|tunl|tun\d|tap\d|vxlan|flannel|cni|lxc|lxd|cilium|kube|nodelocaldns|dummy"
    r"|ovs|vnet|weave|wg\d|sit\d|gre|ip6tnl|podman|bond|team|lo$)"
)


def recognise(text: str) -> bool:
    """Whether a text is XML with the root `<system>` of NCCL, and a version or elements of its kind."""
    return begins_with_root(text, ROOT) and re.search(r"<(cpu|pci|gpu)\b|<system version=", text) is not None


def parse(text: str, *, file: str | None = None) -> tuple[TopologyFile, tuple[str, ...]]:
    """What a topology file says, and what in it is cut off, contradicts itself or has no place.

    Raises InputError where the text is no XML, or has NCCL's root and nothing in it that NCCL reads.
    """
    xml = read(text, ROOT, file=file)
    _refuse_other_files(xml, file)
    devices = Devices(xml.root)
    gpus = tuple(_gpu(devices, pci, gpu) for pci, gpu in devices.gpus)
    nets = tuple(_net(devices, elements) for elements in devices.nets)
    slowest = min(
        (gpu.slowest_link for gpu in gpus if gpu.slowest_link),
        key=pci_elements.throughput,
        default=None,
    )
    kinds = list(devices.kinds.values())
    vendor = _vendor(xml.root)
    body = TopologyFile(
        vendor=vendor,
        version=_text(xml.root, "version"),
        cpus=tuple(_cpu(cpu) for cpu in devices.cpus),
        gpus=gpus,
        nets=nets,
        bridges=kinds.count("bridge"),
        nvswitches=len({link.target for gpu in gpus for link in gpu.links if link.is_switch}),
        unclassified=kinds.count("unknown"),
        paths=_paths(devices, gpus, nets),
        slowest_gpu_link_gt_per_s=None if slowest is None else slowest.speed_gt_per_s,
        slowest_gpu_link_width=None if slowest is None else slowest.width,
        unknown_speeds=_distinct(pci_elements.unknown_speed(pci) for pci in devices.kinds),
        refused_by_nccl=(*xml.refused_by_nccl, *_refused_version(xml.root, vendor)),
    )
    return body, (*xml.problems, *devices.problems, *_links_to_itself(devices))


def document(text: str, file: str) -> tuple[DocumentBody, tuple[str, ...]]:
    """The same, as a `SavedKind` wants it."""
    return parse(text, file=file)


KINDS: tuple[SavedKind, ...] = (SavedKind("NCCL topology file (XML)", recognise, document=document),)


def _refuse_other_files(xml: XmlText, file: str | None) -> None:
    if any(element.name in {"cpu", "pci"} for element in xml.root.walk()):
        return
    children = xml.root.children
    if any(child.name == "gpu" and child.get("net") for child in children):
        raise InputError(
            f"`<system>` holds {len(children)} `<gpu dev net>` and no `<cpu>` or `<pci>`: this maps GPUs to NICs"
            " for FlagCX and is no NCCL topology file",
            file=file,
            line=children[0].line,
            hint=_HINT,
        )
    found = f"`<{clipped(children[0].name, 30)}>`" if children else "nothing"
    raise InputError(
        f"no NCCL topology: `<system>` should hold `<cpu>` elements, found {found}",
        file=file,
        line=children[0].line if children else xml.root.line,
        hint=_HINT,
    )


def _cpu(cpu: Element) -> XmlCpu:
    return XmlCpu(
        numa_id=_numa(cpu),
        architecture=_text(cpu, "arch"),
        vendor=_text(cpu, "vendor"),
        cpus=_cpu_list(cpu.get("affinity")),
        host_hash=_text(cpu, "host_hash"),
        pci_devices=sum(element.name == "pci" for element in cpu.walk()),
    )


def _gpu(devices: Devices, pci: Element, element: Element | None) -> XmlGpu:
    place = devices.places[pci]
    links = [link for step in reversed(place.bridges) if (link := pci_elements.link(step)) is not None]
    gpu = element or Element("gpu", {}, pci.line)
    return XmlGpu(
        pci_bus_id=pci_elements.address(pci.get("busid")),
        numa_id=_numa(place.cpu),
        dev=whole(gpu.get("dev")),
        rank=whole(gpu.get("rank")),
        compute_capability=whole(gpu.get("sm")),
        architecture=_text(gpu, "gcn"),
        gdr=_flag(gpu, "gdr"),
        links=_links(devices, pci, gpu),
        link=pci_elements.link(pci),
        slowest_link=min(links, key=pci_elements.throughput, default=None),
        c2c_gb_per_s=_c2c(gpu),
    )


def _c2c(gpu: Element) -> float | None:
    """`bw` is MB/s of one link (`ncclTopoAddC2c` in `src/graph/topo.cc`)."""
    links = ((whole(link.get("bw")) or 0, whole(link.get("count")) or 0) for link in gpu.all("c2c"))
    return (
        sum(max(0, min(bw, 10**9)) * max(0, min(count, _COUNT_LIMIT)) for bw, count in links) / 1000 or None
    )


def _links(devices: Devices, pci: Element, gpu: Element) -> tuple[XmlLink, ...]:
    """Links to others, added up by target."""
    counts: dict[tuple[str, bool], int] = {}
    for link in gpu.all(*_LINKS):
        target = pci_elements.address(link.get("target"))
        is_switch = pci_elements.is_switch_class(link.get("tclass")) and not devices.is_peer(pci, target)
        if not _is_own(link, pci):
            count = max(0, min(whole(link.get("count")) or 0, _COUNT_LIMIT))
            counts[target, is_switch] = counts.get((target, is_switch), 0) + count
    found = list(counts.items())[:_TARGETS_LIMIT]
    return tuple(XmlLink(target, count, is_switch) for (target, is_switch), count in found)


def _is_own(link: Element, pci: Element) -> bool:
    return pci_elements.address(link.get("target")) == pci_elements.address(pci.get("busid"))


def _links_to_itself(devices: Devices) -> tuple[str, ...]:
    """What to say of links that lead from a GPU to itself: some virtual machines report them."""
    found = [link for pci, gpu in devices.gpus if gpu for link in gpu.all(*_LINKS) if _is_own(link, pci)]
    if not found:
        return ()
    return (f"line {found[0].line}: {len(found)} `<{found[0].name}>` lead to their own GPU and are left out",)


def _net(devices: Devices, elements: list[Element]) -> XmlNet:
    element, place = elements[0], devices.places[elements[0]]
    name = _text(element, "name")
    is_merged = "+" in (name or "")  # several ports that NCCL made one device of
    return XmlNet(
        name=name,
        dev=whole(element.get("dev")),
        port=whole(element.get("port")),
        speed_mbit_per_s=whole(element.get("speed")),
        guid=_text(element, "guid"),
        gdr=_flag(element, "gdr"),
        collnet=_flag(element, "coll"),
        pci_bus_id=None if place.pci is None else pci_elements.address(place.pci.get("busid")),
        numa_ids=_distinct(_numa(devices.places[each].cpu) for each in elements),
        is_virtual=not is_merged and (place.pci is None or _VIRTUAL.match(name or "") is not None),
    )


def _paths(devices: Devices, gpus: tuple[XmlGpu, ...], nets: tuple[XmlNet, ...]) -> TopologyMatrix | None:
    """The matrix over GPUs, then nets; None where there is neither, or too many."""
    compared = [_gpu_device(devices, pci, gpu) for (pci, _), gpu in zip(devices.gpus, gpus, strict=True)]
    compared += [Device(tuple(devices.places[element] for element in net)) for net in devices.nets]
    if sum(len(device.places) for device in compared) > PLACES_LIMIT:
        devices.problems.append(f"{len(compared)} GPUs and nets are too many to compare with each other")
        return None
    if not compared:
        return None
    return TopologyMatrix(
        gpus=_gpu_names(gpu for _, gpu in devices.gpus),
        nics=_net_names(nets),
        links=words(compared),
        cpu_affinity=tuple(_cpu_list(devices.places[pci].cpu.get("affinity")) for pci, _ in devices.gpus),
        numa_affinity=tuple(None if gpu.numa_id is None else str(gpu.numa_id) for gpu in gpus),
    )


def _gpu_device(devices: Devices, pci: Element, gpu: XmlGpu) -> Device:
    peers = {devices.identity(pci, link.target): link.count for link in gpu.links if not link.is_switch}
    return Device(
        places=(devices.places[pci],),
        address=devices.identity(pci, gpu.pci_bus_id),
        peer_links=peers,
        switch_links=sum(link.count for link in gpu.links if link.is_switch),
        link_word="XGMI" if gpu.architecture else "NV",
    )


def _gpu_names(gpus: Iterable[Element | None]) -> tuple[str, ...]:
    listed = list(gpus)
    numbers = own_numbers(listed) or range(len(listed))
    return tuple(f"GPU{number}" for number in numbers)


def _net_names(nets: tuple[XmlNet, ...]) -> tuple[str, ...]:
    """Names as the file has them, else PCI addresses; the second of equal names with a number behind it."""
    seen: dict[str, int] = {}
    names = []
    for net in nets:
        name = net.name or net.pci_bus_id or "net"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(names)


def _vendor(root: Element) -> str:
    elements = list(root.walk())
    vendors = {pci_elements.vendor(element) for element in elements if element.name == "pci"}
    if "1002" in vendors or any(element.name == "xgmi" or element.get("gcn") for element in elements):
        return "amd"
    if "10de" in vendors or any(element.name in {"nvlink", "c2c"} for element in elements):
        return "nvidia"
    return "unknown"


def _refused_version(root: Element, vendor: str) -> tuple[str, ...]:
    """NCCL takes version 1 and nothing else; RCCL's files have 2."""
    version = root.get("version")
    if vendor == "amd" or whole(version) == 1:
        return ()
    found = "no version" if version is None else f"version {clipped(version, 20)}"
    return (f"line {root.line}: {found}, and NCCL takes version 1 only",)


def _numa(cpu: Element) -> int | None:
    """A NUMA node's number; NCCL writes -1 where the machine does not tell."""
    index = whole(cpu.get("numaid"))
    return index if index is not None and index >= 0 else None


def _cpu_list(mask: str | None) -> str | None:
    """`00000000,000fffff` as `0-19`: words of 32 CPUs, the last ones first; the first word may be shorter."""
    parts = [part.strip() for part in (mask or "").split(",")]
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", part) for part in parts) or len(parts) > _MASK_LIMIT:
        return None
    bits = int("".join(part.zfill(8) for part in parts), 16)
    ranges = [match.span() for match in re.finditer("1+", bin(bits)[:1:-1])]
    return ",".join(str(start) if end - start == 1 else f"{start}-{end - 1}" for start, end in ranges)


def _flag(element: Element, name: str) -> bool | None:
    number = whole(element.get(name))
    return None if number is None else number != 0


def _text(element: Element, name: str) -> str | None:
    value = element.get(name)
    return clipped(value, _NAME_LIMIT) if value else None


def _distinct(found: Iterable[_Item | None]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(item for item in found if item is not None))[:_DISTINCT_LIMIT]
