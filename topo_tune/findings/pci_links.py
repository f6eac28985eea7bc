"""Rules about PCI Express links below what their two ends could do, or too small for what hangs there."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.machine import above, below, is_grace, is_virtual, rate_gbit_per_s
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import PciDevice, PcieLink, pcie_gbit_per_s
from topo_tune.records.scan import NodeScan, Scan

_HEADERS = 0.85
"""Share of a link that is left for data behind packet headers, at the 256 bytes of payload that servers use."""

_FAST_GBIT_PER_S = 50.0
"""Below this a network card carries management or storage, and its link is nobody's bottleneck here."""

_RESEAT = (
    "reseat the card and its riser or cable, then boot from a cold start: a link trains anew only then",
    "`sudo lspci -s ADDRESS -vv | grep -E 'LnkCap|LnkSta'` shows both sides; look at the port above it, too",
    "check in the BIOS that the slot is not bifurcated and not limited to an older generation",
)
_HEALTH_CHECKS = (
    "PCIe width and speed by lspci: oracle-quickstart/oci-hpc, healthchecks role (check_gpu_setup)"
)
_NCCL_MODEL = "NVIDIA/nccl: src/graph/xml.cc (ncclTopoGetXmlFromSys reads max_link_speed and max_link_width)"
_UNSEEN = "NCCL's model takes what both ends could do and does not see it"


def _devices(scan: Scan, kind: str) -> Iterator[tuple[NodeScan, PciDevice, PcieLink]]:
    """Devices of real machines with a link; a hypervisor makes links up, and virtual functions have none."""
    for node in scan.nodes:
        if is_virtual(node):
            continue
        for device in node.pci:
            if device.kind == kind and device.link is not None and not device.is_virtual_function:
                yield node, device, device.link


def _port(node: NodeScan, device: PciDevice) -> PcieLink:
    """The link of the bridge above: what the other end of the device's link can do."""
    return next((bridge.link for bridge in above(node, device) if bridge.link is not None), PcieLink())


