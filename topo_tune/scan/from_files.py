"""The same scan from saved files: for clusters that topo-tune cannot reach.

Read today: a collector's answer, the output of `nvidia-smi topo -m` or of `nvidia-smi --query-gpu`, and NCCL
configuration files. Every other file is named and described, in its node's `absent` or in `missing`.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from topo_tune.connect.program import MARKER
from topo_tune.errors import InputError
from topo_tune.records.inventory import Missing
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import Absent, Cpu, NcclFile, NodeScan, Scan
from topo_tune.scan import answer
from topo_tune.scan.facts import nccl_files, nvidia_gpus, nvidia_topology

READS = "a collector's answer, `nvidia-smi topo -m`, `nvidia-smi --query-gpu`, NCCL configuration files"
"""What `scan_from` reads today."""

_SIZE_LIMIT_BYTES = 64 << 20
_FILES_LIMIT = 10_000
_LINE_LIMIT = 400

# What the beginning of a file gives away about kinds that are not read yet, so that it is not called unknown.
_NOT_READ_YET = (
    (r"<system\b", "an NCCL topology file (XML)"),
    (r"<graphs\b", "an NCCL graph file (XML)"),
    (r"^# nThread|^#[ \t]+size[ \t]+count[ \t]+type|nccl-tests version", "nccl-tests output"),
    (r"^CA '", "`ibstat` output"),
    (r"^Infiniband device '", "`ibstatus` output"),
    (r"^hca_id:", "`ibv_devinfo` output"),
    (r"^GPU \d+: .*UUID", "`nvidia-smi nvlink -s` or `nvidia-smi -L` output"),
    (r"^link \S+/\d+ .*state", "`rdma link` output"),
    (r"^[ \t]*(SwitchName|BlockName)=", "a Slurm topology.conf"),
    (r"^[ \t]*(all_?reduce|broadcast|all_?gather|reduce_?scatter|reduce),\d+,\d+,", "a tuner table (CSV)"),
    (r"\bNCCL (INFO|WARN|TRACE)\b|\] INFO NET|NCCL version \d", "an NCCL log"),
    (r"^DEV[ \t]+PORT[ \t]+INDEX", "`show_gids` output"),
    (
        r"\b(NVIDIA|Mellanox).*\[[0-9a-f]{4}:[0-9a-f]{4}\]|^[0-9a-f:.]{7,} .*(NVIDIA|Mellanox)",
        "`lspci` output",
    ),
)


class _Found(msgspec.Struct):
    """What the files of one node held."""

    scan: NodeScan | None = None
    matrix: TopologyMatrix | None = None
    gpus: nvidia_gpus.Gpus | None = None
    nccl_files: tuple[NcclFile, ...] = ()
    notes: tuple[Absent, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.scan is None and self.matrix is None and self.gpus is None and not self.nccl_files


def scan_from(path: Path | str, *, cluster: str | None = None) -> Scan:
    """The scan that saved files tell: one file is one node; in a folder each subfolder and each file is one.

    A node is named by its subfolder, or by its file without the ending; it is `missing` if none can be read.
    Raises InputError where the path does not exist or holds nothing that can be read.
    """
    path = Path(path)
    nodes = _files_by_node(path)
    found = {name: _read_node(path, files) for name, files in nodes.items()}
    if all(node.is_empty for node in found.values()):
        raise _nothing_readable(path, found)
    scans = [_node_scan(name, node) for name, node in found.items() if not node.is_empty]
    missing = [_missing(name, node) for name, node in found.items() if node.is_empty]
    return Scan(
        cluster or path.resolve().stem, tuple(answer.printable(scan) for scan in scans), tuple(missing)
    )


def _files_by_node(path: Path) -> dict[str, list[Path]]:
    if path.is_file():
        return {path.stem: [path]}
    if not path.is_dir():
        raise InputError(f"cannot scan from `{path}`: no such file or folder")
    nodes: dict[str, list[Path]] = {}
    try:
        for entry in sorted(path.iterdir()):
            if entry.is_dir():
                nodes.setdefault(entry.name, []).extend(sorted(p for p in entry.rglob("*") if p.is_file()))
            else:
                nodes.setdefault(entry.stem, []).append(entry)
    except OSError as exc:
        raise InputError(f"cannot scan from `{path}`: {exc.strerror}") from exc
    if sum(len(files) for files in nodes.values()) > _FILES_LIMIT:
        raise InputError(
            f"`{path}` holds more than {_FILES_LIMIT} files", hint="name a folder of saved dumps"
        )
    return nodes


def _read_node(base: Path, files: list[Path]) -> _Found:
    found = _Found()
    for file in files:
        name = str(file.relative_to(base)) if base.is_dir() else file.name
        try:
            _read_file(found, file, name)
        except InputError as error:
            found.notes += (Absent(name, error.message),)
        except OSError as error:
            found.notes += (Absent(name, f"cannot be read: {error.strerror}"),)
    return found


def _read_file(found: _Found, file: Path, name: str) -> None:
    """Recognise one file by its content and add it. Raises InputError or OSError."""
    if not file.is_file():
        raise InputError("is not an ordinary file")
    if file.stat().st_size > _SIZE_LIMIT_BYTES:
        raise InputError(f"is larger than {_SIZE_LIMIT_BYTES >> 20} MiB")
    data = file.read_bytes()
    text = data.decode("utf-8", "replace")
    raw = _collector_answer(text)
    if raw is not None:
        _add_once(found, name, "scan", answer.node_scan_from_raw(file.stem, raw, file=name))
    elif _is_matrix(text):
        _add_once(found, name, "matrix", nvidia_topology.parse(text, file=name))
    elif re.search(r"^index, name\b|^\d+, [^,\n]+, GPU-", text, re.M):
        _add_once(found, name, "gpus", nvidia_gpus.parse(text, file=name))
    elif (kind := _other_kind(text)) is not None:
        found.notes += (Absent(name, f"not read yet: {kind}"),)
    elif _is_nccl_conf(text):
        found.nccl_files += (nccl_files.parse(text, path=name, sha256=hashlib.sha256(data).hexdigest()),)
    else:
        raise InputError("not read: its content is of no known kind" if text.strip() else "is empty")


def _add_once(found: _Found, name: str, part: str, value: Any) -> None:
    if getattr(found, part) is not None:
        found.notes += (Absent(name, "left out: this node has one already, from another file"),)
    else:
        setattr(found, part, value)


def _collector_answer(text: str) -> dict[str, Any] | None:
    """The answer in a text: the whole text, or the line behind the marker in what a session printed."""
    marked = [line[len(MARKER) :] for line in text.splitlines() if line.startswith(MARKER)]
    candidate = marked[-1] if marked else text
    if not candidate.lstrip().startswith("{") or answer.FORMAT not in candidate:
        return None
    try:
        raw = json.loads(candidate)
    except (ValueError, RecursionError) as exc:
        raise InputError(f"a collector's answer that is no JSON: {exc}") from exc
    return raw if isinstance(raw, dict) else None


def _other_kind(text: str) -> str | None:
    # Patterns stay within a line and lines are short: across megabytes some of them would take hours.
    beginning = "\n".join(line[:_LINE_LIMIT] for line in text[: 256 << 10].split("\n"))
    return next((kind for pattern, kind in _NOT_READ_YET if re.search(pattern, beginning, re.M)), None)


def _is_matrix(text: str) -> bool:
    lines = (line[:_LINE_LIMIT].lstrip() for line in text.split("\n"))
    return "CPU Affinity" in text or any(re.match(r"GPU\d+\s+X\s", line) for line in lines)


def _is_nccl_conf(text: str) -> bool:
    return re.search(r"^[ \t]*(-x[ \t]+|export[ \t]+|[\"'])?NCCL_[A-Z0-9_]+[ \t]*=", text, re.M) is not None


def _node_scan(name: str, found: _Found) -> NodeScan:
    """What the files told of one node; everything that they did not tell is in `absent`."""
    scan = found.scan or _blank(name)
    if found.scan is None and found.gpus is None:
        not_told = Absent("GPU names, driver", "not in the saved files")
        scan = msgspec.structs.replace(scan, absent=(*scan.absent, not_told))
    if found.gpus is not None and not scan.gpus:
        scan = msgspec.structs.replace(
            scan, gpus=found.gpus.gpus, gpu_source="nvidia-smi", driver=scan.driver or found.gpus.driver
        )
    matrix = scan.matrix or found.matrix
    if scan.matrix is None and matrix is not None:
        scan = msgspec.structs.replace(scan, absent=(*scan.absent, *answer.parts_not_read(matrix)))
    return msgspec.structs.replace(
        scan,
        node=name,
        matrix=matrix,
        nccl_files=(*scan.nccl_files, *found.nccl_files),
        absent=(*scan.absent, *found.notes),
    )


def _missing(name: str, node: _Found) -> Missing:
    reasons = "; ".join(f"{note.what}: {note.reason}" for note in node.notes)
    return Missing(name, "not read", reasons or "an empty folder")


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
        absent=(
            Absent("CPU, NUMA nodes, memory, kernel", "not in the saved files"),
            Absent("NICs", "not in the saved files"),
            Absent("NCCL libraries", "not in the saved files"),
        ),
    )


def _nothing_readable(path: Path, found: dict[str, _Found]) -> InputError:
    notes = [note for node in found.values() for note in node.notes]
    lines = [f"  {note.what}: {note.reason}" for note in notes[:20]]
    if len(notes) > len(lines):
        lines.append(f"  and {len(notes) - len(lines)} more")
    message = "\n".join([f"nothing in `{path}` can be read" + (":" if lines else ", it is empty"), *lines])
    return InputError(message, hint=f"read today: {READS}")
