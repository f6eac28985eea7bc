"""What a job's own files set: shell snippets, batch scripts, `mpirun -x`, container arguments, YAML environments.

NCCL reads none of these files; it gets the values when a job is started with them. They are read as the shell or the
launcher would, by the same readers as `topo-tune lint`.
"""

from __future__ import annotations

import re

from topo_tune.errors import InputError
from topo_tune.lint.formats import read, recognise
from topo_tune.lint.message import Format
from topo_tune.lint.setting import Target
from topo_tune.records.catalogue import catalogue_version, version_tuple
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import NodeScan
from topo_tune.scan import provenance
from topo_tune.scan.facts.fact import SavedKind, with_absent

_SETTINGS_LIMIT = 2000
_VALUE_LIMIT = 1023
_FORMATS = frozenset({Format.SHELL, Format.ARGS, Format.YAML})
_NAME = re.compile(r"NCCL_[A-Z0-9_]{2,64}")


def tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The NCCL variables that this file gives to a job; a value that only the shell knows stands as it is written."""
    target = Target(version_tuple(catalogue_version()))
    listing = read(text, recognise(text, file), target)
    found = [
        SettingOrigin(s.name, s.value[:_VALUE_LIMIT], Layer.LAUNCHER, Reach.DEPENDS, file, s.line)
        for s in listing.settings[:_SETTINGS_LIMIT]
        if s.is_passed and _NAME.fullmatch(s.name)
    ]
    if not found:
        raise InputError("it passes no NCCL variable to a job", file=file)
    if len(listing.settings) > _SETTINGS_LIMIT:
        scan = with_absent(scan, file, f"{len(listing.settings)} settings, the first {_SETTINGS_LIMIT} kept")
    known = (origin for origin in scan.settings if provenance.is_of_elsewhere(origin))
    return provenance.with_settings(scan, (*known, *found))


def _recognise(text: str) -> bool:
    return "NCCL_" in text and _SETS.search(text) is not None and recognise(text) in _FORMATS


# A name with `=`, or as `name: NCCL_X` / `NCCL_X:` of YAML: a text that only mentions a variable sets none.
_SETS = re.compile(r"\bNCCL_[A-Z0-9_]{2,64}[\"']?[ \t]*[=:]|name:[ \t]*[\"']?NCCL_[A-Z0-9_]{2,64}")

KINDS = (
    SavedKind("settings of a job (shell, launcher options, YAML)", _recognise, tell, is_repeatable=True),
)
