"""What a `<pci>` of an NCCL topology file is, and how fast its link is."""

from __future__ import annotations

import re

from topo_tune.records.hardware import PcieLink
from topo_tune.scan.documents.xml_elements import Element, whole
from topo_tune.scan.facts.gpus.nvidia_gpus import pci_bus_id
from topo_tune.scan.facts.words import clipped

_GPU_CLASSES = ("0300", "0302", "0380", "12")
_SERVICE_PROCESSORS = {"1a03", "102b"}
"""ASPEED and Matrox: the screen of a server's management processor has the class of a GPU."""
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?GT/s")
# NCCL's table; its entries are compared with the beginning of the value (src/graph/topo.cc, kvDictPciGen).
_NCCL_SPEEDS = (
    *("2.5 GT/s", "5 GT/s", "8 GT/s", "16 GT/s", "32 GT/s"),
    *("5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"),
)
_NCCL_WIDTH = 16
"""Lanes that NCCL counts where the width is 0 or missing."""


def kind(pci: Element) -> str:
    """`gpu`, `nic`, `nvswitch`, `bridge`, `other` or `unknown`: by its class, else by what it holds."""
    code = _hexadecimal(pci.get("class"))
    vendor = _hexadecimal(pci.get("vendor"))
    if pci.all("gpu"):
        return "gpu"
    if pci.all("nic"):
        return "nic"
    if code.startswith(_GPU_CLASSES):
        return "other" if vendor in _SERVICE_PROCESSORS else "gpu"
    if code.startswith("02"):
        return "nic"
    if code.startswith("0604"):
        return "bridge"
    if code.startswith("0680") and vendor in {"", "10de"}:
        return "nvswitch"
    if pci.all("pci"):
        return "bridge"
    return "other" if code else "unknown"


def is_host_bridge(pci: Element) -> bool:
    """Whether it stands for the CPU's own end of the bus."""
    return _hexadecimal(pci.get("class")).startswith("0600")


def is_switch_class(text: str | None) -> bool:
    """Whether the class of a link's target is that of an NVSwitch."""
    return _hexadecimal(text).startswith("0680")


def vendor(pci: Element) -> str:
    """Four hexadecimal digits, or nothing."""
    return _hexadecimal(pci.get("vendor"))


def address(text: str | None) -> str:
    """As the kernel writes it; as it stands, in lower case, where it is no address: `fffffff:ffff:ff`."""
    return pci_bus_id(text) or clipped((text or "").lower(), 40)


def link(pci: Element) -> PcieLink | None:
    """Its link upwards; None where the file does not tell its speed."""
    match = _SPEED.match(pci.get("link_speed") or "")
    if match is None:
        return None
    width = whole(pci.get("link_width"))
    return PcieLink(speed_gt_per_s=float(match.group(1)), width=width if width and 0 < width <= 64 else None)


def throughput(pcie: PcieLink) -> float:
    """Speed times lanes, for comparing; a width that is not known counts as NCCL counts it."""
    return (pcie.speed_gt_per_s or 0.0) * (pcie.width or _NCCL_WIDTH)


def unknown_speed(pci: Element) -> str | None:
    """A `link_speed` that says something and is not in NCCL's table."""
    text = pci.get("link_speed") or ""
    if whole(text) in {None, 0} or text.startswith(_NCCL_SPEEDS):
        return None
    return clipped(text, 30)


def _hexadecimal(text: str | None) -> str:
    return (text or "").lower().removeprefix("0x")[:8]
