"""A configuration file as NCCL reads it, and each line that NCCL reads otherwise than it was meant."""

from __future__ import annotations

import hashlib

import msgspec

from topo_tune.lint.check import lint
from topo_tune.lint.message import Format, Message
from topo_tune.lint.setting import Target
from topo_tune.on_node import nccl_conf
from topo_tune.records.catalogue import catalogue_version, version_tuple
from topo_tune.records.finding import Severity
from topo_tune.records.scan import NcclFile, NcclFileError, NcclFileSetting, NodeScan
from topo_tune.scan.facts.fact import SavedKind, matches

NOT_KEPT = "(not kept)"
"""Stands in for the value of a name that is not NCCL's: a run folder holds nobody's secrets."""

_MISREAD = frozenset(
    {
        "no-equals-sign",
        "export-in-conf",
        "space-around-name",
        "quoted-name",
        "carriage-return",
        "byte-order-mark",
        "nul-byte",
        "too-long",
        "quotes-kept",
        "inline-comment",
        "space-around-value",
        "number-suffix",
        "boolean-word",
        "not-a-number",
        "octal-number",
    }
)
"""Rules of lint about lines that NCCL reads otherwise than they were meant."""

_MISREAD_UP_TO = {"carriage-return": (2, 30, 2), "comment-too-new": (2, 26, 1)}
"""Rule of lint to the last NCCL for which it holds."""

_SETTINGS_LIMIT = 2000
_PROBLEMS_LIMIT = 100


def parse(text: str, *, path: str, sha256: str | None = None, note: str | None = None) -> NcclFile:
    """The settings and the problems of one file that exists; `note` is what reading it has shown."""
    settings = nccl_conf.parse(text)
    messages = [message for message in _linted(text) if message.severity is not Severity.NOTICE]
    problems = [_told(message) for message in messages]
    if len(problems) > _PROBLEMS_LIMIT:
        problems = [*problems[:_PROBLEMS_LIMIT], f"and {len(problems) - _PROBLEMS_LIMIT} more"]
    if len(settings) > _SETTINGS_LIMIT:
        problems.append(f"{len(settings)} settings, the first {_SETTINGS_LIMIT} kept")
    return NcclFile(
        path=path,
        exists=True,
        sha256=sha256,
        settings=tuple(
            NcclFileSetting(line, name, value if _is_meant_for_nccl(name) else NOT_KEPT)
            for line, name, value in settings[:_SETTINGS_LIMIT]
        ),
        problems=((note,) if note else ()) + tuple(problems),
        misread=tuple(_told(message) for message in messages if message.rule in _MISREAD)[:_PROBLEMS_LIMIT],
        errors=tuple(
            NcclFileError(message.line, message.rule, message.text)
            for message in messages
            if _is_error(message)
        )[:_PROBLEMS_LIMIT],
    )


def _linted(text: str) -> list[Message]:
    """As the newest NCCL reads it, and what only older ones misread: which one a job will load is not known here."""
    found = [*lint(text, Target(version_tuple(catalogue_version())), format=Format.CONF).messages]
    for rule, version in _MISREAD_UP_TO.items():
        found += [m for m in lint(text, Target(version), format=Format.CONF).messages if m.rule == rule]
    return sorted(found, key=lambda message: message.line)


def _is_error(message: Message) -> bool:
    """Whether the line is read as it was meant, and does not do what it was meant for."""
    is_bad = message.severity is Severity.ERROR or message.rule == "unknown-name"
    return is_bad and message.rule not in _MISREAD


def _told(message: Message) -> str:
    return f"line {message.line}: {message.text}"


def _is_meant_for_nccl(name: str) -> bool:
    """Whether a name is NCCL's, or would be without `export`, `-x` or a quote in front of it."""
    last_word = name.split()[-1:]
    return bool(last_word) and last_word[0].lstrip("\"'").startswith("NCCL_")


def _tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    found = parse(text, path=file, sha256=hashlib.sha256(text.encode()).hexdigest())
    return msgspec.structs.replace(scan, nccl_files=(*scan.nccl_files, found))


KINDS = (
    SavedKind(
        "NCCL configuration file",
        matches(r"^[ \t]*(?:-x[ \t]+|export[ \t]+|[\"'])?NCCL_[A-Z0-9_]{1,60}[ \t]*="),
        _tell,
        is_repeatable=True,
    ),
)
