"""The same scan from saved files: for clusters that topo-tune cannot reach, and for a colleague's dump.

Every file is recognised by its content (`saved_kinds.py`), whatever it is called. What describes a node becomes facts
of that node; what is about a job or the cluster becomes a document; what cannot be read is named with its reason.
"""

from __future__ import annotations

from pathlib import Path, PurePath

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.document import Document
from topo_tune.records.inventory import Missing
from topo_tune.records.scan import Absent, Cpu, NodeScan, Scan
from topo_tune.scan import answer, provenance
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


def scan_from(*paths: Path | str, cluster: str | None = None) -> Scan:
    """The scan that saved files tell.

    In a folder each subfolder is a node; files beside each other, and files that are named one by one, are sorted by
    `whose.by_node`. A node of which no file can be read is `missing`. Raises InputError where a path does not exist
    or nothing can be read.
    """
    sources = [Path(path) for path in paths]
    singles = [path for path in sources if not path.is_dir()]
    nodes = _nodes_of(singles, None) if singles else {}
    for folder in sources:
        if folder.is_dir():
            for name, found in _nodes_of(_files_below(folder), folder).items():
                # the same name in two folders is two nodes
                nodes[name if name not in nodes else f"{folder.name}/{name}"] = found
    if not any(found.is_told or found.documents for found in nodes.values()):
        raise _nothing_readable(sources, nodes)
    told = {name: found for name, found in nodes.items() if found.is_told}
    # What could not be read beside documents is said as well: a node's own notes are in its `absent`.
    untold = {name: found for name, found in nodes.items() if found.notes and not found.is_told}
    return Scan(
        cluster or sources[0].resolve().stem,
        tuple(answer.printable(_finished(name, found)) for name, found in told.items()),
        tuple(_missing(name, found) for name, found in untold.items()),
        documents=tuple(answer.printable(d) for found in nodes.values() for d in found.documents),
    )


def _nodes_of(paths: list[Path], folder: Path | None) -> dict[str, _Found]:
    """What each node's files tell; folder: where they lie, None for files that were named one by one."""
    files, unreadable = _opened(paths, folder)
    name = None if folder is None else folder.resolve().name
    nodes = {node: _told(node, own) for node, own in by_node(files, folder=name).items()}
    _add_unreadable(nodes, unreadable, name)
    for empty in _empty_folders(folder):
        nodes[empty] = _Found(_blank(empty), notes=(Absent(empty, "an empty folder"),))
    return nodes


def kinds_read() -> tuple[str, ...]:
    """Every kind that is read, in words."""
    return tuple(dict.fromkeys(kind.name for kind in (ANSWER, *KINDS)))


def _files_below(folder: Path) -> list[Path]:
    try:
        found = sorted(entry for entry in folder.rglob("*") if not entry.is_dir())
    except OSError as exc:
        raise InputError(f"cannot scan from `{folder}`: {exc.strerror}") from exc
    if len(found) > _FILES_LIMIT:
        raise InputError(
            f"`{folder}` holds more than {_FILES_LIMIT} files", hint="name a folder of saved dumps"
        )
    return found


def _empty_folders(folder: Path | None) -> list[str]:
    folders = () if folder is None else (entry for entry in sorted(folder.iterdir()) if entry.is_dir())
    return [entry.name for entry in folders if all(inner.is_dir() for inner in entry.rglob("*"))]


def _opened(paths: list[Path], folder: Path | None) -> tuple[list[SavedFile], list[tuple[PurePath, Absent]]]:
    """Files with their kinds, and those of no known kind or without readable text, each with its reason."""
    opened, unreadable = [], []
    for path in paths:
        name = PurePath(path.name) if folder is None else path.relative_to(folder)
        try:
            opened.append(open_saved(path, str(name)))
        except FileNotFoundError as exc:
            raise InputError(f"cannot scan from `{path}`: no such file or folder") from exc
        except InputError as error:
            unreadable.append((name, Absent(str(name), error.message)))
        except OSError as error:
            unreadable.append((name, Absent(str(name), f"cannot be read: {error.strerror}")))
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


def _add_unreadable(
    nodes: dict[str, _Found], unreadable: list[tuple[PurePath, Absent]], folder: str | None
) -> None:
    """Beside what else is known of the same subfolder, or of the node that is the folder; else a node of its own."""
    for place, note in unreadable:
        own = folder if folder in nodes and folder is not None else place.stem
        name = place.parts[0] if len(place.parts) > 1 else own
        nodes.setdefault(name, _Found(_blank(name))).notes += (note,)


def _finished(name: str, found: _Found) -> NodeScan:
    # Which place wins is known only when all of them were read.
    scan = provenance.with_settings(msgspec.structs.replace(found.scan, node=name))
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
    if [note.reason for note in found.notes] == ["an empty folder"]:
        return Missing(name, "not read", "an empty folder")
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


def _nothing_readable(sources: list[Path], nodes: dict[str, _Found]) -> InputError:
    notes = [note for found in nodes.values() for note in found.notes]
    lines = [f"  {note.what}: {note.reason}" for note in notes[:20]]
    if len(notes) > len(lines):
        lines.append(f"  and {len(notes) - len(lines)} more")
    where = ", ".join(f"`{source}`" for source in sources[:3])
    message = "\n".join([f"nothing in {where} can be read" + (":" if lines else ", it is empty"), *lines])
    return InputError(message, hint="kinds of files that are read: " + ", ".join(kinds_read()))
