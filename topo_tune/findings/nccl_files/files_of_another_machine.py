"""Rules about topology and graph files that do not belong to the node beside which they were saved."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.machine import joins_all_by_nvlink
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import is_named_by, listed, node_of, of_kind
from topo_tune.records.document import Document
from topo_tune.records.finding import Severity
from topo_tune.records.nccl_documents import GraphFile, TopologyFile
from topo_tune.records.scan import NodeScan, Scan

_TOPOLOGY, _GRAPH = "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"
_WITHOUT_NVLINK = {"PIX", "PXB", "PXN", "P2C", "PHB", "SYS"}


def _refused(scan: Scan) -> Iterator[Sighting]:
    for document, topology in of_kind(scan, TopologyFile):
        yield from _refusal(scan, document, topology.refused_by_nccl, "topology", _TOPOLOGY)
    for document, graphs in of_kind(scan, GraphFile):
        yield from _refusal(scan, document, graphs.refused_by_nccl, "graph", _GRAPH)


def _refusal(
    scan: Scan, document: Document, reasons: tuple[str, ...], kind: str, variable: str
) -> Iterator[Sighting]:
    if reasons:
        yield Sighting(
            f"NCCL's own reader stops at this {kind} file",
            document.node,
            tuple(f"{document.file}: {reason}" for reason in reasons),
            severity=Severity.ERROR if is_named_by(scan, document, variable) else None,
        )


def _other_gpus(scan: Scan) -> Iterator[Sighting]:
    for document, body, node in _with_nodes(scan):
        there = _gpu_addresses(node)
        named = [gpu.pci_bus_id for gpu in body.gpus]
        strangers = [address for address in named if address not in there]
        # A container that was given some of the GPUs is still on the machine of the file.
        if strangers and there - set(named):
            yield Sighting(
                "the topology file names GPUs that the node does not have",
                document.node,
                (f"{document.file}: {listed(strangers)}", f"the node has {listed(sorted(there))}"),
            )
        is_dump = any(gpu.rank is not None for gpu in body.gpus)  # it holds the GPUs of one job
        if named and not strangers and len(set(named)) < len(there) and not is_dump:
            yield Sighting(
                "the topology file lacks GPUs that the node has",
                document.node,
                (f"{document.file}: lacks {listed(sorted(there - set(named)))}",),
                severity=Severity.NOTICE,
            )


def _other_nics(scan: Scan) -> Iterator[Sighting]:
    for document, body, node in _with_nodes(scan):
        there = {nic.name for nic in node.nics if nic.kind in {"infiniband", "roce"}}
        there |= {device.name for device in node.rdma}
        # Only RDMA devices have a port; merged ones are NCCL's own making.
        named = [net.name for net in body.nets if net.name and net.port and "+" not in net.name]
        strangers = [name for name in named if name not in there]
        if there and strangers:
            yield Sighting(
                "the topology file names RDMA devices that the node does not have",
                document.node,
                (f"{document.file}: {listed(strangers)}", f"the node has {listed(sorted(there))}"),
            )


def _other_vendor(scan: Scan) -> Iterator[Sighting]:
    for document, body, node in _with_nodes(scan):
        is_nvidia = any("nvidia" in gpu.name.casefold() for gpu in node.gpus) or node.gpu_source is not None
        if body.vendor == "amd" and is_nvidia:
            yield Sighting(
                "the topology file describes AMD GPUs and the node has NVIDIA's",
                document.node,
                (f"{document.file}: version {body.version}, {len(body.gpus)} GPUs",),
            )


def _graph_gpus(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, GraphFile):
        there = _numbers(scan, document)
        used = {gpu for graph in body.graphs for gpu in graph.gpus}
        if not there or not used or any(graph.has_ranks for graph in body.graphs):
            continue
        # A node's scan has every GPU; a graph was made for a job, which may have had fewer.
        strangers = sorted(used - there)
        if strangers:
            yield Sighting(
                "the graph file names GPUs that the node does not have",
                document.node,
                (
                    f"{document.file}: dev {listed([str(dev) for dev in strangers])}",
                    f"the node has dev {listed([str(dev) for dev in sorted(there)])}",
                ),
                severity=Severity.ERROR if is_named_by(scan, document, _GRAPH) else None,
            )
        elif used < there and is_named_by(scan, document, _GRAPH):
            yield Sighting(
                f"{_GRAPH} names a graph for fewer GPUs than the node has",
                document.node,
                (f"{document.file}: {len(used)} of {len(there)} GPUs",),
            )


def _graph_off_nvlink(scan: Scan) -> Iterator[Sighting]:
    for document, body in of_kind(scan, GraphFile):
        if not _all_on_nvlink(scan, document):
            continue
        slow = [
            f"{document.file}: {graph.pattern}, {graph.channels} channels of type {graph.type_intra}"
            for graph in body.graphs
            if graph.is_available and graph.gpus_per_channel > 1 and graph.type_intra in _WITHOUT_NVLINK
        ]
        if slow:
            yield Sighting(
                "the graph file lays channels over PCIe or the CPU where every pair of GPUs has NVLink",
                document.node,
                tuple(slow),
            )


def _with_nodes(scan: Scan) -> Iterator[tuple[Document, TopologyFile, NodeScan]]:
    for document, body in of_kind(scan, TopologyFile):
        node = node_of(scan, document)
        is_one_host = len({cpu.host_hash for cpu in body.cpus}) < 2
        if node is not None and is_one_host:
            yield document, body, node


def _gpu_addresses(node: NodeScan) -> set[str]:
    found = {gpu.pci_bus_id for gpu in node.gpus} | {gpu.pci_bus_id for gpu in node.gpu_health}
    return {address.casefold() for address in found if address is not None}


def _numbers(scan: Scan, beside: Document) -> set[int]:
    """`dev` of the node's GPUs, from its scan or else from a topology file of the same node."""
    node = node_of(scan, beside)
    if node is not None and node.gpus:
        return {gpu.index for gpu in node.gpus}
    for document, body in of_kind(scan, TopologyFile):
        if document.node == beside.node and body.gpus and all(gpu.dev is not None for gpu in body.gpus):
            return {gpu.dev for gpu in body.gpus if gpu.dev is not None}
    return set()


