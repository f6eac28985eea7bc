"""`lspci` as a list, in all of its forms: plain, `-nn`, `-n`, `-D`, `-v` to `-vvv`, `-mm`, `-vmm`.

Whatever `grep` left of them is read, too. What a form does not say is None: names of devices tell no links, and only
root sees ACS controls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import PciDevice, PcieLink
from topo_tune.scan.facts.pci import pci_names
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, whole_number

DEVICES_LIMIT = 8192
"""Functions of one machine. A PCI domain has 65536 of them, and the largest servers use some hundred."""

ACCESS_DENIED = "<access denied>"
"""What `lspci` prints in place of capabilities to everybody but root."""

_LINE_LIMIT = 600
_NAME_LIMIT = 160
_HEADER = re.compile(
    r"[\s>]{0,16}(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])[ \t]+(\S.*)", re.IGNORECASE
)
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
_NUMBERS = re.compile(r"([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4})\b", re.IGNORECASE)
_CODE_AT_END = re.compile(r"(.*) \[([0-9a-f]{4})\]$", re.IGNORECASE)
_BEHIND_NAME = re.compile(r" \((?:rev [0-9a-f]{2}|prog-if [0-9a-f]{2}[^)]*)\)", re.IGNORECASE)
_DEAD = re.compile(r"\(rev ff\)|\" -rff\b")
_NO_HEADER = "!!! Unknown header type 7f"
"""What `-v` says where the bus answers nothing but ones."""
_QUOTED = re.compile(r'"([^"]*)"')
_SPEED = re.compile(r"Speed (\d{1,3}(?:\.\d)?) ?GT/s")
_WIDTH = re.compile(r"Width x(\d{1,2})\b")
_BUSES = re.compile(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_FIELD = re.compile(r"[\s>]*([A-Za-z][A-Za-z0-9 ]{1,22}):[ \t]*(.*)")
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)


class PciDevices(msgspec.Struct, frozen=True):
    """The functions that a text names, by address, and what could not be read."""

    devices: tuple[PciDevice, ...]
    problems: tuple[str, ...] = ()


def parse(text: str, *, file: str | None = None) -> PciDevices:
    """The devices of an `lspci` list; of the same address named twice, what both say together.

    Raises InputError where no line names one.
    """
    told = lines_of_one_task(text)
    problems = list(told.problems)
    found: dict[str, PciDevice] = {}
    buses: dict[str, tuple[str, int, int]] = {}
    for number, entry in _entries(told.lines):
        device = entry.device()
        if device.address not in found and len(found) == DEVICES_LIMIT:
            problems.append(f"line {number}: more than {DEVICES_LIMIT} devices; the others are left out")
            break
        found[device.address] = both(found.get(device.address), device)
        if entry.buses is not None:
            buses[device.address] = (device.address[:-8], *entry.buses)
    if not found:
        first = next((line for _, line in told.lines), "nothing")
        raise InputError(
            f"no PCI device: expected lines such as `18:00.0 3D controller: NVIDIA ...`, found `{clipped(first)}`",
            file=file,
            hint="`lspci -Dnn` writes them, `sudo lspci -vvvDnn` also their links and ACS controls",
        )
    if any(ACCESS_DENIED in line for _, line in told.lines):
        problems.append("links and ACS controls are not told: `lspci` shows capabilities only to root")
    return PciDevices(_with_parents(found, buses), tuple(problems))


def both(one: PciDevice | None, other: PciDevice) -> PciDevice:
    """What two descriptions of a device say together; where both say something, the first one holds."""
    if one is None:
        return other
    fields = {
        name: getattr(other, name)
        for name in PciDevice.__struct_fields__
        if getattr(one, name) is None and getattr(other, name) is not None
    }
    if one.link is not None and other.link is not None:
        fields["link"] = _both_links(one.link, other.link)
    for name in ("is_virtual_function", "is_dead"):
        if getattr(other, name):
            fields[name] = True
    return msgspec.structs.replace(one, **fields)


def link_speed(text: str | None) -> float | None:
    """GT/s in `16.0 GT/s PCIe` or `8 GT/s`, None in `Unknown` and for numbers that no generation has."""
    match = re.match(r"\s*(\d{1,3}(?:\.\d)?) ?GT/s", text or "")
    speed = float(match.group(1)) if match else None
    return speed if speed in (2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0) else None


def link_width(text: str | None) -> int | None:
    """Lanes; None for 0 and 255, which virtual functions and bridges without a link write."""
    width = whole_number(text)
    return width if width in _WIDTHS else None


def address(domain: str | None, bus: str, device: str, function: str) -> str:
    """An address as the kernel writes it: `0000:18:00.0`; domains of Intel's VMD have five digits."""
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}".lower()


