"""Network interfaces as several sources tell them, joined by name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

import msgspec

from topo_tune.records.network import is_host_only
from topo_tune.records.scan import Nic, NodeScan

INTERFACE_LIMIT = 1024
"""Of one node; more than this many are the pairs of containers."""
INTERFACE_NAME = r"[^\s/:@]{1,15}"
"""As the kernel allows them (linux/netdevice.h: dev_valid_name)."""

_MADE_OF_WIRES = re.compile(r"bond|team|.*\.\d{1,4}$|vlan")


def kind_by_name(name: str, link: str | None) -> tuple[str, bool | None]:
    """Kind and whether it is virtual, where nothing but the name and the link's type (`ether`) is known.

    Bonds and VLANs are virtual and still Ethernet: they are made of wires.
    """
    if link == "loopback" or name == "lo":
        return "loopback", True
    if is_host_only(name):
        return "other", True
    if _MADE_OF_WIRES.match(name):
        return "ethernet", True
    return ("ethernet", None) if link in {"ether", None} else ("other", None)


def with_interfaces(scan: NodeScan, told: Iterable[Nic]) -> NodeScan:
    """The scan that knows these interfaces, too: what it knew before stays, what it did not know is filled in."""
    by_name: dict[str, Nic] = {}
    for nic in told:
        known = by_name.get(nic.name)
        by_name[nic.name] = nic if known is None else _joined(known, nic)
    kept = tuple(
        _joined(nic, by_name.pop(nic.name)) if nic.name in by_name and _is_interface(nic, scan) else nic
        for nic in scan.nics
    )
    return msgspec.structs.replace(scan, nics=(*kept, *by_name.values())[: 2 * INTERFACE_LIMIT])


def address(text: str) -> str | None:
    """An address with its prefix length, `10.0.0.1/24`, or None."""
    try:
        return str(ipaddress.ip_interface(text)) if "/" in text else str(ipaddress.ip_address(text))
    except ValueError:
        return None


def mtu(text: str | None) -> int | None:
    """An MTU in bytes."""
    match = re.match(r"\s*(\d{1,7})\s*$", text or "")
    return int(match.group(1)) or None if match else None


def _is_interface(nic: Nic, scan: NodeScan) -> bool:
    """RDMA devices are in the same list, and may be called like an interface."""
    return nic.kind not in {"infiniband", "roce"} and not any(device.name == nic.name for device in scan.rdma)


def _joined(known: Nic, told: Nic) -> Nic:
    names = (
        "is_up",
        "speed_gbit_per_s",
        "numa_node",
        "driver",
        "mtu_bytes",
        "pci_bus_id",
        "is_virtual",
        "master",
    )
    filled = {name: getattr(told, name) for name in names if getattr(known, name) is None}
    return msgspec.structs.replace(known, **filled, addresses=known.addresses or told.addresses)
