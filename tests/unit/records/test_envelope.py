"""Records on disk: what is written is read back, and what cannot be trusted is refused."""

from __future__ import annotations

import datetime
import enum
import errno
import json
import os
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topo_tune.errors import BrokenRecord, InputError
from topo_tune.records import envelope
from topo_tune.records.bench import BenchPlan
from topo_tune.records.envelope import (
    SCHEMAS,
    append_line,
    load,
    load_lines,
    save,
    save_lines_head,
    write_whole,
)
from topo_tune.records.inventory import BackendName
from topo_tune.records.rollout import Action, JournalEntry

GOLDEN = Path(__file__).parents[2] / "golden" / "records"
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)

PLAN = BenchPlan(BackendName.NCCL, "all_reduce", "float32", (8192, 131072))
ENTRY = JournalEntry(at="2026-01-02T03:04:05+00:00", action=Action.WRITTEN, node="n1")


def records_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a record's type, every field filled in; numbers are those that JSON can hold."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field: records_of(hints[field]) for field in kind.__struct_fields__})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if origin is tuple and inner[1:] == (...,):
        return st.lists(records_of(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(records_of, inner))
    if origin is dict:
        return st.dictionaries(*map(records_of, inner), max_size=2)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(records_of, inner))
    return {
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        type(None): st.none(),
    }[kind]


RECORDS = [record for record, _ in SCHEMAS.values()]
by_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
on_disk = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@by_record
@on_disk
@given(data=st.data())
def test_every_record_is_read_back_as_it_was_saved(
    record: type[Any], data: st.DataObject, tmp_path: Path
) -> None:
    value = data.draw(records_of(record))
    path = tmp_path / "record.json"

    save(path, value)

    assert load(path, record) == value


@by_record
@on_disk
@given(data=st.data())
def test_every_record_is_read_back_from_a_file_of_lines(
    record: type[Any], data: st.DataObject, tmp_path: Path
) -> None:
    first, second = data.draw(records_of(record)), data.draw(records_of(record))
    path = tmp_path / "records.jsonl"

    save_lines_head(path, record)
    append_line(path, first)
    append_line(path, second)

    assert load_lines(path, record) == (first, second)


def test_a_file_says_what_it_is_and_what_it_was_made_from(tmp_path: Path) -> None:
    source = tmp_path / "10-scan.json"
    source.write_bytes(b"abc")

    save(tmp_path / "plan.json", PLAN, made_from=(source,), now=NOW)

    head = json.loads((tmp_path / "plan.json").read_text())["head"]
    assert head["schema"] == "topo-tune/bench-plan"
    assert head["version"] == 1
    assert head["tool"].startswith("topo-tune ")
    assert head["written_at"] == "2026-01-02T03:04:05+00:00"
    # FIPS 180-2, appendix B.1: the SHA-256 of "abc".
    assert head["made_from"] == {
        "10-scan.json": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    }


# -- golden files: what was once written must be read for ever


VERSIONS = [
    pytest.param(record, version, f"{schema.rpartition('/')[2]}-v{version}.json", id=f"{schema} {version}")
    for schema, (record, today) in SCHEMAS.items()
    for version in range(1, today + 1)
]


@pytest.mark.parametrize(("record", "version", "file"), VERSIONS)
def test_a_golden_file_of_every_version_is_read(record: type[Any], version: int, file: str) -> None:
    value = load(GOLDEN / file, record)

    assert isinstance(value, record)
    assert json.loads((GOLDEN / file).read_text())["head"]["version"] == version


@pytest.mark.parametrize(("record", "version", "file"), [case for case in VERSIONS if case.values[1] == 1])
def test_nothing_of_a_golden_file_is_lost(record: type[Any], version: int, file: str) -> None:
    written = json.loads((GOLDEN / file).read_text())["body"]

    read = json.loads(msgspec.json.encode(load(GOLDEN / file, record)))

    assert SCHEMAS[f"topo-tune/{file.rpartition('-v')[0]}"][1] == version, (
        "compare with the upgraded body instead"
    )
    assert _lost(written, read) == []


