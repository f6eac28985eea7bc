"""What ranks bring to a collective and must end with: patterns that tell ranks and places apart, in exact numbers.

Sums stay exact in whatever order they are made, because all values are positive whole numbers and the sum of all of
them is still exact in the data type. Pure; runs on the node, Python 3.8 and newer, standard library only.
"""

from __future__ import annotations

import functools
from typing import List, NamedTuple, Optional, Sequence, Tuple

from topo_tune.on_node.collectives import ROOT, Collective, Counts
from topo_tune.on_node.data_types import DataType

SHORTEST_PERIOD = 127
"""prime: data that lands in a wrong place, most likely off by a multiple of a power of two, does not look right"""


class Span(NamedTuple):
    """Elements of a buffer that hold a pattern again and again, beginning `offset` values into it."""

    start: int
    length: int
    pattern: Tuple[float, ...]
    offset: int


class KnownData(NamedTuple):
    """What one rank puts into its send buffer, and what its receive buffer must hold afterwards."""

    brought: List[Span]
    expected: List[Span]


def known_data(collective: Collective, counts: Counts, kind: DataType, rank: int, ranks: int) -> KnownData:
    """For one call; and for any number of calls whose two buffers are different ones."""
    if collective.reduces:
        own = pattern_of(rank, ranks, kind.largest_exact)
        return _reducing(collective, counts, rank, own, sum_of_patterns(ranks, kind.largest_exact))
    return _moving(collective, counts, rank, ranks)


def repeated_in_place(
    collective: Collective, counts: Counts, kind: DataType, rank: int, ranks: int, calls: int
) -> Optional[KnownData]:
    """For `calls` calls in place, one after the other; None where no such data stays exact."""
    if not collective.reduces:
        # What was moved once is moved again.
        return _moving(collective, counts, rank, ranks)
    if collective.name == "all_reduce":
        factor = growing_factor(ranks, kind, calls)
        if factor is None:
            return None
        own = single_bits_of(rank, ranks, factor)
        total = [element * float(ranks) ** (calls - 1) for element in all_single_bits(ranks, factor)]
        return _reducing(collective, counts, rank, own, tuple(total))
    # The rank's own part grows by what the others bring, with each call.
    limit = kind.largest_exact // calls
    if limit < 2:
        return None
    own = pattern_of(rank, ranks, limit)
    total = [mine + calls * (whole - mine) for mine, whole in _pairs(own, sum_of_patterns(ranks, limit))]
    return _reducing(collective, counts, rank, own, tuple(total))


def pattern_of(rank: int, ranks: int, limit: Optional[int] = None) -> Tuple[float, ...]:
    """What a rank's elements are, again and again: 0, 1 and 2 in turn, shifted by the digits of its number to base 3.

    With a limit, the sum over all ranks is nowhere above it: in a large group a rank then contributes to every
    `spread`-th element only, each rank of `spread` neighbours to another one.
    """
    spread, digits, period = _shape(ranks, limit)
    number = rank // spread
    return tuple(
        float((place // spread + number // 3 ** (place // (3 * spread) % digits)) % 3)
        if (rank + place) % spread == 0
        else 0.0
        for place in range(period)
    )


@functools.lru_cache(maxsize=8)
def sum_of_patterns(ranks: int, limit: int) -> Tuple[float, ...]:
    """The sum of all ranks' patterns."""
    patterns = [pattern_of(rank, ranks, limit) for rank in range(ranks)]
    return tuple(sum(column) for column in zip(*patterns))  # noqa: B905 - Python 3.8 has no `strict`


def growing_factor(ranks: int, kind: DataType, calls: int) -> Optional[float]:
    """What the single bits of `calls` all-reduces in place begin with; None where they would not stay exact.

    The first call gives the sum, each further one multiplies it by the number of ranks. A power of two times a power
    of two is exact while its exponent fits, and so are the parts of the sum: multiples of it by less than `ranks`.
    """
    doublings = ranks.bit_length() - 1
    if ranks != 1 << doublings or ranks > kind.largest_exact:
        return None
    lowest = kind.highest_exponent - 2 - doublings * (calls - 1)
    return 2.0 ** min(0, lowest) if lowest >= kind.lowest_exponent else None


def single_bits_of(rank: int, ranks: int, factor: float) -> Tuple[float, ...]:
    """A rank's elements where each comes from one rank alone, as 1, 2 or 4 times a factor."""
    whole = all_single_bits(ranks, factor)
    return tuple(value if place % ranks == rank else 0.0 for place, value in enumerate(whole))


def all_single_bits(ranks: int, factor: float) -> Tuple[float, ...]:
    """The sum of these elements over all ranks."""
    return tuple(factor * 2.0 ** (place % 3) for place in range(3 * ranks))


def _shape(ranks: int, limit: Optional[int]) -> Tuple[int, int, int]:
    """(every how many elements a rank contributes to one, digits of a rank's number, period of the pattern)"""
    # no value is above 2, so this many of them stay within the limit
    together = ranks if limit is None else limit // 2
    spread = -(-ranks // together)
    digits = 1
    while 3**digits <= (ranks - 1) // spread:
        digits += 1
    # Odd, and no multiple of 3 or of `spread`; long enough for every digit to be seen twice.
    return spread, digits, max(SHORTEST_PERIOD, 6 * digits * spread + 1)


def _reducing(
    collective: Collective, counts: Counts, rank: int, own: Sequence[float], total: Tuple[float, ...]
) -> KnownData:
    brought = [Span(0, counts.send, tuple(own), 0)]
    if collective.name == "reduce" and rank != ROOT:
        return KnownData(brought, [])
    first = rank * counts.call if collective.name == "reduce_scatter" else 0
    return KnownData(brought, [Span(0, counts.receive, total, first)])


def _moving(collective: Collective, counts: Counts, rank: int, ranks: int) -> KnownData:
    own, count = pattern_of(rank, ranks), counts.call
    if collective.name == "all_gather":
        parts = [Span(peer * count, count, pattern_of(peer, ranks), 0) for peer in range(ranks)]
        return KnownData([Span(0, count, own, 0)], parts)
    if collective.name == "broadcast":
        whole = Span(0, count, pattern_of(ROOT, ranks), 0)
        return KnownData([whole] if rank == ROOT else [], [whole])
    if collective.name == "alltoall":
        # Parts for different peers begin at different places of the pattern.
        brought = [Span(peer * count, count, own, peer * (count + 1)) for peer in range(ranks)]
        expected = [
            Span(peer * count, count, pattern_of(peer, ranks), rank * (count + 1)) for peer in range(ranks)
        ]
        return KnownData(brought, expected)
    before = pattern_of((rank - 1) % ranks, ranks)
    return KnownData([Span(0, count, own, 0)], [Span(0, count, before, 0)])


def _pairs(one: Sequence[float], other: Sequence[float]) -> List[Tuple[float, float]]:
    return list(zip(one, other))  # noqa: B905 - Python 3.8 has no `strict`
