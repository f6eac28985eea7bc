"""A number as NCCL reads it: C's `strtoll` with base 0."""

from __future__ import annotations

import re

import msgspec

_BITS = 63
_LONGEST = 40
"""Digits that are worth converting; more of them are an overflow in any base."""

_PATTERN = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)?")


class Number(msgspec.Struct, frozen=True):
    """What strtoll makes of a text."""

    value: int
    """0 where there is no number"""
    rest: str
    """what it drops"""
    is_number: bool
    is_octal: bool
    overflows: bool
    """more than 64 bits: NCCL then takes its default"""


def read_number(text: str) -> Number:
    """The number at the beginning of a text; never an error."""
    match = _PATTERN.match(text)
    assert match is not None, "every part of the pattern may be empty"
    sign, digits = match.group(1), match.group(2)
    if digits is None:
        return Number(0, text, False, False, False)
    is_octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
    rest = text[match.end() :]
    if len(digits) > _LONGEST:
        return Number(0, rest, True, is_octal, True)
    value = int(digits, 8 if is_octal else 0) * (-1 if sign == "-" else 1)
    return Number(value, rest, True, is_octal, not -(1 << _BITS) <= value < 1 << _BITS)