def _lost(written: Any, read: Any, path: str = "$") -> list[str]:
    """Where `read` differs from `written`; fields that were added since do not count."""
    if isinstance(written, dict):
        return [place for key in written for place in _lost(written[key], read.get(key), f"{path}.{key}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        return [place for index, (one, other) in pairs for place in _lost(one, other, f"{path}[{index}]")]
    return [] if written == read else [path]


# -- whole files that cannot be trusted


def _written(path: Path, head: dict[str, Any], body: dict[str, Any]) -> Path:
    save(path, PLAN, now=NOW)
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({"head": {**whole["head"], **head}, "body": {**whole["body"], **body}}))
    return path


@pytest.mark.parametrize(
    ("head", "body", "message"),
    [
        ({"schema": "topo-tune/scan"}, {}, "holds `topo-tune/scan`, expected `topo-tune/bench-plan`"),
        ({"version": 2}, {}, "version 2 of `topo-tune/bench-plan`; this topo-tune reads up to 1"),
        ({"version": 0}, {}, "version 0 of `topo-tune/bench-plan`, which this topo-tune cannot read"),
        ({"colour": "red"}, {}, "unknown field `colour` - at `$.head`"),
        ({}, {"colour": "red"}, "unknown field `colour`"),
        ({}, {"backend": "ncll"}, "Invalid enum value 'ncll' - at `$.backend`"),
        ({}, {"sizes_bytes": [8192, "8K"]}, "Expected `int`, got `str` - at `$.sizes_bytes[1]`"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_with_the_place(
    tmp_path: Path, head: dict[str, Any], body: dict[str, Any], message: str
) -> None:
    path = _written(tmp_path / "plan.json", head, body)

    with pytest.raises(BrokenRecord) as caught:
        load(path, BenchPlan)

    assert caught.value.message.startswith(f"{path}: ")
    assert message in caught.value.message


def test_a_newer_file_is_refused_with_the_tool_that_wrote_it(tmp_path: Path) -> None:
    path = _written(tmp_path / "plan.json", {"version": 2, "tool": "topo-tune 9.9"}, {})

    with pytest.raises(BrokenRecord) as caught:
        load(path, BenchPlan)

    assert caught.value.hint == "it was written by topo-tune 9.9; use that version or a newer one"


def test_an_older_file_goes_through_every_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(envelope.SCHEMAS, "topo-tune/bench-plan", (BenchPlan, 3))
    monkeypatch.setitem(envelope._SCHEMA_OF, BenchPlan, ("topo-tune/bench-plan", 3))
    monkeypatch.setitem(envelope.UPGRADES, ("topo-tune/bench-plan", 1), lambda body: {**body, "repeats": 6})
    monkeypatch.setitem(
        envelope.UPGRADES, ("topo-tune/bench-plan", 2), lambda body: {**body, "repeats": body["repeats"] + 1}
    )
    path = _written(tmp_path / "plan.json", {"version": 1}, {})

    assert load(path, BenchPlan).repeats == 7


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"head": 1}', b"null"])
def test_a_damaged_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(raw)

    with pytest.raises(BrokenRecord) as caught:
        load(path, BenchPlan)

    assert caught.value.hint == "the file is damaged or was edited by hand"


@pytest.mark.parametrize("loader", [load, load_lines])
def test_a_missing_file_is_refused(tmp_path: Path, loader: Any) -> None:
    with pytest.raises(BrokenRecord, match=r"cannot read .*: No such file or directory"):
        loader(tmp_path / "plan.json", BenchPlan)


# -- files of lines


def _journal(path: Path, *entries: JournalEntry) -> Path:
    save_lines_head(path, JournalEntry)
    for entry in entries:
        append_line(path, entry)
    return path


def test_half_a_line_at_the_end_is_dropped(tmp_path: Path) -> None:
    path = _journal(tmp_path / "journal.jsonl", ENTRY)
    with path.open("ab") as file:
        file.write(b'{"at": "2026-01-0')

    assert load_lines(path, JournalEntry) == (ENTRY,)


def test_the_next_line_is_not_glued_to_half_a_line(tmp_path: Path) -> None:
    path = _journal(tmp_path / "journal.jsonl", ENTRY)
    with path.open("ab") as file:
        file.write(b'{"at": "2026-01-0')

    append_line(path, ENTRY)

    assert load_lines(path, JournalEntry) == (ENTRY, ENTRY)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_file_cut_anywhere_in_its_last_line_goes_on_from_the_line_before(tmp_path: Path, cut: int) -> None:
    path = _journal(tmp_path / "journal.jsonl", ENTRY, ENTRY)
    path.write_bytes(path.read_bytes()[:-cut])

    append_line(path, ENTRY)

    assert load_lines(path, JournalEntry) == (ENTRY, ENTRY)


@pytest.mark.parametrize("damage", [b"{}", b"", b"nonsense", b'{"at": "x", "action": "wrote"}'])
def test_a_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path: Path, damage: bytes) -> None:
    path = _journal(tmp_path / "journal.jsonl", ENTRY, ENTRY)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))

    with pytest.raises(BrokenRecord) as caught:
        load_lines(path, JournalEntry)

    assert caught.value.message.startswith(f"{path}:2: ")


