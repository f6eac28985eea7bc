"""PCI trees for tests: a server with two switches, and pieces of it to be changed."""

from __future__ import annotations

from typing import Any

from topo_tune.records.hardware import PciDevice, PcieLink

GEN5 = PcieLink(32.0, 32.0, 16, 16)
GEN4 = PcieLink(16.0, 16.0, 16, 16)


def device(
    address: str, class_code: str, vendor: str, parent: str | None = None, **changes: Any
) -> PciDevice:
    given: dict[str, Any] = {"numa_node": 0, "link": GEN5}
    return PciDevice(address, class_code, vendor, parent=parent, **(given | changes))


def server(**changes: dict[str, Any]) -> tuple[PciDevice, ...]:
    """A GPU and a network card below one switch, and another card at a root port of the other socket.

    root -- up -- down_gpu -- gpu          far_root -- far_nic
               \\- down_nic -- nic
    changes: fields to be changed, by the names in the drawing.
    """
    devices = {
        "root": device("0000:16:01.0", "0604", "8086"),
        "up": device("0000:17:00.0", "0604", "1000", "0000:16:01.0"),
        "down_gpu": device("0000:18:00.0", "0604", "1000", "0000:17:00.0"),
        "gpu": device("0000:19:00.0", "0302", "10de", "0000:18:00.0", driver="nvidia"),
        "down_nic": device("0000:18:01.0", "0604", "1000", "0000:17:00.0"),
        "nic": device("0000:1a:00.0", "0207", "15b3", "0000:18:01.0", driver="mlx5_core"),
        "far_root": device("0000:80:01.0", "0604", "8086", numa_node=1),
        "far_nic": device("0000:81:00.0", "0200", "15b3", "0000:80:01.0", numa_node=1, driver="mlx5_core"),
    }
    fields = PciDevice.__struct_fields__
    return tuple(
        PciDevice(**({field: getattr(one, field) for field in fields} | changes.get(name, {})))
        for name, one in devices.items()
    )
