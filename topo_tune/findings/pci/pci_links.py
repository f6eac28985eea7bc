"""Rules about PCI Express links below what their two ends could do, or too small for what hangs there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topo_tune.findings.machine import is_grace, is_virtual, rate_gbit_per_s
from topo_tune.findings.pci.pci_tree import PciTree, tree_of
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
    "`lspci -s ADDRESS -vv | grep -E 'LnkCap|LnkSta'` shows both sides; look at the port above it, too",
    "check in the BIOS that the slot is not bifurcated and not limited to an older generation",
)
_HEALTH_CHECKS = "oracle-quickstart/oci-hpc: playbooks/roles/healthchecks/files/check_gpu_setup.py"
_NCCL_MODEL = "NVIDIA/nccl: src/graph/xml.cc (ncclTopoGetXmlFromSys reads max_link_speed and max_link_width)"
_UNSEEN = "NCCL's model takes what both ends could do and does not see it"


class _Seen(NamedTuple):
    """A device with its link, and what the port at the link's other end says."""

    node: NodeScan
    tree: PciTree
    device: PciDevice
    link: PcieLink
    port: PcieLink

    @property
    def possible_width(self) -> int | None:
        return min((w for w in (self.link.max_width, self.port.max_width) if w is not None), default=None)

    @property
    def possible_speed(self) -> float | None:
        """None where one end is not known: a card of a newer generation than its slot would look slow."""
        speeds = (self.link.max_speed_gt_per_s, self.port.max_speed_gt_per_s)
        return None if None in speeds else min(speed for speed in speeds if speed is not None)

    @property
    def is_narrow(self) -> bool:
        width, possible = self.link.width, self.possible_width
        return width is not None and possible is not None and width < possible

    @property
    def is_slow(self) -> bool:
        speed, possible = self.link.speed_gt_per_s, self.possible_speed
        return speed is not None and possible is not None and speed < possible

    @property
    def is_enough(self) -> bool:
        """Whether the link carries a card's ports all the same, or the card is too slow to matter."""
        rate = rate_gbit_per_s(self.node, self.device)
        if rate is None:
            return (self.link.max_gbit_per_s or 0.0) < _FAST_GBIT_PER_S
        return rate <= _FAST_GBIT_PER_S or (self.link.gbit_per_s or 0.0) * _HEADERS >= rate

    def words(self) -> str:
        """`0000:1a:00.0 NAME: 32 GT/s x8, possible 32 GT/s x16`, by the device's own registers."""
        name = f" {self.device.name}" if self.device.name else ""
        now = f"{_speed(self.link.speed_gt_per_s)} x{self.link.width or '?'}"
        most = f"{_speed(self.link.max_speed_gt_per_s)} x{self.link.max_width or '?'}"
        return f"{self.device.address}{name}: {now}, possible {most}"

    def sighting(self, what: str) -> Sighting:
        return Sighting(what, self.node.node, (self.words(),))


def _speed(gt_per_s: float | None) -> str:
    return "? GT/s" if gt_per_s is None else f"{gt_per_s:g} GT/s"


def _links(scan: Scan, kind: str) -> Iterator[_Seen]:
    """Links of real machines; a hypervisor makes links up, and virtual functions have none."""
    for node in scan.nodes:
        if is_virtual(node):
            continue
        tree = tree_of(node)
        for device in node.pci:
            if device.kind == kind and device.link is not None and not device.is_virtual_function:
                yield _Seen(node, tree, device, device.link, tree.port(device))


def _narrow_nics(scan: Scan) -> Iterator[Sighting]:
    for seen in _links(scan, "nic"):
        if seen.is_narrow and not seen.is_enough:
            yield seen.sighting(
                f"a network card runs on x{seen.link.width} where x{seen.possible_width} is possible"
            )


def _slow_nics(scan: Scan) -> Iterator[Sighting]:
    for seen in _links(scan, "nic"):
        if seen.is_slow and not seen.is_enough:
            yield seen.sighting(
                f"a network card's PCIe link runs at {_speed(seen.link.speed_gt_per_s)} where "
                f"{_speed(seen.possible_speed)} is possible"
            )


def _small_for_ports(scan: Scan) -> Iterator[Sighting]:
    for seen in _links(scan, "nic"):
        rate, carried = rate_gbit_per_s(seen.node, seen.device), seen.link.gbit_per_s
        # A degraded link has a rule of its own.
        if rate is None or carried is None or rate <= _FAST_GBIT_PER_S or seen.is_narrow or seen.is_slow:
            continue
        if carried < rate:
            yield seen.sighting(
                f"a network card of {rate:g} Gbit/s sits in a slot of {_speed(seen.link.speed_gt_per_s)} "
                f"x{seen.link.width}, which carries {carried:.0f} Gbit/s"
            )


def _narrow_nvswitches(scan: Scan) -> Iterator[Sighting]:
    for seen in _links(scan, "nvswitch"):
        if seen.is_narrow:
            yield seen.sighting(
                f"an NVSwitch's PCIe link runs on x{seen.link.width} where x{seen.possible_width} is possible"
            )


