"""What is found in NCCL's topology and graph files and in tuner tables."""

from __future__ import annotations

import msgspec
import pytest
from golden_facts import FACTS, text_of
from scans import gpu, node_scan, scan_of

from topo_tune.findings.judge import find
from topo_tune.findings.nccl_files import RULES
from topo_tune.records.document import Document, DocumentBody
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import GpuNvlinks, Host, NvlinkLink, PciDevice, PcieLink
from topo_tune.records.nccl_documents import TopologyFile
from topo_tune.records.network import RdmaDevice
from topo_tune.records.scan import NodeScan, NumaNode, Scan
from topo_tune.scan.documents import nccl_graph, nccl_topology, tuner_table

NODE = "gpu001"
HPE, OCI, ALIBABA = "hpe-apollo675d-a100.xml", "oci-bm-h100-16port.xml", "alibaba-a100-bond-nics.xml"
NC48 = "azure-nc48v4-2a100-nvlink.xml"
"""Two A100 with NVLink; `GRAPH_NC48` is the graph file of the same machine."""
GRAPH_NC48, GRAPH_NCV4 = "azure-nc48v4-2gpu.xml", "azure-ncv4-4gpu.xml"

HEALTHY_TOPOLOGIES = [
    "azure-ndv2-v100.xml",
    "azure-ndv4-a100.xml",
    "azure-ndv5-h100.xml",
    "azure-ncv4-a100-pcie.xml",
    NC48,
    "aws-p4d-a100.xml",
    "aws-g5-a10g-busid-only.xml",
    "aws-p5-h100-2023.xml",
    "oci-bm-gpu4-a100-flattened.xml",
    "mlperf-dgxa100-pci-only.xml",
    HPE,
    "3090-pcie-8gpu-1ib.xml",
    "rccl-mi300x-8gpu-8nic.xml",
    "rccl-mi250x-16gcd.xml",
    "rccl-mi200-bond0.xml",
    "rccl-rome-nps4-mi50.xml",
    "rccl-mi210-pcie-3gpu.xml",
    "rccl-mi100-collnet-4nic.xml",
]
HEALTHY_GRAPHS = [
    GRAPH_NCV4,
    GRAPH_NC48,
    "msccl-4gpu-old-format.xml",
    "3090-8gpu-1nic.xml",
    "modal-b200-hex-dev.xml",
]
HEALTHY_TABLE = """# every collective, every size, every number of nodes
allreduce,0,65535,tree,ll,8,-1,-1
allreduce,65536,4294967295,ring,simple,16,-1,-1
broadcast,0,-1,ring,simple,16,-1,-1
reduce,0,-1,ring,simple,16,-1,-1
allgather,0,1048575,ring,ll128,16,2,16
allgather,0,-1,ring,simple,16,-1,-1
reducescatter,0,-1,nvls,simple,16,-1,-1
"""


def document(body: DocumentBody, file: str, node: str = NODE) -> Document:
    return Document(file, node, "a file", body)


def topology(name: str, node: str = NODE, replace: tuple[str, str] | None = None) -> Document:
    text = changed(text_of(FACTS / "topo-xml" / name), replace)
    return document(nccl_topology.parse(text)[0], name, node)


def graph(name: str, node: str = NODE, replace: tuple[str, str] | None = None) -> Document:
    text = changed(text_of(FACTS / "nccl-graph" / name), replace)
    return document(nccl_graph.parse(text)[0], name, node)


def changed(text: str, replace: tuple[str, str] | None) -> str:
    if replace is None:
        return text
    assert replace[0] in text
    return text.replace(*replace)


def table(text: str, node: str = NODE) -> Document:
    return document(tuner_table.parse(text)[0], "nccl_tuner.conf", node)


def saved(*documents: Document, nodes: tuple[NodeScan, ...] = ()) -> Scan:
    return scan_of(*(nodes or (node_scan(NODE),)), documents=documents)


def found(rule: str, scan: Scan) -> tuple[Finding, ...]:
    return find(scan, rules=[each for each in RULES if each.id == rule])


