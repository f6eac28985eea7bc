"""RDMA devices with their ports, GIDs and counters, from /sys and from the tools that list them.

/sys tells everything but the active MTU, which only the verbs library gives (`ibv_devinfo -v`). Interfaces of ports
come from /sys and from `rdma link`. Saved outputs of the tools, several of one node, add up to the same devices.
"""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.network import Gid, RdmaDevice, RdmaPort
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import Command, Fact, Files, Gathered, RawCommand, SavedKind, with_absent
from topo_tune.scan.facts.network import ibstat, ibstatus, ibv_devinfo, rdma_link, show_gids
from topo_tune.scan.facts.network import rdma_devices as rdma
from topo_tune.scan.facts.pci.pci_path import pci_address
from topo_tune.scan.facts.words import clipped, numa_index, said, whole_number

COUNTERS = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_xmit_discards",
    "excessive_buffer_overrun_errors",
)
"""Of ports/*/counters (kernel: Documentation/ABI/stable/sysfs-class-infiniband)."""

HARDWARE_COUNTERS = (
    "out_of_sequence",
    "out_of_buffer",
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "roce_adp_retrans",
    "roce_slow_restart",
    "rx_icrc_encapsulated",
)
"""Of ports/*/hw_counters, as mlx5 and bnxt_re name them."""

_ROOT = "/sys/class/infiniband/*"
_PORT = f"{_ROOT}/ports/*"
_DEVICE_FILES = ("fw_ver", "board_id", "hca_type", "node_guid", "sys_image_guid", "device/numa_node")
_PORT_FILES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
_GIDS, _GID_TYPES, _GID_INTERFACES = (
    f"{_PORT}/gids/*",
    f"{_PORT}/gid_attrs/types/*",
    f"{_PORT}/gid_attrs/ndevs/*",
)
_VERBS = ("ibv_devinfo", "-v")
_LINKS = ("rdma", "link")

_FILES = (
    *(Files(f"{_ROOT}/{name}") for name in _DEVICE_FILES),
    Files(f"{_ROOT}/device", mode="link"),
    Files(f"{_ROOT}/device/driver", mode="link"),
    Files(f"{_ROOT}/device/physfn", mode="exists"),
    Files(f"{_ROOT}/device/net/*", mode="exists"),
    *(Files(f"{_PORT}/{name}") for name in _PORT_FILES),
    # Most of a table's 256 rows are empty, and stay on the node.
    Files(_GIDS, keep="[1-9a-fA-F]"),
    Files(_GID_TYPES, keep="v1|v2|IB"),
    Files(_GID_INTERFACES, keep=r"\S"),
    *(Files(f"{_PORT}/counters/{name}") for name in COUNTERS),
    *(Files(f"{_PORT}/hw_counters/{name}") for name in HARDWARE_COUNTERS),
)


def tell(scan: NodeScan, gathered: Gathered) -> NodeScan:
    """The scan with the RDMA devices of /sys, completed by what the verbs library and `rdma link` say."""
    verbs, failure = _answered(gathered.output(*_VERBS), ibv_devinfo.parse)
    links, _ = _answered(gathered.output(*_LINKS), rdma_link.parse)
    told = (*_from_sys(gathered), *verbs, *links)
    if told and failure is not None:
        scan = with_absent(scan, "active MTU of RDMA ports", failure)
    return rdma.with_devices(scan, told) if told else scan


def _answered(output: RawCommand, parse: rdma.DeviceParser) -> tuple[tuple[RdmaDevice, ...], str | None]:
    """The devices in a command's output, or why there are none."""
    failure = output.failure()
    if failure is not None:
        return (), failure
    try:
        return parse(output.stdout).devices, None
    except InputError as error:
        return (), error.message


def _from_sys(gathered: Gathered) -> tuple[RdmaDevice, ...]:
    """The devices that /sys tells, each with the ports it has a state of."""
    told = {
        name: _by_device(gathered, f"{_ROOT}/{name}") for name in (*_DEVICE_FILES, "device", "device/driver")
    }
    functions = _by_device(gathered, f"{_ROOT}/device/physfn")
    interfaces = _interfaces(gathered)
    ports = _ports(gathered)
    names = {name for texts in told.values() for name in texts} | set(ports)
    return tuple(
        RdmaDevice(
            name=name,
            ports=_with_interface(ports.get(name, ()), interfaces.get(name, ())),
            type=_word(told["hca_type"].get(name)),
            firmware=_word(told["fw_ver"].get(name)),
            board=_word(told["board_id"].get(name)),
            node_guid=rdma.guid(told["node_guid"].get(name)),
            system_guid=rdma.guid(told["sys_image_guid"].get(name)),
            pci_bus_id=pci_address(told["device"].get(name)),
            numa_node=numa_index(told["device/numa_node"].get(name)),
            driver=_word(told["device/driver"].get(name, "").rsplit("/", 1)[-1]),
            is_virtual_function=name in functions if name in told["device"] else None,
        )
        for name in sorted(names, key=rdma.natural)[: rdma.DEVICE_LIMIT]
    )


