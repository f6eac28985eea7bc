"""The same scan from saved files: for clusters that topo-tune cannot reach, and for a colleague's dump.

Every file is recognised by its content (`saved_file.py`), whatever it is called, and sorted by where it lies
(`whose.py`). What describes a node becomes facts of that node; what is about a job or the cluster becomes a document;
what cannot be read is named with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.document import Document
from topo_tune.records.inventory import Missing
from topo_tune.records.nccl_documents import JobSettings
from topo_tune.records.scan import Absent, Cpu, NodeScan, Scan
from topo_tune.scan import answer, provenance
from topo_tune.scan.facts.nccl import job_settings
from topo_tune.scan.file_names import stem
from topo_tune.scan.own_files import SCAN_OF_RUN, is_run_folder
from topo_tune.scan.saved_file import UNKNOWN, Output, SavedFile, open_saved
from topo_tune.scan.saved_kinds import ANSWER, KINDS
from topo_tune.scan.whose import by_node, lost_node

_FILES_LIMIT = 10_000
_NOT_IN_FILES = "not in the saved files"
_NOTES_SHOWN = 20
_HINT = "kinds that are read: docs/reference/saved-files.md, or `topo-tune scan --kinds`"


class _Found(msgspec.Struct):
    """What the files of one node told so far."""

    scan: NodeScan
    is_told: bool = False
    """whether any file described the node itself"""
    documents: tuple[Document, ...] = ()
    notes: tuple[Absent, ...] = ()
    """files that could not be read, or not wholly"""
    told_by: dict[str, str] = {}
    """kind of which a node has one output, to the file that had it"""


class _Source(msgspec.Struct):
    """What one folder told, or the files that were named one by one."""

    nodes: dict[str, _Found]
    missing: dict[str, tuple[Absent, ...]]
    """nodes of which nothing could be read"""
    unread: tuple[Absent, ...]
    """what belongs to no node"""
    scans: tuple[tuple[str, Scan], ...]
    """(file, scan) of topo-tune's own records"""


def scan_from(*paths: Path | str, cluster: str | None = None) -> Scan:
    """The scan that saved files tell.

    Whose a file is tells `whose.by_node`. A folder that is called like the nodes, and in which nothing can be read,
    is `missing`; other files that cannot be read are `unread`. Raises InputError where a path does not exist or
    nothing can be read.
    """
    named = [Path(path) for path in paths]
    singles = [path for path in named if not path.is_dir()]
    sources = [_source(singles, None, [])] if singles else []
    folders = [path for path in named if path.is_dir()]
    sources += [_source(*_files_below(folder)) for folder in folders]
    scan = Scan(cluster or _cluster_name(named[0], sources), ())
    for folder, source in zip([None, *folders] if singles else folders, sources, strict=True):
        scan = _joined(scan, _scan_of(source), None if folder is None else folder.name)
        for file, own in source.scans:
            scan = _joined(scan, own, stem(file))
    if not scan.nodes and not scan.documents:
        raise _nothing_readable(named, scan)
    return scan


def kinds_read() -> tuple[str, ...]:
    """Every kind that is read, in words."""
    return tuple(dict.fromkeys(kind.name for kind in (ANSWER, *KINDS)))


def _cluster_name(path: Path, sources: list[_Source]) -> str:
    """That of the first path; of a scan that is read back alone, its own."""
    records = [own for source in sources for _, own in source.scans]
    if len(records) == 1 and not any(source.nodes for source in sources):
        return records[0].cluster
    return path.resolve().name if path.is_dir() else stem(path.resolve().name)


