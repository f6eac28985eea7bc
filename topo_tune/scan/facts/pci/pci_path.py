"""The PCI address in a real path below /sys/devices."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def pci_address(path: str | None) -> str | None:
    """The last PCI address on the way to a device, as the kernel writes it; None where none is on the way.

    `/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/virtio3` is behind `0000:18:00.0`.
    """
    parts = (path or "").split("/")
    return next((part for part in reversed(parts) if _ADDRESS.fullmatch(part)), None)