def is_device_line(line: str) -> bool:
    """Whether a line of a list names a device: an address, then a class and a name."""
    match = _HEADER.match(line[:_LINE_LIMIT])
    if match is None:
        return False
    rest = match.group(5)
    words, colon, name = rest.partition(": ")
    words, code = _class_words(words)
    by_class = bool(colon) and (code or pci_names.class_code(words)) is not None
    return by_class or bool(_NUMBERS.match(rest) or _IDS.search(name) or _is_quoted(rest))


class _Entry:
    """One device of the list, while its lines are read."""

    def __init__(self, where: str) -> None:
        self.address = where
        self.class_code: str | None = None
        self.vendor_id: str | None = None
        self.device_id: str | None = None
        self.names: list[str] = []
        self.numa_node: int | None = None
        self.driver: str | None = None
        self.link = PcieLink()
        self.acs: tuple[str, ...] | None = None
        self.is_dead = False
        self.buses: tuple[int, int] | None = None

    def device(self) -> PciDevice:
        name = clipped(" ".join(self.names), _NAME_LIMIT) or None
        return PciDevice(
            address=self.address,
            class_code=self.class_code,
            vendor_id=self.vendor_id or pci_names.vendor_id(name or ""),
            device_id=self.device_id,
            name=name,
            numa_node=self.numa_node,
            driver=self.driver,
            link=None if self.link == PcieLink() else self.link,
            acs=self.acs,
            is_virtual_function="Virtual Function" in (name or ""),
            is_dead=self.is_dead,
        )


def _entries(lines: tuple[tuple[int, str], ...]) -> Iterator[tuple[int, _Entry]]:
    """Every device with the line number that names it."""
    entry: _Entry | None = None
    begun = 0
    for number, line in lines:
        line = line[:_LINE_LIMIT].rstrip()
        started = _started(line)
        if started is not None:
            if entry is not None:
                yield begun, entry
            entry, begun = started, number
        elif entry is not None:
            _add_detail(entry, line)
    if entry is not None:
        yield begun, entry


def _started(line: str) -> _Entry | None:
    match = _HEADER.match(line)
    if match is not None and is_device_line(line):
        entry = _Entry(address(*match.group(1, 2, 3, 4)))
        _read_heading(entry, match.group(5))
        return entry
    # `-vmm` names the address in a line of its own; `-vm`, its older form, calls it `Device`.
    field = _FIELD.match(line)
    if field is None or field.group(1) not in ("Slot", "Device"):
        return None
    match = _HEADER.match(field.group(2) + " .")
    return None if match is None else _Entry(address(*match.group(1, 2, 3, 4)))


