"""The collectives that are measured: what a size means, who sends and receives how much, and which ranks take part.

Sizes as nccl-tests means them (NVIDIA/nccl-tests src/*.cu, the `GetCollByteCount` of each test): where a size is
divided among the ranks, each part is rounded down to a multiple of 16 bytes, and the size that remains is the one
that was measured. Pure; runs on the node, Python 3.8 and newer, standard library only.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

ROOT = 0
"""the rank of a group that broadcasts and to which is reduced, as nccl-tests' default"""
PART_BYTES = 16
"""parts are multiples of this, so that every part begins where NCCL can move the most bytes at once"""


class Collective(NamedTuple):
    """One collective, by nccl-tests' name."""

    name: str
    reduces: bool
    is_divided: bool
    """the size is that of all ranks' parts together"""
    has_in_place: bool
    brings_together: bool
    """no rank can be done with a call before every rank has begun it"""


COLLECTIVES: Dict[str, Collective] = {
    made.name: made
    for made in (
        Collective("all_reduce", True, False, True, True),
        Collective("all_gather", False, True, True, True),
        Collective("reduce_scatter", True, True, True, True),
        Collective("broadcast", False, False, True, False),
        Collective("reduce", True, False, True, False),
        Collective("alltoall", False, True, False, True),
        Collective("sendrecv", False, False, False, False),
    )
}


class Counts(NamedTuple):
    """Elements of one rank's call."""

    call: int
    """what the call's own argument says: of one part where the size is divided"""
    send: int
    receive: int


class Group(NamedTuple):
    """The ranks of one communicator."""

    number: int
    ranks: Tuple[int, ...]


def collective_of(name: str) -> Collective:
    """The collective of a name. Raises ValueError."""
    if name not in COLLECTIVES:
        raise ValueError("no collective `%s` here; there are %s" % (name, ", ".join(COLLECTIVES)))
    return COLLECTIVES[name]


def counts_of(collective: Collective, size_bytes: int, ranks: int, item_bytes: int) -> Counts:
    """What each of `ranks` ranks sends and receives for a size. Raises ValueError where nothing would be left."""
    elements = size_bytes // item_bytes
    if collective.is_divided:
        step = PART_BYTES // item_bytes
        part = elements // ranks // step * step
        whole = part * ranks
        counts = Counts(
            part,
            part if collective.name == "all_gather" else whole,
            part if collective.name == "reduce_scatter" else whole,
        )
    else:
        counts = Counts(elements, elements, elements)
    if counts.call == 0:
        raise ValueError(
            "%d bytes are too few for %s of %d ranks; the least is %d"
            % (size_bytes, collective.name, ranks, least_bytes(collective, ranks, item_bytes))
        )
    return counts


def least_bytes(collective: Collective, ranks: int, item_bytes: int) -> int:
    """The smallest size of which something is left."""
    return PART_BYTES * ranks if collective.is_divided else item_bytes


def measured_bytes(counts: Counts, item_bytes: int) -> int:
    """The size that these counts are, as nccl-tests prints it."""
    return max(counts.send, counts.receive) * item_bytes


def in_place_starts(collective: Collective, counts: Counts, rank: int) -> Tuple[int, int]:
    """Where in the one buffer of a call in place the rank sends from and receives into, in elements."""
    own_part = rank * counts.call
    return (
        own_part if collective.name == "all_gather" else 0,
        own_part if collective.name == "reduce_scatter" else 0,
    )


def groups_of(layout: str, world: int, ranks_per_node: int) -> List[Group]:
    """The groups of a layout; every rank is in one. Raises ValueError where one would have a single rank."""
    if layout == "world":
        found = [range(world)]
    elif layout == "node":
        found = [range(first, first + ranks_per_node) for first in range(0, world, ranks_per_node)]
    elif layout == "rails":
        found = [range(first, world, ranks_per_node) for first in range(ranks_per_node)]
    elif layout == "pairs":
        found = [range(first, min(first + 2, world)) for first in range(0, world, 2)]
    else:
        raise ValueError("no layout `%s` here; there are world, node, rails, pairs" % layout)
    if world % ranks_per_node and layout in ("node", "rails"):
        raise ValueError("%d ranks are no whole nodes of %d ranks" % (world, ranks_per_node))
    if any(len(ranks) < 2 for ranks in found):
        raise ValueError(
            "layout `%s` of %d ranks, %d a node, leaves a group of a single rank"
            % (layout, world, ranks_per_node)
        )
    return [Group(number, tuple(ranks)) for number, ranks in enumerate(found)]
