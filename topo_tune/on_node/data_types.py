"""Data types of collectives: how large an element is, which numbers are exact in it, and their bytes.

Known data is made here and not by torch, so that a rank moves and compares plain bytes whatever the type is.
Runs on the node, Python 3.8 and newer, standard library only.
"""

from __future__ import annotations

import math
import struct
from typing import Callable, Dict, NamedTuple, Sequence


class DataType(NamedTuple):
    """A type by torch's name. Powers of two between the two exponents are ordinary numbers of it, no subnormals."""

    name: str
    item_bytes: int
    largest_exact: int
    """every integer up to this one is exact; the next one is not"""
    lowest_exponent: int
    highest_exponent: int


DATA_TYPES: Dict[str, DataType] = {
    made.name: made
    for made in (
        DataType("float32", 4, 1 << 24, -126, 127),
        DataType("float16", 2, 1 << 11, -14, 15),
        DataType("bfloat16", 2, 1 << 8, -126, 127),
        DataType("int8", 1, 127, 0, 6),
        DataType("float8_e4m3fn", 1, 1 << 4, -6, 8),
        DataType("float8_e5m2", 1, 1 << 3, -14, 15),
    )
}


def data_type(name: str) -> DataType:
    """The type of a name. Raises ValueError."""
    if name not in DATA_TYPES:
        raise ValueError("no data type `%s` here; there are %s" % (name, ", ".join(DATA_TYPES)))
    return DATA_TYPES[name]


def encode(values: Sequence[float], kind: DataType) -> bytes:
    """The elements one after the other, little-endian. The values must not be negative, and exact in the type."""
    one = _ENCODERS[kind.name]
    return b"".join(one(value) for value in values)


def _bfloat16(value: float) -> bytes:
    # the upper half of a float32
    return struct.pack("<f", value)[2:]


def _e5m2(value: float) -> bytes:
    # the upper half of a float16
    return struct.pack("<e", value)[1:]


def _e4m3(value: float) -> bytes:
    if value == 0:
        return b"\0"
    mantissa, exponent = math.frexp(value)
    # four bits of exponent with a bias of 7, three of mantissa behind the one that is not written
    return bytes([((exponent - 1 + 7) << 3) | int(16 * mantissa - 8)])


def _packed(layout: str, of: Callable[[float], float] = float) -> Callable[[float], bytes]:
    return lambda value: struct.pack(layout, of(value))


_ENCODERS: Dict[str, Callable[[float], bytes]] = {
    "float32": _packed("<f"),
    "float16": _packed("<e"),
    "bfloat16": _bfloat16,
    "int8": _packed("<b", int),
    "float8_e4m3fn": _e4m3,
    "float8_e5m2": _e5m2,
}