def node_of(name: str, **changes: object) -> NodeScan:
    """A node that has the very GPUs and RDMA devices of a topology file."""
    body = topology(name).body
    assert isinstance(body, TopologyFile)
    gpus = tuple(gpu(index, pci_bus_id=each.pci_bus_id) for index, each in enumerate(body.gpus))
    rdma = tuple(RdmaDevice(net.name, ()) for net in body.nets if net.name)
    return node_scan(NODE, **({"gpus": gpus, "rdma": rdma} | changes))


def without(scan_node: NodeScan, count: int) -> NodeScan:
    return msgspec.structs.replace(scan_node, gpus=scan_node.gpus[:-count])


LOST_LINKS = (
    """<gpu dev="3" sm="90" rank="3" gdr="1">
            <nvlink target="0000:1b:00.0" count="5" tclass="0x068000"/>""",
    """<gpu dev="3" sm="90" rank="3" gdr="1">""",
)
TABBED = ("\n    <pci", "\n\t<pci")
AMD_ON_NVIDIA = saved(topology("rccl-mi300x-8gpu-8nic.xml"), nodes=(node_scan(NODE, gpus=(gpu(),)),))
AMD_ALONE = saved(topology("rccl-mi300x-8gpu-8nic.xml"))

FIRES: dict[str, Scan] = {
    "nccl-xml-refused": saved(topology(HPE, replace=TABBED)),
    "topology-other-gpus": saved(topology(HPE), nodes=(node_of(ALIBABA),)),
    "topology-other-nics": saved(topology(HPE), nodes=(node_of(ALIBABA),)),
    "topology-other-vendor": AMD_ON_NVIDIA,
    "graph-other-gpus": saved(graph(GRAPH_NCV4), topology(NC48)),
    "graph-off-nvlink": saved(graph(GRAPH_NC48), topology(NC48)),
    "topology-virtual-nets": saved(topology("4090-calico-netdevs.xml")),
    "topology-gdr-off": saved(topology(HPE, replace=('gdr="1" coll', 'gdr="0" coll'))),
    "topology-nvlinks-uneven": saved(topology(OCI, replace=LOST_LINKS)),
    "topology-gpu-path-narrow": saved(topology(OCI)),
    "topology-link-speed-unknown": saved(topology(HPE, replace=("16.0 GT/s PCIe", "16.0 GT/s"))),
    "topology-numa-unknown": saved(topology(HPE, replace=('numaid="1"', 'numaid="-1"'))),
    "topology-nvlinks-impossible": saved(topology("modal-b200-hand-edited.xml")),
    "topology-management-nic": saved(topology(ALIBABA)),
    "tuner-default-channels": saved(table("allreduce,0,-1,ring,simple,-1,-1,-1")),
    "tuner-gaps": saved(table("allreduce,536870912,4294967295,ring,simple,16,64,256")),
    "tuner-unknown-word": saved(table("all_gather,0,-1,ring,simple,16,-1,-1")),
    "tuner-impossible": saved(table("allgather,0,-1,tree,simple,16,-1,-1")),
    "tuner-hidden-rule": saved(
        table("allreduce,0,-1,ring,simple,16,-1,-1\nallreduce,0,65536,tree,ll,8,2,16")
    ),
    "tuner-collectives": saved(table("allreduce,0,-1,ring,simple,16,-1,-1")),
}