def _uplinks(scan: Scan) -> Iterator[_Seen]:
    """Links between bridges: upstream ports of switches that lead to GPUs or network cards."""
    for seen in _links(scan, "bridge"):
        # A port's own link is the one below it; that of a switch's upstream port, which has bridges below, goes up.
        has_ports = any(one.kind == "bridge" for one in seen.tree.children(seen.device))
        if has_ports and seen.port != PcieLink() and seen.tree.below(seen.device):
            yield seen


def _narrow_uplinks(scan: Scan) -> Iterator[Sighting]:
    for seen in _uplinks(scan):
        if seen.is_narrow:
            yield seen.sighting(
                f"a PCIe switch is joined to its CPU by x{seen.link.width} where x{seen.possible_width} "
                "is possible"
            )


def _slow_uplinks(scan: Scan) -> Iterator[Sighting]:
    for seen in _uplinks(scan):
        if seen.is_slow:
            yield seen.sighting(
                f"a PCIe switch is joined to its CPU at {_speed(seen.link.speed_gt_per_s)} where "
                f"{_speed(seen.possible_speed)} is possible"
            )


def _slow_paths(scan: Scan) -> Iterator[Sighting]:
    graces = {node.node for node in scan.nodes if is_grace(node)}
    for gpu in _links(scan, "gpu"):
        own = pcie_gbit_per_s(gpu.possible_speed, gpu.link.width)
        slowest = None if gpu.node.node in graces else _slowest_bridge(gpu)
        if own is None or slowest is None or slowest.is_narrow or slowest.is_slow:
            continue
        if (_carried(slowest.link) or own) < own:
            yield Sighting(
                "a bridge between a GPU and its CPU carries less than the GPU's own link: "
                f"{_speed(slowest.link.speed_gt_per_s)} x{slowest.link.width} above "
                f"{_speed(gpu.possible_speed)} x{gpu.link.width}",
                gpu.node.node,
                (f"{slowest.words()}, above GPU {gpu.device.address}",),
            )


def _slowest_bridge(gpu: _Seen) -> _Seen | None:
    # The port right above shows the GPU's own link, which idles at low speed.
    bridges = [
        _Seen(gpu.node, gpu.tree, bridge, bridge.link, gpu.tree.port(bridge))
        for bridge in gpu.tree.above(gpu.device)[1:]
        if bridge.link is not None and _carried(bridge.link) is not None
    ]
    return min(bridges, key=lambda seen: _carried(seen.link) or 0.0, default=None)


def _carried(link: PcieLink) -> float | None:
    """What a bridge's link carries by the worse of its two numbers; some switches report one of them wrongly."""
    known = [number for number in (link.gbit_per_s, link.max_gbit_per_s) if number is not None]
    return min(known, default=None)


def _narrow_gpus(scan: Scan) -> Iterator[Sighting]:
    for seen in _links(scan, "gpu"):
        # Where `nvidia-smi -q` told of its link, the rules about GPUs have looked at it.
        looked_at = {one.pci_bus_id for one in seen.node.gpu_health if one.link is not None}
        if seen.is_narrow and seen.device.address not in looked_at and seen.device.is_of("10de", "NVIDIA"):
            yield seen.sighting(f"a GPU runs on x{seen.link.width} where x{seen.possible_width} is possible")


def _shared_uplinks(scan: Scan) -> Iterator[Sighting]:
    for seen in _links(scan, "bridge"):
        members, carried = seen.tree.below(seen.device), seen.link.gbit_per_s
        # With a GPU beside the cards, GPUDirect traffic stays within the switch.
        if carried is None or len(members) < 2 or any(member.kind == "gpu" for member in members):
            continue
        # Of a chain of bridges above the same cards the lowest one tells.
        if any(len(seen.tree.below(one)) == len(members) for one in seen.tree.children(seen.device)):
            continue
        rates = {member.address: rate_gbit_per_s(seen.node, member) for member in members}
        known = {address: rate for address, rate in rates.items() if rate is not None}
        slots, together = {address[:-1] for address in known}, sum(known.values())
        if len(slots) > 1 and together > carried:
            yield Sighting(
                f"{len(slots)} network cards of {together:g} Gbit/s together share a bridge that carries "
                f"{carried:.0f} Gbit/s",
                seen.node.node,
                (f"{seen.words()}, above {', '.join(sorted(known))}",),
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
        why="NCCL counts with the port's rate as the network reports it, so its model of the network is too "
        "fast and the link is the real limit",
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
        why="NVLink traffic does not use it, but the fabric manager does, and a link that lost lanes is a "
        "hint at a board that is about to fail",
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
        why="NCCL takes the slowest bridge for the whole path, also where a switch only reports its speed "
        "wrongly; its rings across the CPU get fewer channels then",
        fix=(
            "`lspci -s ADDRESS -vv | grep -E 'LnkCap|LnkSta'` on the bridge: is the link as slow as that?",
            "if the bridge is a virtual one of a PCIe switch, update the switch's firmware, or give NCCL a "
            "corrected file: `NCCL_TOPO_DUMP_FILE` writes one, `NCCL_TOPO_FILE` reads it",
        ),
        source=_NCCL_MODEL,
        look=_slow_paths,
    ),
    Rule(
        id="gpu-sysfs-link-narrow",
        title="a GPU's PCIe link has fewer lanes than both of its ends can do",
        severity=Severity.WARNING,
        why="whatever does not go over NVLink goes over this link: network traffic, and on machines without "
        "NVLink all traffic between GPUs",
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