def _by_device(gathered: Gathered, pattern: str) -> dict[str, str]:
    """Device name to the text of its file."""
    return {path.split("/")[4]: text for path, text in gathered.texts(pattern).items() if path.count("/") > 4}


def _interfaces(gathered: Gathered) -> dict[str, tuple[str, ...]]:
    """Device name to the interfaces of its PCI function."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in gathered.texts(f"{_ROOT}/device/net/*"):
        found[path.split("/")[4]].append(path.rsplit("/", 1)[-1])
    return {name: tuple(interfaces) for name, interfaces in found.items()}


def _ports(gathered: Gathered) -> dict[str, tuple[RdmaPort, ...]]:
    """Device name to its ports, by number."""
    fields: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for name in _PORT_FILES:
        for path, text in gathered.texts(f"{_PORT}/{name}").items():
            if place := _place(path):
                fields[place][name] = text
    counters, gids = _counters(gathered), _gids(gathered)
    found: dict[str, list[RdmaPort]] = defaultdict(list)
    for (device, number), texts in sorted(fields.items()):
        rows = gids.get((device, number), ())
        port = RdmaPort(
            port=number,
            state=rdma.state(texts.get("state")),
            physical_state=rdma.physical_state(texts.get("phys_state")),
            rate_gbit_per_s=rdma.gbit_per_s(texts.get("rate")),
            link_layer=rdma.link_layer(texts.get("link_layer")),
            lid=rdma.lid(texts.get("lid")),
            sm_lid=rdma.lid(texts.get("sm_lid")),
            netdev=next((row.netdev for row in rows if row.netdev), None),
            gids=rows,
            counters=tuple(counters.get((device, number), {}).items()),
        )
        found[device].append(port)
    return {device: tuple(ports) for device, ports in found.items()}


def _place(path: str) -> tuple[str, int] | None:
    """Device and port number in a path below ports/."""
    match = re.match(r"/sys/class/infiniband/([^/]+)/ports/(\d{1,3})/", path)
    return (match.group(1), int(match.group(2))) if match else None


def _counters(gathered: Gathered) -> dict[tuple[str, int], dict[str, int]]:
    found: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    folders = [("counters", name) for name in COUNTERS] + [
        ("hw_counters", name) for name in HARDWARE_COUNTERS
    ]
    for folder, name in folders:
        for path, text in gathered.texts(f"{_PORT}/{folder}/{name}").items():
            place, value = _place(path), whole_number(text)
            if place and value is not None:
                found[place][name] = value
    return found


def _gids(gathered: Gathered) -> dict[tuple[str, int], tuple[Gid, ...]]:
    types, interfaces = _rows(gathered, _GID_TYPES), _rows(gathered, _GID_INTERFACES)
    found: dict[tuple[str, int], list[Gid]] = defaultdict(list)
    for (place, index), text in sorted(_rows(gathered, _GIDS).items()):
        key = (place, index)
        row = rdma.gid_row(index, text, types.get(key), interfaces.get(key, "").strip())
        if row is not None:
            found[place].append(row)
    return {place: tuple(rows) for place, rows in found.items()}


def _rows(gathered: Gathered, pattern: str) -> dict[tuple[tuple[str, int], int], str]:
    """Place and index of a row to the text of its file."""
    found = {}
    for path, text in gathered.texts(pattern).items():
        place, index = _place(path), whole_number(path.rsplit("/", 1)[-1])
        if place and index is not None:
            found[place, index] = text
    return found


def _with_interface(ports: tuple[RdmaPort, ...], interfaces: tuple[str, ...]) -> tuple[RdmaPort, ...]:
    """The PCI function's interface for its port, where there is one of each and nothing nearer told it."""
    if len(ports) != 1 or len(interfaces) != 1 or ports[0].netdev is not None:
        return ports
    return (msgspec.structs.replace(ports[0], netdev=interfaces[0]),)


def _word(text: str | None) -> str | None:
    value = said(text)
    return clipped(value) if value else None


FACTS: tuple[Fact, ...] = (
    Fact(
        "RDMA devices", tell, commands=(Command(_VERBS, keep=ibv_devinfo.KEEP), Command(_LINKS)), files=_FILES
    ),
)
KINDS: tuple[SavedKind, ...] = (
    *ibstat.KINDS,
    *ibstatus.KINDS,
    *ibv_devinfo.KINDS,
    *show_gids.KINDS,
    *rdma_link.KINDS,
)
