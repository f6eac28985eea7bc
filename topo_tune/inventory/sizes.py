"""Message sizes and their weights, as the `bench` block writes them -> bytes."""

from __future__ import annotations

import re

from msgspec import UNSET

from topo_tune.errors import InputError, did_you_mean
from topo_tune.inventory.cluster_file import BenchBlock, Size
from topo_tune.inventory.yaml_file import Path, YamlFile
from topo_tune.records.units import format_bytes, parse_bytes, size_sweep

_SWEEP = re.compile(r"(?P<first>\S+?)\s*\.\.\s*(?P<last>\S+)(?:\s+x\s*(?P<factor>[0-9]{1,9}))?")

_SIZES: Path = ("bench", "sizes")
_WEIGHTS: Path = ("bench", "weights")

SizesAndWeights = tuple[tuple[int, ...], tuple[tuple[int, float], ...]]


def sizes_and_weights(bench: BenchBlock, document: YamlFile) -> SizesAndWeights:
    """Sizes in bytes, ascending, and (size in bytes, weight) of each; empty where the file says nothing.

    Raises InputError for a size that is none or is written twice, for a weight without its size, and for
    weights that are all 0.
    """
    weights = _weights(bench, document)
    sizes = _sizes(bench, document) or tuple(sorted(weights))
    if not weights:
        return sizes, ()
    for size, (key, _) in weights.items():
        if size not in sizes:
            raise document.error(
                (*_WEIGHTS, key),
                f"a weight for {format_bytes(size)}, which is not measured",
                hint=did_you_mean(format_bytes(size), [format_bytes(known) for known in sizes]),
            )
    if not any(weight for _, weight in weights.values()):
        raise document.error(
            _WEIGHTS, "every weight is 0, so nothing would decide", hint="give one size the weight 1"
        )
    return sizes, tuple((size, weights[size][1] if size in weights else 0.0) for size in sizes)


def _sizes(bench: BenchBlock, document: YamlFile) -> tuple[int, ...]:
    if bench.sizes is UNSET:
        return ()
    if not isinstance(bench.sizes, list):
        return _sweep_or_size(bench.sizes, document)
    if not bench.sizes:
        raise document.error(
            _SIZES, "the list of sizes is empty", hint="write sizes as `[8K, 128K, 2M, 32M]`"
        )
    found: dict[int, int] = {}
    for position, written in enumerate(bench.sizes):
        size = _bytes(written, document, (*_SIZES, position))
        if size in found:
            first = bench.sizes[found[size]]
            raise document.error(
                (*_SIZES, position),
                f"the size {format_bytes(size)} is written twice: `{first}` and `{written}`",
            )
        found[size] = position
    return tuple(sorted(found))


def _sweep_or_size(written: Size, document: YamlFile) -> tuple[int, ...]:
    match = _SWEEP.fullmatch(str(written).strip())
    if match is None:
        return (_bytes(written, document, _SIZES),)
    first, last = (_bytes(match[end], document, _SIZES) for end in ("first", "last"))
    if first > last:
        raise document.error(
            _SIZES,
            f"the sweep `{written}` is empty: it begins above its end",
            hint=f"write `{match['last']}..{match['first']}`",
        )
    factor = int(match["factor"] or 2)
    if factor < 2:
        raise document.error(
            _SIZES, f"the sweep `{written}` never ends", hint="its factor must be at least `x2`"
        )
    return size_sweep(first, last, factor)


def _weights(bench: BenchBlock, document: YamlFile) -> dict[int, tuple[str, float]]:
    """Size in bytes to its key in the file and its weight."""
    if bench.weights is UNSET:
        return {}
    if not bench.weights:
        raise document.error(_WEIGHTS, "there are no weights", hint="remove the key, or write `{8K: 1}`")
    weights: dict[int, tuple[str, float]] = {}
    for key, weight in bench.weights.items():
        size = _bytes(key, document, (*_WEIGHTS, key))
        if size in weights:
            raise document.error(
                (*_WEIGHTS, key),
                f"the size {format_bytes(size)} has two weights: `{weights[size][0]}` and `{key}`",
            )
        weights[size] = key, weight
    return weights


def _bytes(written: Size, document: YamlFile, path: Path) -> int:
    try:
        return parse_bytes(written)
    except InputError as exc:
        raise document.error(path, exc.message, hint=exc.hint or "write it as `8K`, `128K`, `32M`") from exc
