"""Output of `ibnetdiscover`: the blocks of its full form, and the lines of `ibnetdiscover -p`.

The lines are those that its source prints: linux-rdma/rdma-core: infiniband-diags/ibnetdiscover.c
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import FabricLink, FabricMap, FabricSwitch
from topo_tune.records.nodeset import is_node_name
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped, without_escapes

_LINE_LIMIT = 2048
_PORTS_LIMIT = 1 << 17
"""A fat tree of 10,000 adapters has about 60,000 cables."""
_LISTED_LIMIT = 100
_PROBLEMS_LIMIT = 20

_DEVICE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*#\s*"(.*)"')
_CABLE = re.compile(r'\[(\d{1,4})\](?:\([^)]*\))?\s+"([^"]+)"\[(\d{1,4})\](?:\([^)]*\))?\s*#(.*)')
_QUOTED = re.compile(r'"(.*)"')
_FULL_SPEED = re.compile(r"\b(\d{1,2}x[A-Z][A-Z0-9]{0,9})\b")
_PORT = re.compile(r"(CA|SW|RT|\?\?)\s+\d+\s+(\d+)\s+(0x[0-9a-fA-F]{1,16})\s+(\S{1,8})\s+(\S{1,12})\s*(.*)")
_FAR_PORT = re.compile(r"-\s+(CA|SW|RT|\?\?)\s+\d+\s+(\d+)\s+(0x[0-9a-fA-F]{1,16})\s*(.*)")

_GB_PER_LANE = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.3,
    "FDR": 14.1,
    "EDR": 25.8,
    "HDR": 53.1,
    "NDR": 106.3,
    "XDR": 212.5,
}
"""Gbit/s of one lane: InfiniBand Trade Association, https://www.infinibandta.org/infiniband-roadmap/"""

_FULL_FORM = re.compile(r'^(?:(?:Switch|Ca)[ \t]+\d+[ \t]+"[SH]-|(?:switchguid|caguid)=0x)', re.M)
_PORTS_REPORT = re.compile(r"^[ \t]*(?:CA|SW)[ \t]+\d+[ \t]+\d+[ \t]+0x[0-9a-fA-F]{16}[ \t]+\d+x[ \t]", re.M)


class _Device(msgspec.Struct):
    """A switch, or an adapter of a node."""

    guid: str
    is_switch: bool
    description: str = ""

    @property
    def is_aggregation_node(self) -> bool:
        """An end of SHARP inside a switch: it looks like an adapter and is none."""
        return not self.is_switch and "aggregation node" in self.description.casefold()

    @property
    def node(self) -> str:
        """The node that an adapter is in: the first word of `worker20 mlx5_3`, or its GUID."""
        words = self.description.split()
        is_vendor = re.search(r"Technologies|ConnectX|Mellanox|^MT\d|NVIDIA", self.description) is not None
        return self.guid if is_vendor or not words or not is_node_name(words[0]) else words[0]


class _Fabric(msgspec.Struct):
    """What was read so far."""

    devices: dict[str, _Device] = {}
    cables: dict[frozenset[tuple[str, int]], str] = {}
    """the two ports (GUID, number) of each cable, and its speed"""
    idle: list[tuple[str, str]] = []
    """(GUID, speed shown) of each port without a cable"""
    problems: list[str] = []

    def see(self, guid: str, is_switch: bool, description: str) -> str:
        """Remember a device, and what it is called once that is known."""
        known = self.devices.setdefault(guid, _Device(guid, is_switch))
        known.description = known.description or clipped(description, 256)
        return guid

    def problem(self, text: str) -> None:
        """Remember what could not be read; beyond some tens the same is only said again."""
        if len(self.problems) < _PROBLEMS_LIMIT:
            self.problems.append(text)


def recognise(text: str) -> bool:
    """Whether a text is one of the two forms."""
    return _FULL_FORM.search(text) is not None or _PORTS_REPORT.search(text) is not None


def parse(text: str, file: str | None = None) -> tuple[FabricMap, tuple[str, ...]]:
    """Switches, what hangs from them, and how fast the links are. Raises InputError where there is no device."""
    plain = without_escapes(text)
    lines = (line[:_LINE_LIMIT].strip() for line in plain.split("\n"))
    fabric = _Fabric()
    if _FULL_FORM.search(plain) is not None:
        _read_blocks(lines, fabric)
    else:
        _read_ports(lines, fabric)
    if not fabric.devices:
        raise InputError(
            "no switch and no adapter in it",
            file=file,
            hint="run `ibnetdiscover` as root on a node of the fabric",
        )
    return _map(fabric), tuple(fabric.problems)


# --- the full form ------------------------------------------------------------------------------------------


def _read_blocks(lines: Iterator[str], fabric: _Fabric) -> None:
    device: str | None = None
    for line in lines:
        if (match := _DEVICE.match(line)) is not None:
            kind, name, description = match.groups()
            device = fabric.see(_guid(name), kind == "Switch", description)
        elif device is not None and (match := _CABLE.match(line)) is not None:
            if not _has_room(fabric):
                return
            port, far_name, far_port, rest = match.groups()
            quoted = _QUOTED.search(rest)
            far = fabric.see(_guid(far_name), far_name.startswith("S-"), quoted.group(1) if quoted else "")
            speed = _FULL_SPEED.search(rest, quoted.end() if quoted else 0)
            _join(fabric, (device, int(port)), (far, int(far_port)), speed.group(1) if speed else "unknown")
        elif line.startswith(("Switch", "Ca\t", "Ca ", "Rt")):
            # A device that cannot be read must not get the cables of the one before it.
            device = None
            fabric.problem(f"`{clipped(line)}` is not understood")


