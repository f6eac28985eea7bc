"""The diff a person reads before anything changes: one a node, identical ones folded."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Sequence

from topo_tune.records.nodeset import fold
from topo_tune.records.rollout import FileState, NodePlan

# Bytes of somebody's file reach a terminal here; only what prints may pass as it is.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def unified_diff(plan: NodePlan) -> str:
    """Everything that changes in one node's files, as a unified diff; empty when nothing does.

    A file that comes or goes is shown against `/dev/null`, with its mode and owner. Control characters and
    bytes that are no UTF-8 are spelled out, as in `NCCL_DEBUG=INFO\\x0d`.
    """
    before = {state.path: state for state in plan.before}
    parts = [f"+ directory {path}\n" for path in plan.made_directories]
    parts += [_file_diff(before[after.path], after) for after in plan.after]
    return "".join(parts)


def folded_diffs(plans: Sequence[NodePlan]) -> tuple[tuple[str, str], ...]:
    """(folded node names, diff) for each different diff, in the order of its first node; "" for no change."""
    nodes_of: dict[str, list[str]] = {}
    for plan in plans:
        nodes_of.setdefault(unified_diff(plan), []).append(plan.node)
    return tuple((fold(nodes), text) for text, nodes in nodes_of.items())


def _file_diff(before: FileState, after: FileState) -> str:
    if before == after:
        return ""
    lines = difflib.unified_diff(
        _lines(before),
        _lines(after),
        before.path if before.exists else "/dev/null",
        after.path if after.exists else "/dev/null",
        lineterm="",
    )
    return _access(before, after) + "".join(f"{line}\n" for line in lines)


def _access(before: FileState, after: FileState) -> str:
    if before.exists == after.exists:
        return ""
    word, state = ("new", after) if after.exists else ("deleted", before)
    return f"{word} file {state.path}, mode {state.mode or 0:04o}, owner {state.uid}:{state.gid}\n"


def _lines(state: FileState) -> list[str]:
    if not state.content_base64:
        return []
    text = base64.b64decode(state.content_base64).decode("utf-8", "backslashreplace")
    lines = text.split("\n")
    last = lines.pop()
    if last:
        lines.append(f"{last}\n\\ No newline at end of file")
    return [_CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", line) for line in lines]
