"""`uname -a` saved in a file: the kernel, and the node's own name."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped

_LINE = re.compile(r"\s{0,8}Linux ([\w.-]{1,64}) (\d{1,2}\.\d{1,3}[\w.+~-]{0,80}) #?")
_ARCHITECTURE = re.compile(r" (x86_64|aarch64|ppc64le|riscv64|s390x)(?: |$)")


class Kernel(msgspec.Struct, frozen=True):
    """What one line of `uname -a` says."""

    hostname: str
    release: str
    architecture: str | None


def parse(text: str, *, file: str | None = None) -> Kernel:
    """The first line of a text that is `uname -a`'s. Raises InputError where none is."""
    for _, line in lines_of_one_task(text).lines:
        match = _LINE.match(line)
        if match is not None:
            architecture = _ARCHITECTURE.search(line[:400])
            return Kernel(match.group(1), match.group(2), architecture.group(1) if architecture else None)
    raise InputError(
        f"no kernel: expected a line such as `Linux gpu001 5.15.0-105-generic #115 SMP ...`, found `{clipped(text)}`",
        file=file,
        hint="`uname -a` writes it",
    )


def _tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    told = parse(text, file=file)
    cpu = scan.cpu
    if cpu.architecture == "unknown" and told.architecture is not None:
        cpu = msgspec.structs.replace(cpu, architecture=told.architecture)
    if scan.kernel != "unknown":
        return msgspec.structs.replace(scan, cpu=cpu)
    return msgspec.structs.replace(scan, kernel=told.release, hostname=told.hostname, cpu=cpu)


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`uname -a` output",
        matches(
            r"^(?:[ \t]{0,8}\d{1,6}: )?Linux [\w.-]{1,64} \d{1,2}\.\d{1,3}[\w.+~-]{0,80} #\S{1,60} [^\n]*\bGNU/Linux\b"
        ),
        tell=_tell,
    ),
)
