"""Sizes, durations and bandwidths: what is read, what is printed, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.on_node import nccl_api
from topo_tune.records.bench import Collective
from topo_tune.records.units import (
    DATA_TYPES,
    algbw_gb_per_s,
    busbw_factor,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_dtype,
    parse_share,
    size_sweep,
)


@given(st.integers(1, 2**59))
def test_every_size_is_read_back_as_it_was_printed(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8K", 8192),
        ("8k", 8192),
        ("8KB", 8192),
        ("8KiB", 8192),
        (" 8 K ", 8192),
        ("8192", 8192),
        (8192, 8192),
        ("17B", 17),
        ("2M", 2097152),
        ("1G", 1073741824),
    ],
)
def test_suffixes_are_powers_of_two(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "K", "8T", "8.5K", "-8K", "8 K 9", "1e3", "0x10", "8IB", "٨K", "9" * 5000, True]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a message size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0K", 0, -1])
def test_a_size_must_be_positive(text: str | int) -> None:
    with pytest.raises(InputError, match="must be positive"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["9999999999G", 1 << 63])
def test_a_size_must_fit_into_a_record(text: str | int) -> None:
    with pytest.raises(InputError, match="must fit into 63 bits"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1"), (1000, "1000"), (1536, "1536"), (8192, "8K"), (3 << 30, "3G")]
)
def test_a_size_is_printed_in_its_largest_exact_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 us"),
        (6.7e-6, "6.70 us"),
        (5.73e-5, "57.3 us"),
        (0.0102, "10.2 ms"),
        (1.5, "1.50 s"),
        (119, "119 s"),
        (125, "2 min 5 s"),
    ],
)
def test_a_duration_is_printed_with_three_digits_and_its_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_sweep_multiplies_from_first_to_last() -> None:
    assert size_sweep(8192, 131072, 4) == (8192, 32768, 131072)


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(2, 16))
def test_a_sweep_ascends_within_its_bounds(first: int, further: int, factor: int) -> None:
    sizes = size_sweep(first, first + further, factor)

    assert sizes[0] == first
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] <= first + further < sizes[-1] * factor


def test_a_sweep_that_never_ends_is_refused() -> None:
    with pytest.raises(InputError, match="must be at least 2: 1"):
        size_sweep(8, 16, 1)


def test_an_empty_sweep_is_refused() -> None:
    with pytest.raises(InputError, match="is empty"):
        size_sweep(16, 8)


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_of_all_reduce_is_as_nccl_tests_defines_it(ranks: int, factor: float) -> None:
    assert busbw_factor("all_reduce", ranks) == factor


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        (Collective.ALL_REDUCE, 1.75),
        (Collective.ALL_GATHER, 0.875),
        (Collective.REDUCE_SCATTER, 0.875),
        (Collective.ALL_TO_ALL, 0.875),
        (Collective.BROADCAST, 1.0),
        (Collective.REDUCE, 1.0),
        (Collective.SEND_RECV, 1.0),
    ],
)
def test_bus_bandwidth_of_eight_ranks_is_as_nccl_tests_has_it(collective: Collective, factor: float) -> None:
    assert busbw_factor(collective.value, 8) == factor


@pytest.mark.parametrize("collective", Collective)
def test_every_collective_has_a_bus_bandwidth(collective: Collective) -> None:
    assert busbw_factor(collective.value, 2) > 0


def test_bus_bandwidth_of_another_collective_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="`all_gatter`\nhint: did you mean `all_gather`"):
        busbw_factor("all_gatter", 4)


def test_types_are_as_long_as_nccl_has_them() -> None:
    of_nccl = {name: item_bytes for name, (_, item_bytes) in nccl_api.DATA_TYPES.items()}

    assert {name: of.item_bytes for name, of in DATA_TYPES.items()} == of_nccl


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("bfloat16", "bfloat16"),
        ("bf16", "bfloat16"),
        ("half", "float16"),
        ("fp16", "float16"),
        ("float", "float32"),
        ("FP32", "float32"),
        ("int8", "int8"),
        ("f8e4m3", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e5m2"),
    ],
)
def test_a_type_is_known_by_the_names_that_people_use(word: str, name: str) -> None:
    assert parse_dtype(word) == name


@pytest.mark.parametrize("word", ["", "float99", "bfloat", "__class__"])
def test_what_is_no_type_is_refused(word: str) -> None:
    with pytest.raises(InputError, match=f"`{word}` is not a data type"):
        parse_dtype(word)


@pytest.mark.parametrize(("text", "share"), [("3%", 0.03), (" 2.5 % ", 0.025), ("0.03", 0.03), (".1", 0.1)])
def test_a_share_is_read_with_and_without_a_percent_sign(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "3", "0", "0%", "100%", "-3%", "nan", "1e-2", "3%%", "9" * 5000])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a share above 0 and below 1"):
        parse_share(text)


def test_algorithm_bandwidth_is_in_powers_of_ten() -> None:
    assert algbw_gb_per_s(2_000_000_000, 0.5) == 4.0