def test_a_wrong_field_of_a_line_is_refused_with_its_path(tmp_path: Path) -> None:
    path = _journal(tmp_path / "journal.jsonl")
    with path.open("ab") as file:
        file.write(b'{"at": "x", "action": "written", "launches": [1, "2"]}\n')

    with pytest.raises(BrokenRecord, match=r":2: Expected `int`, got `str` - at `\$\.launches\[1\]`"):
        load_lines(path, JournalEntry)


@pytest.mark.parametrize(
    "raw", [b"", b'{"head": {"schema": "topo-tune/jour', b'{"at": "x", "action": "written"}\n']
)
def test_a_file_of_lines_without_its_head_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(raw)

    with pytest.raises(BrokenRecord, match="head"):
        load_lines(path, JournalEntry)


@pytest.mark.parametrize("raw", [b"", b'{"head": {"schema": "topo-tune/jour'])
def test_nothing_is_added_to_a_file_without_its_head(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(raw)

    with pytest.raises(BrokenRecord, match="it has no head"):
        append_line(path, ENTRY)

    assert path.read_bytes() == raw


def test_a_file_of_other_records_is_refused(tmp_path: Path) -> None:
    path = _journal(tmp_path / "journal.jsonl", ENTRY)

    with pytest.raises(BrokenRecord, match="holds `topo-tune/journal-entry`, expected `topo-tune/launch`"):
        load_lines(path, SCHEMAS["topo-tune/launch"][0])


# -- writing


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.json"

    write_whole(path, b"old")
    write_whole(path, b"new")

    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")

    def fail(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("os.replace", fail)

    with pytest.raises(InputError, match=f"cannot write {path}: no space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", ["/proc/nowhere/a.json", "/dev/null/a.json"])
def test_a_file_that_cannot_be_written_is_told_with_its_path(path: str) -> None:
    with pytest.raises(InputError, match=f"cannot write {path}: "):
        save(Path(path), PLAN)


def test_a_line_that_cannot_be_added_is_told_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    save_lines_head(path, JournalEntry)

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("os.fsync", fail)

    with pytest.raises(BrokenRecord, match=f"cannot write {path}: no space left"):
        append_line(path, ENTRY)


def test_the_new_name_is_on_disk_before_a_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))

    write_whole(tmp_path / "a.json", b"new")

    assert synced[-1] == str(tmp_path)
