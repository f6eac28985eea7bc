"""A scan for people: identical nodes folded into one row, what was not there listed with its reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import RenderableType

from topo_tune.errors import InputError, did_you_mean
from topo_tune.records.scan import Nic, NodeScan, Scan
from topo_tune.records.topology import Topology
from topo_tune.report.documents import summary
from topo_tune.report.findings import findings_report
from topo_tune.report.node import node_report
from topo_tune.report.text import folded, listed, table, told

Shared = TypeVar("Shared", str, tuple[str, ...])
_UNKNOWN = "-"
_PROBLEMS_SHOWN = 3


def scan_report(scan: Scan, topology: Topology | None) -> list[RenderableType]:
    """Tables and lists, in reading order: findings first, what nobody could see last."""
    parts = findings_report(scan.findings, [node.node for node in scan.nodes])
    if scan.nodes or scan.missing:
        parts.append(_nodes_table(scan))
    if scan.documents:
        parts.append(listed("Files about a job or the cluster:", _documents(scan)))
    if scan.missing:
        reasons = by_text((f"{missing.kind}: {missing.reason}", missing.node) for missing in scan.missing)
        parts.append(listed("Missing:", _with_nodes(reasons, scan)))
        # A hint can name its node; one of each kind is enough to act on.
        hints = {missing.kind: missing.hint for missing in reversed(scan.missing) if missing.hint}
        if hints:
            parts.append(listed("What to do:", [(f"{kind}:", hint) for kind, hint in hints.items()]))
    settings = by_text(_settings(scan.nodes))
    if settings:
        parts.append(listed("NCCL settings found on the nodes:", _with_nodes(settings, scan)))
    if topology is not None:
        parts.append(listed("What NCCL will see:", [(line,) for line in topology.reasons]))
    if any(node.absent for node in scan.nodes):
        parts.append(listed("Not seen:", _not_seen(scan)))
    return parts


def node_or_refusal(scan: Scan, name: str) -> list[RenderableType]:
    """One node from near, with its findings. Raises InputError for a node that the scan does not have."""
    node = scan.node(name)
    if node is None:
        raise InputError(
            f"the scan has no node `{name}`", hint=did_you_mean(name, [n.node for n in scan.nodes])
        )
    own = [finding for finding in scan.findings if name in finding.nodes]
    return [*findings_report(own, [name]), *node_report(node)]


def _not_seen(scan: Scan) -> list[tuple[str, ...]]:
    """One line a reason: what one missing tool would have told is named together."""
    absent = by_text(((a.what, a.reason), node.node) for node in scan.nodes for a in node.absent)
    whats: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (what, reason), nodes in absent.items():
        whats[reason, nodes].append(what)
    found = {f"{', '.join(named)}: {reason}": nodes for (reason, nodes), named in whats.items()}
    return _with_nodes(found, scan)


def _documents(scan: Scan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for document in scan.documents:
        rows.append((document.file, document.kind, summary(document.body)))
        rows += [("", "", f"not read: {problem}") for problem in document.problems[:_PROBLEMS_SHOWN]]
        if len(document.problems) > _PROBLEMS_SHOWN:
            rows.append(
                ("", "", f"and {len(document.problems) - _PROBLEMS_SHOWN} more places (--json has them)")
            )
    return rows


def _nodes_table(scan: Scan) -> RenderableType:
    made = table("nodes", "GPUs", "driver", "NCCL", "NICs up", "CPU", "kernel")
    for row, nodes in by_text((node_row(node), node.node) for node in scan.nodes).items():
        made.add_row(told(nodes), *(told(cell) for cell in row))
    for kind, nodes in by_text((missing.kind, missing.node) for missing in scan.missing).items():
        made.add_row(told(nodes), f"[red]{told(kind)}[/red]")
    return made


def node_row(node: NodeScan) -> tuple[str, ...]:
    """GPUs, driver, NCCL, NICs up, CPU and kernel: what makes nodes alike at a glance."""
    version = node.torch_nccl or next((lib.version for lib in node.nccl_libraries if lib.version), None)
    processor = node.cpu.vendor or (None if node.cpu.architecture == "unknown" else node.cpu.architecture)
    threads = f"{node.cpu.threads} threads" if node.cpu.threads else None
    return (
        _gpus(node),
        node.driver or _UNKNOWN,
        version or _UNKNOWN,
        _nics(node),
        " ".join(part for part in (threads, processor) if part) or _UNKNOWN,
        _UNKNOWN if node.kernel == "unknown" else node.kernel,
    )


def _gpus(node: NodeScan) -> str:
    if node.gpus:
        return ", ".join(f"{count} x {name}" for name, count in Counter(g.name for g in node.gpus).items())
    if node.matrix is not None and node.matrix.gpus:
        return f"{len(node.matrix.gpus)} (by the topology matrix)"
    return "none"


def _nics(node: NodeScan) -> str:
    """A line for each kind and speed that is up; bridges and the like, and loopback, are not counted."""
    groups: dict[tuple[str, float | None], list[Nic]] = defaultdict(list)
    for nic in node.nics:
        if nic.is_up and nic.kind not in ("loopback", "other"):
            groups[nic.kind, nic.speed_gbit_per_s].append(nic)
    lines = [_nic_line(kind, speed, found) for (kind, speed), found in groups.items()]
    if not node.nics and node.matrix is not None and node.matrix.nics:
        lines = [f"{len(node.matrix.nics)} (by the topology matrix)"]
    return "\n".join(lines) or _UNKNOWN


def _nic_line(kind: str, speed_gbit_per_s: float | None, nics: Sequence[Nic]) -> str:
    speed = "" if speed_gbit_per_s is None else f" {speed_gbit_per_s:g} Gbit/s"
    names = nics[0].name if len(nics) == 1 else f"{nics[0].name} ... {nics[-1].name}"
    return f"{len(nics)} x {kind}{speed} ({names})"


def _settings(nodes: Iterable[NodeScan]) -> Iterable[tuple[str, str]]:
    """(what was found and where, node)"""
    for node in nodes:
        for name, value in node.nccl_environment:
            yield f"{name}={value}  (environment)", node.node
        for file in node.nccl_files:
            for setting in file.settings:
                yield f"{setting.name}={setting.value}  ({file.path}:{setting.line})", node.node
            for problem in file.problems:
                yield f"{file.path}: {problem}", node.node


def by_text(pairs: Iterable[tuple[Shared, str]]) -> dict[Shared, str]:
    """What nodes have in common to those nodes, folded; in the order of first appearance."""
    found: dict[Shared, list[str]] = defaultdict(list)
    for text, node in pairs:
        found[text].append(node)
    return {text: folded(nodes) for text, nodes in found.items()}


def _with_nodes(found: dict[str, str], scan: Scan) -> list[tuple[str, ...]]:
    everybody = "" if scan.missing or len(scan.nodes) == 1 else folded(node.node for node in scan.nodes)
    return [("every node" if nodes == everybody else nodes, text) for text, nodes in found.items()]
