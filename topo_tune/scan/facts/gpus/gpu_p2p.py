"""Which pairs of GPUs can reach each other directly, from `nvidia-smi topo -p2p`.

The output does not say what was asked (read, write, NVLink, atomics, PCIe); of a saved text it is told by the command
in front of it or by the file's name, and otherwise not at all.
"""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import P2pMatrix
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.beginning import beginning
from topo_tune.scan.facts.fact import Command, Fact, Gathered, SavedKind, with_absent
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped

ASKED = ("r", "w", "n")
"""What a scan asks: peer reads and writes, which NCCL's P2P transport needs, and whether they go over NVLink."""

UNKNOWN = "?"

_STATES = frozenset(("X", "OK", "NS", "CNS", "GNS", "TNS", "DR", "U"))
_GPU = re.compile(r"GPU\d{1,4}$")
_COMMAND = re.compile(r"topo\b.{0,40}(?:-p2p|--p2pstatus)[ =]{1,8}([rwnap]{1,5})\b")
_FILE_NAME = re.compile(
    r"p2p(?:status)?[-_ .]?(r|w|n|a|p|rw|read|write|nvlink|atomics?|pcie)(?![a-z0-9])", re.I
)
_GPUS_LIMIT = 512
_MATRICES_LIMIT = 20


def command(capability: str) -> tuple[str, ...]:
    """What asks for one capability."""
    return ("nvidia-smi", "topo", "-p2p", capability)


def matrices_in(text: str, *, file: str | None = None) -> tuple[P2pMatrix, ...]:
    """Every matrix of peer states in a text, also behind one of `nvidia-smi topo -m`; none where there is none."""
    return _found(text, file)[0]


def parse(text: str, *, file: str | None = None) -> tuple[tuple[P2pMatrix, ...], tuple[str, ...]]:
    """The matrices of a text, and what could not be read of them. Raises InputError where there is none."""
    matrices, problems = _found(text, file)
    if not matrices:
        raise InputError(
            "no matrix of peer states: expected rows like `GPU0 X OK`",
            file=file,
            hint="save the whole output of `nvidia-smi topo -p2p r`, header line included",
        )
    return matrices, problems


def recognise(text: str) -> bool:
    """Whether a text is this and nothing more: with a matrix of `nvidia-smi topo -m` in it, it is that."""
    return "CPU Affinity" not in text and bool(_found(text, None)[0])


class _Open(msgspec.Struct):
    """A matrix whose rows are being read."""

    capability: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]


def _found(text: str, file: str | None) -> tuple[tuple[P2pMatrix, ...], tuple[str, ...]]:
    told = lines_of_one_task(beginning(text))
    problems = list(told.problems)
    found: list[_Open] = []
    header: tuple[str, ...] = ()
    asked = named = _capability(_FILE_NAME.search(file or ""))
    for number, line in told.lines:
        words = line[: 8 * _GPUS_LIMIT].split()
        if (match := _COMMAND.search(line)) is not None:
            asked = match.group(1)
        elif words and all(_GPU.match(word) for word in words):
            header = tuple(dict.fromkeys(words[:_GPUS_LIMIT]))
        elif header and _is_row(words):
            if not found or found[-1].columns is not header:
                if len(found) == _MATRICES_LIMIT:
                    problems.append(
                        f"line {number}: more than {_MATRICES_LIMIT} matrices; the rest is left out"
                    )
                    break
                found.append(_Open(asked or UNKNOWN, header, {}))
            problems += _add(found[-1], words, number)
        elif words and words[0].rstrip(":").casefold() == "legend":
            header, asked = (), named
    return tuple(map(_matrix, found)), tuple(problems[:50])


def _capability(match: re.Match[str] | None) -> str | None:
    if match is None:
        return None
    word = match.group(1).casefold()
    return word if word == "rw" else word[0]


def _is_row(words: list[str]) -> bool:
    """A GPU and states only: behind a row of `nvidia-smi topo -m` stand CPUs. Unknown words are left to `_add`."""
    states = words[1:]
    return bool(states) and _GPU.match(words[0]) is not None and bool(_STATES.intersection(states[:2]))


def _add(matrix: _Open, words: list[str], number: int) -> list[str]:
    name, states = words[0], words[1:]
    if name not in matrix.columns or name in matrix.rows or len(states) > len(matrix.columns):
        return [f"line {number}: `{clipped(' '.join(words))}` is no row of this matrix"]
    unknown = [state for state in states if state not in _STATES]
    kept = [state if state in _STATES else UNKNOWN for state in states]
    matrix.rows[name] = tuple(kept + [UNKNOWN] * (len(matrix.columns) - len(kept)))
    return [f"line {number}: {name}: `{clipped(unknown[0], 20)}` is no peer state"] if unknown else []


def _matrix(matrix: _Open) -> P2pMatrix:
    nothing = (UNKNOWN,) * len(matrix.columns)
    states = tuple(matrix.rows.get(name, nothing) for name in matrix.columns)
    return P2pMatrix(matrix.capability, matrix.columns, states)


def _tell_node(scan: NodeScan, gathered: Gathered) -> NodeScan:
    for capability in ASKED:
        raw = gathered.output(*command(capability))
        what = f"peer access ({capability})"
        if (failure := raw.failure()) is not None:
            scan = with_absent(scan, what, failure)
            continue
        matrices, problems = _found(raw.stdout, None)
        if not matrices:
            scan = with_absent(scan, what, f"no matrix in `{clipped(raw.stdout, 100)}`")
        told = tuple(msgspec.structs.replace(matrix, capability=capability) for matrix in matrices[:1])
        scan = _with(scan, told, problems, what)
    return scan


def _tell_saved(scan: NodeScan, text: str, file: str) -> NodeScan:
    return _with(scan, *parse(text, file=file), file)


def _with(scan: NodeScan, matrices: tuple[P2pMatrix, ...], problems: tuple[str, ...], what: str) -> NodeScan:
    for problem in problems:
        scan = with_absent(scan, what, problem)
    return msgspec.structs.replace(scan, p2p=(*scan.p2p, *matrices))


FACTS: tuple[Fact, ...] = (
    Fact("peer access of GPUs", _tell_node, commands=tuple(Command(command(letter)) for letter in ASKED)),
)
# A node has one file for each capability.
KINDS: tuple[SavedKind, ...] = (
    SavedKind("`nvidia-smi topo -p2p` output", recognise, _tell_saved, is_repeatable=True),
)
