"""Network interfaces and RDMA devices, from what /sys says of them."""

from __future__ import annotations

import re

import msgspec

from topo_tune.records.scan import Nic
from topo_tune.scan.facts.words import numa_index, said, whole_number


class RawInterface(msgspec.Struct, frozen=True):
    """One folder of /sys/class/net: each field the text of the file of that name."""

    name: str
    type: str | None = None
    """a number of linux/if_arp.h"""
    operstate: str | None = None
    speed: str | None = None
    """Mb/s; -1 where the device does not know"""
    devtype: str | None = None
    has_device: bool = False
    """whether hardware, or a hypervisor's idea of it, stands behind it"""
    numa_node: str | None = None
    driver: str | None = None
    addresses: tuple[str, ...] = ()


class RawPort(msgspec.Struct, frozen=True):
    """One port of an RDMA device."""

    port: str = "1"
    state: str | None = None
    """`4: ACTIVE`"""
    rate: str | None = None
    """`400 Gb/sec (4X NDR)`"""
    link_layer: str | None = None
    """InfiniBand or Ethernet"""


class RawRdma(msgspec.Struct, frozen=True):
    """One folder of /sys/class/infiniband."""

    name: str
    ports: tuple[RawPort, ...] = ()
    numa_node: str | None = None
    driver: str | None = None


def parse(interfaces: tuple[RawInterface, ...], rdma: tuple[RawRdma, ...]) -> tuple[Nic, ...]:
    """Every RDMA device, then every interface."""
    return (*(_rdma(device) for device in rdma), *(_interface(interface) for interface in interfaces))


# linux/if_arp.h
_ETHERNET, _INFINIBAND, _LOOPBACK = "1", "32", "772"

# An EFA device shows an Ethernet port under /sys/class/infiniband; NCCL's own IB transport cannot drive it.
_NOT_VERBS = {"efa"}


def _interface(raw: RawInterface) -> Nic:
    megabits = whole_number(raw.speed)
    return Nic(
        name=raw.name,
        kind=_kind(raw),
        is_up={"up": True, "down": False, "lowerlayerdown": False, "dormant": False}.get(raw.operstate or ""),
        speed_gbit_per_s=megabits / 1000 if megabits and megabits < 1 << 31 else None,
        numa_node=numa_index(raw.numa_node),
        driver=raw.driver,
        addresses=raw.addresses,
    )


def _kind(raw: RawInterface) -> str:
    if raw.type == _LOOPBACK:
        return "loopback"
    # IP over InfiniBand is `other`: the RDMA device below it has its own entry. So are bridges, tunnels and
    # veths, which claim 10 Gbit/s and carry nothing by themselves.
    is_wire = raw.has_device or raw.devtype in {"bonding", "bond", "vlan"}
    return "ethernet" if raw.type == _ETHERNET and is_wire and raw.devtype != "tun_flags" else "other"


def _rdma(raw: RawRdma) -> Nic:
    active = [port for port in raw.ports if "ACTIVE" in (port.state or "").upper().split()]
    looked_at = active or list(raw.ports)
    rates = [rate for rate in (_rate(port.rate) for port in looked_at) if rate is not None]
    layers = {said(port.link_layer) for port in looked_at} - {None}
    kind = "infiniband" if "InfiniBand" in layers else "roce" if "Ethernet" in layers else "other"
    return Nic(
        name=raw.name,
        kind="other" if raw.driver in _NOT_VERBS else kind,
        is_up=bool(active) if raw.ports else None,
        speed_gbit_per_s=max(rates, default=None),
        numa_node=numa_index(raw.numa_node),
        driver=raw.driver,
    )


def _rate(text: str | None) -> float | None:
    match = re.match(r"\s*(\d{1,6}(?:\.\d{1,3})?)\s*Gb/sec", text or "")
    return float(match.group(1)) if match else None