def _least(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None


def _possible_width(link: PcieLink, port: PcieLink) -> int | None:
    width = _least(link.max_width, port.max_width)
    return None if width is None else int(width)


def _is_narrow(link: PcieLink, port: PcieLink) -> bool:
    possible = _possible_width(link, port)
    return possible is not None and link.width is not None and link.width < possible


def _is_slow(link: PcieLink, port: PcieLink) -> bool:
    """Whether it runs below what both ends can do; without the other end, a card of a newer generation looks slow."""
    if link.max_speed_gt_per_s is None or port.max_speed_gt_per_s is None or link.speed_gt_per_s is None:
        return False
    return link.speed_gt_per_s < min(link.max_speed_gt_per_s, port.max_speed_gt_per_s)


def _is_enough(node: NodeScan, device: PciDevice, link: PcieLink) -> bool:
    """Whether the link carries the card's ports all the same, or the card is too slow to matter."""
    rate = rate_gbit_per_s(node, device)
    if rate is None:
        return (link.max_gbit_per_s or 0.0) < _FAST_GBIT_PER_S
    return rate <= _FAST_GBIT_PER_S or (link.gbit_per_s or 0.0) * _HEADERS >= rate


def _told(device: PciDevice, link: PcieLink) -> str:
    return f"{_named(device)}: {_speed(link.speed_gt_per_s)} x{link.width or '?'}, possible " + (
        f"{_speed(link.max_speed_gt_per_s)} x{link.max_width or '?'}"
    )


def _named(device: PciDevice) -> str:
    return device.address + (f" {device.name}" if device.name else "")


def _speed(gt_per_s: float | None) -> str:
    return "? GT/s" if gt_per_s is None else f"{gt_per_s:g} GT/s"


def _narrow_nics(scan: Scan) -> Iterator[Sighting]:
    for node, device, link in _devices(scan, "nic"):
        port = _port(node, device)
        if _is_narrow(link, port) and not _is_enough(node, device, link):
            yield Sighting(
                f"a network card runs on x{link.width} where x{_possible_width(link, port)} is possible",
                node.node,
                (_told(device, link),),
            )


def _slow_nics(scan: Scan) -> Iterator[Sighting]:
    for node, device, link in _devices(scan, "nic"):
        port = _port(node, device)
        if _is_slow(link, port) and not _is_enough(node, device, link):
            possible = _least(link.max_speed_gt_per_s, port.max_speed_gt_per_s)
            yield Sighting(
                f"a network card's PCIe link runs at {_speed(link.speed_gt_per_s)} where {_speed(possible)} "
                "is possible",
                node.node,
                (_told(device, link),),
            )


def _small_for_ports(scan: Scan) -> Iterator[Sighting]:
    for node, device, link in _devices(scan, "nic"):
        port, rate = _port(node, device), rate_gbit_per_s(node, device)
        if rate is None or link.gbit_per_s is None or rate <= _FAST_GBIT_PER_S:
            continue
        # A degraded link has a rule of its own.
        if not _is_narrow(link, port) and not _is_slow(link, port) and link.gbit_per_s < rate:
            yield Sighting(
                f"a network card of {rate:g} Gbit/s sits in a slot of {_speed(link.speed_gt_per_s)} x{link.width}, "
                f"which carries {link.gbit_per_s:.0f} Gbit/s",
                node.node,
                (_told(device, link),),
            )


def _narrow_nvswitches(scan: Scan) -> Iterator[Sighting]:
    for node, device, link in _devices(scan, "nvswitch"):
        port = _port(node, device)
        if _is_narrow(link, port):
            yield Sighting(
                f"an NVSwitch's PCIe link runs on x{link.width} where x{_possible_width(link, port)} is possible",
                node.node,
                (_told(device, link),),
            )


def _uplinks(scan: Scan) -> Iterator[tuple[NodeScan, PciDevice, PcieLink, PcieLink]]:
    """Links between bridges: the upstream port of each switch, its link and the port above it."""
    for node, bridge, link in _devices(scan, "bridge"):
        port = next(above(node, bridge), None)
        # A port's own link is the one below it; that of a switch's upstream port, which has bridges below, goes up.
        has_ports = any(one.kind == "bridge" and one.parent == bridge.address for one in node.pci)
        if port is not None and port.link is not None and has_ports and below(node, bridge):
            yield node, bridge, link, port.link


def _narrow_uplinks(scan: Scan) -> Iterator[Sighting]:
    for node, bridge, link, port in _uplinks(scan):
        if _is_narrow(link, port):
            yield Sighting(
                f"a PCIe switch is joined to its CPU by x{link.width} where x{_possible_width(link, port)} is possible",
                node.node,
                (_told(bridge, link),),
            )


def _slow_uplinks(scan: Scan) -> Iterator[Sighting]:
    for node, bridge, link, port in _uplinks(scan):
        if _is_slow(link, port):
            possible = _least(link.max_speed_gt_per_s, port.max_speed_gt_per_s)
            yield Sighting(
                f"a PCIe switch is joined to its CPU at {_speed(link.speed_gt_per_s)} where {_speed(possible)} "
                "is possible",
                node.node,
                (_told(bridge, link),),
            )


def _slow_paths(scan: Scan) -> Iterator[Sighting]:
    for node, gpu, link in _devices(scan, "gpu"):
        own = pcie_gbit_per_s(link.max_speed_gt_per_s, link.width)
        # The port right above shows the GPU's own link, which idles at low speed.
        bridges = [bridge for bridge in list(above(node, gpu))[1:] if bridge.link is not None]
        carried = [(least, bridge) for bridge in bridges if (least := _carried(bridge)) is not None]
        if own is None or not carried or is_grace(node):
            continue
        least, bridge = min(carried, key=lambda pair: pair[0])
        assert bridge.link is not None
        if least < own and not _is_degraded(node, bridge):
            yield Sighting(
                "a bridge between a GPU and its CPU carries less than the GPU's own link: "
                f"{_speed(bridge.link.speed_gt_per_s)} x{bridge.link.width} above "
                f"{_speed(link.max_speed_gt_per_s)} x{link.width}",
                node.node,
                (f"{_told(bridge, bridge.link)}, above GPU {_named(gpu)}",),
            )


def _carried(bridge: PciDevice) -> float | None:
    """What a bridge's link carries by both of its numbers; some switches report one of them wrongly."""
    link = bridge.link or PcieLink()
    return _least(link.gbit_per_s, link.max_gbit_per_s)


def _is_degraded(node: NodeScan, bridge: PciDevice) -> bool:
    link, port = bridge.link or PcieLink(), _port(node, bridge)
    return _is_narrow(link, port) or _is_slow(link, port)


def _narrow_gpus(scan: Scan) -> Iterator[Sighting]:
    for node, gpu, link in _devices(scan, "gpu"):
        # Where `nvidia-smi -q` told of its link, the rules about GPUs have looked at it.
        if any(health.pci_bus_id == gpu.address and health.link is not None for health in node.gpu_health):
            continue
        port = _port(node, gpu)
        if _is_narrow(link, port) and gpu.is_of("10de", "NVIDIA"):
            yield Sighting(
                f"a GPU runs on x{link.width} where x{_possible_width(link, port)} is possible",
                node.node,
                (_told(gpu, link),),
            )


def _shared_uplinks(scan: Scan) -> Iterator[Sighting]:
    for node, bridge, link in _devices(scan, "bridge"):
        members = below(node, bridge)
        # With a GPU beside the cards, GPUDirect traffic stays within the switch.
        if link.gbit_per_s is None or len(members) < 2 or any(member.kind == "gpu" for member in members):
            continue
        if any(len(below(node, one)) == len(members) for one in node.pci if one.parent == bridge.address):
            continue
        rates = [rate for member in members if (rate := rate_gbit_per_s(node, member)) is not None]
        slots = {member.address[:-1] for member in members if rate_gbit_per_s(node, member) is not None}
        if len(slots) > 1 and sum(rates) > link.gbit_per_s:
            yield Sighting(
                f"{len(slots)} network cards of {sum(rates):g} Gbit/s together share a bridge that carries "
                f"{link.gbit_per_s:.0f} Gbit/s",
                node.node,
                (f"{_told(bridge, link)}, above {', '.join(member.address for member in members)}",),
            )


RULES: tuple[Rule, ...] = (
    Rule(
        id="nic-pcie-narrow",
        title="a network card's PCIe link has fewer lanes than it could have",
        severity=Severity.WARNING,
        why="every byte between nodes crosses this link, and the slowest card sets the pace of every ring; "
        + _UNSEEN,
        fix=_RESEAT,
        source=_HEALTH_CHECKS,
        look=_narrow_nics,
    ),
    Rule(
        id="nic-pcie-slow",
        title="a network card's PCIe link is of a lower generation than both of its ends can do",
        severity=Severity.WARNING,
        why="every byte between nodes crosses this link, and the slowest card sets the pace of every ring; "
        + _UNSEEN,
        fix=_RESEAT,
        source=_HEALTH_CHECKS,
        look=_slow_nics,
    ),
    Rule(
        id="nic-pcie-below-port",
        title="a network card's slot carries less than the card's ports",
        severity=Severity.WARNING,
        why="NCCL counts with the port's rate as the network reports it, so its model of the network is too fast "
        "and the link is the real limit",
        fix=(
            "move the card to a slot with more lanes or a newer generation",
            "where both ports of one card are cabled to the same slot, use one of them: `NCCL_IB_HCA`",
        ),
        source=_HEALTH_CHECKS,
        look=_small_for_ports,
    ),
    Rule(
        id="nvswitch-pcie-narrow",
        title="an NVSwitch's PCIe link has fewer lanes than it could have",
        severity=Severity.NOTICE,
        why="NVLink traffic does not use it, but the fabric manager does, and a link that lost lanes is a hint at "
        "a board that is about to fail",
        fix=_RESEAT,
        source=_HEALTH_CHECKS,
        look=_narrow_nvswitches,
    ),
    Rule(
        id="switch-uplink-narrow",
        title="a PCIe switch has fewer lanes to its CPU than it could have",
        severity=Severity.WARNING,
        why="all GPUs and network cards below the switch share this link to the CPU's memory and to devices "
        "elsewhere; " + _UNSEEN,
        fix=_RESEAT,
        source=_NCCL_MODEL,
        look=_narrow_uplinks,
    ),
    Rule(
        id="switch-uplink-slow",
        title="a PCIe switch's link to its CPU is of a lower generation than both ends can do",
        severity=Severity.WARNING,
        why="all GPUs and network cards below the switch share this link to the CPU's memory and to devices "
        "elsewhere; " + _UNSEEN,
        fix=_RESEAT,
        source=_NCCL_MODEL,
        look=_slow_uplinks,
    ),
    Rule(
        id="gpu-path-slower-than-gpu",
        title="a bridge above a GPU reports less than the GPU's own link",
        severity=Severity.WARNING,
        why="NCCL takes the slowest bridge for the whole path, also where a switch only reports its speed wrongly; "
        "its rings across the CPU get fewer channels then",
        fix=(
            "`sudo lspci -s ADDRESS -vv | grep -E 'LnkCap|LnkSta'` on the bridge: is the link as slow as that?",
            "if the bridge is a virtual one of a PCIe switch, update the switch's firmware, or give NCCL a corrected "
            "file: `NCCL_TOPO_DUMP_FILE` writes one, `NCCL_TOPO_FILE` reads it",
        ),
        source=_NCCL_MODEL,
        look=_slow_paths,
    ),
    Rule(
        id="gpu-sysfs-link-narrow",
        title="a GPU's PCIe link has fewer lanes than both of its ends can do",
        severity=Severity.WARNING,
        why="whatever does not go over NVLink goes over this link: network traffic, and on machines without NVLink "
        "all traffic between GPUs",
        fix=_RESEAT,
        source=_NCCL_MODEL,
        look=_narrow_gpus,
    ),
    Rule(
        id="nics-share-narrow-bridge",
        title="network cards share a bridge that cannot carry them all",
        severity=Severity.WARNING,
        why="NCCL counts each card at its full rate; together they only get what the bridge carries",
        fix=(
            "spread the cards over slots of different root ports, one card to each GPU's switch",
            "until then let NCCL use only as many of them as the bridge carries: `NCCL_IB_HCA`",
        ),
        source=_NCCL_MODEL,
        look=_shared_uplinks,
    ),
)
