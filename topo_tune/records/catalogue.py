"""The catalogue of NCCL variables that ships with topo-tune, read from NCCL's source at a stated version."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping
from pathlib import Path

import msgspec

Value = str | int


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NCCL variable: what it does, since when, what a value may be and what a bad one does."""

    name: str
    group: str
    """algo, protocol, channels, buffers, socket, ib, roce, p2p, shm, nvls, collnet, topology, plugin, debug,
    process, misc"""
    type: str
    """int, bool, enum, list, string, path or size (bytes)"""
    scope: str
    """intra_node, inter_node_socket, inter_node_ib, both or none"""
    tunable: bool
    """whether it makes sense in a search for all-reduce speed"""
    read_when: str | None
    """process: kept for the life of the process; comm_init: looked up again for each communicator"""
    no_cache_reload: bool | None
    config_field: str | None
    """the ncclConfig_t field that sets the same per communicator"""
    allowed: str | tuple[Value, ...] | None
    default: Value | None
    search_values: tuple[Value, ...] | None
    since: str | None
    first_tag: str | None
    until: str | None
    """last NCCL version that read it; None while it is live"""
    documented: bool
    risk: str | None
    """what a bad value does: ignored, slow, warning, error, hang, crash or corruption"""
    must_match_across_ranks: bool | None
    match_basis: str | None
    notes: str
    """what else to know: traps, limits, history"""
    source: str
    purpose: str = ""
    """what it does, in one sentence"""

    @property
    def is_integer(self) -> bool:
        """Whether NCCL reads the value with strtoll."""
        if self.type in {"int", "bool", "size"}:
            return True
        return (
            self.type == "enum"
            and isinstance(self.allowed, tuple)
            and all(isinstance(a, int) for a in self.allowed)
        )

    def exists_in(self, version: tuple[int, ...]) -> bool:
        """Whether NCCL of this version, (2, 28, 9), reads the variable."""
        first = self.since or self.first_tag
        if first is not None and version < version_tuple(first):
            return False
        if self.until is None:
            return True
        last = version_tuple(self.until)
        # `until: 2.4` includes 2.4.8.
        return version[: len(last)] <= last


class Misnomer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name that people write and NCCL never read, with the name they mean."""

    name: str
    use: str | None
    why: str


class _CatalogueFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nccl_version_read: str
    nccl_commit: str
    variables: tuple[Variable, ...]
    other_live_names: tuple[str, ...]
    """names that NCCL reads but that no user should set: tests, internals"""
    not_nccl: tuple[Misnomer, ...]


def version_tuple(text: str) -> tuple[int, ...]:
    """(2, 28, 9) from `2.28.9`; text behind the numbers (`2.28.9+cuda13.0`) is dropped."""
    numbers: list[int] = []
    for part in text.split("+")[0].split("."):
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


@functools.cache
def _file() -> _CatalogueFile:
    path = Path(__file__).with_name("data") / "nccl-variables.json"
    return msgspec.json.decode(path.read_bytes(), type=_CatalogueFile)


@functools.cache
def catalogue() -> Mapping[str, Variable]:
    """Every variable in the catalogue by name."""
    return {variable.name: variable for variable in _file().variables}


@functools.cache
def misnomers() -> Mapping[str, Misnomer]:
    """Names found in guides and scripts that NCCL does not read."""
    return {entry.name: entry for entry in _file().not_nccl}


def catalogue_version() -> str:
    """The NCCL version whose source the catalogue was read from."""
    return _file().nccl_version_read


@functools.cache
def other_live_names() -> frozenset[str]:
    """Names that NCCL reads too and that the catalogue does not describe: internals, tests, rarely used."""
    return frozenset(_file().other_live_names)


def misnomer_of(name: str) -> Misnomer | None:
    """The entry for the name, or for its family: `NCCL_TESTS_*`."""
    exact = misnomers().get(name)
    return exact or next(
        (entry for entry in misnomers().values() if fnmatch.fnmatchcase(name, entry.name)), None
    )
