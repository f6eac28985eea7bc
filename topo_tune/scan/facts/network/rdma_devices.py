"""RDMA devices as several sources tell them: each tool's words made the same, and their facts joined by name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.network import Gid, RdmaDevice, RdmaPort
from topo_tune.records.scan import Nic, NodeScan
from topo_tune.scan.facts.fact import with_absent
from topo_tune.scan.facts.words import clipped

DEVICE_LIMIT = 512
"""Devices of one node that are kept; with every virtual function of eight cards it is about this many."""
GID_LIMIT = 512
"""Rows of a port's GID table; hardware has 256."""

DEVICE_NAME = r"[A-Za-z][\w.:-]{0,63}"

# An EFA device shows an Ethernet port under /sys/class/infiniband; NCCL's own IB transport cannot drive it.
NOT_VERBS = frozenset({"efa"})

_STATES = {
    "active": "Active",
    "down": "Down",
    "init": "Init",
    "initialize": "Init",
    "initializing": "Init",
    "armed": "Armed",
    "arm": "Armed",
    "activedefer": "ActiveDefer",
}
_PHYSICAL = {
    "linkup": "LinkUp",
    "disabled": "Disabled",
    "polling": "Polling",
    "sleep": "Sleep",
    "training": "Training",
    "portconfigurationtraining": "Training",
    "linkerrorrecovery": "LinkErrorRecovery",
    "phytest": "PhyTest",
}
_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
_GID_TYPES = {
    "v1": "RoCE v1",
    "rocev1": "RoCE v1",
    "ib/rocev1": "RoCE v1",
    "v2": "RoCE v2",
    "rocev2": "RoCE v2",
    "ib": "IB",
}


class Devices(msgspec.Struct, frozen=True):
    """RDMA devices that a text tells, and what of it could not be read."""

    devices: tuple[RdmaDevice, ...]
    problems: tuple[str, ...] = ()


class DeviceParser(Protocol):
    """A reader of one tool's output."""

    def __call__(self, text: str, *, file: str | None = None) -> Devices:
        """The devices in a text. Raises InputError where there are none."""


def telling(parse: DeviceParser) -> Callable[[NodeScan, str, str], NodeScan]:
    """The `tell` of a saved kind whose texts a parser of devices reads."""

    def tell(scan: NodeScan, text: str, file: str) -> NodeScan:
        found = parse(text, file=file)
        for problem in found.problems[:20]:
            scan = with_absent(scan, f"part of {file}", problem)
        return with_devices(scan, found.devices)

    return tell


def with_devices(scan: NodeScan, told: Iterable[RdmaDevice]) -> NodeScan:
    """The scan that knows these devices, too: what it knew before stays, what it did not know is filled in."""
    rdma = joined((*scan.rdma, *told))
    return msgspec.structs.replace(scan, rdma=rdma, nics=_with_rdma_nics(scan.nics, rdma))


def joined(devices: Iterable[RdmaDevice]) -> tuple[RdmaDevice, ...]:
    """One device for each name, in natural order of names; of two sources the first has the word."""
    by_name: dict[str, RdmaDevice] = {}
    for device in devices:
        known = by_name.get(device.name)
        if known is None:
            by_name[device.name] = device
        elif device != known:
            by_name[device.name] = _joined_device(known, device)
    names = sorted(by_name, key=natural)
    return tuple(by_name[name] for name in names[:DEVICE_LIMIT])


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key to sort by in which `mlx5_2` comes before `mlx5_10`."""
    return tuple((word, int(digits or -1)) for word, digits in re.findall(r"(\D*)(\d{0,18})", name))


def state(text: str | None) -> str | None:
    """A port's state from `4: ACTIVE`, `Active`, `PORT_ACTIVE (4)`; None for what is no state."""
    return _STATES.get(_letters(text).removeprefix("port"))


def physical_state(text: str | None) -> str | None:
    """A port's physical state from `5: LinkUp`, `LINK_UP`, `LINK_UP (5)`; None for what is none."""
    return _PHYSICAL.get(_letters(text))


def link_layer(text: str | None) -> str | None:
    """`InfiniBand` or `Ethernet`."""
    return _LAYERS.get((text or "").strip().casefold())


def gbit_per_s(text: str | None) -> float | None:
    """A rate from `400 Gb/sec (4X NDR)`, `400`, `40 (FDR10)`; None where the port has none."""
    match = re.match(r"\s*(\d{1,6}(?:\.\d{1,3})?)(?:\s*(?:Gb/sec|Gbps|\()|\s*$)", text or "")
    return float(match.group(1)) or None if match else None


def guid(text: str | None) -> str | None:
    """A GUID as the kernel writes it, `a000:0000:0000:0001`; None for none and for all zeros."""
    match = re.fullmatch(r"(?:0x)?([0-9a-f:]{1,19})", (text or "").strip().casefold())
    digits = match.group(1).replace(":", "") if match else ""
    if not digits.strip("0") or len(digits) > 16:
        return None
    padded = digits.zfill(16)
    return ":".join(padded[i : i + 4] for i in range(0, 16, 4))


def lid(text: str | None) -> int | None:
    """A LID, decimal or hexadecimal: 16 bits, or 32 of an extended one."""
    match = re.match(r"\s*(?:0x([0-9a-fA-F]{1,8})|(\d{1,9}))(?![\w.])", text or "")
    if match is None:
        return None
    return int(match.group(1), 16) if match.group(1) else int(match.group(2))


