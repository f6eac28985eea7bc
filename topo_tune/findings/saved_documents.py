"""Saved files of one kind, with the node that each came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TypeVar

from topo_tune.findings.in_force import in_force
from topo_tune.findings.remembered import remembered
from topo_tune.records.document import Document
from topo_tune.records.scan import NodeScan, Scan

_Body = TypeVar("_Body")


def of_kind(scan: Scan, kind: type[_Body]) -> Iterator[tuple[Document, _Body]]:
    """Every document whose body is of this record type."""
    for document in scan.documents:
        if isinstance(document.body, kind):
            yield document, document.body


@remembered
def _by_name(scan: Scan) -> dict[str, NodeScan]:
    return {node.node: node for node in reversed(scan.nodes)}


def node_of(scan: Scan, document: Document) -> NodeScan | None:
    """The scanned node that a document lay beside."""
    return _by_name(scan).get(document.node)


def is_named_by(scan: Scan, document: Document, variable: str) -> bool:
    """Whether the document's node has the variable set to a file of the same name: then NCCL reads it there."""
    node = node_of(scan, document)
    setting = None if node is None else in_force(node, variable)
    return setting is not None and PurePosixPath(setting.value).name == PurePosixPath(document.file).name


def listed(items: list[str], limit: int = 8) -> str:
    """The items as one line of evidence, shortened."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