def _guid(name: str) -> str:
    """`S-a000000000000002` as `0xa000000000000002`."""
    return "0x" + name.partition("-")[2][:32]


# --- the ports report ---------------------------------------------------------------------------------------


def _read_ports(lines: Iterator[str], fabric: _Fabric) -> None:
    for number, line in enumerate(lines, start=1):
        match = _PORT.match(line)
        if match is None:
            if line.startswith(("CA", "SW")):
                fabric.problem(f"line {number}: `{clipped(line)}` is not understood")
            continue
        if not _has_room(fabric):
            return
        kind, port, guid, width, rate, rest = match.groups()
        far = _FAR_PORT.match(rest)
        if far is None:
            fabric.see(guid, kind == "SW", _unquoted(rest))
            fabric.idle.append((guid, width + rate))
            continue
        far_kind, far_port, far_guid, names = far.groups()
        near_name, far_name = _pair_of_names(names)
        near_end = (fabric.see(guid, kind == "SW", near_name), _number(port))
        far_end = (fabric.see(far_guid, far_kind == "SW", far_name), _number(far_port))
        _join(fabric, near_end, far_end, width + rate)


def _pair_of_names(text: str) -> tuple[str, str]:
    """The two names of `( 'worker20 mlx5_3' - 'leaf ' )`, of which one or both may lack their quotes."""
    inner = text.strip()
    inner = inner[1:] if inner.startswith("(") else inner
    inner = inner[:-1] if inner.endswith(")") else inner
    for separator in ("' - '", "' - ", " - '", " - "):
        near, found, far = inner.partition(separator)
        if found:
            return _unquoted(near), _unquoted(far)
    return _unquoted(inner), ""


def _unquoted(text: str) -> str:
    return text.strip().strip("'").strip()


def _number(digits: str) -> int:
    return int(digits[:9])


# --- both ---------------------------------------------------------------------------------------------------


def _has_room(fabric: _Fabric) -> bool:
    if len(fabric.cables) + len(fabric.idle) < _PORTS_LIMIT:
        return True
    fabric.problem(f"ports beyond the first {_PORTS_LIMIT} are left out")
    return False


def _join(fabric: _Fabric, near: tuple[str, int], far: tuple[str, int], speed: str) -> None:
    """One cable, which both of its ends list."""
    fabric.cables.setdefault(frozenset((near, far)), speed)


def _map(fabric: _Fabric) -> FabricMap:
    devices = fabric.devices
    beside: dict[str, dict[str, None]] = {}
    nodes: dict[str, dict[str, None]] = {}
    joined: set[str] = set()
    for ends in fabric.cables:
        guids = [guid for guid, _ in ends]
        joined.update(guids)
        for guid, far in (guids, guids[::-1]) if len(guids) == 2 else ():
            if not devices[guid].is_switch or devices[far].is_aggregation_node:
                continue
            if devices[far].is_switch:
                beside.setdefault(guid, {})[far] = None
            else:
                nodes.setdefault(guid, {})[devices[far].node] = None
    adapters = [d for d in devices.values() if not d.is_switch and not d.is_aggregation_node]
    slow = _slow_links(fabric)
    return FabricMap(
        form="ibnetdiscover",
        switches=tuple(
            FabricSwitch(
                name=switch.guid,
                description=switch.description or None,
                switches=tuple(sorted(beside.get(switch.guid, ()))),
                nodes=tuple(sorted(nodes.get(switch.guid, ()))),
            )
            for switch in devices.values()
            if switch.is_switch
        ),
        node_count=len({adapter.node for adapter in adapters}),
        link_speeds=tuple(Counter(fabric.cables.values()).most_common(_LISTED_LIMIT)),
        adapters=len(adapters),
        aggregation_nodes=sum(device.is_aggregation_node for device in devices.values()),
        unconnected=tuple(_called(adapter) for adapter in adapters if adapter.guid not in joined)[
            :_LISTED_LIMIT
        ],
        idle_ports=tuple(
            Counter(speed for guid, speed in fabric.idle if devices[guid].is_switch).most_common(
                _LISTED_LIMIT
            )
        ),
        slow_links=slow[:_LISTED_LIMIT],
        slow_link_count=len(slow),
    )


def _slow_links(fabric: _Fabric) -> tuple[FabricLink, ...]:
    """Links below the most common speed of their sort: to nodes, between switches."""
    sorts: dict[bool, list[tuple[frozenset[tuple[str, int]], str]]] = {True: [], False: []}
    for ends, speed in fabric.cables.items():
        # A switch's own unit for reductions hangs on no cable, and at a speed of its own.
        if any(fabric.devices[guid].is_aggregation_node for guid, _ in ends):
            continue
        sorts[all(fabric.devices[guid].is_switch for guid, _ in ends)].append((ends, speed))
    slow: list[FabricLink] = []
    for links in sorts.values():
        if not links:
            continue
        usual = _gbit_per_s(Counter(speed for _, speed in links).most_common(1)[0][0])
        for ends, speed in links:
            rate = _gbit_per_s(speed)
            if usual is not None and rate is not None and rate < usual:
                names = sorted(_called(fabric.devices[guid]) for guid, _ in ends)
                slow.append(FabricLink((names[0], names[-1]), speed))
    return tuple(slow)


def _gbit_per_s(speed: str) -> float | None:
    """Of `4xHDR`: lanes by rate; None for a word that is not InfiniBand's."""
    width, _, rate = speed.partition("x")
    lane = _GB_PER_LANE.get(rate)
    return None if lane is None or not width.isdigit() else int(width[:3]) * lane


def _called(device: _Device) -> str:
    return device.description or device.guid


KINDS: tuple[SavedKind, ...] = (SavedKind("ibnetdiscover output", recognise, document=parse),)
