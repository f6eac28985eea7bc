"""One saved file, opened: its text, whatever it was packed or encoded in, and the kind its content shows."""

from __future__ import annotations

import re
import stat
import zlib
from pathlib import Path

import msgspec

from topo_tune.errors import InputError
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import without_escapes
from topo_tune.scan.saved_kinds import ANSWER, KINDS

SIZE_LIMIT_BYTES = 256 << 20
"""Of a file, and of what it unpacks to: a profiler's trace of one rank reaches this, a dump of a node never."""

_BEGINNING_BYTES = 256 << 10
_LINE_LIMIT = 400

# Kinds that people send along and that say nothing here, told by their first bytes ...
_NO_TEXT = (
    (b"\x7fELF", "a program or library"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"\xfd7zXZ", "compressed with xz: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    (b"BZh", "compressed with bzip2: unpack it first"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
)
# ... or by a line.
_REFUSED = (
    (
        r"ROCm System Management Interface|^=+ ROCm|rocm-smi|amd-smi",
        "output of AMD's tools: topo-tune tunes NCCL",
    ),
    (r"<!DOCTYPE html|<html\b", "a web page"),
    (r"^gpu_name,|DCGM_FI_", "metrics of DCGM, which no scan needs"),
)


class SavedFile(msgspec.Struct, frozen=True):
    """A file of a known kind."""

    name: str
    """relative to what was scanned"""
    text: str
    kind: SavedKind


def open_saved(path: Path, name: str) -> SavedFile:
    """The file with its text and kind. Raises InputError with the reason where it cannot be one, and OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError("is not an ordinary file")
    if path.stat().st_size > SIZE_LIMIT_BYTES:
        raise InputError(f"is larger than {SIZE_LIMIT_BYTES >> 20} MiB")
    text = text_of(path.read_bytes())
    if not text.strip():
        raise InputError("is empty")
    return SavedFile(name, text, kind_of(text))


def text_of(data: bytes) -> str:
    """What bytes say as text: unpacked where gzip packed them; UTF-16 where they begin so, UTF-8 otherwise.

    Raises InputError for what is no text.
    """
    if data[:2] == b"\x1f\x8b":
        data = _unpacked(data)
    if data[257:262] == b"ustar":
        raise InputError("not read: a tar archive: unpack it first")
    for magic, kind in _NO_TEXT:
        if data.startswith(magic):
            raise InputError(f"not read: {kind}")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        # what PowerShell's `>` writes
        return data.decode("utf-16", "replace")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def kind_of(text: str) -> SavedKind:
    """The first kind whose marks the text shows. Raises InputError where none does."""
    # Lines are cut: across megabytes without a line end some patterns would take hours.
    lines = text[:_BEGINNING_BYTES].split("\n")
    beginning = without_escapes("\n".join(line[:_LINE_LIMIT] for line in lines))
    if ANSWER.recognise(text):
        return ANSWER
    for kind in KINDS:
        if kind.recognise(beginning):
            return kind
    for pattern, reason in _REFUSED:
        if re.search(pattern, beginning, re.M):
            raise InputError(f"not read: {reason}")
    raise InputError("not read: its content is of no known kind")


def _unpacked(data: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacking.decompress(data, SIZE_LIMIT_BYTES)
    except zlib.error as exc:
        raise InputError(f"not read: damaged gzip data: {exc}") from exc
    if unpacking.unconsumed_tail:
        raise InputError(f"not read: unpacks to more than {SIZE_LIMIT_BYTES >> 20} MiB")
    return unpacked