QUIET: dict[str, Scan] = {
    # Comments, an empty first line and carriage returns are no trouble for NCCL.
    "nccl-xml-refused": saved(topology(OCI, replace=("\n", "\r\n")), topology("aws-p4d-a100.xml")),
    # A container that was given six of the eight GPUs.
    "topology-other-gpus": saved(topology(HPE), nodes=(without(node_of(HPE), 2),)),
    # A node with more RDMA devices than the job used.
    "topology-other-nics": saved(
        topology(HPE), nodes=(node_of(HPE, rdma=tuple(RdmaDevice(f"mlx5_{i}", ()) for i in range(9))),)
    ),
    "topology-other-vendor": AMD_ALONE,
    # A graph of a job on two of four GPUs, saved beside the dump of the whole node.
    "graph-other-gpus": saved(graph(GRAPH_NC48), topology("azure-ncv4-a100-pcie.xml")),
    # The same types, on a machine without NVLink between GPUs.
    "graph-off-nvlink": saved(graph(GRAPH_NCV4), topology("azure-ncv4-a100-pcie.xml")),
    # A bond may be as fast as it says; there is no other card to compare with.
    "topology-virtual-nets": saved(topology("rccl-mi200-bond0.xml"), topology("azure-ncv4-a100-pcie.xml")),
    # GeForce cards cannot do it; sockets never do.
    "topology-gdr-off": saved(topology("3090-pcie-8gpu-1ib.xml"), topology("azure-ncv4-a100-pcie.xml")),
    # Bridges between pairs, and AMD's meshes, need not give every GPU the same.
    "topology-nvlinks-uneven": saved(
        topology(
            NC48,
            replace=(
                'count="12" tclass="0x030200"/>\n      </gpu>\n    </pci>\n  </cpu>',
                'count="4"/></gpu></pci></cpu>',
            ),
        ),
        topology("rccl-mi250x-16gcd.xml"),
    ),
    # AMD's inner links, and machines whose links are all the same.
    "topology-gpu-path-narrow": saved(topology("rccl-mi250x-16gcd.xml"), topology(HPE)),
    "topology-link-speed-unknown": saved(topology("aws-p5-h100-2023.xml"), topology(NC48)),
    # A virtual machine with one NUMA node, which says -1.
    "topology-numa-unknown": saved(
        document(
            nccl_topology.parse(
                '<system version="1"><cpu numaid="-1" affinity="ff"><pci busid="0000:01:00.0" class="0x030200"/>'
                "</cpu></system>"
            )[0],
            "vm.xml",
        )
    ),
    "topology-nvlinks-impossible": saved(topology(OCI), topology(HPE), topology(ALIBABA)),
    # All NICs below the CPU, as in a virtual machine: none is odd.
    "topology-management-nic": saved(topology("modal-b200-hand-edited.xml"), topology(OCI)),
    "tuner-default-channels": saved(table(HEALTHY_TABLE)),
    "tuner-gaps": saved(table(HEALTHY_TABLE)),
    "tuner-unknown-word": saved(table(HEALTHY_TABLE)),
    "tuner-impossible": saved(table(HEALTHY_TABLE)),
    "tuner-hidden-rule": saved(table(HEALTHY_TABLE)),
    "tuner-collectives": saved(table(HEALTHY_TABLE)),
}


@pytest.mark.parametrize("name", HEALTHY_TOPOLOGIES)
def test_nothing_is_found_in_a_healthy_topology_file(name: str) -> None:
    assert find(saved(topology(name)), rules=RULES) == ()


@pytest.mark.parametrize("name", HEALTHY_GRAPHS)
def test_nothing_is_found_in_a_healthy_graph_file(name: str) -> None:
    assert find(saved(graph(name)), rules=RULES) == ()


def test_nothing_is_found_in_a_table_that_covers_everything() -> None:
    assert find(saved(table(HEALTHY_TABLE)), rules=RULES) == ()


def test_a_file_beside_its_own_node_is_fine() -> None:
    assert find(saved(topology(HPE), nodes=(node_of(HPE),)), rules=RULES) == ()


def test_only_a_file_that_a_setting_names_is_an_error() -> None:
    (lying_about,) = found("nccl-xml-refused", FIRES["nccl-xml-refused"])
    named = node_scan(NODE, nccl_environment=(("NCCL_TOPO_FILE", f"/etc/nccl/{HPE}"),))
    (in_use,) = found("nccl-xml-refused", saved(topology(HPE, replace=TABBED), nodes=(named,)))

    assert (lying_about.severity, in_use.severity) == (Severity.WARNING, Severity.ERROR)
    assert in_use.evidence == (f"{HPE}: line 3: a tab in front of an element",)


def test_nodes_with_the_same_bad_file_are_one_finding() -> None:
    names = [f"gpu{number:03}" for number in range(1, 41)]
    scan = saved(*(topology(OCI, node=name) for name in names), nodes=tuple(map(node_scan, names)))

    (finding,) = find(scan, rules=RULES)

    assert finding.nodes == tuple(names)
    assert finding.evidence == (f"{OCI}: 5 GT/s x16 above 32 GT/s x16, on 8 of 8 GPUs, 0000:0f:00.0 first",)


