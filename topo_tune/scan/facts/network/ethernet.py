"""Ethernet interfaces: MTU, PCI address, and what they are made of; from /sys, `ip` and `ethtool`."""

from __future__ import annotations

import msgspec

from topo_tune.records.scan import Nic, NodeScan
from topo_tune.scan.facts.fact import Fact, Files, Gathered, SavedKind
from topo_tune.scan.facts.network import ethtool, interfaces, ip_addr
from topo_tune.scan.facts.pci.pci_path import pci_address

_ROOT = "/sys/class/net/*"
_MTU, _DEVICE, _MASTER = (
    Files(f"{_ROOT}/mtu"),
    Files(f"{_ROOT}/device", "link"),
    Files(f"{_ROOT}/master", "link"),
)
_SLAVES = Files(f"{_ROOT}/bonding/slaves")


def tell(scan: NodeScan, gathered: Gathered) -> NodeScan:
    """The scan whose interfaces know their MTU, their PCI address, whose member they are, and if they are virtual."""
    mtus, devices = _by_interface(gathered, _MTU), _by_interface(gathered, _DEVICE)
    masters = {name: path.rsplit("/", 1)[-1] for name, path in _by_interface(gathered, _MASTER).items()}
    for bond, text in _by_interface(gathered, _SLAVES).items():
        masters |= {slave: bond for slave in text.split() if slave not in masters}
    if not mtus:
        return scan
    devices_of_rdma = {device.name for device in scan.rdma}
    return msgspec.structs.replace(
        scan,
        nics=tuple(
            nic
            if nic.name not in mtus or nic.kind in {"infiniband", "roce"} or nic.name in devices_of_rdma
            else _completed(nic, mtus[nic.name], devices.get(nic.name), masters.get(nic.name))
            for nic in scan.nics
        ),
    )


def _completed(nic: Nic, mtu: str, device: str | None, master: str | None) -> Nic:
    return msgspec.structs.replace(
        nic,
        mtu_bytes=interfaces.mtu(mtu),
        pci_bus_id=pci_address(device),
        is_virtual=device is None,
        master=master,
    )


def _by_interface(gathered: Gathered, files: Files) -> dict[str, str]:
    """Interface name to the text of its file, or to where its link leads."""
    return {
        path.split("/")[4]: text
        for path, text in gathered.texts(files.pattern).items()
        if path.count("/") > 4
    }


FACTS: tuple[Fact, ...] = (Fact("network interfaces", tell, files=(_MTU, _DEVICE, _MASTER, _SLAVES)),)
KINDS: tuple[SavedKind, ...] = (*ip_addr.KINDS, *ethtool.KINDS)
