"""A configuration file as NCCL reads it, and each line that NCCL reads otherwise than it was meant."""

from __future__ import annotations

import hashlib

import msgspec

from topo_tune.on_node import nccl_conf
from topo_tune.records.catalogue import catalogue, misnomers
from topo_tune.records.scan import NcclFile, NcclFileSetting, NodeScan
from topo_tune.scan.facts.fact import SavedKind, matches

NOT_KEPT = "(not kept)"
"""Stands in for the value of a name that is not NCCL's: a run folder holds nobody's secrets."""

_SETTINGS_LIMIT = 2000
_PROBLEMS_LIMIT = 100


def parse(text: str, *, path: str, sha256: str | None = None, note: str | None = None) -> NcclFile:
    """The settings and the problems of one file that exists; `note` is what reading it has shown."""
    settings = nccl_conf.parse(text)
    found = sorted([*nccl_conf.problems(text), *_misread(settings)], key=lambda problem: problem[0])
    problems = [f"line {line}: {what}" for line, what in found]
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
    )


def _is_meant_for_nccl(name: str) -> bool:
    """Whether a name is NCCL's, or would be without `export`, `-x` or a quote in front of it."""
    last_word = name.split()[-1:]
    return bool(last_word) and last_word[0].lstrip("\"'").startswith("NCCL_")


def _misread(settings: list[tuple[int, str, str]]) -> list[tuple[int, str]]:
    """What NCCL would make of names and values, beyond the syntax of the line."""
    found = []
    for line, name, value in settings:
        if not name.startswith("NCCL_"):
            if name.lstrip("\"' ").startswith("NCCL_") and name == name.strip():
                found.append((line, f"has a quote in front of the name: it sets `{name[:80]}`"))
            continue
        variable, misnomer = catalogue().get(name), misnomers().get(name)
        if misnomer is not None:
            use = f"; use `{misnomer.use}`" if misnomer.use else ""
            found.append((line, f"`{name}` is no variable of NCCL: {misnomer.why}{use}"))
        if variable is not None and variable.until is not None:
            found.append((line, f"`{name}` was last read by NCCL {variable.until}"))
        if variable is not None and variable.is_integer and value.strip():
            found += [(line, what) for what in _misread_number(name, value.strip())]
        if "$" in value or "{{" in value:
            found.append((line, f"`{name}` holds a variable or a template, which NCCL does not expand"))
    return found


def _misread_number(name: str, value: str) -> list[str]:
    digits = value.lstrip("+-")
    if digits.isascii() and digits.isdigit():
        is_octal = len(digits) > 1 and digits.startswith("0")
        return [f"`{name}`: NCCL reads `{value[:40]}` as an octal number"] if is_octal else []
    if digits[:2].lower() == "0x" and digits[2:] and all(c in "0123456789abcdefABCDEF" for c in digits[2:]):
        return []
    kept = ""
    for character in digits:
        if not (character.isascii() and character.isdigit()):
            break
        kept += character
    return [f"`{name}`: NCCL reads a number and drops what follows: `{value[:40]}` means {kept or '0'}"]


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
