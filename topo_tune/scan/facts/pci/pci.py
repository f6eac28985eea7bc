"""The PCI devices that matter to NCCL, with links, tree and ACS: from /sys and from every form of `lspci`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import PciDevice, PcieLink
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import Command, Fact, Files, Gathered, SavedKind, with_absent
from topo_tune.scan.facts.pci import lspci, lspci_tree
from topo_tune.scan.facts.words import numa_index

_FOLDER = "/sys/bus/pci/devices/*"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_VALUES = (
    "vendor",
    "device",
    "numa_node",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
)
_ROOT_ONLY = "ACS controls"
_SLOT = re.compile(r"Slot:[ \t]+(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\s*$")
_LABEL = re.compile(r"^(?:\[\d+(?:,\d+)*\]<std\w{3}> ?: ?|[ \t]{0,8}\d{1,6}: )")

# Networks, displays, PCI bridges, other bridges (NVSwitches), accelerators: of all others nothing is kept.
_CLASSES_OF_INTEREST = r"^0x(02|03|0604|0680|12)"
_LSPCI = Command(("lspci", "-vvnnD"), keep=rf"^[0-9a-f]{{4,8}}:|ACSCtl:|{lspci.ACCESS_DENIED}")


def _pattern(name: str) -> str:
    return f"{_FOLDER}/{name}"


def tell(scan: NodeScan, gathered: Gathered) -> NodeScan:
    """GPUs, NVSwitches and network cards, and every bridge between them and the CPU."""
    found = _from_sys(gathered)
    if not found:
        return with_absent(scan, "PCI devices", f"no GPU, network card or bridge below {_FOLDER}")
    kept = _with_bridges(found)
    scan, told = _from_lspci(scan, gathered, has_bridges=any(d.kind == "bridge" for d in kept))
    return msgspec.structs.replace(
        scan, pci=tuple(lspci.both(d, told[d.address]) if d.address in told else d for d in kept)
    )


def tell_saved(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The devices that an `lspci` output names, tree or list or both. Raises InputError where it names none."""
    readings, errors = [], []
    for parse in (lspci_tree.parse, lspci.parse):
        try:
            readings.append(parse(text, file=file))
        except InputError as error:
            errors.append(error)
    if not readings:
        raise errors[-1]
    merged = {device.address: device for device in scan.pci}
    for device in (device for reading in readings for device in reading.devices):
        merged[device.address] = lspci.both(merged.get(device.address), device)
    scan = msgspec.structs.replace(scan, pci=tuple(merged.values())[: lspci.DEVICES_LIMIT])
    for problem in (problem for reading in readings for problem in reading.problems):
        scan = with_absent(scan, "part of the PCI devices", f"{file}: {problem}")
    return scan


def _is_list(text: str) -> bool:
    return any(lspci.is_device_line(line) or _SLOT.match(line) for line in _without_labels(text))


def _is_tree(text: str) -> bool:
    return any(lspci_tree.is_tree_line(line) for line in _without_labels(text))


def _without_labels(text: str) -> Iterator[str]:
    return (_LABEL.sub("", line, count=1) for line in text.split("\n"))


def _from_sys(gathered: Gathered) -> dict[str, PciDevice]:
    """Devices of the classes that are kept, by address."""
    values = {name: _by_address(gathered.texts(_pattern(name))) for name in _VALUES}
    paths = _by_address(gathered.texts(_FOLDER))
    drivers = _by_address(gathered.texts(_pattern("driver")))
    virtual = _by_address(gathered.texts(_pattern("physfn")))
    found = {}
    for where, text in list(_by_address(gathered.texts(_pattern("class"))).items())[: lspci.DEVICES_LIMIT]:
        code = _digits(text)
        if code is None or not re.match(_CLASSES_OF_INTEREST, text.strip()):
            continue
        driver = drivers.get(where, "").strip().rsplit("/", 1)[-1]
        found[where] = PciDevice(
            address=where,
            class_code=code,
            vendor_id=_digits(values["vendor"].get(where)),
            device_id=_digits(values["device"].get(where)),
            parent=_parent(paths.get(where), where),
            numa_node=numa_index(values["numa_node"].get(where)),
            driver=driver[:40] or None,
            link=_link(values, where),
            is_virtual_function=where in virtual,
        )
    return found


