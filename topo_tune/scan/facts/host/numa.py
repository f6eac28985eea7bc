"""NUMA nodes, from /sys/devices/system/node and `numactl -H`."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.scan import NodeScan, NumaNode
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, whole_number

_MEBIBYTE = 1 << 20
_NUMACTL = re.compile(r"\s{0,8}node (\d{1,5}) (cpus|size): ?(.*)")


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


def parse_numactl(text: str, *, file: str | None = None) -> tuple[NumaNode, ...]:
    """The nodes of `numactl -H`. Raises InputError where it names none."""
    cpus: dict[int, str] = {}
    sizes: dict[int, int] = {}
    for _, line in lines_of_one_task(text).lines:
        match = _NUMACTL.match(line)
        if match is None:
            continue
        index, what, value = int(match.group(1)), match.group(2), match.group(3)
        if what == "cpus":
            cpus[index] = value
        elif (size := whole_number(value)) is not None:
            sizes[index] = min(size, 1 << 40) * _MEBIBYTE
    if not cpus:
        raise InputError(
            f"no NUMA node: expected lines such as `node 0 cpus: 0 1 2`, found `{clipped(text)}`",
            file=file,
            hint="`numactl -H` writes them",
        )
    return tuple(NumaNode(index, _ranges(cpus[index]), sizes.get(index)) for index in sorted(cpus))


def _ranges(words: str) -> str:
    """`0 1 2 8` as `0-2,8`."""
    numbers = sorted(
        {int(word) for word in words.split() if word.isascii() and word.isdigit() and len(word) < 7}
    )
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] + 1 == number:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _tell_numactl(scan: NodeScan, text: str, file: str) -> NodeScan:
    nodes = parse_numactl(text, file=file)
    # It knows the memory, which `lscpu` does not.
    is_better = all(node.memory_bytes is None for node in scan.numa)
    return msgspec.structs.replace(scan, numa=nodes if is_better else scan.numa)


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`numactl -H` output", matches(r"^(?:[ \t]{0,8}\d{1,6}: )?node \d{1,5} cpus:"), tell=_tell_numactl
    ),
)