def _all_on_nvlink(scan: Scan, beside: Document) -> bool:
    node = node_of(scan, beside)
    matrices = [] if node is None or node.matrix is None else [node.matrix]
    matrices += [
        body.paths
        for document, body in of_kind(scan, TopologyFile)
        if document.node == beside.node and body.paths is not None
    ]
    return any(joins_all_by_nvlink(matrix) for matrix in matrices)


RULES: tuple[Rule, ...] = (
    Rule(
        id="nccl-xml-refused",
        title="a topology or graph file that NCCL cannot read",
        severity=Severity.WARNING,
        why="NCCL reads these files with a parser of its own, which knows blanks, line ends and comments; "
        "where it stops, no communicator can be created",
        fix=(
            "take out tabs, the `<?xml ...?>` line and a byte order mark: `sed -i '1s/^\\xef\\xbb\\xbf//; "
            "s/\\t/  /g; /^<?xml/d' FILE`",
            'the root must be `<system version="1">`, of a graph file `<graphs version="1">`',
        ),
        source="NVIDIA/nccl: src/graph/xml.cc",
        look=_refused,
    ),
    Rule(
        id="topology-other-gpus",
        title="a topology file names other GPUs than the node has",
        severity=Severity.WARNING,
        why="NCCL drops what the file names and the node lacks, and hangs what the file lacks where it finds "
        "it itself: distances then mix two machines",
        fix=(
            "write the file of this very node: a job with `NCCL_TOPO_DUMP_FILE=topology.xml`",
            "in a virtual machine take the provider's file for this size; PCI addresses must be those inside of it",
        ),
        source="https://github.com/NVIDIA/nccl-tests/issues/86",
        look=_other_gpus,
    ),
    Rule(
        id="topology-other-nics",
        title="a topology file names other RDMA devices than the node has",
        severity=Severity.WARNING,
        why="a NIC that the file places and the node lacks is dropped; one that only the node has is placed "
        "by what the kernel tells, so GPUs may be paired with NICs of the other socket",
        fix=(
            "compare with `ls /sys/class/infiniband`",
            "write the file anew with `NCCL_TOPO_DUMP_FILE`, or take `NCCL_TOPO_FILE` out of the settings",
        ),
        source="NVIDIA/nccl: src/graph/topo.cc",
        look=_other_nics,
    ),
    Rule(
        id="topology-other-vendor",
        title="a topology file of AMD GPUs on a node with NVIDIA's",
        severity=Severity.WARNING,
        why="RCCL's files have another version and other elements: NCCL refuses them where `NCCL_TOPO_FILE` "
        "names one",
        fix=("take `NCCL_TOPO_FILE` out of the settings, or write the file anew with `NCCL_TOPO_DUMP_FILE`",),
        source="NVIDIA/nccl: src/graph/xml.cc",
        look=_other_vendor,
    ),
    Rule(
        id="graph-other-gpus",
        title="a graph file for other GPUs than the node has",
        severity=Severity.WARNING,
        why="NCCL looks up every GPU of the graph; for one that is not there it ends with a system error "
        "(`dev ... not found`), and GPUs that the graph lacks have no place in the ring",
        fix=(
            "take `NCCL_GRAPH_FILE` out of `/etc/nccl.conf`, `~/.nccl.conf` and the job's environment",
            "a graph is for one set of GPUs: write one for each with `NCCL_GRAPH_DUMP_FILE`",
        ),
        source="https://github.com/NVIDIA/nccl/issues/1008",
        look=_graph_gpus,
    ),
    Rule(
        id="graph-off-nvlink",
        title="a graph file that keeps NCCL off NVLink",
        severity=Severity.WARNING,
        why="NCCL takes type and speed of each graph from the file and searches no more: it plans for PCIe, "
        "with few channels, between GPUs that NVLink joins",
        fix=(
            "take `NCCL_GRAPH_FILE` out of the settings and let NCCL search: `NCCL_DEBUG_SUBSYS=GRAPH` shows "
            "what it finds",
            "or write the graph anew on this node with `NCCL_GRAPH_DUMP_FILE`",
        ),
        source="https://github.com/NVIDIA/nccl/issues/1008",
        look=_graph_off_nvlink,
    ),
)
