"""Slurm's gres.conf, and the Jinja templates that deployments make it from.

Keys: https://slurm.schedmd.com/gres.conf.html
"""

from __future__ import annotations

import re

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import SlurmDevice, SlurmDevices
from topo_tune.scan.documents.name_lists import NameLists, numbered_lines
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped, without_escapes

_LINES_LIMIT = 10_000
_FILES_LIMIT = 4096
"""Device files that one file may name: 256 nodes of 16 GPUs, each written out."""

_SETTING = re.compile(r"\b([A-Za-z]{1,40})[ \t]{0,8}=[ \t]{0,8}(\"[^\"]*\"|\S*)")
_EXPRESSION = re.compile(r"\{\{[^{}\n]{0,200}\}\}")
_GRES_LINE = re.compile(
    r"^[ \t]*(?:NodeName=[^\n]{1,300}?[ \t])?Name=(?:gpu|mps|shard)(?=\s|$)"
    r"|^[ \t]*(?:NodeName=[^\n]{1,300}?[ \t])?AutoDetect=(?:nvml|nvidia|rsmi|oneapi|nrt|off)(?=\s|$)",
    re.I | re.M,
)
_COUNT = re.compile(r"([0-9]{1,15})([KMGTP]?)", re.I)
_RANGE = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}

_AMD = re.compile(r"/dev/dri/|/dev/kfd|\bMI\d", re.I)
_NVIDIA = re.compile(r"/dev/nvidia", re.I)


def recognise(text: str) -> bool:
    """Whether a text is a gres.conf, or a template of one."""
    return _GRES_LINE.search(text) is not None


def parse(text: str, file: str | None = None) -> tuple[SlurmDevices, tuple[str, ...]]:
    """The devices of each line, with how many there are on a node. Raises InputError where no line has any."""
    plain = without_escapes(text)
    names = NameLists()
    lines: list[SlurmDevice] = []
    owners: list[str] = []
    files: dict[str, None] = {}
    autodetect: str | None = None
    for number, line in numbered_lines(plain, names):
        given = _given(line)
        autodetect = given.get("autodetect", autodetect)
        if "name" not in given:
            continue
        if len(lines) >= _LINES_LIMIT:
            names.problem(f"lines beyond the first {_LINES_LIMIT} of devices are left out", number)
            break
        own_files = _files(given.get("file", given.get("multiplefiles", "")))
        files.update(dict.fromkeys(own_files[: max(_FILES_LIMIT - len(files), 0)]))
        lines.append(_device(given, own_files, names, number))
        owners.append(given.get("nodename", ""))
    if not lines and autodetect is None:
        raise InputError(
            "no device in it: expected lines of `Name=gpu`",
            file=file,
            hint="`cat /etc/slurm/gres.conf` prints one",
        )
    is_template = "{%" in plain or "{{" in plain
    return (
        SlurmDevices(
            devices=_most_on_a_node(lines, owners, is_template),
            files=tuple(files),
            is_template=is_template,
            lines=tuple(lines),
            autodetect=None if autodetect is None else clipped(autodetect),
            vendor=_vendor(files, lines),
        ),
        names.problems,
    )


def _given(line: str) -> dict[str, str]:
    """The settings of a line, keys in lower case; a Jinja statement has none."""
    if line.lstrip().startswith(("#", "{%")):
        return {}
    # `{{ item.hostname }}` is one word, whatever blanks it has inside.
    whole = _EXPRESSION.sub(lambda match: re.sub(r"\s+", "", match.group()), line)
    return {key.casefold(): value.strip('"') for key, value in _SETTING.findall(whole.split("#", 1)[0])}


def _device(given: dict[str, str], files: tuple[str, ...], names: NameLists, line: int) -> SlurmDevice:
    owner = given.get("nodename", "")
    return SlurmDevice(
        name=clipped(given["name"]),
        type=clipped(given["type"]) if given.get("type") else None,
        count=_count(given.get("count"), len(files), names, line),
        nodes=() if "{{" in owner else names.expand(owner, line),
    )


def _count(written: str | None, files: int, names: NameLists, line: int) -> int:
    """What `Count=` says, else how many files there are; a line without both is one device."""
    if written is None:
        return files or 1
    match = _COUNT.fullmatch(written)
    if match is None:
        names.problem(f"`Count={clipped(written[:80])}` is not a number", line)
        return files
    return min(int(match.group(1)) * _FACTORS[match.group(2).upper()], 1 << 60)


def _files(pattern: str) -> tuple[str, ...]:
    """`/dev/nvidia[0-3,7]` written out, in the order that it has."""
    files: list[str] = []
    for part in re.findall(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)?", pattern):
        prefix, bracket, rest = part.partition("[")
        if not bracket:
            files.extend([prefix.strip()] if prefix.strip() else [])
            continue
        inner, _, suffix = rest.partition("]")
        files.extend(f"{prefix}{number}{suffix}" for number in _numbers(inner))
        if len(files) > _FILES_LIMIT:
            break
    return tuple(files[:_FILES_LIMIT])


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            numbers.extend([item.strip()[:20]] if item.strip() else [])
            continue
        first, last = match.groups()
        last_number = min(int(last), int(first) + _FILES_LIMIT)
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), last_number + 1))
        if len(numbers) > _FILES_LIMIT:
            break
    return numbers


def _most_on_a_node(
    lines: list[SlurmDevice], owners: list[str], is_template: bool
) -> tuple[tuple[str, int], ...]:
    """Of each type the sum over the lines of one node; of a template, whose branches exclude each other, the most."""
    sums: dict[tuple[str, str], int] = {}
    for device, owner in zip(lines, owners, strict=True):
        key = (device.type or device.name, owner)
        before = sums.get(key, 0)
        sums[key] = max(before, device.count) if is_template else before + device.count
    most: dict[str, int] = {}
    for (called, _), count in sums.items():
        most[called] = max(most.get(called, 0), count)
    return tuple(most.items())


def _vendor(files: dict[str, None], lines: list[SlurmDevice]) -> str | None:
    words = " ".join([*files, *(device.type or "" for device in lines)])
    return "amd" if _AMD.search(words) else "nvidia" if _NVIDIA.search(words) else None


KINDS: tuple[SavedKind, ...] = (SavedKind("Slurm gres.conf", recognise, document=parse),)