def test_the_gpus_of_both_machines_are_named() -> None:
    (finding,) = found("topology-other-gpus", FIRES["topology-other-gpus"])

    assert finding.what == "the topology file names GPUs that the node does not have"
    assert finding.evidence[0].startswith(f"{HPE}: 0000:07:00.0, 0000:0b:00.0")
    assert finding.evidence[1].startswith("the node has 0000:13:00.0")


def test_a_providers_file_that_lacks_gpus_is_a_notice_and_a_jobs_dump_is_none() -> None:
    provider = saved(topology("azure-ndv5-h100.xml"), nodes=(_with_one_more("azure-ndv5-h100.xml"),))
    dump = saved(topology(HPE), nodes=(_with_one_more(HPE),))

    (finding,) = found("topology-other-gpus", provider)
    assert (finding.severity, finding.what) == (
        Severity.NOTICE,
        "the topology file lacks GPUs that the node has",
    )
    assert found("topology-other-gpus", dump) == ()


def _with_one_more(name: str) -> NodeScan:
    node = node_of(name)
    return msgspec.structs.replace(node, gpus=(*node.gpus, gpu(8, pci_bus_id="0000:ff:00.0")))


def test_a_node_of_which_no_gpu_is_known_is_not_judged() -> None:
    assert find(saved(topology(HPE), nodes=(node_scan(NODE),)), rules=RULES) == ()
    assert find(saved(topology(HPE, node="elsewhere"), nodes=(node_of(ALIBABA),)), rules=RULES) == ()


def test_the_graph_of_nc48v4_leaves_its_nvlink_unused() -> None:
    (finding,) = found("graph-off-nvlink", FIRES["graph-off-nvlink"])

    assert finding.severity is Severity.WARNING
    assert finding.evidence == (
        f"{GRAPH_NC48}: ring, 2 channels of type SYS",
        f"{GRAPH_NC48}: balanced tree, 4 channels of type SYS",
        f"{GRAPH_NC48}: tree, 4 channels of type SYS",
    )


def test_a_matrix_of_the_node_tells_of_nvlink_as_well() -> None:
    body = topology(NC48).body
    assert isinstance(body, TopologyFile)
    scan = saved(graph(GRAPH_NC48), nodes=(node_scan(NODE, matrix=body.paths),))

    assert len(found("graph-off-nvlink", scan)) == 1


def test_a_graph_in_force_for_gpus_that_are_not_there_ends_every_job() -> None:
    setting = (("NCCL_GRAPH_FILE", f"/opt/{GRAPH_NCV4}"),)
    two = node_scan(NODE, gpus=(gpu(0), gpu(1)), nccl_environment=setting)
    six = node_scan(NODE, gpus=tuple(map(gpu, range(6))), nccl_environment=setting)

    (missing,) = found("graph-other-gpus", saved(graph(GRAPH_NCV4), nodes=(two,)))
    (fewer,) = found("graph-other-gpus", saved(graph(GRAPH_NCV4), nodes=(six,)))

    assert (missing.severity, missing.evidence[0]) == (Severity.ERROR, f"{GRAPH_NCV4}: dev 2, 3")
    assert (fewer.severity, fewer.evidence) == (Severity.WARNING, (f"{GRAPH_NCV4}: 4 of 6 GPUs",))


def test_graphs_that_name_ranks_are_not_compared_by_device() -> None:
    ranked = graph(GRAPH_NCV4, replace=('<gpu dev="3"/>', '<gpu dev="3" rank="3"/>'))

    assert found("graph-other-gpus", saved(ranked, topology(NC48))) == ()


def test_the_gpu_that_lost_links_is_named() -> None:
    (finding,) = found("topology-nvlinks-uneven", FIRES["topology-nvlinks-uneven"])

    assert finding.evidence == (f"{OCI}: 0000:5b:00.0 has 13, the others 18",)


