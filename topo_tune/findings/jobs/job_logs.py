"""Logs of jobs in a scan, and the scanned nodes that each job ran on."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.machine import joins_all_by_nvlink
from topo_tune.findings.node_names import short_name
from topo_tune.findings.remembered import remembered
from topo_tune.findings.saved_documents import node_of, of_kind
from topo_tune.records.document import Document
from topo_tune.records.nccl_documents import NcclLog, NcclTests
from topo_tune.records.scan import NodeScan, Scan


def logs(scan: Scan) -> Iterator[tuple[Document, NcclLog]]:
    """Every NCCL log, also where nccl-tests wrote its table into the same file."""
    yield from of_kind(scan, NcclLog)
    for document, tests in of_kind(scan, NcclTests):
        if tests.log is not None:
            yield document, tests.log


def nodes_of(scan: Scan, document: Document, log: NcclLog) -> list[NodeScan]:
    """The scanned nodes that the job ran on: by the names in the log, else the one that the file lay beside."""
    hosts = {short_name(host) for host in log.hosts}
    named = [node for node in scan.nodes if not hosts.isdisjoint(_names(node))]
    if named:
        return named
    beside = node_of(scan, document)
    return [beside] if beside is not None else []


@remembered
def _names(node: NodeScan) -> frozenset[str]:
    return frozenset({short_name(node.node), short_name(node.hostname)})


def spans_nodes(log: NcclLog) -> bool:
    """Whether the job certainly ran on more than one node, so that its network mattered."""
    return (log.nodes or 0) > 1 or len(log.hosts) > 1


def rdma_by_fabric(log: NcclLog) -> tuple[list[str], list[str]]:
    """The devices that NCCL listed: (RoCE, InfiniBand)."""
    return (
        [nic.name for nic in log.nics if nic.kind == "RoCE"],
        [nic.name for nic in log.nics if nic.kind.startswith("IB")],
    )


def mixes_fabrics(log: NcclLog) -> bool:
    """Whether NCCL took ports of RoCE and of InfiniBand for one job."""
    return all(rdma_by_fabric(log))


def value_of(log: NcclLog, name: str) -> str | None:
    """The value that the log shows for a variable, or None."""
    return next((setting.value for setting in log.settings if setting.name == name), None)


def usable_rdma(node: NodeScan) -> list[str]:
    """RDMA devices of the node with a port that is up, by any of the sources."""
    devices = [device.name for device in node.rdma if any(port.state == "Active" for port in device.ports)]
    if node.rdma:
        return devices
    return [nic.name for nic in node.nics if nic.kind in ("infiniband", "roce") and nic.is_up is True]


def nvlink_joins_all(node: NodeScan) -> bool:
    """Whether NVLink joins every pair of the node's GPUs, as far as the scan knows.

    Where it joins some pairs only, the others rightly talk through shared memory.
    """
    if any(device.kind == "nvswitch" for device in node.pci):
        return any(link.is_active for gpu in node.nvlinks for link in gpu.links)
    return joins_all_by_nvlink(node.matrix) is True