def gid_row(index: int, gid: str, kind: str | None = None, netdev: str | None = None) -> Gid | None:
    """A row of a GID table; None where it is empty, or holds nothing but the link-local prefix."""
    try:
        address = ipaddress.IPv6Address(gid.strip())
    except ValueError:
        return None
    if int(address) in (0, 0xFE80 << 112) or not 0 <= index < 1 << 16:
        return None
    mapped = address.ipv4_mapped
    return Gid(
        index=index,
        gid=address.packed.hex(":", 2),
        type=_GID_TYPES.get(re.sub(r"\s", "", kind or "").casefold()),
        ipv4=str(mapped) if mapped else None,
        netdev=netdev or None,
    )


def link_layer_by_gids(gids: Iterable[Gid]) -> str | None:
    """`Ethernet` where a row can only be of RoCE; a GID table by itself proves nothing else."""
    return "Ethernet" if any(gid.type == "RoCE v2" or gid.ipv4 is not None for gid in gids) else None


def no_devices(what: str, lines: Iterable[tuple[int, str]], file: str | None, hint: str) -> InputError:
    """The refusal of a text without any device, with the first line that was looked at."""
    first = next(((number, line) for number, line in lines if line.strip()), None)
    found = "nothing" if first is None else f"`{clipped(first[1])}`"
    return InputError(
        f"no RDMA device: expected {what}, found {found}",
        file=file,
        line=None if first is None else first[0],
        hint=hint,
    )


def _letters(text: str | None) -> str:
    """The words of a state without numbers and marks: `4: ACTIVE` and `PORT_ACTIVE (4)` hold the same."""
    return re.sub(r"[^a-z]", "", (text or "")[:64].casefold())


def _joined_device(known: RdmaDevice, told: RdmaDevice) -> RdmaDevice:
    ports = {port.port: port for port in known.ports}
    for port in told.ports:
        ports[port.port] = _joined_port(ports[port.port], port) if port.port in ports else port
    filled = _filled(known, told, ("type", "firmware", "board", "node_guid", "system_guid", "pci_bus_id"))
    filled |= _filled(known, told, ("numa_node", "driver", "is_virtual_function"))
    return msgspec.structs.replace(known, ports=tuple(ports[n] for n in sorted(ports)), **filled)


def _joined_port(known: RdmaPort, told: RdmaPort) -> RdmaPort:
    gids = {gid.index: gid for gid in known.gids}
    for gid in told.gids:
        if gid.index in gids:
            row = gids[gid.index]
            gids[gid.index] = msgspec.structs.replace(row, **_filled(row, gid, ("type", "ipv4", "netdev")))
        else:
            gids[gid.index] = gid
    names = ("state", "physical_state", "rate_gbit_per_s", "link_layer", "active_mtu_bytes", "max_mtu_bytes")
    filled = _filled(known, told, (*names, "lid", "sm_lid", "netdev"))
    return msgspec.structs.replace(
        known,
        **filled,
        gids=tuple(gids[index] for index in sorted(gids)[:GID_LIMIT]),
        counters=tuple((dict(told.counters) | dict(known.counters)).items()),
    )


def _filled(known: msgspec.Struct, told: msgspec.Struct, names: tuple[str, ...]) -> dict[str, object]:
    return {name: getattr(told, name) for name in names if getattr(known, name) is None}


def _with_rdma_nics(nics: tuple[Nic, ...], devices: tuple[RdmaDevice, ...]) -> tuple[Nic, ...]:
    """RDMA devices first, then interfaces, as a scan has them."""
    by_name = {device.name: device for device in devices}
    seen = {nic.name for nic in nics if _may_be_rdma(nic)}
    new = tuple(_nic(device) for device in devices if device.name not in seen)
    kept = tuple(
        _completed(nic, by_name[nic.name]) if nic.name in by_name and _may_be_rdma(nic) else nic
        for nic in nics
    )
    return (
        *(nic for nic in kept if _is_device(nic, by_name)),
        *new,
        *(nic for nic in kept if not _is_device(nic, by_name)),
    )


def _is_device(nic: Nic, devices: dict[str, RdmaDevice]) -> bool:
    return nic.kind in {"infiniband", "roce"} or (nic.name in devices and _may_be_rdma(nic))


def _may_be_rdma(nic: Nic) -> bool:
    """An interface may be called like an RDMA device; it is another one."""
    return nic.kind not in {"ethernet", "loopback"}


def _nic(device: RdmaDevice) -> Nic:
    active = [port for port in device.ports if port.state == "Active"]
    looked_at = active or list(device.ports)
    rates = [port.rate_gbit_per_s for port in looked_at if port.rate_gbit_per_s is not None]
    states = [port.state for port in device.ports if port.state is not None]
    return Nic(
        name=device.name,
        kind=_kind(device, {port.link_layer for port in looked_at}),
        is_up=bool(active) if states else None,
        speed_gbit_per_s=max(rates, default=None),
        numa_node=device.numa_node,
        driver=device.driver,
        pci_bus_id=device.pci_bus_id,
        is_virtual=False if device.pci_bus_id else None,
    )


def _completed(nic: Nic, device: RdmaDevice) -> Nic:
    told = _nic(device)
    names = ("is_up", "speed_gbit_per_s", "numa_node", "driver", "pci_bus_id", "is_virtual")
    kind = told.kind if nic.kind == "other" else nic.kind
    return msgspec.structs.replace(nic, kind=kind, **_filled(nic, told, names))


def _kind(device: RdmaDevice, layers: set[str | None]) -> str:
    if device.driver in NOT_VERBS:
        return "other"
    return "infiniband" if "InfiniBand" in layers else "roce" if "Ethernet" in layers else "other"
