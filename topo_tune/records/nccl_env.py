"""One set of NCCL variables: known names, values NCCL takes, canonical order, and an identity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from topo_tune.errors import InputError, nearest
from topo_tune.records.catalogue import catalogue, misnomer_of


class NcclEnv(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """A set of NCCL settings; two sets with the same names and values are equal, in whatever order."""

    settings: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs, sorted by name; NCCL's own default is the empty tuple."""

    def as_dict(self) -> dict[str, str]:
        """Name to value."""
        return dict(self.settings)

    def names(self) -> tuple[str, ...]:
        """The names that are set, in order."""
        return tuple(name for name, _ in self.settings)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings) or "NCCL's defaults"

    def short_hash(self) -> str:
        """Twelve hexadecimal digits that identify this set, stable across machines and versions."""
        return hashlib.sha256("\n".join(f"{n}={v}" for n, v in self.settings).encode()).hexdigest()[:12]

    def merged(self, other: NcclEnv) -> NcclEnv:
        """This set with the other's settings added; the other's values win."""
        return NcclEnv(tuple(sorted({**self.as_dict(), **other.as_dict()}.items())))


DEFAULTS = NcclEnv()
"""Nothing set: what NCCL does by itself."""


def nccl_env(settings: Mapping[str, str | int]) -> NcclEnv:
    """A validated set of settings. Raises InputError for an unknown name or a value NCCL would misread."""
    return NcclEnv(tuple(sorted((name, _checked(name, str(value))) for name, value in settings.items())))


def parse_assignments(lines: tuple[str, ...]) -> NcclEnv:
    """Settings from `NAME=VALUE` words, as given on a command line."""
    settings: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator:
            raise InputError(f"`{line}` is not `NAME=VALUE`")
        if name in settings:
            raise InputError(f"`{name}` is given twice")
        settings[name] = value
    return nccl_env(settings)


def _checked(name: str, value: str) -> str:
    variable = catalogue().get(name)
    if variable is None:
        raise InputError(f"`{name}` is not an NCCL variable known to topo-tune", hint=_right_name(name))
    if variable.until is not None:
        raise InputError(f"`{name}` was last read by NCCL {variable.until}", hint=variable.notes)
    if not value or value != value.strip() or any(ord(c) < 32 or ord(c) > 126 for c in value):
        raise InputError(
            f"`{name}={value}`: NCCL takes a value as it stands, so it must be printable, not empty, "
            "and without outer spaces"
        )
    if value[0] in "'\"":
        raise InputError(f"`{name}={value}`: quotes would become part of the value")
    if len(value) > 1023:
        raise InputError(f"the value of `{name}` is longer than 1023 characters; NCCL would cut it silently")
    if variable.is_integer and not _is_integer(value):
        raise InputError(
            f"`{name}={value}`: NCCL reads an integer here and drops trailing text, so `4M` would mean 4",
            hint="write the number out, without a suffix",
        )
    if isinstance(variable.allowed, tuple) and value not in {str(a) for a in variable.allowed}:
        allowed = ", ".join(f"`{a}`" for a in variable.allowed)
        raise InputError(f"`{name}={value}` is not one of {allowed}")
    return value


def _is_integer(value: str) -> bool:
    digits = value[1:] if value[0] in "+-" else value
    # A leading zero would be read as octal (strtoll, base 0), so only plain decimals are let through.
    return digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")


def _right_name(name: str) -> str | None:
    misnomer = misnomer_of(name)
    if misnomer is not None:
        return f"{misnomer.why}; use `{misnomer.use}`" if misnomer.use else misnomer.why
    close = nearest(name, (n for n, variable in catalogue().items() if variable.until is None))
    return f"did you mean `{close}`?" if close else None
