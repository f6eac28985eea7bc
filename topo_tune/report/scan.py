"""A scan for people: identical nodes folded into one row, what was not there listed with its reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TypeVar

from rich.console import RenderableType

from topo_tune.errors import InputError, did_you_mean
from topo_tune.records.finding import Severity
from topo_tune.records.scan import NodeScan, Scan
from topo_tune.records.topology import Topology
from topo_tune.report.documents import summary
from topo_tune.report.findings import findings_report
from topo_tune.report.node import node_report
from topo_tune.report.node_row import COLUMNS, is_told, node_row
from topo_tune.report.not_seen import not_seen
from topo_tune.report.text import counted, folded, labelled, listed, table, told, wrappable

Shared = TypeVar("Shared", str, tuple[str, ...])
_PROBLEMS_SHOWN = 3


def scan_report(scan: Scan, topology: Topology | None) -> list[RenderableType]:
    """Tables and lists, in reading order: findings first, what nobody could see last."""
    parts = findings_report(scan.findings, [node.node for node in scan.nodes])
    if scan.missing or nodes_told(scan)[0]:
        parts.append(_nodes_table(scan))
    if scan.documents:
        parts.append(labelled("Files about a job or the cluster:", _documents(scan)))
    if scan.unread:
        parts.append(labelled("Files not read:", [(file.what, file.reason) for file in scan.unread]))
    if scan.missing:
        reasons = [(f"{missing.kind}: {missing.reason}", missing.node) for missing in scan.missing]
        parts.append(labelled("Missing:", _by_node(reasons, scan)))
        # A hint can name its node; one of each kind is enough to act on.
        hints = {missing.kind: missing.hint for missing in reversed(scan.missing) if missing.hint}
        if hints:
            parts.append(labelled("What to do:", [(f"{kind}:", hint) for kind, hint in hints.items()]))
    settings = _by_node(_settings(scan.nodes), scan)
    if settings:
        parts.append(labelled("NCCL settings found on the nodes:", settings))
    if topology is not None:
        parts.append(listed("What NCCL will see:", [(line,) for line in topology.reasons]))
    unseen = [(folded(nodes), text) for nodes, text in not_seen(scan)]
    if unseen:
        parts.append(labelled("Not seen:", _with_nodes(unseen, scan)))
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


def summary_line(scan: Scan) -> str:
    """`3 nodes, 1 missing; 1 error, 2 warnings`: a scan in one line of plain text."""
    counts = Counter(finding.severity for finding in scan.findings)
    found = [counted(counts[severity], severity.value) for severity in Severity if counts[severity]]
    parts = [
        counted(len(scan.nodes), "node") if scan.nodes or not scan.documents else "",
        f"{len(scan.missing)} missing" if scan.missing else "",
        f"{counted(len(scan.documents), 'file')} about a job or the cluster" if scan.documents else "",
    ]
    return f"{', '.join(part for part in parts if part)}; {', '.join(found) or 'no findings'}"


def nodes_told(scan: Scan) -> tuple[tuple[str, ...], dict[tuple[str, ...], str]]:
    """The titles of the table of nodes, and its rows to the nodes that share them, without columns of no content."""
    rows = {node.node: node_row(node) for node in scan.nodes}
    kept = [column for column in range(len(COLUMNS)) if is_told(column, rows.values())]
    shown = by_text((tuple(row[column] for column in kept), node) for node, row in rows.items())
    return tuple(COLUMNS[column] for column in kept), shown


def _documents(scan: Scan) -> list[tuple[str, str]]:
    rows = []
    for document in scan.documents:
        lines = [f"{document.kind}: {summary(document.body)}"]
        lines += [f"not read: {problem}" for problem in document.problems[:_PROBLEMS_SHOWN]]
        if len(document.problems) > _PROBLEMS_SHOWN:
            lines.append(f"and {len(document.problems) - _PROBLEMS_SHOWN} more places (--json has them)")
        rows.append((document.file, "\n".join(lines)))
    return rows


def _nodes_table(scan: Scan) -> RenderableType:
    titles, rows = nodes_told(scan)
    made = table("nodes", *titles)
    for row, nodes in rows.items():
        made.add_row(told(wrappable(nodes)), *(told(cell) for cell in row))
    for kind, nodes in by_text((missing.kind, missing.node) for missing in scan.missing).items():
        made.add_row(told(wrappable(nodes)), f"[red]{told(kind)}[/red]")
    return made


def _by_node(found: Iterable[tuple[str, str]], scan: Scan) -> list[tuple[str, str]]:
    return _with_nodes(((nodes, text) for text, nodes in by_text(found).items()), scan)


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


def _with_nodes(found: Iterable[tuple[str, str]], scan: Scan) -> list[tuple[str, str]]:
    """Pairs of nodes and a text; all nodes of a scan that reached everybody are `every node`."""
    everybody = "" if scan.missing or len(scan.nodes) == 1 else folded(node.node for node in scan.nodes)
    return [("every node" if nodes == everybody else nodes, text) for nodes, text in found]
