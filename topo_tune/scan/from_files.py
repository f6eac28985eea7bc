"""The same scan from saved files: for clusters that topo-tune cannot reach, and for a colleague's dump.

Every file is recognised by its content (`saved_kinds.py`), whatever it is called. What describes a node becomes facts
of that node; what is about a job or the cluster becomes a document; what cannot be read is named with its reason.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.document import Document
from topo_tune.records.inventory import Missing
from topo_tune.records.scan import Absent, Cpu, NodeScan, Scan
from topo_tune.scan import answer
from topo_tune.scan.saved_file import SavedFile, open_saved
from topo_tune.scan.saved_kinds import ANSWER, KINDS
from topo_tune.scan.whose import by_node

_FILES_LIMIT = 10_000
_NOT_IN_FILES = "not in the saved files"


class _Found(msgspec.Struct):
    """What the files of one node told so far."""

    scan: NodeScan
    is_told: bool = False
    """whether any file described the node itself"""
    documents: tuple[Document, ...] = ()
    notes: tuple[Absent, ...] = ()
    """files that could not be read, or not wholly"""


def scan_from(path: Path | str, *, cluster: str | None = None) -> Scan:
    """The scan that saved files tell.

    In a folder each subfolder is a node; files beside each other are sorted by `whose.by_node`. A node of which no
    file can be read is `missing`. Raises InputError where the path does not exist or holds nothing that can be read.
    """
    path = Path(path)
    base = path if path.is_dir() else path.parent
    files, unreadable = _opened(_paths(path), base)
    nodes = {name: _told(name, own) for name, own in by_node(files, folder=path).items()}
    _add_unreadable(nodes, unreadable, path)
    if not any(found.is_told or found.documents for found in nodes.values()):
        raise _nothing_readable(path, nodes)
    scans = [_finished(found) for found in nodes.values() if found.is_told]
    missing = [
        _missing(name, found) for name, found in nodes.items() if not (found.is_told or found.documents)
    ]
    missing += [Missing(name, "not read", "an empty folder") for name in _empty_folders(path)]
    documents = tuple(answer.printable(d) for found in nodes.values() for d in found.documents)
    return Scan(
        cluster or path.resolve().stem,
        tuple(answer.printable(scan) for scan in scans),
        tuple(missing),
        documents=documents,
    )


def kinds_read() -> tuple[str, ...]:
    """Every kind that is read, in words."""
    return tuple(dict.fromkeys(kind.name for kind in (ANSWER, *KINDS)))


def _paths(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"cannot scan from `{path}`: no such file or folder")
    try:
        found = sorted(entry for entry in path.rglob("*") if not entry.is_dir())
    except OSError as exc:
        raise InputError(f"cannot scan from `{path}`: {exc.strerror}") from exc
    if len(found) > _FILES_LIMIT:
        raise InputError(
            f"`{path}` holds more than {_FILES_LIMIT} files", hint="name a folder of saved dumps"
        )
    return found


def _empty_folders(path: Path) -> list[str]:
    if not path.is_dir():
        return []
    folders = (entry for entry in sorted(path.iterdir()) if entry.is_dir())
    return [folder.name for folder in folders if all(entry.is_dir() for entry in folder.rglob("*"))]


def _opened(paths: list[Path], base: Path) -> tuple[list[SavedFile], list[tuple[Path, Absent]]]:
    """Files with their kinds, and those of no known kind or without readable text, each with its reason."""
    opened, unreadable = [], []
    for path in paths:
        name = str(path.relative_to(base))
        try:
            opened.append(open_saved(path, name))
        except InputError as error:
            unreadable.append((path.relative_to(base), Absent(name, error.message)))
        except OSError as error:
            unreadable.append((path.relative_to(base), Absent(name, f"cannot be read: {error.strerror}")))
    return opened, unreadable


def _told(name: str, files: list[SavedFile]) -> _Found:
    """The node after every one of its files was read, answers of the collector first: they are the whole node."""
    found = _Found(_blank(name))
    for file in sorted(files, key=lambda file: file.kind is not ANSWER):
        try:
            _add(found, file)
        except InputError as error:
            found.notes += (Absent(file.name, error.message),)
    return found


def _add(found: _Found, file: SavedFile) -> None:
    kind = file.kind
    if kind.document is not None:
        body, problems = kind.document(file.text, file.name)
        node = found.scan.node
        found.documents += (Document(file.name, node, kind.name, body, problems),)
    else:
        assert kind.tell is not None, kind.name
        if kind is ANSWER and found.is_told:
            raise InputError("left out: this node has one already, from another file")
        told = kind.tell(found.scan, file.text, file.name)
        found.scan = msgspec.structs.replace(told, node=found.scan.node)
        found.is_told = True


def _add_unreadable(nodes: dict[str, _Found], unreadable: list[tuple[Path, Absent]], path: Path) -> None:
    """Beside what else is known of the same subfolder, or of the node that is the folder; else a node of its own."""
    only = path.resolve().name if path.is_dir() and path.resolve().name in nodes else None
    for place, note in unreadable:
        name = place.parts[0] if len(place.parts) > 1 else only or place.stem
        nodes.setdefault(name, _Found(_blank(name))).notes += (note,)


def _finished(found: _Found) -> NodeScan:
    scan = found.scan
    if scan.gpu_source is None and not scan.gpus:
        scan = _with(scan, Absent("GPU names, driver", _NOT_IN_FILES))
    if scan.kernel == "unknown" and not scan.cpu.threads:
        scan = _with(scan, Absent("CPU, NUMA nodes, memory, kernel", _NOT_IN_FILES))
    if not scan.nics and not scan.rdma:
        scan = _with(scan, Absent("NICs", _NOT_IN_FILES))
    if not scan.nccl_libraries:
        scan = _with(scan, Absent("NCCL libraries", _NOT_IN_FILES))
    return _with(scan, *found.notes)


def _with(scan: NodeScan, *notes: Absent) -> NodeScan:
    return msgspec.structs.replace(scan, absent=(*scan.absent, *notes))


def _missing(name: str, found: _Found) -> Missing:
    return Missing(name, "not read", "; ".join(f"{note.what}: {note.reason}" for note in found.notes))


def _blank(name: str) -> NodeScan:
    return NodeScan(
        node=name,
        hostname=name,
        kernel="unknown",
        operating_system=None,
        python="none: read from saved files",
        cpu=Cpu(None, None, "unknown", None, None, 0),
        numa=(),
        memory_bytes=None,
        gpus=(),
        gpu_source=None,
        driver=None,
        cuda_driver=None,
        matrix=None,
        nics=(),
        nccl_libraries=(),
        torch=None,
        torch_nccl=None,
        nccl_environment=(),
        nccl_files=(),
    )


def _nothing_readable(path: Path, nodes: dict[str, _Found]) -> InputError:
    notes = [note for found in nodes.values() for note in found.notes]
    lines = [f"  {note.what}: {note.reason}" for note in notes[:20]]
    if len(notes) > len(lines):
        lines.append(f"  and {len(notes) - len(lines)} more")
    message = "\n".join([f"nothing in `{path}` can be read" + (":" if lines else ", it is empty"), *lines])
    return InputError(message, hint="kinds of files that are read: " + ", ".join(kinds_read()))
