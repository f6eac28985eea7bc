"""What is asked of a node's writer, and its answers as records. Pure: the pipeline sends and receives.

The writer is `topo_tune/on_node/writer.py`; each request goes to the node as one JSON object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from topo_tune.errors import NodeProgramFailed
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.rollout import FileState, NodePlan

PROGRAM = "writer"
"""The node program's name."""

VALID_SECONDS = 30.0
"""How long after its start a writer may still begin to write."""


def plan_request(root: str, env: NcclEnv, *, homes: Sequence[str] = ()) -> dict[str, Any]:
    """Ask what the files would become. `homes`: home directories of job users, for their `.nccl.conf`."""
    return {"op": "plan", "root": root, "settings": env.as_dict(), "homes": list(homes)}


def write_request(root: str, plan: NodePlan) -> dict[str, Any]:
    """Ask to write what was planned, provided that nothing has changed since."""
    before = {state.path: state for state in plan.before}
    return {
        "op": "write",
        "root": root,
        "valid_seconds": VALID_SECONDS,
        "make_directories": list(plan.made_directories),
        "files": [
            {
                "path": after.path,
                "expected_sha256": before[after.path].sha256,
                "content_base64": after.content_base64,
                "mode": after.mode,
                "uid": after.uid,
                "gid": after.gid,
            }
            for after in plan.after
        ],
    }


def restore_request(root: str, plan: NodePlan, *, force: bool = False) -> dict[str, Any]:
    """Ask for the old bytes, or absence. `force` overwrites what somebody edited since the write."""
    before = {state.path: state for state in plan.before}
    return {
        "op": "restore",
        "root": root,
        "force": force,
        "directories": list(plan.made_directories),
        "files": [
            {
                "path": after.path,
                "expected_sha256": after.sha256,
                "written_base64": after.content_base64,
                "before": msgspec.to_builtins(before[after.path]),
            }
            for after in plan.after
        ],
    }


def inspect_request(root: str) -> dict[str, Any]:
    """Ask for the files as they are now, and for the settings in force."""
    return {"op": "inspect", "root": root}


def node_plan(node: str, rack: str, answer: Mapping[str, Any]) -> NodePlan:
    """The answer to `plan_request` as a record. Raises NodeProgramFailed when it is not such an answer."""
    try:
        return msgspec.convert({**answer, "node": node, "rack": rack}, type=NodePlan)
    except msgspec.ValidationError as exc:
        raise NodeProgramFailed(node, f"the writer's plan is not understood: {exc}", command=PROGRAM) from exc


def file_states(node: str, answer: Mapping[str, Any]) -> tuple[FileState, ...]:
    """The files of an answer to the other requests. Raises NodeProgramFailed when it has none."""
    try:
        return msgspec.convert(answer.get("files"), type=tuple[FileState, ...])
    except msgspec.ValidationError as exc:
        raise NodeProgramFailed(
            node, f"the writer's answer is not understood: {exc}", command=PROGRAM
        ) from exc


def standing(plan: NodePlan, found: Sequence[FileState]) -> str:
    """How a node's files stand to its plan: `old`, `new`, or `other` (edited by somebody, half written)."""
    by_path = {state.path: state for state in found}
    now = tuple(by_path.get(state.path) for state in plan.after)
    if now == plan.after:
        return "new"
    return "old" if now == plan.before else "other"
