"""Net, tuner, profiler and env plugins that NCCL could load."""

from __future__ import annotations

import re

import msgspec

from topo_tune.records.scan import NcclPlugin
from topo_tune.scan.facts.fact import Fact, SavedKind

FACTS: tuple[Fact, ...] = ()
"""None: plugins come with the collector's own search for libraries."""
KINDS: tuple[SavedKind, ...] = ()

_INTERFACE = re.compile(r"nccl[A-Za-z]{2,20}_v[0-9]{1,3}")


class RawPlugin(msgspec.Struct, frozen=True):
    """One plugin: a file with the interfaces that it exports, or a name that leads to no file."""

    kind: str
    path: str
    found_in: str
    exists: bool = True
    interfaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def parse(plugins: tuple[RawPlugin, ...]) -> tuple[NcclPlugin, ...]:
    """The plugins in the order of the collector: those that variables name, LD_LIBRARY_PATH, system, folders."""
    return tuple(
        NcclPlugin(
            raw.kind,
            raw.path,
            raw.found_in,
            interfaces(raw.interfaces),
            raw.exists,
            tuple(name for name in raw.names if name.startswith("NCCL_")),
        )
        for raw in plugins
    )


def interfaces(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names that are those of interfaces, the newest of each kind first."""
    return tuple(sorted((name for name in names if _INTERFACE.fullmatch(name)), key=_newest_first))


def _newest_first(interface: str) -> tuple[str, int]:
    name, _, version = interface.rpartition("_v")
    return name, -int(version)
