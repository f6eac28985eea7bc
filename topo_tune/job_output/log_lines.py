"""Lines of jobs: the labels that launchers put in front, and NCCL's own lines, taken apart where they are glued.

NCCL writes `HOST:PID:TID [DEVICE] NCCL INFO TEXT`, with `FILE:LINE` before `NCCL WARN` and, in its newer versions, a
time in front (`src/debug.cc` of NVIDIA/nccl). Before 2.3 the word NCCL was missing. Ranks that share one stream cut
into each other's lines, so a beginning is looked for anywhere in a line, not only at its start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from topo_tune.words import without_escapes

LONGEST_LINE = 16_384
"""Characters of a line that are read. NCCL's own buffer for one line is 1024; a table row is shorter still."""

HEAD_LINES = 250_000
"""Lines that are read from the beginning of a text, where jobs tell what they use: 20 MB of ordinary ones."""

TAIL_LINES = 100_000
"""Lines that are read from its end, where jobs fail."""

_OTHERS_BETWEEN = 50_000
"""Lines between them that NCCL did not write: tables of nccl-tests, errors of programs."""
_TELLING_BETWEEN = 50_000
"""Lines between them that tell of failures. Thousands of ranks fail with a handful each."""


class LogLine(NamedTuple):
    """One message of NCCL, or a piece of text that is none."""

    number: int
    """of the line in the file, from 1"""
    text: str
    """without prefix and label"""
    level: str = ""
    """`INFO`, `WARN`, `TRACE`, `CALL`, `ABORT`; empty for text that NCCL did not write with a prefix"""
    host: str = ""
    process: str = ""
    """process ID"""
    thread: str = ""
    place: str = ""
    """source file and line, or function, of a warning: `transport/nvls.cc:158`"""

    @property
    def who(self) -> tuple[str, str, str]:
        """Host, process and thread: lines of one caller follow each other."""
        return self.host, self.process, self.thread


class _Beginning(NamedTuple):
    start: int
    host: str
    is_sure: bool
    """whether the host's name is all there and nothing else"""
    process: str
    thread: str
    level: str
    place: str
    text: int
    """where the message's own words start"""


# `:PID:TID ` before a device number or the word NCCL: rare enough in any text to look around only there.
_NUMBERS = re.compile(r":(\d{1,10}):(\d{1,10}) (?=\[-?\d{1,4}\] |NCCL )")
_PLAIN = re.compile(
    r"([\w.{}-]{1,64}):(\d{1,10}):(\d{1,10}) \[-?\d{1,4}\] (?:([\w./-]{1,120}:\d{1,6}) )?NCCL (INFO|TRACE|WARN)"
    r" (?P<text>.*)"
)
_HOST = re.compile(r"[\w.{}-]{1,64}$")
_MESSAGE = re.compile(
    r"(?:\[-?\d{1,4}\] )?(?P<place>.{0,300}?) ?\bNCCL (?P<level>INFO|WARN|TRACE|CALL|ABORT)(?: |$)"
)
_OLD_MESSAGE = re.compile(r"\[-?\d{1,4}\] (?:(?P<place>[\w./-]{1,120}:\d{1,6}) )?(?P<level>INFO|WARN)(?: |$)")
_LABEL = re.compile(
    r"""(?:
      \ {0,4}\d{1,7}:\ (?=\S|\ |$)                          # srun --label
    | \[\d{1,7}(?:,\d{1,7})?\](?:<std(?:out|err)>)?:?\ ?    # mpirun --tag-output, Hydra's -prepend-rank
    | \[(?:rank|default)\d{1,7}\]:\ ?                       # torch, torchrun
    | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]{0,12}(?:Z|[+-]\d\d:?\d\d)\ ?  # kubectl logs --timestamps
    | \[\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d\]\ ?                # NCCL's own time
    | [A-Za-z][\w.-]{0,63}-\d{1,5}:\                        # name of a pod or a node: `worker-0: `
    | \[pod/[\w./-]{1,200}\]\ ?                             # kubectl logs --prefix
    | std(?:out|err)\ [FP]\                                # files of containerd, behind their time
    | \(\w{1,64}(?:\ rank=\d{1,7})?\ pid=\d{1,10}(?:,\ ip=[\d.]{7,15})?\)\ ?  # Ray
    | \[rank=\d{1,7}\]\ \|\|\                               # Determined
    )""",
    re.X,
)
_TAIL_LABEL = re.compile(r"\[(?:rank|default)?\d{1,7}(?:,\d{1,7})?\](?:<std(?:out|err)>)?:? ?$")
"""The label of the message that follows in the same line, left at the end of what it cut off."""
_MOST_LABELS = 4


