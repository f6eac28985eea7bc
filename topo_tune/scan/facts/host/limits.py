"""What a process may use: /proc/self/limits, and `ulimit -a` saved in a file."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import UNLIMITED, Host
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, whole_number

_LOCKED, _FILES, _STACK = "max locked memory", "open files", "stack size"

# `max locked memory       (kbytes, -l) 64` of bash, `-l: locked-in-memory size (kbytes)     64` of zsh and dash.
_BASH = re.compile(r"\s*(max locked memory|open files|stack size)\s{0,40}\(([^)]{0,20})\)\s{1,40}(\S+)")
_ZSH = re.compile(
    r"\s*(?:-[lns]: )?(locked-in-memory size|file descriptors|stack size)\s{0,40}\(?(\w{0,10})\)?\s{1,40}(\S+)"
)
_ZSH_WORDS = {"locked-in-memory size": _LOCKED, "file descriptors": _FILES, "stack size": _STACK}


def parse_proc(text: str, host: Host) -> Host:
    """The host with the limits of /proc/self/limits, whose columns are a name, the soft limit and the hard one."""
    found = {}
    for line in text.split("\n"):
        match = re.match(r"Max (locked memory|open files|stack size)\s{1,40}(\S+)\s{1,40}(\S+)", line[:200])
        if match is not None:
            found[match.group(1)] = (_limit(match.group(2), 1), _limit(match.group(3), 1))
    locked, files, stack = (
        found.get(name, (None, None)) for name in ("locked memory", "open files", "stack size")
    )
    return msgspec.structs.replace(
        host,
        memlock_bytes=locked[0],
        memlock_hard_bytes=locked[1],
        open_files=files[0],
        open_files_hard=files[1],
        stack_bytes=stack[0],
    )


def parse_ulimit(text: str, *, file: str | None = None) -> dict[str, int]:
    """Limits by their names in bash, memory in bytes. Raises InputError where the text holds none."""
    found: dict[str, int] = {}
    for _, line in lines_of_one_task(text).lines:
        match = _BASH.match(line[:200]) or _ZSH.match(line[:200])
        if match is None:
            continue
        name, unit, words = match.groups()
        limit = _limit(words, 1024 if unit.startswith("k") else 1)
        if limit is not None:
            found.setdefault(_ZSH_WORDS.get(name, name), limit)
    if not found:
        raise InputError(
            f"no limit: expected lines such as `max locked memory (kbytes, -l) unlimited`, found `{clipped(text)}`",
            file=file,
            hint="`ulimit -a` in the shell of a job writes them",
        )
    return found


def _tell_ulimit(scan: NodeScan, text: str, file: str) -> NodeScan:
    found = parse_ulimit(text, file=file)
    host = msgspec.structs.replace(
        scan.host,
        memlock_bytes=found.get(_LOCKED, scan.host.memlock_bytes),
        open_files=found.get(_FILES, scan.host.open_files),
        stack_bytes=found.get(_STACK, scan.host.stack_bytes),
    )
    return msgspec.structs.replace(scan, host=host)


def _limit(words: str, unit: int) -> int | None:
    """A limit in bytes or files; UNLIMITED for none."""
    if words == "unlimited":
        return UNLIMITED
    number = whole_number(words)
    return None if number is None else min(number * unit, (1 << 62) - 1)


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`ulimit -a` output",
        matches(r"max locked memory[ \t]{1,40}\(kbytes, -l\)|^(?:-l: )?locked-in-memory size[ \t]{1,40}\("),
        tell=_tell_ulimit,
    ),
)
