"""What `nvidia-smi` says in place of an answer: of a GPU that it cannot reach, or of a driver that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import GpuHealth
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.beginning import beginning
from topo_tune.scan.facts.fact import RawCommand, SavedKind, with_absent
from topo_tune.scan.facts.gpus.known_gpus import with_health
from topo_tune.scan.facts.gpus.nvidia_gpus import pci_bus_id
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped

_UNREACHABLE = re.compile(
    r"Unable to (?:determine|detect) the device handle for (?:GPU|gpu) ?(?:\d{1,4}: ?)?"
    r"(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]): {0,4}(?P<reason>.{0,200})"
)
_TROUBLE = re.compile(
    r"Failed to initialize NVML: .{1,200}"
    r"|NVIDIA-SMI has failed because .{1,200}"
    r"|NVIDIA-SMI couldn't find .{1,200}"
    r"|No devices were found|No devices found"
)
_LIBRARY = re.compile(r"NVML library version: {0,4}[\d.]{3,20}")
# What may stand around an error in the file that it was saved in: the rest of its sentence, the shell, a time.
_AROUND = re.compile(
    r"Make sure that|.{0,80}installed and running|Please (?:make sure|also|ensure)|.{0,80}present in your system"
    r"|Reboot the system|the system to|.{0,80}[$#>%] ?(?:sudo )?\S{0,80}nvidia-smi"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:|(?:command terminated|exit)\b"
)
_MOST = 64
_LINES_LIMIT = 200


class Errors(msgspec.Struct, frozen=True):
    """The errors of one output."""

    lost: tuple[GpuHealth, ...] = ()
    """GPUs that it could not reach"""
    trouble: tuple[str, ...] = ()
    """why it reached none, in its own words; the first sentence is the reason"""
    problems: tuple[str, ...] = ()
    """what it said, each with its line"""


def errors_in(lines: Iterable[tuple[int, str]]) -> Errors:
    """The errors among numbered lines; none where the tool answered."""
    lost: dict[str, GpuHealth] = {}
    trouble: dict[str, None] = {}
    problems: dict[str, None] = {}
    for number, line in lines:
        line = line.strip()
        if (gpu := _UNREACHABLE.match(line)) is not None and len(lost) < _MOST:
            address = pci_bus_id(gpu["address"])
            if address is not None:
                lost.setdefault(address, GpuHealth(pci_bus_id=address, is_lost=True))
                problems[f"line {number}: `{clipped(gpu.group(), 120)}`"] = None
        elif (said := _TROUBLE.match(line) or _LIBRARY.match(line)) is not None and len(trouble) < _MOST:
            trouble[clipped(said.group(), 200)] = None
    reasons = tuple(trouble)
    return Errors(tuple(lost.values()), reasons if _is_trouble(reasons) else (), tuple(problems)[:_MOST])


def parse(text: str, *, file: str | None = None) -> Errors:
    """The errors of a saved output. Raises InputError where it holds none."""
    found = errors_in(lines_of_one_task(beginning(text, _LINES_LIMIT)).lines)
    if found == Errors():
        raise InputError(
            "no error of `nvidia-smi`: expected a line such as `Failed to initialize NVML: ...`", file=file
        )
    return found


def of_command(raw: RawCommand) -> Errors:
    """The errors of a command that failed: `nvidia-smi` writes some to its output and some to stderr."""
    return errors_in(enumerate((raw.stdout[:65536] + "\n" + raw.stderr[:65536]).split("\n")[:_LINES_LIMIT]))


def with_errors(scan: NodeScan, found: Errors) -> NodeScan:
    """The scan that knows which GPUs are lost, and what is wrong with the driver."""
    trouble = tuple(dict.fromkeys((*scan.driver_trouble, *found.trouble)))[:_MOST]
    return with_health(msgspec.structs.replace(scan, driver_trouble=trouble), found.lost)


def recognise(text: str) -> bool:
    """Whether a text is nothing but such errors, and the command that got them."""
    if not _UNREACHABLE.search(text) and not _TROUBLE.search(text):
        return False
    if text.count("\n") > _LINES_LIMIT:
        return False
    return all(_is_of_an_error(line.strip()) for _, line in lines_of_one_task(text).lines)


def _is_of_an_error(line: str) -> bool:
    return any(pattern.match(line) for pattern in (_UNREACHABLE, _TROUBLE, _LIBRARY, _AROUND))


def _is_trouble(reasons: tuple[str, ...]) -> bool:
    """A version of a library alone is no error."""
    return any(_TROUBLE.match(reason) for reason in reasons)


def _tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    found = parse(text, file=file)
    for problem in found.problems:
        scan = with_absent(scan, file, problem)
    if found.trouble:
        scan = with_absent(scan, "GPUs", "; ".join(found.trouble[:4]))
    return with_errors(scan, found)


KINDS: tuple[SavedKind, ...] = (SavedKind("an error of `nvidia-smi`", recognise, _tell, is_repeatable=True),)
