"""What is wrong in files about the whole cluster: Slurm's topology, fabric maps, host lists, checks, traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scans import gpu, node_scan, scan_of

from topo_tune.findings import cluster
from topo_tune.findings.judge import find
from topo_tune.records.cluster_documents import (
    FabricLink,
    FabricMap,
    FabricSwitch,
    HostList,
    SlurmDevice,
    SlurmDevices,
    TraceSummary,
)
from topo_tune.records.document import Document, DocumentBody
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import GpuHealth
from topo_tune.records.inventory import Missing
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.scan import Nic, NodeScan, Scan
from topo_tune.scan.documents import health_checks, host_list, ibnetdiscover, slurm_topology, topograph

GOLDEN = Path(__file__).parents[2] / "golden" / "facts"


def node(name: str, gpus: int = 2, **changes: object) -> NodeScan:
    return node_scan(name, gpus=tuple(gpu(index) for index in range(gpus)), **changes)


def with_file(body: DocumentBody, *nodes: NodeScan, file: str = "file", of: str = "cluster") -> Scan:
    return scan_of(*nodes, documents=(Document(file, of, "kind", body),))


def slurm(text: str, *nodes: NodeScan) -> Scan:
    return with_file(slurm_topology.parse(text)[0], *nodes, file="topology.conf")


def hosts(text: str, *nodes: NodeScan, **changes: object) -> Scan:
    scan = with_file(host_list.parse(text)[0], *nodes, file="hosts")
    return scan_of(*scan.nodes, documents=scan.documents, **changes)


def checks(text: str, *nodes: NodeScan) -> Scan:
    return with_file(health_checks.parse(text)[0], *nodes, file="nhc.conf")


def fabric(**changes: object) -> Scan:
    given: dict[str, object] = {"form": "ibnetdiscover", "switches": (FabricSwitch("s1"),), "node_count": 8}
    return with_file(FabricMap(**(given | changes)), file="ibnetdiscover.txt")  # type: ignore[arg-type]


def gres(*lines: SlurmDevice, of: str = "cluster", **changes: object) -> DocumentBody:
    return SlurmDevices((("gpu", 8),), lines=lines, **changes)  # type: ignore[arg-type]


def port(rate: float | None, state: str | None = "Active") -> RdmaDevice:
    return RdmaDevice("mlx5_ib0", (RdmaPort(1, state=state, rate_gbit_per_s=rate),))


def trace(has_message_sizes: bool, **changes: object) -> TraceSummary:
    given: dict[str, object] = {"kernels": (("ncclKernel_AllReduce_RING_LL", 3),), "annotations": 1}
    return TraceSummary(0, 2, "nccl", 100, has_message_sizes=has_message_sizes, **(given | changes))  # type: ignore[arg-type]


TREE = "SwitchName=s1 Nodes=gpu[001-002]\nSwitchName=s2 Nodes=gpu[003-004]\nSwitchName=top Switches=s[1-2]\n"
BLOCKS = "BlockName=b1 Nodes=gpu[001-018]\nBlockName=b2 Nodes=gpu[019-036]\nBlockSizes=18,36\n"
EIGHT = SlurmDevice("gpu", None, 8)

FIRES: dict[str, Scan] = {
    "slurm-topology-guids": slurm("SwitchName=s1 Nodes=0x155dfffd340001,0x155dfffd340002"),
    "slurm-topology-not-loadable": slurm("SwitchName=s1 Switches=s2\nSwitchName=s2 Switches=s1"),
    "slurm-switch-empty": slurm(TREE + "SwitchName=s3 LinkSpeed=100"),
    "slurm-node-in-two-places": slurm(TREE + "SwitchName=s3 Nodes=gpu[002,005]"),
    "slurm-block-sizes": slurm(BLOCKS.replace("gpu[019-036]", "gpu[019-035]")),
    "slurm-topology-lacks-node": slurm(TREE, node("gpu001"), node("gpu009")),
    "ib-links-slower": fabric(
        link_speeds=(("4xHDR", 31), ("4xSDR", 1)),
        slow_links=(FabricLink(("gpu001 mlx5_0", "leaf1"), "4xSDR"),),
        slow_link_count=1,
    ),
    "ib-adapter-unconnected": fabric(adapters=64, unconnected=("gpu001 mlx5_3",)),
    "host-file-lacks-node": hosts("gpu001\ngpu002", node("gpu001"), node("gpu003")),
    "host-file-node-not-scanned": hosts("gpu[001-003]", node("gpu001"), node("gpu002")),
    "host-file-uneven": hosts("gpu001 slots=8\ngpu002 slots=8\ngpu003 slots=4"),
    "inventory-without-hosts": with_file(HostList("ansible inventory", (), groups=(("all", ()),))),
    "slurm-gres-gpu-count": with_file(gres(EIGHT), node("gpu001", gpus=7)),
    "health-check-ib-rate": checks(
        "* || check_hw_ib 400 mlx5_ib0:1",
        node("gpu001", rdma=(port(200.0),)),
        node("gpu002", rdma=(port(400.0),)),
    ),
    "health-check-gpu-count": checks("* || check_gpu_count 8", node("gpu001", gpus=7)),
    "trace-without-sizes": with_file(trace(has_message_sizes=False)),
}

QUIET: dict[str, Scan] = {
    "slurm-topology-guids": slurm("SwitchName=s1 Nodes=gpu0x155d,deadbeef0001"),
    # a diamond is no loop, and a leaf's `Switches=` is one that Slurm does not look at
    "slurm-topology-not-loadable": slurm(
        "SwitchName=top Switches=a,b\nSwitchName=a Switches=s1\nSwitchName=b Switches=s1\n"
        "SwitchName=s1 Nodes=n1 Switches=top"
    ),
    "slurm-switch-empty": slurm(TREE),
    # `scontrol show topology` lists at every level the nodes of all switches below
    "slurm-node-in-two-places": slurm(
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=gpu[001-002]\n"
        "SwitchName=s2 Level=0 LinkSpeed=1 Nodes=gpu[003-004]\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=gpu[001-004] Switches=s[1-2]\n"
    ),
    "slurm-block-sizes": slurm(BLOCKS),
    # a login node has no GPUs, and need not be in it
    "slurm-topology-lacks-node": slurm(
        TREE, node("gpu001.cluster.local"), node("GPU002"), node_scan("login1")
    ),
    # a fabric of two generations
    "ib-links-slower": fabric(
        link_speeds=(("4xHDR", 20), ("4xEDR", 12)),
        slow_links=(FabricLink(("gpu001 mlx5_0", "leaf1"), "4xEDR"),) * 12,
        slow_link_count=12,
    ),
    # cards with two ports, of which one is used
    "ib-adapter-unconnected": fabric(adapters=16, unconnected=("gpu001 HCA-1",) * 8),
    "host-file-lacks-node": hosts(
        "gpu001.local\n10.0.0.2",
        node("gpu001"),
        node(
            "gpu002", nics=(Nic("eth0", "ethernet", True, 100.0, 0, "mlx5_core", addresses=("10.0.0.2/24",)),)
        ),
        node_scan("login1"),
    ),
    # a dump of one node of many
    "host-file-node-not-scanned": hosts("gpu[001-064]", node("gpu001")),
    # one line a rank, as some schedulers write it
    "host-file-uneven": hosts("gpu001\ngpu001\ngpu002\ngpu002"),
    "inventory-without-hosts": with_file(
        HostList("ansible inventory", ("gpu01",), groups=(("all", ("gpu01",)),))
    ),
    "slurm-gres-gpu-count": with_file(
        gres(EIGHT), node("gpu001", gpus=4, gpu_health=(GpuHealth(mig=True),)), node_scan("login1")
    ),
    "health-check-ib-rate": checks(
        "* || check_hw_ib 400 mlx5_ib0:1\nlogin* || check_hw_ib 800 mlx5_ib0:1\n",
        node("gpu001", rdma=(port(400.0),)),
        node("gpu002", rdma=(port(None, None),)),
    ),
    "health-check-gpu-count": checks("* || check_gpu_count 8", node("gpu001", gpus=8), node_scan("login1")),
    "trace-without-sizes": with_file(trace(has_message_sizes=True)),
}


def found(scan: Scan, rule: str | None = None) -> tuple[Finding, ...]:
    return tuple(f for f in find(scan, rules=cluster.RULES) if rule in (None, f.rule))


def of_file(parse: Callable[[str, str], tuple[DocumentBody, object]], file: Path) -> tuple[Finding, ...]:
    return found(with_file(parse(file.read_text(), file.name)[0], file=file.name))


def test_a_healthy_tree_says_nothing() -> None:
    healthy = [GOLDEN / "slurm" / name for name in ("topology-tree-azure.conf", "topology-tree-oci-sim.conf")]

    assert [of_file(slurm_topology.parse, file) for file in healthy] == [(), ()]


def test_healthy_blocks_say_nothing() -> None:
    assert of_file(slurm_topology.parse, GOLDEN / "slurm" / "topology-block-azure.conf") == ()


def test_a_healthy_fabric_says_nothing() -> None:
    assert of_file(ibnetdiscover.parse, GOLDEN / "slurm" / "ibnetdiscover-superbench.txt") == ()


def test_ports_without_a_partner_are_no_slow_links() -> None:
    assert of_file(ibnetdiscover.parse, GOLDEN / "slurm" / "ibnetdiscover-p-hdr-odd-names.txt") == ()


def test_a_healthy_host_file_says_nothing() -> None:
    assert of_file(host_list.parse, GOLDEN / "slurm" / "hostfile-superbench.txt") == ()


def test_health_checks_alone_say_nothing() -> None:
    for file in sorted((GOLDEN / "health").glob("*.conf")):
        assert of_file(health_checks.parse, file) == ()


def test_sharps_file_holds_guids_which_is_said_once_and_not_the_loop_in_it() -> None:
    (guids,) = of_file(slurm_topology.parse, GOLDEN / "slurm" / "topology-tree-guids.conf")

    assert guids.severity is Severity.ERROR
    assert guids.evidence == (
        "topology-tree-guids.conf: 128 GUIDs, the first are 0xa0000000000001, 0xa0000000000002, 0xa0000000000003",
    )


def test_a_switch_that_is_defined_nowhere_is_named() -> None:
    (finding,) = found(slurm("SwitchName=top Switches=s[1-2]\nSwitchName=s1 Nodes=n1"))

    assert finding.what == "the Slurm topology names switches that it does not define"
    assert finding.evidence == ("topology.conf: top names s2",)


def test_a_switch_defined_twice_is_named() -> None:
    (finding,) = found(slurm("SwitchName=s1 Nodes=n1\nSwitchName=s1 Nodes=n2"))

    assert finding.what == "the Slurm topology defines a switch twice"


def test_block_sizes_grow_by_powers_of_two() -> None:
    (finding,) = found(slurm(BLOCKS.replace("18,36", "18,54")))

    assert finding.what == "BlockSizes are not the first size times a power of two"
    assert finding.evidence == ("topology.conf: BlockSizes=18,54",)


def test_a_small_block_is_named_with_its_size() -> None:
    (finding,) = found(FIRES["slurm-block-sizes"])

    assert finding.evidence == ("topology.conf: 18 asked for, b2 has 17",)


def test_nodes_missing_in_the_topology_fold() -> None:
    (finding,) = found(slurm(TREE, node("gpu001"), node("gpu008"), node("gpu009")))

    assert finding.nodes == ("gpu008", "gpu009")
    assert finding.severity is Severity.WARNING


def test_a_dump_with_names_of_its_own_is_not_compared() -> None:
    assert found(slurm(TREE, node("dump-of-monday"))) == ()


def test_a_node_that_did_not_answer_counts_as_scanned() -> None:
    scan = hosts(
        "gpu001\ngpu002\ngpu003",
        node("gpu001"),
        node("gpu002"),
        missing=(Missing("gpu003", "unreachable", ""),),
    )

    assert found(scan) == ()


def test_a_host_written_once_more_is_told_from_more_slots() -> None:
    (finding,) = found(hosts("gpu001\ngpu002\ngpu003\ngpu003"))

    assert finding.what == "a host file names some hosts more often than others, which gives them more ranks"
    assert finding.evidence == ("hosts: gpu003 takes 2, most take 1",)


def test_gres_of_one_node_is_about_that_node() -> None:
    scan = with_file(gres(EIGHT, of="gpu001"), node("gpu001", gpus=8), node("gpu002", gpus=4), of="gpu001")

    assert found(scan) == ()


def test_gres_lines_name_their_nodes() -> None:
    big = SlurmDevice("gpu", "h100", 8, ("gpu001", "gpu002"))
    small = SlurmDevice("gpu", "l40s", 4, ("gpu003",))
    shards = SlurmDevice("shard", None, 64, ("gpu003",))
    scan = with_file(gres(big, small, shards), node("gpu001", 8), node("gpu002", 7), node("gpu003", 4))

    (finding,) = found(scan)

    assert finding.nodes == ("gpu002",)
    assert finding.evidence == ("file: 8 GPUs, the node has 7",)


def test_a_template_is_about_no_node() -> None:
    assert found(with_file(gres(EIGHT, is_template=True), node("gpu001", 4))) == ()


def test_a_port_below_its_check_is_named_with_both_rates() -> None:
    (finding,) = found(FIRES["health-check-ib-rate"])

    assert finding.nodes == ("gpu001",)
    assert finding.evidence == ("mlx5_ib0:1 is 200 Gbit/s; nhc.conf asks for 400 Gbit/s, active",)


@pytest.mark.parametrize(
    ("mask", "nodes"),
    [
        ("*", ("gpu001", "gpu002", "login1")),
        ("gpu*", ("gpu001", "gpu002")),
        ("{gpu[002-004]}", ("gpu002",)),
        ("/^gpu/", ()),
        ("{[}", ()),
    ],
)
def test_a_mask_chooses_nodes(mask: str, nodes: tuple[str, ...]) -> None:
    scanned = [node(name, rdma=(port(400.0, "Down"),)) for name in ("gpu001", "gpu002", "login1")]

    findings = found(checks(f"{mask} || check_hw_ib 400 mlx5_ib0", *scanned))

    assert tuple(name for finding in findings for name in finding.nodes) == nodes


def test_topograph_labels_are_not_judged_as_slurms() -> None:
    text = "switches:\n  s1:\n    nodes: [n1]\n  s2:\n    nodes: [n1]\n"

    assert found(with_file(topograph.parse(text)[0])) == ()


def test_slow_links_are_listed() -> None:
    (finding,) = found(FIRES["ib-links-slower"])

    assert finding.severity is Severity.WARNING
    assert finding.what == "InfiniBand links run slower than others of their sort, most of which run at 4xHDR"
    assert finding.evidence == ("ibnetdiscover.txt: gpu001 mlx5_0 - leaf1 at 4xSDR",)


def test_a_trace_without_nccl_says_nothing() -> None:
    assert found(with_file(trace(has_message_sizes=False, kernels=(), annotations=0))) == ()
