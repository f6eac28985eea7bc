"""Known data: exact in every type, and different wherever something can go wrong."""

from __future__ import annotations

import math

import pytest

from topo_tune.on_node.collectives import COLLECTIVES, Counts, collective_of, counts_of, in_place_starts
from topo_tune.on_node.data_types import DATA_TYPES, DataType
from topo_tune.on_node.known_data import (
    KnownData,
    Span,
    growing_factor,
    known_data,
    pattern_of,
    repeated_in_place,
    sum_of_patterns,
)

WORLDS = (2, 3, 8, 16, 24, 64, 65, 128, 500, 1000)
KINDS = tuple(DATA_TYPES.values())
BFLOAT16 = DATA_TYPES["bfloat16"]


def significant_bits(value: float) -> int:
    """How many binary digits a number needs, without the zeros at its end."""
    mantissa, _ = math.frexp(value)
    bits = 0
    while mantissa != int(mantissa):
        mantissa, bits = 2 * mantissa, bits + 1
    return bits


def is_exact(value: float, kind: DataType) -> bool:
    _, exponent = math.frexp(value)
    return value == 0 or (
        significant_bits(value) <= max(1, (kind.largest_exact).bit_length() - (kind.name != "int8"))
        and kind.lowest_exponent < exponent <= kind.highest_exponent + 1
    )


def written(spans: list[Span], length: int) -> list[float | None]:
    """A buffer with these spans; None where nothing was put."""
    buffer: list[float | None] = [None] * length
    for span in spans:
        for place in range(span.length):
            buffer[span.start + place] = span.pattern[(span.offset + place) % len(span.pattern)]
    return buffer


# -- patterns


@pytest.mark.parametrize("kind", KINDS, ids=DATA_TYPES)
@pytest.mark.parametrize("ranks", WORLDS)
def test_no_part_of_a_sum_is_beyond_the_exact_integers(ranks: int, kind: DataType) -> None:
    # all values are positive, so whatever order they are added in, no part is larger than the whole
    assert 0 < max(sum_of_patterns(ranks, kind.largest_exact)) <= kind.largest_exact


@pytest.mark.parametrize("limit", [8, 127, 1 << 24])
@pytest.mark.parametrize("ranks", [2, 24, 128, 1000])
def test_every_rank_is_seen_in_the_sum_and_no_two_are_alike(ranks: int, limit: int) -> None:
    patterns = [pattern_of(rank, ranks, limit) for rank in range(ranks)]

    assert all(any(pattern) for pattern in patterns)
    assert len(set(patterns)) == ranks


@pytest.mark.parametrize("ranks", [2, 8, 1000])
def test_a_pattern_that_is_off_by_a_power_of_two_looks_otherwise(ranks: int) -> None:
    pattern = pattern_of(1, ranks)
    for shift in (1 << bits for bits in range(24)):
        places = range(2 * len(pattern))
        shifted = [pattern[(place + shift) % len(pattern)] for place in places]
        assert shifted != [pattern[place % len(pattern)] for place in places]


def test_the_sum_is_that_of_all_ranks() -> None:
    columns = zip(*(pattern_of(rank, 3, 256) for rank in range(3)), strict=True)

    assert sum_of_patterns(3, 256) == tuple(sum(column) for column in columns)
    assert pattern_of(0, 3, 256)[:6] == (0.0, 1.0, 2.0, 0.0, 1.0, 2.0)
    assert pattern_of(1, 3, 256)[:3] == (1.0, 2.0, 0.0)


# -- what each collective does with it


