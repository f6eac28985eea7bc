"""Saved files that are about a job or the whole cluster: what kind each is and what was read of it.

Files that describe one node (`ibstat`, `lspci`, ...) become facts of that node's scan instead.
"""

from __future__ import annotations

import msgspec

from topo_tune.records.cluster_documents import (
    FabricMap,
    HealthChecks,
    HostList,
    SlurmDevices,
    TraceSummary,
)
from topo_tune.records.nccl_documents import (
    GraphFile,
    JobSettings,
    NcclLog,
    NcclTests,
    TopologyFile,
    TunerTable,
)

DocumentBody = (
    TopologyFile
    | GraphFile
    | TunerTable
    | NcclLog
    | NcclTests
    | FabricMap
    | HostList
    | SlurmDevices
    | HealthChecks
    | TraceSummary
    | JobSettings
)


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One saved file."""

    file: str
    node: str
    """folder or file name it came under: what a scan from files calls a node"""
    kind: str
    """in words: `NCCL log`"""
    body: DocumentBody
    problems: tuple[str, ...] = ()
    """what could not be read of it, with line numbers"""
