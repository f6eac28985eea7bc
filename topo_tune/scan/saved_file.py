"""One saved file, opened: its text, whatever it was packed or encoded in, and what its content shows it to be.

A file can hold the outputs of several tools (`text_sections.py`), of several nodes (`node_labels.py`), a whole scan
(`own_files.py`), or only the word that a tool was not there (`complaints.py`).
"""

from __future__ import annotations

import re
import stat
import zlib
from pathlib import Path

import msgspec

from topo_tune.errors import InputError
from topo_tune.lint.formats import is_env_file
from topo_tune.records.scan import Absent, Scan
from topo_tune.scan.complaints import complaint
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.nccl import job_settings, nccl_files
from topo_tune.scan.facts.words import clipped, without_escapes
from topo_tune.scan.node_labels import by_label, without_labels
from topo_tune.scan.own_files import saved_scan
from topo_tune.scan.saved_kinds import ANSWER, KINDS, NOT_IN_SECTIONS, SETTINGS, STAY_WHOLE
from topo_tune.scan.text_sections import Section, is_command, sections

SIZE_LIMIT_BYTES = 256 << 20
"""Of a file, and of what it unpacks to: a profiler's trace of one rank reaches this, a dump of a node never."""

UNKNOWN = "its content is of no known kind"

_BEGINNING_BYTES = 256 << 10
_LINE_LIMIT = 400

_SECTIONS_LIMIT = 8 << 20
"""Characters of a text that is searched for sections: a session on a node with a long kernel log."""

_SECTION_BEGINNING = 8 << 10
"""Characters by which the kind of a section is told, so that all sections together take no longer than a file."""

_PLACES_SHOWN = 8

_LABELS_TRIED = 3
"""Nodes by whose lines, the longest, a text is known to be the outputs of nodes: not each of thousands is tried."""

_SHOWS_FILE = re.compile(r"(?:sudo )?(?:cat|head|tail|less|more)(?: -\S+)* (/\S{1,300})")

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


class Output(msgspec.Struct, frozen=True):
    """A text of a known kind: a whole file, or a part of one."""

    name: str
    """the file's name; of a part with the line where it begins; the file's path on the node where the text says so"""
    text: str
    kind: SavedKind


class SavedFile(msgspec.Struct, frozen=True):
    """What one file holds of one node, or of nobody in particular."""

    name: str
    """relative to what was scanned"""
    outputs: tuple[Output, ...] = ()
    notes: tuple[Absent, ...] = ()
    """what is not there, or could not be read"""
    node: str | None = None
    """the node that every line names"""
    scan: Scan | None = None
    """what a record of topo-tune holds"""


