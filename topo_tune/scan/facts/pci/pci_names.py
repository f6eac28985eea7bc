"""Words of the PCI ID database (pci.ids) that `lspci` prints where it was not asked for numbers, as numbers."""

from __future__ import annotations

_CLASSES = {
    "non-vga unclassified device": "0000",
    "scsi storage controller": "0100",
    "ide interface": "0101",
    "raid bus controller": "0104",
    "sata controller": "0106",
    "serial attached scsi controller": "0107",
    "non-volatile memory controller": "0108",
    "mass storage controller": "0180",
    "ethernet controller": "0200",
    "infiniband controller": "0207",
    "fabric controller": "0208",
    "network controller": "0280",
    "vga compatible controller": "0300",
    "3d controller": "0302",
    "display controller": "0380",
    "multimedia audio controller": "0401",
    "audio device": "0403",
    "ram memory": "0500",
    "memory controller": "0580",
    "host bridge": "0600",
    "isa bridge": "0601",
    "pci bridge": "0604",
    "infiniband to pci host bridge": "060a",
    "bridge": "0680",
    "serial controller": "0700",
    "communication controller": "0780",
    "dma controller": "0801",
    "iommu": "0806",
    "system peripheral": "0880",
    "co-processor": "0b40",
    "usb controller": "0c03",
    "smbus": "0c05",
    "encryption controller": "1080",
    "performance counters": "1101",
    "signal processing controller": "1180",
    "processing accelerators": "1200",
    "non-essential instrumentation": "1300",
}

# By the beginning of a device's name. Vendors of GPUs and of networks, of switches between them, of the
# display controllers that boards and hypervisors have, and of virtual devices.
_VENDORS = (
    ("NVIDIA Corporation", "10de"),
    ("Mellanox Technologies", "15b3"),
    ("Advanced Micro Devices, Inc. [AMD/ATI]", "1002"),
    ("Advanced Micro Devices, Inc. [AMD]", "1022"),
    ("Advanced Micro Devices [AMD]", "1022"),
    ("Intel Corporation", "8086"),
    ("Broadcom Inc. and subsidiaries", "14e4"),
    ("Broadcom Limited", "14e4"),
    ("Broadcom / LSI", "1000"),
    ("LSI Logic", "1000"),
    ("PLX Technology", "10b5"),
    ("PMC-Sierra", "11f8"),
    ("Microsemi", "11f8"),
    ("ASMedia Technology", "1b21"),
    ("Amazon.com, Inc.", "1d0f"),
    ("Google, Inc.", "1ae0"),
    ("Microsoft Corporation", "1414"),
    ("VMware", "15ad"),
    ("Red Hat, Inc. Virtio", "1af4"),
    ("Red Hat, Inc. QEMU", "1b36"),
    ("Red Hat, Inc. QXL", "1b36"),
    ("Red Hat, Inc.", "1af4"),
    ("Cirrus Logic", "1013"),
    ("ASPEED Technology", "1a03"),
    ("Matrox", "102b"),
    ("Huawei Technologies", "19e5"),
    ("Chelsio Communications", "1425"),
    ("Solarflare", "1924"),
    ("Cornelis Networks", "434e"),
    ("Pensando Systems", "1dd8"),
    ("Hewlett Packard Enterprise", "1590"),
    ("Samsung Electronics", "144d"),
)


def class_code(words: str) -> str | None:
    """The four digits of a class as `lspci` names it: `3D controller` is 0302; None for words that are not known."""
    words = words.strip().casefold()
    return words[6:10] if words.startswith("class ") and _is_code(words[6:10]) else _CLASSES.get(words)


def vendor_id(name: str) -> str | None:
    """The vendor of a device by the beginning of its name."""
    return next((number for word, number in _VENDORS if name.startswith(word)), None)


def _is_code(text: str) -> bool:
    return len(text) == 4 and all(digit in "0123456789abcdef" for digit in text)
