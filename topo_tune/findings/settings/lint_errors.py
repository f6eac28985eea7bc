"""A rule about lines of nccl.conf that lint calls errors and that no other rule about settings looks at."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.in_force import DROP_INS, Setting
from topo_tune.findings.machine import nccl_version
from topo_tune.findings.remembered import remembered
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.settings.layers import TEMPLATE, is_nccls
from topo_tune.records.finding import Severity
from topo_tune.records.provenance import SettingOrigin
from topo_tune.records.scan import NcclFile, NcclFileError, NodeScan, Scan

_EVIDENCE_LIMIT = 8
_ABOUT_NAMES = {"misspelt-name", "unknown-name"}


def _lint_errors(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for file in node.nccl_files:
            lines = [_shown(told, error) for told, error in _errors_of(node) if told is file]
            if lines:
                yield Sighting(
                    f"settings of `{file.path}` do not do what they were meant for",
                    node.node,
                    tuple(lines[:_EVIDENCE_LIMIT]),
                )


def is_in_error(node: NodeScan, setting: Setting) -> bool:
    """Whether the setting stands on a line that this rule tells: what it would do is then no question."""
    return any(setting.where == f"{file.path}:{error.line}" for file, error in _errors_of(node))


@remembered
def _errors_of(node: NodeScan) -> tuple[tuple[NcclFile, NcclFileError], ...]:
    places = {(origin.path, origin.line): origin for origin in node.settings}
    return tuple(
        (file, error)
        for file in node.nccl_files
        # NCCL does not read drop-ins; their lines come back in the file that they are merged into.
        if is_nccls(file) and not file.path.startswith(DROP_INS)
        for error in file.errors
        if not _is_told(node, error, places.get((file.path, error.line)))
    )


def _is_told(node: NodeScan, error: NcclFileError, origin: SettingOrigin | None) -> bool:
    """Whether another rule has the same line, and knows more of it."""
    if error.rule in _ABOUT_NAMES:
        return any(library.names for library in node.nccl_libraries)
    if error.rule == "nothing-left":
        # Whether there is a fall-back is the version's; lint was asked about the newest one.
        return nccl_version(node) is not None
    if error.rule == "unexpanded":
        return origin is not None and TEMPLATE.search(origin.value) is not None
    return error.rule == "misnomer" or (origin is not None and origin.file_exists is False)


def _shown(file: NcclFile, error: NcclFileError) -> str:
    return f"{file.path}:{error.line}: {error.text}"


RULES: tuple[Rule, ...] = (
    Rule(
        id="setting-lint-error",
        title="a line of nccl.conf is an error",
        severity=Severity.WARNING,
        why="NCCL passes over names that it does not know without a word; a value that it does not know is "
        "replaced by its own, or ends the start of every communicator",
        fix=(
            "correct or delete these lines: `topo-tune lint FILE` shows each with the next step",
            "`topo-tune explain NAME` says what a variable takes",
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        look=_lint_errors,
    ),
)