def _read_heading(entry: _Entry, rest: str) -> None:
    entry.is_dead = _DEAD.search(rest) is not None
    numbers = _NUMBERS.match(rest)
    if numbers is not None:
        entry.class_code, entry.vendor_id, entry.device_id = (part.lower() for part in numbers.groups())
        return
    if _is_quoted(rest):
        quoted = _QUOTED.findall(rest)
        for field, words in zip(("Class", "Vendor", "Device"), quoted, strict=False):
            _read_machine_field(entry, field, words)
        return
    words, _, name = rest.partition(": ")
    words, code = _class_words(words)
    entry.class_code = code or pci_names.class_code(words)
    name = _BEHIND_NAME.sub("", name)
    ids = next(reversed(list(_IDS.finditer(name))), None)
    if ids is not None:
        entry.vendor_id, entry.device_id = ids.group(1).lower(), ids.group(2).lower()
        name = name[: ids.start()] + name[ids.end() :]
    entry.names = [name.strip()]


def _class_words(words: str) -> tuple[str, str | None]:
    """`3D controller [0302]` as its words and its code."""
    coded = _CODE_AT_END.match(words)
    return (coded.group(1), coded.group(2).lower()) if coded else (words, None)


def _is_quoted(rest: str) -> bool:
    return rest.startswith('"') and rest.count('"') >= 6


def _read_machine_field(entry: _Entry, field: str, words: str) -> None:
    """A field of `-mm` or `-vmm`, whose numbers stand in brackets behind the name where they were asked."""
    name, code = _class_words(words.strip())
    if field == "Class":
        entry.class_code = code or pci_names.class_code(name)
    elif field == "Vendor":
        entry.vendor_id = code
        entry.names = [name]
    elif field == "Device":
        entry.device_id = code
        entry.names = [*entry.names[:1], name]


def _add_detail(entry: _Entry, line: str) -> None:
    """A line below a heading; most of them say nothing that is of use here."""
    if _NO_HEADER in line:
        entry.is_dead = True
    field = _FIELD.match(line)
    if field is None:
        return
    key, value = field.groups()
    if key == "LnkCap":
        entry.link = _link_of(value, entry.link, is_most=True)
    elif key == "LnkSta":
        entry.link = _link_of(value, entry.link, is_most=False)
    elif key == "ACSCtl":
        entry.acs = tuple(word[:-1] for word in value.split()[:16] if word.endswith("+"))
    elif key in ("NUMA node", "NUMANode"):
        entry.numa_node = whole_number(value)
    elif key in ("Kernel driver in use", "Driver"):
        entry.driver = clipped(value, 40) or None
    elif key == "Bus":
        buses = _BUSES.search(line)
        entry.buses = None if buses is None else (int(buses.group(1), 16), int(buses.group(2), 16))
    elif key == "Rev":
        entry.is_dead = value.strip() == "ff"
    elif key in ("Class", "Vendor", "Device"):
        _read_machine_field(entry, key, value)


def _link_of(value: str, link: PcieLink, *, is_most: bool) -> PcieLink:
    speed, width = _SPEED.search(value), _WIDTH.search(value)
    told = link_speed(speed.group(1) + " GT/s") if speed else None
    lanes = link_width(width.group(1)) if width else None
    if is_most:
        return msgspec.structs.replace(link, max_speed_gt_per_s=told, max_width=lanes)
    return msgspec.structs.replace(link, speed_gt_per_s=told, width=lanes)


def _both_links(one: PcieLink, other: PcieLink) -> PcieLink:
    fields = {name: getattr(other, name) for name in PcieLink.__struct_fields__ if getattr(one, name) is None}
    return msgspec.structs.replace(one, **fields)


def _with_parents(
    found: dict[str, PciDevice], buses: dict[str, tuple[str, int, int]]
) -> tuple[PciDevice, ...]:
    """The devices with the bridge above each, where `-v` told which bus lies behind a bridge."""
    above = {
        (domain, secondary): bridge for bridge, (domain, secondary, _) in buses.items() if secondary != 0
    }
    return tuple(
        device
        if device.parent is not None
        else msgspec.structs.replace(device, parent=_parent(device.address, above))
        for device in found.values()
    )


def _parent(where: str, above: dict[tuple[str, int], str]) -> str | None:
    bridge = above.get((where[:-8], int(where[-7:-5], 16)))
    return None if bridge == where else bridge
