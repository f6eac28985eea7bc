"""A rule about cards that answer the PCI bus no more. GPUs have a rule of their own (gpus/gpu_presence.py)."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.scan import Scan

_THEIR_WORDS = {"nic": "a network card", "nvswitch": "an NVSwitch"}


def _dead(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for kind, words in _THEIR_WORDS.items():
            dead = [device for device in node.pci if device.is_dead and device.kind == kind]
            if dead:
                lines = tuple(f"{one.address}: {one.name or one.device_id or 'unknown'}" for one in dead)
                yield Sighting(f"{words} answers the PCI bus no more", node.node, lines)


RULES: tuple[Rule, ...] = (
    Rule(
        id="pci-card-dead",
        title="a card answers the PCI bus no more",
        severity=Severity.ERROR,
        why="all that is read from the card is ones (`rev ff`): its driver has lost it, and jobs that use it hang or "
        "go another way",
        fix=(
            "drain the node, power it off and on (a warm reboot often does not bring a card back)",
            "if it comes back: `dmesg | grep -i -E 'aer|pcie'` for errors before it; reseat card and riser, check its "
            "power",
        ),
        source="torvalds/linux: include/linux/pci.h (PCI_ERROR_RESPONSE)",
        look=_dead,
    ),
)
