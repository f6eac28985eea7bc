"""What a job's own files set: shell snippets, batch scripts, `mpirun -x`, container arguments, YAML environments.

NCCL reads none of these files; it gets the values when a job is started with them. They are read as the shell or the
launcher would, by the same readers as `topo-tune lint`, and say something about a node only where they were saved
together with what describes the node.
"""

from __future__ import annotations

import re

from topo_tune.errors import InputError
from topo_tune.lint.check import LONGEST_TEXT, MOST_SETTINGS, lint
from topo_tune.lint.formats import read, recognise
from topo_tune.lint.message import Format
from topo_tune.lint.setting import Target
from topo_tune.records.catalogue import catalogue_version, version_tuple
from topo_tune.records.finding import Severity
from topo_tune.records.nccl_documents import JobMessage, JobSetting, JobSettings
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import NodeScan
from topo_tune.scan import provenance
from topo_tune.scan.facts.fact import SavedKind

_VALUE_LIMIT = 1023
"""Characters of a value that NCCL takes from a file; lint says where there are more."""

_FORMATS = frozenset({Format.SHELL, Format.ARGS, Format.YAML})
_NAME = re.compile(r"NCCL_[A-Z0-9_]{2,64}")


def parse(text: str, file: str) -> tuple[JobSettings, tuple[str, ...]]:
    """The NCCL variables that the file gives to a job, with lint's errors and warnings; and what was left out.

    Raises InputError where it gives none.
    """
    target = Target(version_tuple(catalogue_version()))
    beginning = text[:LONGEST_TEXT]
    format = recognise(beginning, file)
    passed = [s for s in read(beginning, format, target).settings if s.is_passed and _NAME.fullmatch(s.name)]
    if not passed:
        raise InputError("it passes no NCCL variable to a job", file=file)
    said = [m for m in lint(text, target, format=format).messages if m.severity is not Severity.NOTICE]
    body = JobSettings(
        format.value,
        tuple(JobSetting(s.name, s.value[:_VALUE_LIMIT], s.line) for s in passed[:MOST_SETTINGS]),
        tuple(JobMessage(m.rule, m.severity, m.line, m.text) for m in said),
    )
    return body, tuple(_left_out(len(passed), len(text)))


def of_node(scan: NodeScan, job: JobSettings, file: str) -> NodeScan:
    """The node that the file was saved with, with what its jobs get from it."""
    found = [
        SettingOrigin(s.name, s.value, Layer.LAUNCHER, Reach.DEPENDS, file, s.line) for s in job.settings
    ]
    known = (origin for origin in scan.settings if provenance.is_of_elsewhere(origin))
    return provenance.with_settings(scan, (*known, *found))


def _left_out(settings: int, length: int) -> list[str]:
    left_out = []
    if settings > MOST_SETTINGS:
        left_out.append(f"{settings} settings, the first {MOST_SETTINGS} kept")
    if length > LONGEST_TEXT:
        left_out.append(f"{length} characters, the first {LONGEST_TEXT} read")
    return left_out


def _recognise(text: str) -> bool:
    return "NCCL_" in text and _SETS.search(text) is not None and recognise(text) in _FORMATS


# A name with `=`, or as `name: NCCL_X` / `NCCL_X:` of YAML: a text that only mentions a variable sets none.
_SETS = re.compile(r"\bNCCL_[A-Z0-9_]{2,64}[\"']?[ \t]*[=:]|name:[ \t]*[\"']?NCCL_[A-Z0-9_]{2,64}")

KINDS = (
    SavedKind("settings of a job (shell, launcher options, YAML, env-file)", _recognise, document=parse),
)