def unlabelled(line: str) -> str:
    """The line without what launchers put in front: task numbers, tags, time stamps, names of pods."""
    for _ in range(_MOST_LABELS):
        found = _LABEL.match(line)
        if found is None:
            break
        line = line[found.end() :]
    return line


def raw_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are read of a text, with their numbers from 1: without escape codes, cut at `LONGEST_LINE`.

    Of one that is out of all proportion the beginning, the end, and what between them may tell of a failure.
    """
    head = _unwrapped(without_escapes(text)).split("\n", HEAD_LINES)
    rest = head.pop() if len(head) > HEAD_LINES else None
    yield from _numbered(head, 1)
    if rest is None:
        return
    tail = rest.rsplit("\n", TAIL_LINES)
    number = HEAD_LINES + 1
    if len(tail) > TAIL_LINES:
        middle = tail.pop(0)
        yield from _between(middle, number)
        number += middle.count("\n") + 1
    yield from _numbered(tail, number)


def unread(text: str) -> tuple[str, ...]:
    """What of a text is not read, in words: nothing, unless it is out of all proportion."""
    lines = text.count("\n") + 1
    if lines <= HEAD_LINES + TAIL_LINES:
        return ()
    return (
        f"of {lines} lines only the first {HEAD_LINES} and the last {TAIL_LINES} were read, and what tells of failures"
        " between them",
    )


def log_lines(text: str) -> list[LogLine]:
    """Every message and every piece of other text, in order; empty ones are left out."""
    found: list[LogLine | tuple[int, str, list[_Beginning]]] = []
    hosts: set[str] = set()
    for number, line in raw_lines(text):
        if not line:
            continue
        plain = _plain(number, line)
        beginnings = [] if plain else _beginnings(line)
        if plain or (beginnings and beginnings[0].is_sure):
            hosts.add(plain.host if plain else beginnings[0].host)
        found.append(plain or (number, line, beginnings))
    pieces: list[LogLine] = []
    for one in found:
        if isinstance(one, LogLine):
            pieces.append(one)
        else:
            pieces += _pieces(*one, hosts)
    return pieces


def _unwrapped(text: str) -> str:
    """The lines within the objects that Docker's `json-file` driver keeps, one a line; any other text as it is."""
    if not text.startswith('{"log":"'):
        return text
    return "\n".join(_within_object(line) for line in text.split("\n"))


def _within_object(line: str) -> str:
    try:
        told = json.loads(line) if len(line) <= 2 * LONGEST_LINE else None
    except (ValueError, RecursionError):
        return line
    said = told.get("log") if isinstance(told, dict) else None
    # One object is one line: its number must stay that of the file.
    return said.rstrip("\n").replace("\n", " ") if isinstance(said, str) else line


def _numbered(lines: list[str], number: int) -> Iterator[tuple[int, str]]:
    return ((at, line[:LONGEST_LINE]) for at, line in enumerate(lines, start=number))


_CHUNK = 1 << 20
"""Characters that are split into lines at a time, so that millions of lines do not lie in memory together."""
_RETURNED = re.compile(r" -> [1-7](?: \[|\s*$)")
_FAILING = (
    "rror",
    "ailure",
    "atchdog",
    "timeout",
    "timed out",
    "out of memory",
    "Killed",
    "exit",
    "signal",
    "ABORT",
)


