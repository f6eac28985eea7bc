"""What a scan saw of a node's network: RDMA devices with their ports, RoCE settings, routes."""

from __future__ import annotations

import re

import msgspec

# Names that programs give to what has no wire of its own: Docker, Podman, libvirt, LXC, Kubernetes with its networks
# (Calico, Flannel, Cilium, Weave, Antrea), Open vSwitch, VPNs, the kernel's own tunnels and test devices.
_HOST_ONLY = re.compile(
    r"docker|podman|nerdctl|br-[0-9a-f]|virbr|vmnet|veth|lxc|lxd|cni|cali|flannel|cilium|weave|antrea|kube-|nodelocaldns|"
    r"ovs-|vxlan|geneve|tunl|tun\d|tap|wg\d|tailscale|zt|sit\d|gre\d|gretap|ip6tnl|ip6gre|erspan|dummy|ifb"
)


def is_host_only(interface: str) -> bool:
    """Whether an interface is, by its name, one of containers, virtual machines or tunnels of the host itself.

    A pod's own `eth0` is not, though it is one end of a veth pair: seen from inside, it is the way out.
    """
    return _HOST_ONLY.match(interface) is not None


class Gid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of a port's GID table."""

    index: int
    gid: str
    type: str | None = None
    """`IB`, `RoCE v1` or `RoCE v2`"""
    ipv4: str | None = None
    netdev: str | None = None

    @property
    def is_routable(self) -> bool:
        """Whether it carries RoCE v2 over an IPv4 address: what NCCL wants on Ethernet."""
        return self.type == "RoCE v2" and self.ipv4 is not None


class RdmaPort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One port of an RDMA device."""

    port: int
    state: str | None = None
    """`Active`, `Down`, `Init`, `Armed`"""
    physical_state: str | None = None
    """`LinkUp`, `Disabled`, `Polling`, ..."""
    rate_gbit_per_s: float | None = None
    link_layer: str | None = None
    """`InfiniBand` or `Ethernet`"""
    active_mtu_bytes: int | None = None
    max_mtu_bytes: int | None = None
    lid: int | None = None
    sm_lid: int | None = None
    netdev: str | None = None
    gids: tuple[Gid, ...] = ()
    """rows that are not empty"""
    counters: tuple[tuple[str, int], ...] = ()
    """(name as in /sys: symbol_error, link_downed, out_of_sequence, ...; value), since the last reset"""


class RdmaDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device of /sys/class/infiniband."""

    name: str
    ports: tuple[RdmaPort, ...]
    type: str | None = None
    """as the tools say it: `MT4129`"""
    firmware: str | None = None
    board: str | None = None
    """board ID (PSID): cards with the same one are alike"""
    node_guid: str | None = None
    system_guid: str | None = None
    """ports of one card share it"""
    pci_bus_id: str | None = None
    numa_node: int | None = None
    driver: str | None = None
    is_virtual_function: bool | None = None


class RoceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lossless Ethernet settings of one interface; None is what could not be read."""

    netdev: str
    trust: str | None = None
    """`pcp` or `dscp`"""
    pfc: tuple[bool, ...] | None = None
    """by priority 0 to 7"""
    ecn: tuple[bool, ...] | None = None
    """congestion notification by priority 0 to 7"""
    dscp_to_priority: tuple[tuple[int, int], ...] = ()
    traffic_class: int | None = None
    """the default that the device puts on RDMA traffic (/sys/class/infiniband/DEV/tc)"""
    default_tos: int | None = None
    """of RDMA connection manager sessions"""


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One IPv4 route of the main table."""

    destination: str
    """`default` or `10.0.0.0/24`"""
    interface: str
    source: str | None = None
    gateway: str | None = None
