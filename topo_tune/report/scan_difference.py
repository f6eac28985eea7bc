"""What changed between two scans, for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import RenderableType

from topo_tune.records.finding import Finding
from topo_tune.report.text import folded, labelled, table, told, wrappable
from topo_tune.scan.difference import Change, Difference

_CHANGES_LIMIT = 200

_STEP = re.compile(r"([^.\[]+)(?:\[((?:[^\[\]]|\[[^\[\]]*\])*)\])?\.?")
"""One name of a fact's place, with the key of the list's member if it is one."""
_NAMES = {
    "gpus": "GPU",
    "gpu_health": "GPU",
    "nvlinks": "NVLinks of GPU",
    "p2p": "peer access",
    "nics": "NIC",
    "numa": "NUMA node",
    "pci": "PCI device",
    "rdma": "RDMA device",
    "roce": "RoCE of",
    "routes": "route",
    "plugins": "plugin",
    "settings": "setting of",
    "nccl_libraries": "NCCL library",
    "nccl_files": "file",
    "nccl_environment": "environment",
    "kernel_events": "kernel log",
    "cpu": "CPU",
    "vbios": "VBIOS",
    "bar1_total_bytes": "BAR1 bytes",
    "mig": "MIG",
    "mtu_bytes": "MTU",
    "acs": "ACS",
    "sha256": "SHA-256",
}
"""Names of records' fields that are no plain words."""


def difference_report(found: Difference, *, old: str, new: str) -> list[RenderableType]:
    """Findings first: they say what the changes mean; then nodes, then facts folded over nodes."""
    if found.is_empty:
        return [f"Nothing differs between {told(old)} and {told(new)}."]
    parts: list[RenderableType] = [f"From {told(old)} to {told(new)}:"]
    if found.findings_new:
        parts.append(labelled("New findings:", _findings(found.findings_new)))
    if found.findings_gone:
        parts.append(labelled("Findings that are gone:", _findings(found.findings_gone)))
    nodes = [("gone", found.nodes_gone), ("new", found.nodes_new)]
    if any(names for _, names in nodes):
        parts.append(labelled("Nodes:", [(word, wrappable(folded(names))) for word, names in nodes if names]))
    if found.changes:
        parts.append(_changes(found.changes))
    if len(found.changes) > _CHANGES_LIMIT:
        parts.append(f"and {len(found.changes) - _CHANGES_LIMIT} more changes (--json has them all)")
    return parts


def readable(fact: str) -> str:
    """The place of a fact in words: `GPU 0000:18:00.0 link width` for `gpu_health[0000:18:00.0].link.width`."""
    words: list[str] = []
    for name, key in _STEP.findall(fact):
        is_member = bool(key) and not words
        if not key or is_member:
            words += [_NAMES.get(name, name.replace("_", " "))]
        words += [key] if key else []
    # `value` of a setting says no more than the setting's name.
    return " ".join(words[:-1] if len(words) > 1 and words[-1] == "value" else words)


def _findings(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [
        (
            folded(finding.nodes) if finding.nodes else "-",
            f"{finding.severity.value}: {finding.what} ({finding.rule})",
        )
        for finding in findings
    ]


def _changes(changes: Sequence[Change]) -> RenderableType:
    made = table("nodes", "fact", "before", "after")
    for change in changes[:_CHANGES_LIMIT]:
        before, after = (
            "[dim]not there[/dim]" if v is None else told(v) for v in (change.before, change.after)
        )
        made.add_row(told(wrappable(folded(change.nodes))), told(readable(change.fact)), before, after)
    return made
