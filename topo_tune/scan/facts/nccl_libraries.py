"""The NCCL libraries of a node, and the one that its torch brings."""

from __future__ import annotations

import re

import msgspec

from topo_tune.records.scan import NcclLibrary


class RawLibrary(msgspec.Struct, frozen=True):
    """One libnccl: where it was found and what its bytes, its name or its package say of its version."""

    path: str
    found_in: str
    real: str | None = None
    version: str | None = None


def parse(libraries: tuple[RawLibrary, ...]) -> tuple[NcclLibrary, ...]:
    """The libraries in the order of the collector: torch, pip, LD_LIBRARY_PATH, system."""
    return tuple(NcclLibrary(raw.path, version(raw.version), raw.found_in) for raw in libraries)


def version(text: str | None) -> str | None:
    """`2.28.9` out of `2.28.9+cuda13.0` or `2.28.9-1`; None where there are not three numbers."""
    match = re.match(r"\s*v?(\d{1,4}\.\d{1,4}\.\d{1,4})(?![\d.])", text or "")
    return match.group(1) if match else None
