"""Records on disk: an envelope with schema, version and provenance around a body, read back strictly."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from topo_tune import __version__
from topo_tune.errors import BrokenRecord, InputError
from topo_tune.records.bench import BenchPlan, Launch, Probe
from topo_tune.records.inventory import Inventory
from topo_tune.records.recommendation import Recommendation
from topo_tune.records.rollout import JournalEntry, RolloutPlan
from topo_tune.records.scan import Scan
from topo_tune.records.search import SearchTrace
from topo_tune.records.topology import Topology

Body = TypeVar("Body")

_CONDITION = "conditions/"

SCHEMAS: dict[str, tuple[type[Any], int]] = {
    "topo-tune/inventory": (Inventory, 1),
    "topo-tune/scan": (Scan, 1),
    "topo-tune/topology": (Topology, 1),
    "topo-tune/bench-plan": (BenchPlan, 1),
    "topo-tune/launch": (Launch, 1),
    "topo-tune/probe": (Probe, 1),
    "topo-tune/search-trace": (SearchTrace, 1),
    "topo-tune/recommendation": (Recommendation, 1),
    "topo-tune/rollout-plan": (RolloutPlan, 1),
    "topo-tune/journal-entry": (JournalEntry, 1),
}
"""Schema name to the record type it holds and the version written today."""

UPGRADES: dict[tuple[str, int], Callable[[Any], Any]] = {}
"""(schema, version) to the pure function that turns that version's body into the next one's."""

_SCHEMA_OF = {record: (name, version) for name, (record, version) in SCHEMAS.items()}


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file says about itself."""

    schema: str
    version: int
    tool: str
    written_at: str
    made_from: dict[str, str] = {}
    """file name to the SHA-256 of the file this one was made from; of a bench's own file also `conditions/NAME` to
    the SHA-256 of what was measured under"""


class Envelope(msgspec.Struct, Generic[Body], frozen=True, forbid_unknown_fields=True):
    """Head and body."""

    head: Head
    body: Body


def save(
    path: Path, record: Any, *, made_from: tuple[Path, ...] = (), now: datetime.datetime | None = None
) -> None:
    """Write a record whole (temporary file, fsync, rename): a reader sees the old file or the new."""
    envelope = {"head": _head(type(record), made_from, now), "body": record}
    write_whole(path, msgspec.json.format(msgspec.json.encode(envelope), indent=1) + b"\n")


def load(path: Path, record: type[Body]) -> Body:
    """Read a record back. Raises BrokenRecord naming the file and the path of the wrong value."""
    return decode(_read(path), record, str(path))


def decode(raw: bytes, record: type[Body], where: str) -> Body:
    """A record from a file's bytes. Raises BrokenRecord naming `where` and the path of the wrong value."""
    try:
        envelope = msgspec.json.decode(raw, type=Envelope[Any])
        _check_head(envelope.head, record, where)
        body = upgrade(envelope.head.schema, envelope.head.version, envelope.body)
        return msgspec.convert(body, type=record)
    except msgspec.MsgspecError as exc:
        raise BrokenRecord(f"{where}: {exc}", hint="the file is damaged or was edited by hand") from exc


def save_lines_head(
    path: Path,
    record: type[Any],
    *,
    made_from: tuple[Path, ...] = (),
    conditions: Mapping[str, str] | None = None,
) -> None:
    """Begin a file of records, one a line: its first line is the head.

    `conditions`: name to SHA-256 of what every record of the file was made under.
    """
    head = _head(record, made_from, None)
    named = {f"{_CONDITION}{name}": value for name, value in (conditions or {}).items()}
    head = msgspec.structs.replace(head, made_from=head.made_from | named)
    write_whole(path, msgspec.json.encode({"head": head}) + b"\n")


def load_conditions(path: Path, record: type[Any]) -> dict[str, str]:
    """The `conditions` in the head of a file of records. Raises BrokenRecord."""
    line = _read(path).split(b"\n", 1)[0]
    head = _line_head(line, f"{path}:1")
    _check_head(head, record, f"{path}:1")
    named = head.made_from.items()
    return {name.removeprefix(_CONDITION): value for name, value in named if name.startswith(_CONDITION)}