def _between(text: str, number: int) -> Iterator[tuple[int, str]]:
    """Lines of the middle of a text: every one that may tell of a failure, and some that NCCL did not write."""
    others, telling, start = _OTHERS_BETWEEN, _TELLING_BETWEEN, 0
    while start <= len(text):
        end = text.find("\n", start + _CHUNK)
        end = len(text) if end < 0 else end
        for at, line in enumerate(text[start:end].split("\n"), start=number):
            if not line:
                continue
            if telling and _may_tell(line):
                telling -= 1
            elif others and " INFO " not in line and " TRACE " not in line:
                others -= 1
            else:
                continue
            yield at, line[:LONGEST_LINE]
        number += text.count("\n", start, end) + 1
        start = end + 1


def _may_tell(line: str) -> bool:
    """Whether a line may tell of a failure: a warning, an error that a function returned, or words of a program."""
    if " WARN" in line or "async event" in line:
        return True
    if " INFO " in line:
        return " -> " in line and _RETURNED.search(line, max(0, len(line) - 40)) is not None
    return any(word in line for word in _FAILING)


def _plain(number: int, line: str) -> LogLine | None:
    """The ordinary case, told by one look: one whole message and no label."""
    found = _PLAIN.match(line)
    if found is None or _NUMBERS.search(line, found.start("text")) is not None:
        return None
    host, process, thread, place, level, text = found.groups()
    return LogLine(number, text.rstrip(), level, host, process, thread, place or "")


def _beginnings(line: str) -> list[_Beginning]:
    if "NCCL " not in line and " INFO " not in line and " WARN " not in line:
        return []
    found = []
    for numbers in _NUMBERS.finditer(line):
        message = _message(line, numbers.end())
        host = _HOST.search(line, max(0, numbers.start() - 64), numbers.start()) if message else None
        if message is None or host is None:
            continue
        # A place that holds another beginning: this message was cut before it came to its words.
        if _NUMBERS.search(line, message.start(), message.start("level")) is None:
            start, place = host.start(), (message["place"] or "").strip()
            is_sure = start == 0 or not unlabelled(line[:start]).strip()
            found.append(
                _Beginning(
                    start, host[0], is_sure, numbers[1], numbers[2], message["level"], place, message.end()
                )
            )
    return found


def _message(line: str, start: int) -> re.Match[str] | None:
    if line.find("NCCL ", start, start + 320) >= 0:
        found = _MESSAGE.match(line, start)
        if found is not None:
            return found
    return _OLD_MESSAGE.match(line, start)


def _pieces(number: int, line: str, beginnings: list[_Beginning], hosts: set[str]) -> list[LogLine]:
    if not beginnings:
        return _other(number, line)
    cuts = [0 if beginning.is_sure else _glued(beginning.host, hosts) for beginning in beginnings]
    starts = [beginning.start + cut for beginning, cut in zip(beginnings, cuts, strict=True)]
    pieces = _other(number, _TAIL_LABEL.sub("", line[: starts[0]], count=1))
    for cut, one, end in zip(cuts, beginnings, [*starts[1:], len(line)], strict=True):
        text = line[one.text : max(end, one.text)].rstrip()
        pieces.append(LogLine(number, text, one.level, one.host[cut:], one.process, one.thread, one.place))
    return pieces


def _glued(name: str, hosts: set[str]) -> int:
    """How many characters of what looks like a host's name belong to the line that was cut off before it."""
    if name in hosts:
        return 0
    return next((cut for cut in range(1, len(name)) if name[cut:] in hosts), 0)


def _other(number: int, text: str) -> list[LogLine]:
    text = unlabelled(text).rstrip() if text else ""
    return [LogLine(number, text)] if text else []
