"""`nvidia-smi topo -m`: how each pair of GPUs and NICs is joined.

The text comes as the tool wrote it or as people pasted it: tabs or spaces, with escape codes, a prompt, no
legend, a second matrix behind the first, or cut off. Real ones are in tests/golden/facts/smi-topo.
"""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import SavedKind, matches, with_absent
from topo_tune.scan.facts.gpus.gpu_p2p import matrices_in
from topo_tune.scan.facts.words import clipped, said, without_escapes

COMMAND = ("nvidia-smi", "topo", "-m")
UNKNOWN = "?"

_GPU = re.compile(r"GPU\d+$")
_LINK = re.compile(r"(X|SYS|NODE|PHB|PXB|PIX|SOC|NV\d{1,3})$")
_OLD_SPELLINGS = {"SOC": "SYS"}  # drivers before 2018
_NIC_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_CPU_COLUMN, _NUMA_COLUMN, _GPU_NUMA_COLUMN = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
_RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*$")
_DEVICE_LIMIT = 512
_HINT = "save the whole output of `nvidia-smi topo -m`, header line included"


def parse(text: str, *, file: str | None = None) -> TopologyMatrix:
    """The matrix in a text; whatever is missing or not understood in it is named in `problems`.

    Raises InputError where there is no matrix at all, with the line that was looked at.
    """
    lines = without_escapes(text).split("\n")
    start = _header(lines, file)
    columns = _columns(lines[start], file, start + 1)
    problems: list[str] = []
    rows = _rows(lines, start, columns, problems)
    if not rows:
        raise InputError(
            f"the header names {len(columns)} devices and no row follows it",
            file=file,
            line=start + 1,
            hint=_HINT,
        )
    gpus = tuple(name for name in columns if _GPU.match(name))
    nics = tuple(name for name in columns if not _GPU.match(name))
    order = gpus + nics
    missing = [name for name in order if name not in rows]
    if missing:
        problems.append(f"the matrix is incomplete: no row for {', '.join(missing)}")
    links = tuple(_links(name, order, columns, rows) for name in order)
    problems += _contradictions(order, links)
    return TopologyMatrix(
        gpus=gpus,
        nics=_device_names(nics, lines[start:], problems),
        links=links,
        cpu_affinity=tuple(rows[name].cpus if name in rows else None for name in gpus),
        numa_affinity=tuple(rows[name].numa if name in rows else None for name in gpus),
        gpu_numa_ids=_gpu_numa_ids(gpus, rows, lines[start]),
        problems=tuple(problems),
    )


class _Row:
    """One row: its link words, in column order, and what stands behind them."""

    def __init__(self, links: list[str], cpus: str | None, numa: str | None, gpu_numa: str | None) -> None:
        self.links, self.cpus, self.numa, self.gpu_numa = links, cpus, numa, gpu_numa


def _header(lines: list[str], file: str | None) -> int:
    """The index of the header line of the first matrix of links."""
    candidates = [number for number, line in enumerate(lines) if _is_header(line)]
    for number in candidates:
        if _CPU_COLUMN in lines[number] or any(_is_row_of_links(line) for line in lines[number + 1 :][:1]):
            return number
    if candidates:
        raise InputError(
            "this is not the matrix of `nvidia-smi topo -m`: no `CPU Affinity` column and no link words",
            file=file,
            line=candidates[0] + 1,
            hint=_HINT,
        )
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    found = "nothing" if first is None else f"`{clipped(lines[first])}`"
    raise InputError(
        f"no topology matrix: expected a header line `GPU0 ... CPU Affinity`, found {found}",
        file=file,
        line=None if first is None else first + 1,
        hint=_HINT,
    )


def _is_header(line: str) -> bool:
    words = line.split(_CPU_COLUMN)[0].split()
    return bool(words) and bool(_GPU.match(words[0])) and not any(_LINK.match(word) for word in words)


def _is_row_of_links(line: str) -> bool:
    words = line.split()
    return len(words) > 1 and bool(_GPU.match(words[0])) and all(_LINK.match(word) for word in words[1:3])


def _columns(header: str, file: str | None, line: int) -> list[str]:
    columns = header.split(_CPU_COLUMN)[0].split()
    if len(columns) > _DEVICE_LIMIT:
        raise InputError(
            f"the header names {len(columns)} devices, more than {_DEVICE_LIMIT}",
            file=file,
            line=line,
            hint=_HINT,
        )
    repeated = [name for name in columns if columns.count(name) > 1]
    if repeated:
        raise InputError(f"the header names `{clipped(repeated[0])}` twice", file=file, line=line, hint=_HINT)
    return columns


