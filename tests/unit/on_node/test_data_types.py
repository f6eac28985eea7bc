"""Bytes of numbers in the data types of collectives."""

from __future__ import annotations

import math
import struct

import pytest

from topo_tune.on_node import nccl_api
from topo_tune.on_node.data_types import DATA_TYPES, DataType, data_type, encode


def decode_fp8(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """A finite 8-bit number by the definition of its format (OCP 8-bit floating point, revision 1.0)."""
    bias = (1 << (exponent_bits - 1)) - 1
    exponent, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    if exponent == 0:
        return math.ldexp(fraction, 1 - bias)
    return math.ldexp(1 + fraction, exponent - bias)


def decode(data: bytes, kind: DataType) -> float:
    if kind.name == "float8_e4m3fn":
        return decode_fp8(data[0], 4, 3)
    if kind.name == "float8_e5m2":
        return decode_fp8(data[0], 5, 2)
    if kind.name == "bfloat16":
        return float(struct.unpack("<f", b"\0\0" + data)[0])
    layout = {"float32": "<f", "float16": "<e", "int8": "<b"}[kind.name]
    return float(struct.unpack(layout, data)[0])


@pytest.mark.parametrize("kind", DATA_TYPES.values(), ids=DATA_TYPES)
def test_every_exact_integer_comes_back(kind: DataType) -> None:
    for value in range(min(kind.largest_exact, 3000) + 1):
        assert decode(encode([value], kind), kind) == value


@pytest.mark.parametrize("kind", DATA_TYPES.values(), ids=DATA_TYPES)
def test_every_power_of_two_between_the_exponents_comes_back(kind: DataType) -> None:
    for exponent in range(kind.lowest_exponent, kind.highest_exponent + 1):
        value = 2.0**exponent
        assert decode(encode([value], kind), kind) == value


@pytest.mark.parametrize("kind", [k for k in DATA_TYPES.values() if k.name != "int8"], ids=lambda k: k.name)
def test_the_integer_behind_the_largest_exact_one_does_not_come_back(kind: DataType) -> None:
    behind = kind.largest_exact + 1

    assert decode(encode([behind], kind), kind) != behind


@pytest.mark.parametrize("kind", DATA_TYPES.values(), ids=DATA_TYPES)
def test_nccl_has_the_type_with_the_same_size(kind: DataType) -> None:
    assert nccl_api.DATA_TYPES[kind.name][1] == kind.item_bytes
    assert len(encode([0, 1, 2], kind)) == 3 * kind.item_bytes


def test_a_type_that_nobody_knows_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no data type `fp32` here; there are float32, float16, "):
        data_type("fp32")