def run(
    name: str, counts: Counts, data: list[KnownData], calls: int, *, in_place: bool
) -> list[list[float | None]]:
    """What every rank's receive buffer holds after some calls, carried out by the definition of the collective."""
    ranks = range(len(data))
    collective = collective_of(name)
    length = max(counts.send, counts.receive)
    starts = [in_place_starts(collective, counts, r) if in_place else (0, 0) for r in ranks]
    receives: list[list[float | None]] = [[None] * length for _ in ranks]
    sends = receives if in_place else [[None] * length for _ in ranks]
    for rank in ranks:
        first = starts[rank][0]
        for place, value in enumerate(written(data[rank].brought, counts.send)):
            if value is not None:
                sends[rank][first + place] = value
    for _ in range(calls):
        given = [sends[r][starts[r][0] : starts[r][0] + counts.send] for r in ranks]
        for rank in ranks:
            got = _one_call(name, counts.call, given, rank)
            first = starts[rank][1]
            receives[rank][first : first + len(got)] = got
    return [receives[r][starts[r][1] : starts[r][1] + counts.receive] for r in ranks]


def _one_call(name: str, count: int, given: list[list[float | None]], rank: int) -> list[float | None]:
    if collective_of(name).reduces:
        if name == "reduce" and rank != 0:
            return []
        total: list[float | None] = [sum(column) for column in zip(*given, strict=True)]  # type: ignore[arg-type]
        return total[rank * count : (rank + 1) * count] if name == "reduce_scatter" else total
    return {
        "all_gather": lambda: [value for part in given for value in part],
        "broadcast": lambda: given[0],
        "alltoall": lambda: [value for part in given for value in part[rank * count : (rank + 1) * count]],
        "sendrecv": lambda: given[rank - 1],
    }[name]()


@pytest.mark.parametrize("calls", [1, 20])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_is_expected_is_what_the_collective_makes_of_what_was_brought(
    name: str, ranks: int, calls: int
) -> None:
    collective = collective_of(name)
    counts = counts_of(collective, 1024, ranks, 2)
    data = [known_data(collective, counts, BFLOAT16, rank, ranks) for rank in range(ranks)]

    received = run(name, counts, data, calls, in_place=False)

    for rank in range(ranks):
        expected = written(data[rank].expected, counts.receive)
        assert all(e in (None, r) for e, r in zip(expected, received[rank], strict=True))
        # only a rank to which nothing is reduced has nothing to look at
        assert (None in expected) == (name == "reduce" and rank != 0)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", [name for name, made in COLLECTIVES.items() if made.has_in_place])
def test_calls_in_place_one_after_the_other_end_as_expected(name: str, ranks: int) -> None:
    collective = collective_of(name)
    counts = counts_of(collective, 1024, ranks, 2)
    found = [repeated_in_place(collective, counts, BFLOAT16, rank, ranks, 20) for rank in range(ranks)]
    data = [one for one in found if one is not None]
    assert len(data) == ranks

    received = run(name, counts, data, 20, in_place=True)

    for rank in range(ranks):
        expected = written(data[rank].expected, counts.receive)
        assert all(e in (None, r) for e, r in zip(expected, received[rank], strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=DATA_TYPES)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 256])
@pytest.mark.parametrize("name", ["all_reduce", "reduce", "reduce_scatter"])
def test_what_calls_in_place_end_with_is_exact_or_not_looked_at(
    name: str, ranks: int, kind: DataType
) -> None:
    collective = collective_of(name)
    counts = counts_of(collective, 64 << 10, ranks, kind.item_bytes)
    data = repeated_in_place(collective, counts, kind, 0, ranks, 20)

    for span in [] if data is None else [*data.brought, *data.expected]:
        assert all(is_exact(value, kind) for value in span.pattern)


@pytest.mark.parametrize(
    ("ranks", "dtype", "factor"),
    [
        (2, "bfloat16", 1.0),
        (64, "bfloat16", 1.0),
        (256, "bfloat16", 2.0**-27),
        (512, "bfloat16", None),  # parts of the sum have more digits than the type
        (3, "bfloat16", None),  # no power of two
        (2, "float16", 2.0**-6),
        (4, "float16", None),  # grows out of the type
        (2, "float8_e5m2", 2.0**-6),
        (2, "float8_e4m3fn", None),
        (2, "int8", None),
    ],
)
def test_sums_of_sums_begin_so_small_that_they_stay_exact(
    ranks: int, dtype: str, factor: float | None
) -> None:
    assert growing_factor(ranks, DATA_TYPES[dtype], 20) == factor