def test_virtual_interfaces_are_shown_with_the_real_one() -> None:
    (finding,) = found("topology-virtual-nets", FIRES["topology-virtual-nets"])
    (docker,) = found("topology-virtual-nets", saved(topology("rccl-mi250-veth-docker.xml")))

    assert finding.evidence == (
        "4090-calico-netdevs.xml: virtual, in Mb/s: tunl0 10000, br-702d9f064725 10000, br-d83088a852e6 10000,"
        " cali1c7388b97f5 10000 and 11 more",
        "4090-calico-netdevs.xml: real, in Mb/s: enp34s0f0 1000",
    )
    assert "vethe2d5378 10000" in docker.evidence[0]


def test_the_management_nic_of_alibaba_is_named() -> None:
    (finding,) = found("topology-management-nic", FIRES["topology-management-nic"])

    assert finding.severity is Severity.NOTICE
    assert finding.evidence == (f"{ALIBABA}: mlx5_bond_0 is at best PHB to a GPU",)
    assert finding.fix == (
        "name the compute NICs: `NCCL_IB_HCA==mlx5_bond_1,mlx5_bond_2,mlx5_bond_3,mlx5_bond_4`",
        "or leave the far one out: `NCCL_IB_HCA=^=mlx5_bond_0`",
    )


def test_a_slower_nic_below_the_cpu_is_no_compute_nic() -> None:
    slower = topology(ALIBABA, replace=('dev="0" speed="200000"', 'dev="0" speed="25000"'))

    assert found("topology-management-nic", saved(slower)) == ()


def test_one_nic_without_gpudirect_among_others_is_no_alarm() -> None:
    first = 'guid="0x1000000000000001" maxconn="1" gdr="{}"'
    mixed = topology(HPE, replace=(first.format(1), first.format(0)))

    assert found("topology-gdr-off", saved(mixed)) == ()


def test_an_empty_cpu_mask_below_gpus_is_told() -> None:
    empty = topology(HPE, replace=("00000000,00000000,ffffffff,00000000", "0,0,0,0"))

    (finding,) = found("topology-numa-unknown", saved(empty))

    assert finding.what == "the NUMA node of GPUs has an empty CPU mask in NCCL's topology"
    assert finding.evidence == (f"{HPE}: 0000:07:00.0, 0000:0b:00.0",)


def test_one_numa_node_in_the_file_and_several_on_the_machine_is_told() -> None:
    body = nccl_topology.parse(
        '<system version="1"><cpu numaid="-1" affinity="ff"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'
    )[0]
    two = node_scan(NODE, numa=(NumaNode(0, "0-3", None), NumaNode(1, "4-7", None)))

    assert len(found("topology-numa-unknown", saved(document(body, "t.xml"), nodes=(two,)))) == 1


def test_a_width_that_is_not_known_counts_as_sixteen_lanes() -> None:
    body = topology(HPE).body
    assert isinstance(body, TopologyFile)
    first = msgspec.structs.replace(body.gpus[0], slowest_link=PcieLink(speed_gt_per_s=16.0))
    told = msgspec.structs.replace(body, gpus=(first, *body.gpus[1:]))

    assert found("topology-gpu-path-narrow", saved(document(told, "t.xml"))) == ()


def test_the_holes_of_the_cscs_table_are_named() -> None:
    text = text_of(FACTS / "config" / "cscs-nccl-tuner-v226.conf")

    (finding,) = found("tuner-gaps", saved(table(text)))

    assert finding.evidence == (
        "nccl_tuner.conf: allreduce, 64 nodes, 256 ranks: none up to 512M",
        "nccl_tuner.conf: allreduce, 128 nodes, 512 ranks: none up to 1G",
        "nccl_tuner.conf: allreduce, 256 nodes, 1024 ranks: none up to 2G",
    )


@pytest.mark.parametrize(
    ("lines", "hole"),
    [
        ("allreduce,0,1023,ring,ll,8,2,16\nallreduce,4096,-1,ring,simple,8,2,16", "none from 1K to 4K"),
        ("allreduce,0,1048575,ring,ll,8,2,16", "none from 1M on"),
        ("allreduce,1,-1,ring,ll,8,2,16", "none up to 1"),
    ],
)
def test_holes_are_named_by_their_sizes(lines: str, hole: str) -> None:
    (finding,) = found("tuner-gaps", saved(table(lines)))

    assert finding.evidence == (f"nccl_tuner.conf: allreduce, 2 nodes, 16 ranks: {hole}",)


