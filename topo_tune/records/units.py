"""Bytes, seconds and bandwidths: parsing and printing. Sizes are powers of two, bandwidths powers of ten."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from topo_tune.errors import InputError, did_you_mean

_SUFFIXES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Eighteen digits are more than any memory holds, and few enough that Python converts them.
_SIZE = re.compile(r"\s*([0-9]{1,18})\s*([KMG]?)(?:(?<=[KMG])I?B|B)?\s*", re.IGNORECASE)


def parse_bytes(text: str | int) -> int:
    """A message size in bytes from `8M`, `8MiB`, `8192` or 8192 (powers of two, as in nccl-tests).

    Raises InputError when the text is no size, or the size is not positive.
    """
    if isinstance(text, bool):
        raise InputError(f"`{text}` is not a message size", hint="write it as `8K`, `128K`, `32M`")
    if isinstance(text, int):
        value = text
    else:
        match = _SIZE.fullmatch(text)
        if not match:
            raise InputError(f"`{text}` is not a message size", hint="write it as `8K`, `128K`, `32M`")
        value = int(match.group(1)) * _SUFFIXES[match.group(2).upper()]
    if value <= 0:
        raise InputError(f"a message size must be positive: {value}")
    if value >= 1 << 63:
        raise InputError(f"a message size must fit into 63 bits: {text}")
    return value


def format_bytes(size_bytes: int) -> str:
    """`8K`, `2M`: the shortest exact spelling that `parse_bytes` reads back."""
    for suffix in ("G", "M", "K"):
        unit = _SUFFIXES[suffix]
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit}{suffix}"
    return str(size_bytes)


def format_seconds(seconds: float) -> str:
    """A duration with about three digits and its unit: `57.3 us`, `10.2 ms`, `1.50 s`, `2 min 5 s`."""
    if seconds < 1e-3:
        return f"{_three_digits(seconds * 1e6)} us"
    if seconds < 1:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{_three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size_sweep(first_bytes: int, last_bytes: int, factor: int = 2) -> tuple[int, ...]:
    """Sizes from first to last, each `factor` times the one before, as nccl-tests' `-b -e -f`."""
    if factor < 2:
        raise InputError(f"the factor of a size sweep must be at least 2: {factor}")
    sizes = []
    size = first_bytes
    while size <= last_bytes:
        sizes.append(size)
        size *= factor
    if not sizes:
        raise InputError(f"a size sweep from {first_bytes} to {last_bytes} is empty")
    return tuple(sizes)


# What algbw is multiplied by, of `ranks` in a communicator. Source: NVIDIA/nccl-tests doc/PERFORMANCE.md, src/*.cu.
_BUSBW_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "alltoall": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
    "sendrecv": lambda ranks: 1.0,
}


def busbw_factor(collective: str, ranks: int) -> float:
    """What algbw is multiplied by to give busbw. `ranks`: of one communicator, not of the whole world.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md. Raises InputError for a collective that has none.
    """
    if collective not in _BUSBW_FACTORS:
        raise InputError(
            f"no bus bandwidth is defined here for `{collective}`",
            hint=did_you_mean(collective, _BUSBW_FACTORS),
        )
    return _BUSBW_FACTORS[collective](ranks)


class DataType(NamedTuple):
    """A type of elements, by torch's name and by nccl-tests' name for it."""

    torch: str
    nccl_tests: str
    item_bytes: int


DATA_TYPES = {
    name: DataType(name, nccl_tests, item_bytes)
    for name, nccl_tests, item_bytes in (
        ("float32", "float", 4),
        ("float16", "half", 2),
        ("bfloat16", "bfloat16", 2),
        ("float64", "double", 8),
        ("int8", "int8", 1),
        ("uint8", "uint8", 1),
        ("int32", "int32", 4),
        ("int64", "int64", 8),
        ("float8_e4m3fn", "f8e4m3", 1),
        ("float8_e5m2", "f8e5m2", 1),
    )
}
"""By torch's name. Source of the others: test_typenames in NVIDIA/nccl-tests src/common.cu."""

_SHORT_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


def parse_dtype(word: str) -> str:
    """torch's name of a type from its own, from nccl-tests' or from `bf16`, `fp16`, `fp32`. Raises InputError."""
    by_other_name = {of.nccl_tests: of.torch for of in DATA_TYPES.values()} | _SHORT_NAMES
    name = by_other_name.get(word.lower(), word.lower())
    if name not in DATA_TYPES:
        raise InputError(f"`{word}` is not a data type", hint=did_you_mean(word, DATA_TYPES))
    return name


def algbw_gb_per_s(size_bytes: int, seconds: float) -> float:
    """Message size over time, in 10^9 bytes per second."""
    return size_bytes / seconds / 1e9


_SWEEP = re.compile(r"^\s*(?P<first>[^.,\s]+)\s*\.\.\s*(?P<last>[^.,\s]+)(?:\s+x\s*(?P<factor>\d+))?\s*$")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Message sizes from `8K,128K,2M`, or from a sweep: `8K..32M` doubles, `8K..32M x4` goes by fours.

    Ascending. Raises InputError for a size that is none, a size written twice, or an empty sweep.
    """
    match = _SWEEP.match(text)
    if match:
        factor = int(match["factor"] or 2)
        return size_sweep(parse_bytes(match["first"]), parse_bytes(match["last"]), factor)
    sizes = tuple(sorted(parse_bytes(word) for word in text.split(",")))
    if len(set(sizes)) != len(sizes):
        raise InputError(f"`{text}` names a size twice")
    return sizes


_SHARE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})\s*(%?)\s*")


def parse_share(text: str) -> float:
    """0.03 from `3%` or `0.03`. Raises InputError for what is no share, or is not above 0 and below 1."""
    match = _SHARE.fullmatch(text)
    value = (float(match[1]) / (100 if match[2] else 1)) if match else 0.0
    if not 0 < value < 1:
        raise InputError(f"`{text}` is not a share above 0 and below 1", hint="write it as `3%` or `0.03`")
    return value
