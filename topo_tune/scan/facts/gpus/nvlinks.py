"""The NVLinks of each GPU, from `nvidia-smi nvlink -s` (what they run at) and `-e` (their errors)."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import GpuNvlinks, NvlinkLink
from topo_tune.records.scan import Gpu, NodeScan
from topo_tune.scan.facts.beginning import beginning
from topo_tune.scan.facts.fact import Command, Fact, Gathered, SavedKind, matches, with_absent
from topo_tune.scan.facts.gpus.known_gpus import with_gpus
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import said

STATUS = ("nvidia-smi", "nvlink", "-s")
ERRORS = ("nvidia-smi", "nvlink", "-e")

COUNTED = frozenset(
    (
        # NVLink 1 to 4
        "replay errors",
        "recovery errors",
        "crc errors",
        "crc flit errors",
        "crc data errors",
        # NVLink 5
        "malformed packet errors",
        "buffer overrun errors",
        "rx errors",
        "rx remote errors",
        "rx general errors",
        "local link integrity errors",
        "tx discards",
        "link recovery successful events",
        "link recovery failed events",
        "effective errors",
        "symbol errors",
    )
)
"""Counters that stand still on a healthy link. `FEC Errors` and `Raw Errors` do not: they count what was corrected on
the fly, billions on a healthy NVLink 5. `Total link recovery events` is the sum of two others."""

_GPU = re.compile(r"GPU (\d{1,4}): (.{1,100}?)(?: \(UUID: ([0-9A-Za-z-]{1,60})\))?$")
_LINK = re.compile(r"Link (\d{1,3}): {0,8}(?:(\d{1,5}(?:\.\d{1,6})?) ?GB/s|<?(inactive)>?)$", re.I)
_COUNTER = re.compile(r"Link (\d{1,3}): {0,8}([A-Za-z][A-Za-z -]{2,60}?): {0,8}(\d{1,18})$")
_REMOTE = re.compile(r"Link (\d{1,3}): {0,8}Remote Device [0-9A-Fa-f:.]{7,20}: Link \d{1,3}$")
_LINKS_LIMIT = 512
_GPUS_LIMIT = 512
_NO_LINKS = "no GPU with NVLinks: expected `GPU 0: ...` and `Link 0: 25 GB/s` below it"


def parse(text: str, *, file: str | None = None) -> tuple[tuple[GpuNvlinks, ...], tuple[str, ...]]:
    """The links of each GPU with their states and errors, as far as the text has them, and problems.

    A GPU whose links are all inactive has none: the tool says so in a sentence. Raises InputError where there is no
    GPU in it.
    """
    told = lines_of_one_task(beginning(text))
    problems = list(told.problems)
    gpus: list[_Gpu] = []
    for number, line in told.lines:
        stripped = line.strip()
        if (match := _GPU.match(stripped)) is not None:
            if len(gpus) == _GPUS_LIMIT:
                problems.append(f"line {number}: more than {_GPUS_LIMIT} GPUs; the rest is left out")
                break
            gpus.append(_Gpu(int(match.group(1)), match.group(2).strip(), match.group(3), {}))
        elif gpus and len(gpus[-1].links) < _LINKS_LIMIT:
            _take(gpus[-1], stripped)
    if not gpus:
        raise InputError(_NO_LINKS, file=file, hint="save the whole output of `nvidia-smi nvlink -s`")
    return tuple(map(_links, gpus)), tuple(problems)


class _Gpu(msgspec.Struct):
    """A GPU whose lines are being read."""

    index: int
    name: str
    uuid: str | None
    links: dict[int, NvlinkLink]


def _take(gpu: _Gpu, line: str) -> None:
    if (match := _LINK.match(line)) is not None:
        index, speed = int(match.group(1)), match.group(2)
        known = gpu.links.get(index, NvlinkLink(index, None))
        gb_per_s = float(speed) if speed and float(speed) > 0 else None
        gpu.links[index] = msgspec.structs.replace(known, is_active=gb_per_s is not None, gb_per_s=gb_per_s)
    elif (match := _REMOTE.match(line)) is not None:
        # `-R` tells where the links lead; one that leads somewhere is up.
        index = int(match.group(1))
        known = gpu.links.get(index, NvlinkLink(index, None))
        gpu.links[index] = msgspec.structs.replace(known, is_active=True)
    elif (match := _COUNTER.match(line)) is not None:
        index = int(match.group(1))
        known = gpu.links.get(index, NvlinkLink(index, None))
        if match.group(2).casefold() in COUNTED:
            # `1 << 62` is the most that a record holds
            errors = min((known.errors or 0) + int(match.group(3)), 1 << 62)
            gpu.links[index] = msgspec.structs.replace(known, errors=errors)


def _links(gpu: _Gpu) -> GpuNvlinks:
    links = tuple(gpu.links[index] for index in sorted(gpu.links))
    return GpuNvlinks(gpu.index, gpu.name, said(gpu.uuid), links)


def with_nvlinks(scan: NodeScan, told: tuple[GpuNvlinks, ...]) -> NodeScan:
    """The scan with these links, states and errors of the same GPU brought together."""
    merged = list(scan.nvlinks)
    for gpu in told:
        at = next((i for i, known in enumerate(merged) if _is_same(known, gpu)), None)
        if at is None:
            merged.append(gpu)
        else:
            merged[at] = msgspec.structs.replace(merged[at], links=_together(merged[at].links, gpu.links))
    return msgspec.structs.replace(scan, nvlinks=tuple(merged))


def _is_same(one: GpuNvlinks, other: GpuNvlinks) -> bool:
    if one.uuid is not None and other.uuid is not None:
        return one.uuid == other.uuid
    return one.gpu == other.gpu


def _together(known: tuple[NvlinkLink, ...], told: tuple[NvlinkLink, ...]) -> tuple[NvlinkLink, ...]:
    links = {link.index: link for link in known}
    for link in told:
        mine = links.get(link.index, link)
        links[link.index] = NvlinkLink(
            link.index,
            link.is_active if mine.is_active is None else mine.is_active,
            link.gb_per_s if mine.gb_per_s is None else mine.gb_per_s,
            link.errors if mine.errors is None else mine.errors,
        )
    return tuple(links[index] for index in sorted(links))


def _tell_node(scan: NodeScan, gathered: Gathered) -> NodeScan:
    for argv, what in ((STATUS, "NVLinks"), (ERRORS, "errors of NVLinks")):
        raw = gathered.output(*argv)
        if (failure := raw.failure()) is not None:
            scan = with_absent(scan, what, failure)
        elif raw.stdout.strip():
            told, problems = parse(raw.stdout)
            scan = _with(scan, told, problems, what)
    return scan


def _tell_saved(scan: NodeScan, text: str, file: str) -> NodeScan:
    told, problems = parse(text, file=file)
    gpus = tuple(
        Gpu(gpu.gpu, gpu.name or "unknown", gpu.uuid, None, None, None, numa_node=None) for gpu in told
    )
    return with_gpus(_with(scan, told, problems, file), gpus)


def _with(scan: NodeScan, told: tuple[GpuNvlinks, ...], problems: tuple[str, ...], what: str) -> NodeScan:
    for problem in problems:
        scan = with_absent(scan, what, problem)
    return with_nvlinks(scan, told)


FACTS: tuple[Fact, ...] = (Fact("NVLinks", _tell_node, commands=(Command(STATUS), Command(ERRORS))),)
KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`nvidia-smi nvlink -s` output",
        matches(
            r"^[ \t]*Link \d{1,3}: {0,8}(?:\d{1,5}(?:\.\d{1,6})? ?GB/s|<?[Ii]n[Aa]ctive>?)[ \t]*$"
            r"|all links are inActive"
        ),
        _tell_saved,
    ),
    SavedKind(
        "`nvidia-smi nvlink -R` output",
        matches(r"^[ \t]*Link \d{1,3}: {0,8}Remote Device [0-9A-Fa-f:.]{7,20}: Link \d"),
        _tell_saved,
    ),
    SavedKind(
        "`nvidia-smi nvlink -e` output",
        matches(
            r"^[ \t]*Link \d{1,3}: {0,8}(?:Replay|Recovery|CRC|Malformed packet|Rx|Symbol|Effective)"
            r"[A-Za-z ]{0,30}Errors?: {0,8}\d"
        ),
        _tell_saved,
    ),
)