def open_saved(path: Path, name: str) -> list[SavedFile]:
    """What the file holds, one for each node that its lines name. Raises OSError, and InputError with the reason."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError("is not an ordinary file")
    if path.stat().st_size > SIZE_LIMIT_BYTES:
        raise InputError(f"is larger than {SIZE_LIMIT_BYTES >> 20} MiB")
    text = text_of(path.read_bytes(), path.name)
    scan = saved_scan(text, name)
    if scan is not None:
        return [SavedFile(name, scan=scan)]
    if not text.strip():
        raise InputError("is empty")
    return _of_nodes(text, name) or [_opened(text, name)]


def text_of(data: bytes, name: str = "FILE") -> str:
    """What bytes say as text: unpacked where gzip packed them; UTF-16 where they begin so, UTF-8 otherwise.

    Raises InputError for what is no text.
    """
    if data[:2] == b"\x1f\x8b":
        data = _unpacked(data)
    if data[257:262] == b"ustar":
        raise InputError(f"not read: a tar archive: unpack it first: `tar xf {name}`")
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
    raise InputError(f"not read: {'binary data' if _is_binary(text) else UNKNOWN}")


def _of_nodes(text: str, name: str) -> list[SavedFile]:
    """What each node said whose name stands before every line; nothing where that makes no sense of the text."""
    labelled = by_label(text)
    longest = sorted(labelled.values(), key=len, reverse=True)[:_LABELS_TRIED]
    if not any(_is_known(own) for own in longest):
        return []
    opened = []
    for node, own in labelled.items():
        try:
            opened.append(msgspec.structs.replace(_opened(own, name), node=node))
        except InputError as error:
            opened.append(SavedFile(name, notes=(Absent(name, error.message),), node=node))
    kinds = [output.kind for file in opened for output in file.outputs]
    if all(kind.document is not None for kind in kinds):
        return [_opened(without_labels(text), name)]
    return opened


def _is_known(text: str) -> bool:
    try:
        kind_of(text)
    except InputError:
        return False
    return True


def _opened(text: str, name: str) -> SavedFile:
    """The text as one output, or as the several that it holds. Raises InputError where it is of no known kind."""
    try:
        kind = kind_of(text)
    except InputError:
        said = complaint(text)
        if said is None:
            raise
        return SavedFile(name, notes=(said,))
    if kind in nccl_files.KINDS and is_env_file(name):
        (kind,) = job_settings.KINDS
    if kind not in (ANSWER, *STAY_WHOLE):
        parts = _parts(text, name)
        kinds = {output.kind.name for output in parts.outputs}
        if len(kinds) > 1 and kinds - {kind.name for kind in SETTINGS}:
            return parts
    return SavedFile(name, (Output(name, text, kind),))


def _parts(text: str, name: str) -> SavedFile:
    """The sections of known kinds; the others are noted."""
    if len(text) > _SECTIONS_LIMIT:
        return SavedFile(name)
    found = sections(without_escapes(text))
    if len(found) < 2:
        return SavedFile(name)
    outputs, notes, others = [], [], []
    for section in found:
        kind = _kind_of_section(section)
        if kind is not None:
            outputs.append(Output(_called(section, name), section.text, kind))
        elif (said := complaint(section.text)) is not None:
            notes.append(said)
        else:
            others.append(_place(section))
    if others:
        more = f" and {len(others) - _PLACES_SHOWN} more" if len(others) > _PLACES_SHOWN else ""
        held = ", ".join(others[:_PLACES_SHOWN])
        notes.append(Absent(name, f"also holds what is of no kind that is read: {held}{more}"))
    return SavedFile(name, tuple(outputs), tuple(notes))


def _kind_of_section(section: Section) -> SavedKind | None:
    try:
        kind = kind_of(section.text[:_SECTION_BEGINNING])
    except InputError:
        return None
    return None if kind in NOT_IN_SECTIONS else kind


def _called(section: Section, name: str) -> str:
    """The path of a file that the section shows, else the place of the section in the file that was saved."""
    shown = _SHOWS_FILE.fullmatch(section.title or "")
    return shown.group(1) if shown else f"{name}, from line {section.line}"


def _place(section: Section) -> str:
    if section.title is not None and is_command(section.title):
        return f"`{clipped(section.title)}`"
    if section.line == section.last_line:
        return f"line {section.line}"
    return f"lines {section.line}-{section.last_line}"


def _is_binary(text: str) -> bool:
    """Whether a text was no text: much of its beginning is no character, or none that anybody prints."""
    beginning = text[:4096]
    odd = sum(
        1 for c in beginning if c == "\N{REPLACEMENT CHARACTER}" or (c < " " and c not in "\t\n\r\f\b\x1b")
    )
    return odd > 0.1 * len(beginning)


def _unpacked(data: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacking.decompress(data, SIZE_LIMIT_BYTES)
    except zlib.error as exc:
        raise InputError(f"not read: damaged gzip data: {exc}") from exc
    if unpacking.unconsumed_tail:
        raise InputError(f"not read: unpacks to more than {SIZE_LIMIT_BYTES >> 20} MiB")
    return unpacked
