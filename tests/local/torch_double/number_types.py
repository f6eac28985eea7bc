"""Arithmetic of NCCL's data types in numpy, which lacks most of them: each sum is rounded as the type does."""

from __future__ import annotations

from typing import Any

import numpy

INT8, FLOAT16, FLOAT32, BFLOAT16, E4M3, E5M2 = 0, 6, 7, 9, 10, 11
"""ncclDataType_t"""
ITEM_BYTES = {INT8: 1, FLOAT16: 2, FLOAT32: 4, BFLOAT16: 2, E4M3: 1, E5M2: 1}
_NUMPY = {INT8: "int8", FLOAT16: "float16", FLOAT32: "float32"}


def _table(exponent_bits: int, mantissa_bits: int, bias: int, codes: int) -> Any:
    """The values of a type's first codes, which are its finite numbers from 0 up."""
    values = []
    for code in range(codes):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits)
        values.append((1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias))
    return numpy.array(values)


_TABLES = {E4M3: _table(4, 3, 7, 127), E5M2: _table(5, 2, 15, 124)}


def decode(data: bytes, kind: int) -> Any:
    if kind in _NUMPY:
        return numpy.frombuffer(data, _NUMPY[kind])
    if kind == BFLOAT16:
        return (numpy.frombuffer(data, "uint16").astype("uint32") << 16).view("float32")
    table = _TABLES[kind]
    return table[numpy.minimum(numpy.frombuffer(data, "uint8"), len(table) - 1)]


def encode(values: Any, kind: int) -> bytes:
    if kind in _NUMPY:
        return bytes(values.astype(_NUMPY[kind]).tobytes())
    if kind == BFLOAT16:
        bits = values.astype("float32").view("uint32")
        return bytes(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("uint16").tobytes())
    table = _TABLES[kind]
    nearest = numpy.abs(values[:, None] - table[None, :]).argmin(axis=1)
    return bytes(nearest.astype("uint8").tobytes())


def add(one: bytes, other: bytes, kind: int) -> bytes:
    with numpy.errstate(all="ignore"):
        return encode(decode(one, kind) + decode(other, kind), kind)
