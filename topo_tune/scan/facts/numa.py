"""NUMA nodes, from /sys/devices/system/node."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from topo_tune.records.scan import NumaNode
from topo_tune.scan.facts.words import whole_number


class RawNumaNode(msgspec.Struct, frozen=True):
    """One node folder: the text of its `cpulist` and `meminfo`."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    cpulist: str = ""
    """`0-55,112-167`; empty where the node is memory only, as a Grace GPU's is"""
    meminfo: str = ""


def parse(nodes: tuple[RawNumaNode, ...]) -> tuple[NumaNode, ...]:
    """The nodes in order of their number."""
    ordered = sorted(nodes, key=lambda node: node.index)
    return tuple(
        NumaNode(node.index, node.cpulist.strip(), total_memory_bytes(node.meminfo)) for node in ordered
    )


def total_memory_bytes(meminfo: str) -> int | None:
    """The `MemTotal` of a meminfo file, of a node or of the machine."""
    match = re.search(r"MemTotal:([^\n]*)", meminfo)
    kibibytes = whole_number(match.group(1)) if match else None
    return None if kibibytes is None else min(kibibytes, 1 << 50) * 1024