def _joined(scan: Scan, other: Scan, place: str | None) -> Scan:
    """Both together. The same name in two places is two nodes."""
    known = {node.node for node in scan.nodes} | {missing.node for missing in scan.missing}

    def own(name: str) -> str:
        return f"{place}/{name}" if place is not None and name in known else name

    return msgspec.structs.replace(
        scan,
        nodes=(*scan.nodes, *(msgspec.structs.replace(n, node=own(n.node)) for n in other.nodes)),
        missing=(*scan.missing, *(msgspec.structs.replace(m, node=own(m.node)) for m in other.missing)),
        documents=(
            *scan.documents,
            *(msgspec.structs.replace(d, node=own(d.node)) for d in other.documents),
        ),
        unread=(*scan.unread, *other.unread),
    )


def _scan_of(source: _Source) -> Scan:
    told = {name: found for name, found in source.nodes.items() if found.is_told}
    # What could not be read beside documents is nobody's: a node's own notes are in its `absent`.
    unread = [note for found in source.nodes.values() if not found.is_told for note in found.notes]
    return Scan(
        "",
        tuple(answer.printable(_finished(name, found)) for name, found in told.items()),
        tuple(answer.printable(_missing(name, notes)) for name, notes in source.missing.items()),
        documents=tuple(answer.printable(d) for found in source.nodes.values() for d in found.documents),
        unread=tuple(answer.printable(note) for note in (*unread, *source.unread)),
    )


# --- files ---


def _files_below(folder: Path) -> tuple[list[Path], Path, list[tuple[str, Absent]]]:
    """The files in a folder, the folder, and folders in which nothing can be read, each with its reason."""
    files: list[Path] = []
    unread: list[tuple[str, Absent]] = []

    def denied(error: OSError) -> None:
        name = os.path.relpath(error.filename, folder)
        if name == ".":
            raise InputError(f"cannot scan from `{folder}`: {error.strerror}") from error
        unread.append((name, Absent(name, f"a folder that cannot be read: {error.strerror}")))

    for place, folders, names in os.walk(folder, onerror=denied):
        folders.sort()
        if is_run_folder(names):
            names, folders[:] = [SCAN_OF_RUN], []
        if not names and not folders and Path(place) != folder:
            name = os.path.relpath(place, folder)
            unread.append((name, Absent(name, "an empty folder")))
        files += [Path(place) / name for name in names]
        if len(files) > _FILES_LIMIT:
            raise InputError(
                f"`{folder}` holds more than {_FILES_LIMIT} files", hint="name a folder of saved dumps"
            )
    return sorted(files), folder, unread


def _source(paths: list[Path], folder: Path | None, unread: list[tuple[str, Absent]]) -> _Source:
    """What the files tell; folder: where they lie, None for files that were named one by one."""
    opened = [file for path in paths for file in _opened(path, folder)]
    files = [file for file in opened if file.scan is None]
    found = by_node(files, folder=None if folder is None else folder.resolve().name)
    nodes = {name: _told(name, own) for name, own in found.nodes.items()}
    missing = {name: node.notes for name, node in nodes.items() if _is_named(found.nodes[name], node)}
    # What nobody claims: files in folders of no node, and all files of what turned out to tell nothing.
    rest = [
        (PurePath(file.name).parts[:-1], _by_file(file, note)) for file in found.others for note in file.notes
    ]
    rest += [(PurePath(name).parts, note) for name, note in unread]
    for name, node in nodes.items():
        if not node.is_told and not node.documents and name not in missing:
            rest += [(PurePath(name).parts, note) for note in node.notes]
    nodes = {name: node for name, node in nodes.items() if node.is_told or node.documents}
    others = []
    for folders, note in rest:
        lost = lost_node(folders, (name for name, node in nodes.items() if node.is_told))
        if lost is None or lost in nodes:
            others.append(note)
        else:
            missing[lost] = (*missing.get(lost, ()), note)
    scans = tuple((file.name, file.scan) for file in opened if file.scan is not None)
    return _Source(nodes, missing, tuple(others), scans)


def _by_file(file: SavedFile, note: Absent) -> Absent:
    """A note that is about the file: of no node it says nothing that a tool was not there."""
    return note if note.what == file.name else Absent(file.name, f"{note.what}: {note.reason}")


