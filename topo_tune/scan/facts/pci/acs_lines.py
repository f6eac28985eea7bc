"""`lspci -vvv | grep ACSCtl`, the check of NCCL's troubleshooting guide: what is on somewhere, and not where."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.task_lines import lines_of_one_task

_LINE = re.compile(r"(?:\S{1,80}:)?[ \t>]{0,80}ACSCtl:((?:[ \t]{1,20}[A-Za-z]{3,20}[+-]){1,16})[ \t]*$")
_MOST = 8192


def controls(line: str) -> tuple[str, ...] | None:
    """The controls that a line says are on, without those that are off; None for any other line."""
    match = _LINE.match(line)
    if match is None:
        return None
    return tuple(word[:-1] for word in match.group(1).split() if word.endswith("+"))


def parse(text: str, *, file: str | None = None) -> tuple[tuple[str, ...], ...]:
    """The controls of each device, in their order. Raises InputError where no line tells any."""
    found = [on for _, line in lines_of_one_task(text).lines if (on := controls(line)) is not None]
    if not found:
        raise InputError(
            "no ACS controls: expected lines such as `ACSCtl: SrcValid+ TransBlk- ReqRedir+ ...`",
            file=file,
            hint="`sudo lspci -vvv` writes them, and which device each one is of",
        )
    return tuple(found[:_MOST])


def recognise(text: str) -> bool:
    """Whether there are such lines; a whole `lspci` is taken by its devices before."""
    return "ACSCtl:" in text and any(controls(line) is not None for line in text.split("\n"))


def _tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    return msgspec.structs.replace(scan, unnamed_acs=parse(text, file=file))


KINDS: tuple[SavedKind, ...] = (SavedKind("`lspci -vvv | grep ACSCtl` output", recognise, tell=_tell),)
