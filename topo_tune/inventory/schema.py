"""The cluster file's JSON schema: what editors complete and check while the file is written."""

from __future__ import annotations

from typing import Any

import msgspec

from topo_tune.inventory.cluster_file import ClusterFile

_TITLES = {
    "ClusterFile": "topo-tune cluster file",
    "RackEntry": "rack",
    "SshBlock": "ssh",
    "BenchBlock": "bench",
    "NcclTestsBlock": "nccl-tests",
    "ReplayBlock": "replay",
    "FaultEntry": "fault",
    "ConnectionKind": "connection",
    "BackendName": "back end",
    "Become": "become",
}


def cluster_file_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a cluster file, made from the structs that read it."""
    (root,), parts = msgspec.json.schema_components([ClusterFile], ref_template="#/$defs/{name}")
    for name, part in parts.items():
        part["title"] = _TITLES[name]
    # The root stands at the top rather than behind a reference: editors show its title and description.
    top = parts.pop(root["$ref"].rpartition("/")[2])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": parts}


def schema_text() -> str:
    """The schema as it is written to docs/reference/cluster-file.schema.json."""
    return (
        msgspec.json.format(msgspec.json.encode(cluster_file_schema(), order="sorted"), indent=2).decode()
        + "\n"
    )
