"""What nobody could see on the nodes, and why: one text for each reason, whatever it kept from being seen."""

from __future__ import annotations

from collections import defaultdict

from topo_tune.records.scan import Scan
from topo_tune.report.text import folded

_NOT_IN_FILES = "not in the saved files"
"""The reason that a scan from files gives. It is no trouble: most dumps are of a few tools."""
_FEW_NODES = 32
"""Characters of a node list that may stand in the middle of a line."""


def not_seen(scan: Scan) -> list[tuple[tuple[str, ...], str]]:
    """Pairs: nodes, and what they did not show with the reason."""
    nodes_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in scan.nodes:
        for absent in node.absent:
            nodes_of[absent.what, absent.reason].append(node.node)
    whats: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (what, reason), nodes in nodes_of.items():
        whats[reason, tuple(dict.fromkeys(nodes))].append(what)
    found = [
        (nodes, f"{', '.join(named)}: {reason}")
        for (reason, nodes), named in whats.items()
        if reason != _NOT_IN_FILES
    ]
    left_out = [(nodes, named) for (reason, nodes), named in whats.items() if reason == _NOT_IN_FILES]
    return [*found, _left_out(left_out, scan)] if left_out else found


def _left_out(found: list[tuple[tuple[str, ...], list[str]]], scan: Scan) -> tuple[tuple[str, ...], str]:
    if len(found) == 1:
        ((nodes, named),) = found
        return nodes, f"{', '.join(named)}: {_NOT_IN_FILES}"
    everybody = tuple(node.node for node in scan.nodes)
    texts = [
        ", ".join(named) + ("" if nodes == everybody else f" ({_where(nodes, len(everybody))})")
        for nodes, named in found
    ]
    return everybody, f"{_NOT_IN_FILES}: {'; '.join(texts)}"


def _where(nodes: tuple[str, ...], all_nodes: int) -> str:
    names = folded(nodes)
    return names if len(names) <= _FEW_NODES else f"{len(nodes)} of {all_nodes} nodes"
