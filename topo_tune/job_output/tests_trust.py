"""Whether the results of a run were right: counts of wrong elements, or the error sizes of older versions."""

from __future__ import annotations

from collections.abc import Iterable

from topo_tune.records.nccl_documents import MeasuredRow

# The `error` column of versions before 2.11 is the largest difference seen; sums in another order differ by rounding.
# These are those versions' own limits (DeltaMaxValue in `src/common.cu`).
_LIMITS = {"half": 1e-2, "bfloat16": 1e-2, "bf16": 1e-2, "float": 1e-5, "double": 1e-12}
_LEAST_COUNT = 0.5
"""A count of wrong elements is whole: whatever is not zero is at least 1."""


def wrong_rows(rows: Iterable[MeasuredRow], out_of_bounds: int | None) -> list[str]:
    """What says that results were wrong, in words; empty where nothing does."""
    found = []
    if out_of_bounds:
        found.append(f"{out_of_bounds} value(s) out of bounds: results were wrong")
    wrong = [row.size_bytes for row in rows if _is_wrong(row)]
    if wrong:
        found.append(f"wrong results in {len(wrong)} row(s), the first of {wrong[0]} bytes")
    return found


def _is_wrong(row: MeasuredRow) -> bool:
    limit = min(_LIMITS.get(row.type, _LEAST_COUNT), _LEAST_COUNT)
    return any(
        half is not None and half.wrong is not None and half.wrong > limit
        for half in (row.out_of_place, row.in_place)
    )
