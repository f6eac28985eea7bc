"""`nvidia-smi -q` as it is built: a heading, then for each GPU keys and values in sections, told by indentation."""

from __future__ import annotations

import re

import msgspec

from topo_tune.records.hardware import GpuHealth
from topo_tune.scan.facts.beginning import beginning
from topo_tune.scan.facts.gpus import smi_errors
from topo_tune.scan.facts.task_lines import lines_of_one_task

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])$")
_DEPTH_LIMIT = 8
_GPUS_LIMIT = 512


class Section(msgspec.Struct):
    """One GPU: the address in its headline, and its values by path, `pci/gpu link info/link width/max`.

    Paths are in lower case, since drivers before 470 write `Ecc Mode` for `ECC Mode`; `names` has the last word of
    each path as it was written. Of a path that occurs twice the first counts.
    """

    address: str
    values: dict[str, str]
    names: dict[str, str]

    def below(self, path: str) -> dict[str, str]:
        """The values of a section, its subsections included: rest of the path to value."""
        start = path + "/"
        return {key[len(start) :]: value for key, value in self.values.items() if key.startswith(start)}


class Sections(msgspec.Struct, frozen=True):
    """A whole output."""

    heading: dict[str, str]
    """keys in lower case to values: `driver version`, `cuda version`, `attached gpus`"""
    gpus: tuple[Section, ...]
    problems: tuple[str, ...] = ()
    lost: tuple[GpuHealth, ...] = ()
    """GPUs that the tool could not reach, which have no section"""


def parse(text: str) -> Sections:
    """Every GPU's section; none where the text is of another kind."""
    told = lines_of_one_task(beginning(text))
    problems = list(told.problems)
    heading = Section("", {}, {})
    gpus: list[Section] = []
    unable: list[tuple[int, str]] = []
    current, open_sections = heading, list[tuple[int, str]]()
    for number, line in told.lines:
        stripped = line.strip()
        if not stripped:
            continue
        if (match := _GPU.match(stripped)) is not None:
            if len(gpus) == _GPUS_LIMIT:
                problems.append(f"line {number}: more than {_GPUS_LIMIT} GPUs; the rest is left out")
                break
            current, open_sections = Section(match.group(1), {}, {}), []
            gpus.append(current)
        elif stripped.startswith("Unable to"):
            unable.append((number, stripped))
        else:
            _take(current, open_sections, line.expandtabs(4), stripped)
    errors = smi_errors.errors_in(unable)
    return Sections(heading.values, tuple(gpus), (*problems, *errors.problems), errors.lost)


def _take(section: Section, open_sections: list[tuple[int, str]], line: str, stripped: str) -> None:
    """Add one line: a key with its value, or the headline of a subsection."""
    indentation = len(line) - len(line.lstrip())
    while open_sections and open_sections[-1][0] >= indentation:
        open_sections.pop()
    name, colon, value = stripped.partition(":")
    name = " ".join(name.split())
    if not colon:
        if len(open_sections) < _DEPTH_LIMIT:
            open_sections.append((indentation, name[:100].casefold()))
        return
    path = "/".join([*(outer for _, outer in open_sections), name[:100].casefold()])
    section.values.setdefault(path, value.strip()[:300])
    section.names.setdefault(path, name[:100])
