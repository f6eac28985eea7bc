"""Answers about a node are kept for as long as they hold."""

from __future__ import annotations

from scans import node_scan

from topo_tune.findings.remembered import remembered
from topo_tune.records.scan import NodeScan


def test_the_same_record_is_asked_once_and_an_equal_one_again() -> None:
    asked: list[NodeScan] = []
    first, twin = node_scan("a"), node_scan("a")

    @remembered
    def name(node: NodeScan) -> str:
        """Who it is."""
        asked.append(node)
        return node.node

    assert [name(first), name(first), name(twin), name(first)] == ["a", "a", "a", "a"]
    assert len(asked) == 2
    assert name.__doc__ == "Who it is."


def test_more_records_than_are_kept_are_asked_anew_and_not_mixed_up() -> None:
    name = remembered(lambda node: node.node)
    nodes = [node_scan(f"n{i}") for i in range(5000)]

    assert [name(node) for node in nodes] == [node.node for node in nodes]
    assert [name(node) for node in reversed(nodes)] == [node.node for node in reversed(nodes)]
