"""A collector's answer that was saved: the whole node in one file, as its text or inside of a session's output."""

from __future__ import annotations

import json
from typing import Any

from topo_tune.connect.program import MARKER
from topo_tune.errors import InputError
from topo_tune.records.scan import NodeScan
from topo_tune.scan import answer
from topo_tune.scan.facts.fact import SavedKind

_FORMAT = f'"{answer.FORMAT}"'


def tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The node as its collector described it. Raises InputError for a damaged answer."""
    return answer.node_scan_from_raw(scan.node, _parsed(_candidate(text), file), file=file)


def _recognise(text: str) -> bool:
    candidate = _candidate(text)
    return candidate.lstrip()[:1] == "{" and _FORMAT in candidate


def _candidate(text: str) -> str:
    """The last line behind the marker in what a session printed, or the whole text."""
    at = text.rfind("\n" + MARKER)
    if at < 0 and not text.startswith(MARKER):
        return text
    return text[at + 1 + len(MARKER) :].split("\n", 1)[0]


def _parsed(candidate: str, file: str) -> dict[str, Any]:
    try:
        raw = json.loads(candidate)
    except (ValueError, RecursionError) as exc:
        raise InputError(f"a collector's answer that is no JSON: {exc}", file=file) from exc
    return raw if isinstance(raw, dict) else {}


ANSWER = SavedKind("a collector's answer", _recognise, tell)
"""Tried first, and on the whole text: its mark may stand behind a long greeting."""
