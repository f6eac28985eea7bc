from __future__ import annotations


def version() -> tuple[int, int, int]:
    return (2, 28, 9)
