"""Bytes, seconds and bandwidths: parsing and printing. Sizes are powers of two, bandwidths powers of ten."""

from __future__ import annotations

import re

from topo_tune.errors import InputError

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


def busbw_factor(collective: str, ranks: int) -> float:
    """What algbw is multiplied by to give busbw. Source: NVIDIA/nccl-tests doc/PERFORMANCE.md."""
    if collective != "all_reduce":
        raise InputError(f"no bus bandwidth is defined here for `{collective}`", hint="known: `all_reduce`")
    return 2 * (ranks - 1) / ranks


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
