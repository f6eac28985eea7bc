"""What a libnccl.so tells about itself, and what follows for a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from topo_tune.errors import InputError
from topo_tune.lint.library import read_library

NAMES = [f"NCCL_NAME_{letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]


def library(
    folder: Path, *, version: str = "2.28.9", names: list[str] = NAMES, begin: bytes = b"\x7fELF"
) -> Path:
    path = folder / "libnccl.so.2"
    body = b"\0".join(
        [begin, *(name.encode() for name in names), f"NCCL version {version}+cuda13.0".encode()]
    )
    path.write_bytes(body + b"\0")
    return path


def test_names_and_version_come_from_the_bytes(tmp_path: Path) -> None:
    found = read_library(library(tmp_path))

    assert found.version == (2, 28, 9)
    assert found.names == frozenset(NAMES)


def test_parts_of_other_words_are_no_names(tmp_path: Path) -> None:
    words = [*NAMES, "RCCL_NCCL_X", "XNCCL_Y", "NCCL_lower", "NCCL_Z_%d"]

    assert read_library(library(tmp_path, names=words)).names == frozenset(NAMES)


def test_a_library_may_not_tell_its_version(tmp_path: Path) -> None:
    assert read_library(library(tmp_path, version="unknown")).version is None


@pytest.mark.parametrize(
    ("change", "part"),
    [({"begin": b"text"}, "no ELF library"), ({"names": NAMES[:3]}, "3 names of NCCL, too few")],
)
def test_what_is_no_library_of_nccl_is_refused(tmp_path: Path, change: dict[str, object], part: str) -> None:
    with pytest.raises(InputError, match=part):
        read_library(library(tmp_path, **change))  # type: ignore[arg-type]


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    for name in ("empty", "missing", "."):
        with pytest.raises(InputError, match="cannot read the library"):
            read_library(tmp_path / name)
