r"""`lspci -t` and `-tv`: the buses as a tree drawn in characters.

    -+-[0000:80]-+-01.1-[81]--+-00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
     |           |            \-00.1  Mellanox Technologies MT2910 Family [ConnectX-7]
     \-[0000:00]---01.1-[01]----00.0  NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]

What stands in a column hangs below the bus whose `+` opened that column. Classes are not told; what leads to
a bus is a bridge.
"""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import PciDevice
from topo_tune.scan.facts.pci import pci_names
from topo_tune.scan.facts.pci.lspci import DEVICES_LIMIT, PciDevices, address
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped

_ROOT_LINE = re.compile(
    r"[ |]?[-+\\][-+]{0,2}\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-", re.IGNORECASE
)
_INDENT = re.compile(r"[ |]*")
_BUS = re.compile(r"\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_FUNCTION = re.compile(r"([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_IDS = re.compile(r"(?:\[([0-9a-f]{4}):([0-9a-f]{4})\]|^([0-9a-f]{4}):([0-9a-f]{4}))$", re.IGNORECASE)
_LINE_LIMIT = 1000
_NAME_LIMIT = 160
_BRIDGE = "0604"


def is_tree_line(line: str) -> bool:
    """Whether a line begins the tree of a root bus."""
    return _ROOT_LINE.match(line) is not None


def parse(text: str, *, file: str | None = None) -> PciDevices:
    """The devices of the tree with the bridge above each. Raises InputError where there is no tree."""
    told = lines_of_one_task(text)
    problems = list(told.problems)
    reading = _Reading()
    for number, line in told.lines:
        if not reading.line(line[:_LINE_LIMIT].rstrip()):
            problems.append(
                f"line {number}: the branch above `{clipped(line.strip(), 40)}` is not in the text"
            )
        if len(reading.found) > DEVICES_LIMIT:
            problems.append(f"line {number}: more than {DEVICES_LIMIT} devices; the others are left out")
            break
    if not reading.found:
        raise InputError(
            "no tree of PCI buses: expected a line such as `-[0000:00]-+-00.0`",
            file=file,
            hint="`lspci -tv` draws it",
        )
    return PciDevices(tuple(reading.found.values())[:DEVICES_LIMIT], tuple(problems[:20]))


class _Bus(msgspec.Struct, frozen=True):
    """A bus of the tree: where it is, and the bridge that leads to it."""

    domain: str
    number: str
    bridge: str | None


class _Reading:
    """The columns that are open, while lines are read from above."""

    def __init__(self) -> None:
        self.found: dict[str, PciDevice] = {}
        self._columns: dict[int, _Bus] = {}

    def line(self, line: str) -> bool:
        """Read one line; False where it hangs on a branch that was never seen. Other text is passed over."""
        if is_tree_line(line):
            self._columns.clear()
            self._walk(line, line.index("["), None)
            return True
        indent = _INDENT.match(line)
        column = indent.end() if indent else 0
        if line[column : column + 2] not in ("+-", "\\-"):
            return True
        bus = self._columns.get(column)
        if bus is None:
            return False
        self._columns = {place: open_ for place, open_ in self._columns.items() if place <= column}
        self._walk(line, column + 2, bus)
        return True

    def _walk(self, line: str, position: int, bus: _Bus | None) -> None:
        """One line from left to right: buses, functions, and a name at its end."""
        device: str | None = None
        while position < len(line):
            found = _BUS.match(line, position)
            if found is not None:
                bus = self._enter(found, device, bus)
                position, device = self._branch(line, found.end(), bus), None
                continue
            function = _FUNCTION.match(line, position)
            if function is None or bus is None:
                return
            device = address(bus.domain, bus.number, *function.groups())
            rest = line[function.end() :]
            is_bridge = rest.startswith("-")
            self._add(device, bus.bridge, is_bridge=is_bridge, name=rest.strip())
            if not is_bridge:
                return
            position = function.end() + 1

    def _enter(self, found: re.Match[str], device: str | None, above: _Bus | None) -> _Bus:
        domain = found.group(1) or (above.domain if above else "0000")
        return _Bus(domain, found.group(2), device)

    def _branch(self, line: str, position: int, bus: _Bus) -> int:
        """Step over the dashes behind a bus; a `+` among them opens a column for what follows below."""
        while position < len(line) and line[position] in "-+":
            if line[position] == "+":
                self._columns[position] = bus
            position += 1
        return position

    def _add(self, where: str, bridge: str | None, *, is_bridge: bool, name: str) -> None:
        if is_bridge:
            self.found[where] = PciDevice(where, class_code=_BRIDGE, parent=bridge)
            return
        ids = _IDS.search(name)
        vendor, device = (
            ((ids.group(1) or ids.group(3)), (ids.group(2) or ids.group(4))) if ids else (None, None)
        )
        name = clipped(name[: ids.start()] if ids else name, _NAME_LIMIT)
        self.found[where] = PciDevice(
            where,
            vendor_id=vendor.lower() if vendor else pci_names.vendor_id(name),
            device_id=device.lower() if device else None,
            name=name or None,
            parent=bridge,
            is_virtual_function="Virtual Function" in name,
        )
