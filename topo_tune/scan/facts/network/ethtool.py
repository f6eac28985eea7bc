"""`ethtool IF`: speed and link of an interface; `ethtool -i IF`: driver, firmware and PCI address behind it.

The second does not say which interface it is about: the command's own line above it does, or the file's name.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.scan import Nic, NodeScan
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.gpus.nvidia_gpus import pci_bus_id
from topo_tune.scan.facts.network import interfaces
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, said

_NAME = interfaces.INTERFACE_NAME
_HEAD = re.compile(rf"\s*Settings for ({_NAME}):\s*$")
_SPEED = re.compile(r"\s*Speed:\s*(\d{1,9})\s*Mb/s")
_DETECTED = re.compile(r"\s*Link detected:\s*(yes|no)\b")
_DRIVER_FIELD = re.compile(r"\s*(driver|firmware-version|bus-info):[ \t]*(.*)$")
_HINT = "save it with the command in front of it (`$ ethtool -i eth0`), or call the file `ethtool-i-eth0.txt`"


def parse(text: str, *, file: str | None = None) -> tuple[Nic, ...]:
    """The interfaces of one or more `ethtool IF`. Raises InputError where no line names one."""
    task = lines_of_one_task(text)
    found: dict[str, Nic] = {}
    name = None
    for _, line in task.lines:
        if head := _HEAD.match(line):
            name = head.group(1)
            if len(found) < interfaces.INTERFACE_LIMIT:
                found.setdefault(name, _nic(name))
        elif name not in found:
            continue
        elif speed := _SPEED.match(line):
            megabits = int(speed.group(1))
            found[name] = msgspec.structs.replace(found[name], speed_gbit_per_s=megabits / 1000 or None)
        elif detected := _DETECTED.match(line):
            found[name] = msgspec.structs.replace(found[name], is_up=detected.group(1) == "yes")
    if not found:
        first = task.lines[0][1] if task.lines else ""
        raise InputError(
            f"no interface: expected a line `Settings for eth0:`, found `{clipped(first)}`",
            file=file,
            hint="`ethtool eth0` writes it",
        )
    return tuple(found.values())


def parse_drivers(text: str, *, file: str | None = None) -> tuple[Nic, ...]:
    """The interface of an `ethtool -i IF`. Raises InputError where it cannot be told which one it is about."""
    task = lines_of_one_task(text)
    found: dict[str, dict[str, str]] = {}
    name = _name_of_file(file, "ethtool")
    for _, line in task.lines:
        if command := re.search(rf"\bethtool\s+(?:-i|--driver)\s+({_NAME})\s*$", line):
            name = command.group(1)
        elif field := _DRIVER_FIELD.match(line):
            if name is None:
                raise InputError("it does not say which interface it is about", file=file, hint=_HINT)
            found.setdefault(name, {}).setdefault(field.group(1), field.group(2))
    if not found:
        raise InputError("no driver: expected lines like `driver: mlx5_core`", file=file, hint=_HINT)
    return tuple(
        _nic(name, driver=_word(fields.get("driver")), pci_bus_id=pci_bus_id(fields.get("bus-info")))
        for name, fields in list(found.items())[: interfaces.INTERFACE_LIMIT]
    )


def _name_of_file(file: str | None, tool: str) -> str | None:
    """`eth0` of `node1/ethtool-i-eth0.txt`: the last word of the name, where the tool's own name is another."""
    words = re.split(r"[-_]", PurePath(file or "").name.split(".")[0])
    last = words[-1]
    is_name = re.fullmatch(_NAME, last) and re.search(r"\d", last) and tool in words
    return last if is_name else None


def _nic(name: str, *, driver: str | None = None, pci_bus_id: str | None = None) -> Nic:
    kind, is_virtual = interfaces.kind_by_name(name, None)
    if driver is not None and "ipoib" in driver:
        kind = "other"
    return Nic(name, kind, None, None, None, driver, pci_bus_id=pci_bus_id, is_virtual=is_virtual)


def _word(text: str | None) -> str | None:
    value = said(text)
    return clipped(value) if value else None


def tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The scan with the speeds of a saved `ethtool`."""
    return interfaces.with_interfaces(scan, parse(text, file=file))


def tell_drivers(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The scan with the drivers of a saved `ethtool -i`."""
    return interfaces.with_interfaces(scan, parse_drivers(text, file=file))


_is_driver = matches(r"^[ \t]*driver: \S")
_has_bus = matches(r"^[ \t]*(bus-info|firmware-version):")

KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`ethtool` output",
        matches(rf"^.{{0,30}}\bSettings for {_NAME}:[ \t]*$"),
        tell=tell,
        is_repeatable=True,
    ),
    SavedKind(
        "`ethtool -i` output",
        lambda text: _is_driver(text) and _has_bus(text),
        tell=tell_drivers,
        is_repeatable=True,
    ),
)