def _is_named(files: list[SavedFile], node: _Found) -> bool:
    """Whether a node of which nothing could be read has said its name itself."""
    return not node.is_told and not node.documents and any(file.node is not None for file in files)


def _opened(path: Path, folder: Path | None) -> list[SavedFile]:
    """The file, or the reason why nothing of it can be read."""
    name = path.name if folder is None else str(path.relative_to(folder))
    try:
        return open_saved(path, name)
    except FileNotFoundError as exc:
        if path.is_symlink():
            return [SavedFile(name, notes=(Absent(name, "a link that leads nowhere"),))]
        raise InputError(f"cannot scan from `{path}`: no such file or folder") from exc
    except InputError as error:
        return [SavedFile(name, notes=(Absent(name, error.message),))]
    except OSError as error:
        return [SavedFile(name, notes=(Absent(name, f"cannot be read: {error.strerror}"),))]


# --- nodes ---


def _told(name: str, files: list[SavedFile]) -> _Found:
    """The node after every one of its files was read."""
    found = _Found(_blank(name))
    for file, output in _in_order(files):
        try:
            _add(found, file, output)
        except InputError as error:
            found.notes += (Absent(output.name, _reason(error)),)
    found.notes += tuple(note for file in files for note in file.notes)
    if found.is_told:
        for document in found.documents:
            if isinstance(document.body, JobSettings):
                found.scan = job_settings.of_node(found.scan, document.body, document.file)
    return found


def _reason(error: InputError) -> str:
    """An error's message without the name of the file, which stands in front of it already."""
    if error.file is None:
        return error.message
    line = "" if error.line is None else f"line {error.line}: "
    prefix = ":".join(str(part) for part in (error.file, error.line) if part is not None)
    return line + error.message.removeprefix(f"{prefix}: ")


def _in_order(files: list[SavedFile]) -> Iterator[tuple[SavedFile, Output]]:
    """Answers of the collector first: they are the whole node. Then whole files, then what reports quote."""
    outputs = [(file, output) for file in files for output in file.outputs]
    yield from sorted(outputs, key=lambda pair: (pair[1].kind is not ANSWER, len(pair[0].outputs) > 1))


def _add(found: _Found, file: SavedFile, output: Output) -> None:
    kind = output.kind
    if kind.document is not None:
        body, problems = kind.document(output.text, output.name)
        found.documents += (Document(output.name, found.scan.node, kind.name, body, problems),)
        return
    assert kind.tell is not None, kind.name
    if not kind.is_repeatable and kind.name in found.told_by:
        raise InputError(f"left out: this node has one already, from {found.told_by[kind.name]}")
    told = kind.tell(found.scan, output.text, output.name)
    found.scan = msgspec.structs.replace(told, node=found.scan.node)
    found.is_told = True
    found.told_by[kind.name] = output.name


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


def _missing(name: str, notes: tuple[Absent, ...]) -> Missing:
    # A folder that is the node needs no second name.
    reasons = [note.reason if note.what == name else f"{note.what}: {note.reason}" for note in notes]
    return Missing(name, "not read", "; ".join(reasons))


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


def _nothing_readable(paths: list[Path], scan: Scan) -> InputError:
    notes = [f"{note.what}: {note.reason}" for note in scan.unread]
    notes += [f"{missing.node}: {missing.reason}" for missing in scan.missing]
    lines = [f"  {note}" for note in notes[:_NOTES_SHOWN]]
    if len(notes) > len(lines):
        lines.append(f"  and {len(notes) - len(lines)} more")
    where = ", ".join(f"`{path}`" for path in paths[:3])
    message = "\n".join([f"nothing in {where} can be read" + (":" if lines else ", it is empty"), *lines])
    return InputError(message, hint=_HINT if any(UNKNOWN in note for note in notes) else None)