def append_line(path: Path, record: Any) -> None:
    """Add one record to a file of records and sync it: a crash costs at most the line being written.

    Raises BrokenRecord for a file without a head, and when it cannot be written: a disk that fills up in the middle
    of a run is nothing that the user wrote.
    """
    line = msgspec.json.encode(record) + b"\n"
    try:
        _append(path, line)
    except OSError as exc:
        raise BrokenRecord(f"cannot write {path}: {exc.strerror or exc}") from exc


def load_lines(path: Path, record: type[Body]) -> tuple[Body, ...]:
    """Every whole record of a file of records; half a line at the end, left by a crash, is dropped."""
    return tuple(_iterate_lines(path, record))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file's content in one step, synced to disk. Raises InputError when it cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate what the file system says about writing to `path`. Raises InputError."""
    try:
        yield
    except OSError as exc:
        raise InputError(
            f"cannot write {path}: {exc.strerror or exc}",
            hint="choose a path that can be written, or make room there",
        ) from exc


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise BrokenRecord(f"cannot read {path}: {exc.strerror}") from exc


def _head(record: type[Any], made_from: tuple[Path, ...], now: datetime.datetime | None) -> Head:
    schema, version = _SCHEMA_OF[record]
    at = now or datetime.datetime.now(datetime.timezone.utc)
    return Head(
        schema=schema,
        version=version,
        tool=f"topo-tune {__version__}",
        written_at=at.isoformat(timespec="seconds"),
        made_from={path.name: sha256_of(path) for path in made_from if path.exists()},
    )


def upgrade(schema: str, version: int, body: Any) -> Any:
    """A body of an old version as today's version; a body of today's version as it is."""
    while version < SCHEMAS[schema][1]:
        body = UPGRADES[schema, version](body)
        version += 1
    return body


def _check_head(head: Head, record: type[Any], where: str) -> None:
    schema, version = _SCHEMA_OF[record]
    if head.schema != schema:
        raise BrokenRecord(f"{where}: holds `{head.schema}`, expected `{schema}`")
    if head.version > version:
        raise BrokenRecord(
            f"{where}: version {head.version} of `{schema}`; this topo-tune reads up to {version}",
            hint=f"it was written by {head.tool}; use that version or a newer one",
        )
    if any((schema, older) not in UPGRADES for older in range(head.version, version)):
        raise BrokenRecord(f"{where}: version {head.version} of `{schema}`, which this topo-tune cannot read")


def _iterate_lines(path: Path, record: type[Body]) -> Iterator[Body]:
    lines = _read(path).split(b"\n")
    if len(lines) == 1:
        raise BrokenRecord(f"{path}: it has no head", hint="the file is damaged or was edited by hand")
    # Behind the last newline stands nothing, or what a crash left of a line.
    for number, line in enumerate(lines[:-1], start=1):
        where = f"{path}:{number}"
        if number == 1:
            head = _line_head(line, where)
            _check_head(head, record, where)
            continue
        try:
            body = upgrade(head.schema, head.version, msgspec.json.decode(line))
            yield msgspec.convert(body, type=record)
        except msgspec.MsgspecError as exc:
            raise BrokenRecord(f"{where}: {exc}", hint="the file is damaged or was edited by hand") from exc


class _HeadLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    head: Head


def _line_head(line: bytes, where: str) -> Head:
    try:
        return msgspec.json.decode(line, type=_HeadLine).head
    except msgspec.MsgspecError as exc:
        raise BrokenRecord(f"{where}: the first line is not a topo-tune head: {exc}") from exc


def _append(path: Path, line: bytes) -> None:
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        # A crash can leave half a line behind; the next line must not be glued to it.
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":
                end = _end_of_last_line(path)
        if not end:
            # A record must not become the head. `save_lines_head` writes whole, so no crash leaves this.
            raise BrokenRecord(f"cannot add to {path}: it has no head")
        file.truncate(end)
        file.seek(end)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Sync a folder's names: before that a rename may be undone by a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_of_last_line(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1