def _by_address(texts: dict[str, str]) -> dict[str, str]:
    """Texts of files below a device's folder, by the device's address."""
    found = {}
    for path, text in texts.items():
        match = re.match(r"/sys/bus/pci/devices/([^/]{1,32})", path)
        if match and _ADDRESS.fullmatch(match.group(1)):
            found[match.group(1).lower()] = text
    return found


def _digits(text: str | None) -> str | None:
    """The first four hex digits of `0x030200`."""
    match = re.match(r"\s*0x([0-9a-fA-F]{4})", text or "")
    return match.group(1).lower() if match else None


def _parent(real_path: str | None, where: str) -> str | None:
    """The address in front of a device's own in its real path."""
    parts = [part.lower() for part in (real_path or "").strip()[:1024].split("/")]
    above = parts[parts.index(where) - 1] if where in parts[1:] else ""
    return above if _ADDRESS.fullmatch(above) else None


def _link(values: dict[str, dict[str, str]], where: str) -> PcieLink | None:
    link = PcieLink(
        speed_gt_per_s=lspci.link_speed(values["current_link_speed"].get(where)),
        max_speed_gt_per_s=lspci.link_speed(values["max_link_speed"].get(where)),
        width=lspci.link_width(values["current_link_width"].get(where)),
        max_width=lspci.link_width(values["max_link_width"].get(where)),
    )
    return None if link == PcieLink() else link


def _with_bridges(found: dict[str, PciDevice]) -> tuple[PciDevice, ...]:
    """The devices that talk, and the bridges above them; bridges that lead to nothing of interest are dropped."""
    kept = {where for where, device in found.items() if device.kind in ("gpu", "nic", "nvswitch")}
    for where in tuple(kept):
        above = found[where].parent
        while above is not None and above in found and above not in kept:
            kept.add(above)
            above = found[above].parent
    return tuple(device for where, device in sorted(found.items()) if where in kept)


def _from_lspci(
    scan: NodeScan, gathered: Gathered, *, has_bridges: bool
) -> tuple[NodeScan, dict[str, PciDevice]]:
    """Names and ACS controls by address; what `lspci` did not tell is added to `absent`."""
    answer = gathered.output(*_LSPCI.argv)
    failure = answer.failure()
    if failure is None:
        try:
            told = lspci.parse(answer.stdout)
        except InputError as error:
            failure = error.message
    if failure is not None:
        return with_absent(scan, _ROOT_ONLY, failure), {}
    if has_bridges and lspci.ACCESS_DENIED in answer.stdout:
        scan = with_absent(scan, _ROOT_ONLY, "`lspci` shows them only to root")
    return scan, {device.address: device for device in told.devices}


FACTS: tuple[Fact, ...] = (
    Fact(
        name="PCI devices",
        tell=tell,
        commands=(_LSPCI,),
        files=(
            Files(_FOLDER, mode="link"),
            Files(_pattern("class"), keep=_CLASSES_OF_INTEREST, limit_bytes=16),
            *(Files(_pattern(name), limit_bytes=64) for name in _VALUES),
            Files(_pattern("driver"), mode="link"),
            Files(_pattern("physfn"), mode="link"),
        ),
    ),
)
# Two kinds, so that a node can have both: a tree tells who is above whom, a list what each one is.
KINDS: tuple[SavedKind, ...] = (
    SavedKind("`lspci` output", _is_list, tell=tell_saved),
    SavedKind("`lspci -t` output", _is_tree, tell=tell_saved),
)
