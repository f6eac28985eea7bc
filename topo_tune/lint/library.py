"""What a libnccl.so says about itself: the names in its bytes, and its version."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import msgspec

from topo_tune.errors import InputError

_NAME = re.compile(rb"(?<![A-Z0-9_])NCCL_[A-Z0-9_]{1,62}[A-Z0-9](?![A-Za-z0-9_])")
_VERSION = re.compile(rb"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})")
_ELF = b"\x7fELF"
FEWEST_NAMES = 20
"""A library of NCCL holds more than a hundred; fewer are another library, or a stripped stub."""


class Library(msgspec.Struct, frozen=True):
    """One library, as its bytes tell."""

    path: str
    version: tuple[int, ...] | None
    names: frozenset[str]


def read_library(path: Path) -> Library:
    """The names and the version in a library's bytes. Raises InputError when it is no library of NCCL."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != _ELF:
                raise InputError(f"{path} is no ELF library", hint="give the file libnccl.so.2 itself")
            names = frozenset(match.group().decode() for match in _NAME.finditer(data))
            found = _VERSION.search(data)
            version = tuple(int(part) for part in found.group(1).split(b".")) if found else None
    except (OSError, ValueError) as exc:
        raise InputError(f"cannot read the library {path}: {exc}") from exc
    if len(names) < FEWEST_NAMES:
        raise InputError(
            f"{path} holds {len(names)} names of NCCL, too few for its library",
            hint="give libnccl.so.2, as PyTorch's wheels hold it in `nvidia/nccl/lib`",
        )
    return Library(str(path), version, names)
