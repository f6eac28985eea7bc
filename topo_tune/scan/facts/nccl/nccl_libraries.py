"""The NCCL libraries of a node, and the one that its torch brings."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from topo_tune.records.scan import NcclLibrary
from topo_tune.scan.facts.nccl import nccl_plugins


class RawLibrary(msgspec.Struct, frozen=True):
    """One libnccl: where it was found and what its bytes, its name or its package say of its version."""

    path: str
    found_in: str
    real: str | None = None
    version: str | None = None
    names: str | None = None
    """key of its list of names, which several libraries may share"""


def parse(
    libraries: tuple[RawLibrary, ...], names: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[NcclLibrary, ...]:
    """The libraries in the order of the collector: torch, pip, LD_LIBRARY_PATH, system.

    names: by the key that libraries refer to, lists of NCCL_ names and of plugin interfaces that are looked for.
    """
    lists = {key: (_names(found), nccl_plugins.interfaces(found)) for key, found in (names or {}).items()}
    return tuple(
        NcclLibrary(raw.path, version(raw.version), raw.found_in, *lists.get(raw.names or "", ((), ())))
        for raw in libraries
    )


def version(text: str | None) -> str | None:
    """`2.28.9` out of `2.28.9+cuda13.0` or `2.28.9-1`; None where there are not three numbers."""
    match = re.match(r"\s*v?(\d{1,4}\.\d{1,4}\.\d{1,4})(?![\d.])", text or "")
    return match.group(1) if match else None


def _names(found: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in found if re.fullmatch(r"NCCL_[A-Z0-9_]{2,64}", name))