def test_a_rule_for_any_number_of_nodes_fills_the_holes_of_the_others() -> None:
    lines = "allreduce,0,1023,tree,ll,8,2,16\nallreduce,0,4294967295,ring,simple,8,-1,-1"

    assert found("tuner-gaps", saved(table(lines))) == ()


def test_a_word_that_is_taken_for_another_collective_is_worse_than_one_that_is_taken_right() -> None:
    (wrong,) = found("tuner-unknown-word", FIRES["tuner-unknown-word"])
    (lucky,) = found("tuner-unknown-word", saved(table("all_reduce,0,-1,ring,simple,8,-1,-1")))

    assert wrong.what == "the tuner plugin knows no collective `all_gather` and takes allreduce for it"
    assert (wrong.severity, lucky.severity) == (Severity.WARNING, Severity.NOTICE)
    assert lucky.what.endswith(", by luck the one that is meant")


def test_the_example_of_nvidia_asks_for_trees_that_do_not_exist() -> None:
    text = text_of(FACTS / "config" / "nvidia-example-nccl-tuner.conf")

    assert [
        (f.what.rpartition(": ")[2], f.evidence[0]) for f in found("tuner-impossible", saved(table(text)))
    ] == [
        ("tree for broadcast", "nccl_tuner.conf: line 30"),
        ("tree for reducescatter", "nccl_tuner.conf: line 40"),
        ("tree for reduce", "nccl_tuner.conf: line 45"),
    ]


def test_short_protocols_go_with_ring_and_tree_only() -> None:
    (finding,) = found("tuner-impossible", saved(table("allreduce,0,-1,nvls,ll128,16,-1,-1")))

    assert finding.what.endswith(": ll128 with nvls")


@pytest.mark.parametrize(
    "later",
    [
        "allreduce,0,65537,tree,ll,8,2,16",
        "broadcast,0,65536,ring,ll,8,2,16",
        "allreduce,0,65536,tree,ll,8,2,32",
        "allreduce,0,65536,tree,ll,8,2,16,1,0",
    ],
)
def test_a_rule_that_holds_elsewhere_hides_nothing(later: str) -> None:
    lines = "allreduce,0,65536,ring,simple,8,2,16,4,-1\n" + later

    assert found("tuner-hidden-rule", saved(table(lines))) == ()


def test_a_rule_that_the_plugin_passes_over_hides_nothing() -> None:
    lines = "allgather,0,-1,tree,simple,8,-1,-1\nallgather,0,65536,ring,ll,8,2,16"

    assert found("tuner-hidden-rule", saved(table(lines))) == ()


def test_hidden_rules_name_the_rule_that_hides_them() -> None:
    (finding,) = found("tuner-hidden-rule", FIRES["tuner-hidden-rule"])

    assert finding.evidence == ("nccl_tuner.conf: line 2 is hidden by line 1",)


def test_what_the_node_itself_shows_is_not_told_again_from_its_file() -> None:
    """The rules about GPUs, PCI and drivers know more than a file that NCCL wrote."""
    peer_memory = Host(modules=(("nvidia", "570"),), dma_buf=False)
    links = (GpuNvlinks(0, "NVIDIA H100 80GB HBM3", None, tuple(NvlinkLink(i, i < 13) for i in range(18))),)
    bridges = (
        PciDevice("0000:00:01.0", "0604"),
        PciDevice("0000:01:00.0", "0302", parent="0000:00:01.0", numa_node=0),
    )
    shown = {
        "topology-gdr-off": node_of(HPE, host=peer_memory),
        "topology-nvlinks-uneven": node_of(OCI, nvlinks=links),
        "topology-gpu-path-narrow": node_of(OCI, pci=bridges),
        "topology-numa-unknown": node_of(HPE, pci=bridges),
    }

    for rule, node in shown.items():
        scan = FIRES[rule]
        assert found(rule, msgspec.structs.replace(scan, nodes=(node_of(HPE),)))
        assert found(rule, msgspec.structs.replace(scan, nodes=(node,))) == ()