def _rows(lines: list[str], start: int, columns: list[str], problems: list[str]) -> dict[str, _Row]:
    rows: dict[str, _Row] = {}
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        words = line.split()
        if not words:
            continue
        if _is_header(line) and words[0] not in rows and len(words) == 1:
            # A row cut off right behind its name looks like a header of one GPU.
            problems.append(f"line {number}: the row of {words[0]} holds nothing")
            continue
        if _is_header(line) and not _looks_like_row(line, columns):
            if _CPU_COLUMN in line:
                problems.append(f"line {number}: a second matrix begins here and is left out")
            break
        if words[0].rstrip(":").casefold() in {"legend", "nic"}:
            break
        if words[0] not in columns:
            if len(words) > 1 and _LINK.match(words[1]):
                problems.append(
                    f"line {number}: a row for `{clipped(words[0], 30)}`, which the header does not name"
                )
            continue
        if words[0] in rows:
            problems.append(f"line {number}: a second row for {words[0]} is left out")
            continue
        rows[words[0]] = _row(line, number, columns, problems)
    return rows


def _looks_like_row(line: str, columns: list[str]) -> bool:
    """A row none of whose words is known looks like a header; its second word is no device."""
    words = line.split()
    return len(words) > 1 and words[0] in columns and words[1] not in columns and not _GPU.match(words[1])


def _row(line: str, number: int, columns: list[str], problems: list[str]) -> _Row:
    cells, behind = _cells(line, len(columns))
    words = []
    for column, cell in zip(columns, cells, strict=True):
        word = _OLD_SPELLINGS.get(cell, cell)
        if not _LINK.match(word):
            found = f"`{clipped(cell, 20)}`, which is no link" if cell else "nothing"
            problems.append(f"line {number}: {line.split()[0]} to {column}: {found}")
            word = UNKNOWN
        words.append(word)
    return _Row(words, _ranges(behind, 0), _ranges(behind, 1), _ranges(behind, 2))


def _cells(line: str, count: int) -> tuple[list[str], list[str]]:
    """The cells of a row under the device columns, and those behind them."""
    if line.count("\t") >= count:
        cells = [cell.strip() for cell in line.lstrip().split("\t")][1:]
        links, behind = cells[:count], cells[count:]
        # The last column is set off by two tabs where it has no number.
        behind = behind[:2] + [cell for cell in behind[2:] if cell][-1:]
    else:
        words = line.split()[1:]
        links, behind = words[:count], words[count:]
    return links + [""] * (count - len(links)), behind


def _ranges(cells: list[str], position: int) -> str | None:
    cell = said(cells[position]) if position < len(cells) else None
    return cell if cell is not None and _RANGES.match(cell) else None


def _links(name: str, order: tuple[str, ...], columns: list[str], rows: dict[str, _Row]) -> tuple[str, ...]:
    if name not in rows:
        return (UNKNOWN,) * len(order)
    by_column = dict(zip(columns, rows[name].links, strict=True))
    return tuple(by_column[other] for other in order)


def _contradictions(order: tuple[str, ...], links: tuple[tuple[str, ...], ...]) -> list[str]:
    """What cannot be true: a device that is another one, or a link that differs by direction."""
    found = []
    for i, one in enumerate(order):
        if links[i][i] not in {"X", UNKNOWN}:
            found.append(f"{one} to itself: {links[i][i]} instead of X")
        for j in range(i):
            there, back = links[i][j], links[j][i]
            if "X" in {there, back}:
                found.append(f"{order[j]} and {one}: X, which is for one and the same device")
            elif UNKNOWN not in {there, back} and there != back:
                found.append(f"{order[j]} and {one}: {back} one way and {there} the other")
    return found


def _device_names(nics: tuple[str, ...], lines: list[str], problems: list[str]) -> tuple[str, ...]:
    """The NIC columns by the names of the NIC legend, where there is one."""
    legend = {match.group(1): match.group(2) for match in map(_NIC_LEGEND.match, lines) if match}
    named = tuple(legend.get(nic, nic) for nic in nics)
    if len(set(named)) != len(named):
        problems.append("the NIC legend gives one name to two NICs and is left out")
        return nics
    return named


def _gpu_numa_ids(gpus: tuple[str, ...], rows: dict[str, _Row], header: str) -> tuple[int | None, ...]:
    if _GPU_NUMA_COLUMN not in header:
        return ()
    ids = [rows[name].gpu_numa if name in rows else None for name in gpus]
    return tuple(int(text) if text and text.isdigit() and len(text) < 10 else None for text in ids)


def _tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    if scan.matrix is not None:
        raise InputError("left out: this node has one already, from another file")
    matrix = parse(text, file=file)
    for problem in matrix.problems:
        # an incomplete matrix must be seen as one
        scan = with_absent(scan, "part of the topology matrix", problem)
    # people append `topo -p2p` to the same file
    peers = matrices_in(text, file=file)
    return msgspec.structs.replace(scan, matrix=matrix, p2p=scan.p2p or peers)


KINDS = (
    SavedKind(
        "`nvidia-smi topo -m` output",
        matches(r"CPU Affinity|^[ \t]*GPU\d{1,3}[ \t]+(?:X[ \t]+)?(?:SYS|NODE|PHB|PXB|PIX|SOC|NV\d{1,3})\b"),
        _tell,
    ),
)
