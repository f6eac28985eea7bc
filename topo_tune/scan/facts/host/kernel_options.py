"""The kernel's command line, of which only words about devices are kept, and the IOMMU mode that it asks for."""

from __future__ import annotations

import re

from topo_tune.scan.facts.fact import Files, Gathered

CMDLINE = Files("/proc/cmdline", keep=r"iommu|pci|numa|hugepage|nvidia|nouveau", limit_bytes=8192)
GROUP_TYPES = Files("/sys/kernel/iommu_groups/*/type", limit_bytes=32)
UNITS = Files("/sys/class/iommu/*", mode="exists")
GROUP_OF_DEVICE = Files("/sys/bus/pci/devices/*/iommu_group", mode="link")

_KEPT = re.compile(
    r"(?:(?:intel_iommu|amd_iommu|iommu(?:\.\w+)?|arm-smmu(?:-v3)?\.\w+|pci|pcie_\w+|pcie_ports"
    r"|numa|numa_balancing|hugepages|hugepagesz|default_hugepagesz|transparent_hugepage"
    r"|nvidia(?:[_-]\w+)?\.\w+|nouveau\.modeset)=[\w.,:=+-]{1,120}|nomodeset)",
    re.ASCII,
)
_GROUP = re.compile(r"/sys/kernel/iommu_groups/([^/]{1,20})/")
_DEVICE = re.compile(r"/sys/bus/pci/devices/([^/]{1,20})/")
_LIMIT = 32
_TRANSLATED = ("DMA", "DMA-FQ")


def parse(text: str) -> tuple[str, ...]:
    """The words about IOMMU, PCI, NUMA, huge pages and NVIDIA; no other word of the line comes through."""
    words = (word.strip('"') for word in text[:16384].split())
    return tuple(word for word in words if len(word) <= 200 and _KEPT.fullmatch(word))[:_LIMIT]


def iommu(gathered: Gathered, options: tuple[str, ...], devices: frozenset[str]) -> str | None:
    """`off`, `passthrough` or `translated`; None where neither /sys nor the options tell.

    devices: addresses whose groups count, such as GPUs and network cards; all groups where none of them has one.
    """
    types = _types(gathered, devices)
    if types:
        return "translated" if types & set(_TRANSLATED) else "passthrough"
    if "iommu=pt" in options or "iommu.passthrough=1" in options:
        return "passthrough"
    if not _was_looked_at(gathered):
        return None
    if not gathered.texts(UNITS.pattern):
        return "off"
    # Kernels before 5.11 tell no types; there translation is what is asked for by hand on Intel only.
    return "translated" if "intel_iommu=on" in options else None


def _types(gathered: Gathered, devices: frozenset[str]) -> set[str]:
    """Kinds of domains: `DMA` and `DMA-FQ` are translated, `identity` is not; those given to guests do not count."""
    by_group = {
        match.group(1): text.strip()[:20]
        for path, text in gathered.texts(GROUP_TYPES.pattern).items()
        if (match := _GROUP.match(path)) is not None
    }
    groups = {
        real.strip().rsplit("/", 1)[-1]
        for path, real in gathered.texts(GROUP_OF_DEVICE.pattern).items()
        if (match := _DEVICE.match(path)) is not None and match.group(1).lower() in devices
    }
    chosen = [by_group[group] for group in groups if group in by_group] or list(by_group.values())
    return {kind for kind in chosen if kind in (*_TRANSLATED, "identity")}


def _was_looked_at(gathered: Gathered) -> bool:
    """Whether /sys could be read at all: a collector that was not asked finds no IOMMU either."""
    return any(file.path.startswith("/sys/") for file in gathered.files)
