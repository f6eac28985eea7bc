"""What a scan means for NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from topo_tune.errors import InputError
from topo_tune.records.inventory import (
    BackendName,
    ConnectionKind,
    Inventory,
    Missing,
    Node,
    Rack,
    SshOptions,
)
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.scan import (
    RDMA_DEVICE_FILES,
    Absent,
    Cpu,
    Gpu,
    NcclFile,
    NcclFileSetting,
    NcclLibrary,
    Nic,
    NodeScan,
    Scan,
)
from topo_tune.records.topology import Fabric, Topology
from topo_tune.scan.facts.gpus.nvidia_topology import parse
from topo_tune.topology.classify import classify, nvlink_islands, replayed_topology

MATRICES = Path(__file__).parents[2] / "golden/facts/smi-topo"

INFINIBAND = Nic("mlx5_0", "infiniband", True, 400.0, 0, "mlx5_core")
ROCE = Nic("mlx5_1", "roce", True, 200.0, 0, "mlx5_core")
ETHERNET = Nic("eth0", "ethernet", True, 100.0, 0, "ice")


def pair(word: str) -> TopologyMatrix:
    return TopologyMatrix(("GPU0", "GPU1"), (), (("X", word), (word, "X")), (None, None), (None, None))


def golden(name: str) -> TopologyMatrix:
    return parse((MATRICES / name).read_text())


def node(name: str = "n1", **changes: Any) -> NodeScan:
    gpus = tuple(Gpu(index, "NVIDIA H200", None, None, None, "9.0", 0) for index in range(2))
    healthy = NodeScan(
        node=name,
        hostname=name,
        kernel="6.8",
        operating_system=None,
        python="3.12",
        cpu=Cpu("GenuineIntel", None, "x86_64", 2, 112, 224),
        numa=(),
        memory_bytes=None,
        gpus=gpus,
        gpu_source="nvml",
        driver="580.1",
        cuda_driver="13.0",
        matrix=pair("NV18"),
        nics=(ETHERNET, INFINIBAND),
        nccl_libraries=(NcclLibrary("/usr/lib/libnccl.so.2", "2.27.3", "system"),),
        torch="2.11",
        torch_nccl="2.28.9",
        nccl_environment=(),
        nccl_files=(),
    )
    return msgspec.structs.replace(healthy, **changes)


def classified(*nodes: NodeScan, missing: tuple[Missing, ...] = (), **inventory: Any) -> Topology:
    nodes = nodes or (node("n1"), node("n2"))
    racks = (Rack("r1", tuple(Node(scan.node, "r1", scan.node, ConnectionKind.SSH) for scan in nodes)),)
    options = {"backend": BackendName.NCCL, **inventory}
    return classify(Scan("c", nodes, missing), Inventory("c", racks, SshOptions(), **options))


def test_a_healthy_pair_of_nodes_is_nvlink_within_and_infiniband_between() -> None:
    topology = classified()

    assert (topology.intra_fabric, topology.inter_fabric) == (Fabric.NVLINK, Fabric.INFINIBAND)
    assert (topology.node_count, topology.ranks_per_host, topology.nvlink_islands) == (2, 2, (2,))
    assert (topology.gpu_model, topology.compute_capability, topology.driver) == (
        "NVIDIA H200",
        "9.0",
        "580.1",
    )
    assert (topology.nccl_version, topology.cpu_vendor, topology.disagreements) == (
        "2.28.9",
        "GenuineIntel",
        (),
    )
    assert "between nodes, infiniband on n[1-2]: 1 active RDMA device (infiniband)" in topology.reasons


def test_one_node_has_nothing_to_cross_between_nodes() -> None:
    assert classified(node()).inter_fabric is Fabric.NONE


def test_one_host_that_acts_as_two_nodes_crosses_the_network_and_nothing_within() -> None:
    topology = classified(node(), as_nodes=2, env=NcclEnv((("NCCL_IB_DISABLE", "1"),)))

    assert (topology.node_count, topology.intra_fabric, topology.inter_fabric) == (
        2,
        Fabric.NONE,
        Fabric.SOCKET,
    )


@pytest.mark.parametrize(
    ("env", "fabric"),
    [
        ({"NCCL_IB_DISABLE": "1"}, Fabric.SOCKET),
        ({"NCCL_IB_DISABLE": "0"}, Fabric.INFINIBAND),
        ({"NCCL_NET": "Socket"}, Fabric.SOCKET),
        ({"NCCL_NET": "IB"}, Fabric.INFINIBAND),
        ({"NCCL_NET": "AWS Libfabric"}, Fabric.UNKNOWN),
        # The RDMA transport does not look at this one.
        ({"NCCL_SOCKET_IFNAME": "lo"}, Fabric.INFINIBAND),
    ],
)
def test_the_launch_environment_of_the_cluster_file_decides_over_the_hardware(
    env: dict[str, str], fabric: Fabric
) -> None:
    assert classified(env=NcclEnv(tuple(env.items()))).inter_fabric is fabric


def test_a_setting_in_a_file_that_nccl_reads_decides_too_and_is_named() -> None:
    file = NcclFile("/etc/nccl.conf", True, "ab", (NcclFileSetting(3, "NCCL_IB_DISABLE", "1"),))

    topology = classified(node("n1", nccl_files=(file,)), node("n2", nccl_files=(file,)))

    assert topology.inter_fabric is Fabric.SOCKET
    assert "between nodes, socket on n[1-2]: `NCCL_IB_DISABLE=1` (/etc/nccl.conf, line 3)" in topology.reasons


def test_a_fragment_of_the_drop_in_directory_decides_nothing_by_itself() -> None:
    file = NcclFile("/etc/nccl/conf.d/x.conf", True, "ab", (NcclFileSetting(1, "NCCL_IB_DISABLE", "1"),))

    assert classified(node("n1", nccl_files=(file,)), node("n2")).inter_fabric is Fabric.INFINIBAND


@pytest.mark.parametrize(
    ("nics", "fabric"),
    [
        ((ETHERNET,), Fabric.SOCKET),
        ((ROCE, ETHERNET), Fabric.ROCE),
        ((INFINIBAND, ROCE, msgspec.structs.replace(ROCE, name="mlx5_2")), Fabric.ROCE),
        ((msgspec.structs.replace(INFINIBAND, is_up=False), ETHERNET), Fabric.SOCKET),
        ((Nic("rdmap0", "other", True, 100.0, 0, "efa"), ETHERNET), Fabric.UNKNOWN),
        ((), Fabric.UNKNOWN),
    ],
)
def test_the_network_is_that_of_the_active_devices(nics: tuple[Nic, ...], fabric: Fabric) -> None:
    assert classified(node("n1", nics=nics), node("n2", nics=nics)).inter_fabric is fabric


def test_rdma_devices_that_may_not_be_opened_leave_sockets() -> None:
    closed = (Absent(RDMA_DEVICE_FILES, "no device file there that this session may open"),)

    assert classified(node("n1", absent=closed), node("n2", absent=closed)).inter_fabric is Fabric.SOCKET


def test_nodes_with_different_networks_have_no_common_one_and_both_are_named() -> None:
    topology = classified(node("n1"), node("n2", nics=(ETHERNET,)))

    assert topology.inter_fabric is Fabric.UNKNOWN
    assert [reason for reason in topology.reasons if reason.startswith("between nodes")] == [
        "between nodes, infiniband on n1: 1 active RDMA device (infiniband)",
        "between nodes, socket on n2: no active RDMA device",
    ]


@pytest.mark.parametrize(
    ("name", "fabric", "reason"),
    [
        (
            "gcp-a3ultra-h200-8gpu-8nic-ansi.txt",
            Fabric.NVLINK,
            "every pair of GPUs is joined by NVLink (NV18)",
        ),
        (
            "dgx1-v100-8gpu-4nic-hybrid-cube.txt",
            Fabric.NVLINK,
            "NVLink joins all GPUs, some pairs only through",
        ),
        ("pxb-pix-4gpu-acs-hang.txt", Fabric.PCIE, "the farthest is SYS"),
        ("wrx90-2gpu-2port.txt", Fabric.PCIE, "the farthest is PHB"),
        # The row of GPU3 is missing, but the other rows have its column.
        ("gb200-4gpu-6nic-truncated.txt", Fabric.NVLINK, "every pair of GPUs"),
    ],
)
def test_the_fabric_within_a_node_is_that_of_its_matrix(name: str, fabric: Fabric, reason: str) -> None:
    topology = classified(node(matrix=golden(name)))

    assert topology.intra_fabric is fabric
    assert any(reason in line for line in topology.reasons)


def test_bridged_pairs_are_islands_and_the_node_is_joined_by_pcie() -> None:
    words = (("X", "NV4", "SYS"), ("NV4", "X", "SYS"), ("SYS", "SYS", "X"))
    matrix = TopologyMatrix(("GPU0", "GPU1", "GPU2"), (), words, (None,) * 3, (None,) * 3)

    topology = classified(node(matrix=matrix))

    assert nvlink_islands(matrix) == (("GPU0", "GPU1"),)
    assert (topology.intra_fabric, topology.nvlink_islands) == (Fabric.PCIE, (2,))


@pytest.mark.parametrize("matrix", [None, pair("?")])
def test_what_joins_gpus_is_unknown_without_a_whole_matrix(matrix: TopologyMatrix | None) -> None:
    assert classified(node(matrix=matrix)).intra_fabric is Fabric.UNKNOWN


def test_peer_access_that_is_switched_off_leaves_the_hosts_memory() -> None:
    assert classified(env=NcclEnv((("NCCL_P2P_DISABLE", "1"),))).intra_fabric is Fabric.PCIE


def test_the_weakest_node_decides_what_joins_gpus() -> None:
    assert classified(node("n1"), node("n2", matrix=pair("PHB"))).intra_fabric is Fabric.PCIE


def test_gloo_uses_sockets_on_any_hardware() -> None:
    topology = classified(backend=BackendName.GLOO)

    assert (topology.intra_fabric, topology.inter_fabric) == (Fabric.SOCKET, Fabric.SOCKET)
    assert topology.ranks_per_host == 2


def test_differences_that_matter_are_told_with_folded_names() -> None:
    one_gpu = node("n4").gpus[:1]
    nodes = (
        node("n1"),
        node("n2"),
        node("n3", driver="575.2"),
        node("n4", torch_nccl="2.27.3", gpus=one_gpu),
    )

    topology = classified(*nodes)

    assert topology.disagreements == (
        "NCCL version: 2.28.9 on n[1-3], 2.27.3 on n4",
        "NVIDIA driver: 580.1 on n[1-2,4], 575.2 on n3",
        "number of GPUs: 2 on n[1-3], 1 on n4",
    )
    assert (topology.nccl_version, topology.driver, topology.ranks_per_host) == (None, None, 1)


def test_without_torch_the_first_library_on_the_path_is_nccl() -> None:
    assert classified(node(torch_nccl=None)).nccl_version == "2.27.3"


def test_a_node_that_did_not_answer_is_not_counted_and_said() -> None:
    topology = classified(node("n1"), missing=(Missing("n2", "unreachable", "refused"),))

    assert topology.node_count == 1
    assert "n2 did not answer and is not counted" in topology.reasons


def test_a_scan_without_nodes_concludes_nothing() -> None:
    empty = classify(Scan("c", ()), Inventory("c", (), SshOptions(), BackendName.NCCL))

    assert (empty.node_count, empty.nccl_version, empty.inter_fabric) == (0, None, Fabric.NONE)


META = {
    "nccl": "2.28.9",
    "driver": "580.159",
    "gpu": "NVIDIA H200",
    "inter_fabric": "socket",
    "intra_fabric": "none",
    "node_count": "2",
    "ranks_per_host": "1",
}


def replay_inventory(count: int) -> Inventory:
    nodes = tuple(Node(f"n{index}", "r1", "x", ConnectionKind.LOCAL) for index in range(count))
    return Inventory("c", (Rack("r1", nodes),), SshOptions(), BackendName.REPLAY)


def test_a_replayed_topology_is_that_of_the_recording_and_says_so() -> None:
    topology = replayed_topology(META, replay_inventory(4))

    assert (topology.node_count, topology.ranks_per_host, topology.nccl_version) == (2, 1, "2.28.9")
    assert (topology.intra_fabric, topology.inter_fabric) == (Fabric.NONE, Fabric.SOCKET)
    assert topology.reasons[0].startswith("replayed: ")
    assert topology.reasons[1] == "recorded on 2 nodes; the cluster file has 4"


def test_what_a_recording_does_not_say_is_unknown_or_the_inventorys() -> None:
    topology = replayed_topology({}, replay_inventory(3))

    assert (topology.node_count, topology.inter_fabric, topology.driver) == (3, Fabric.UNKNOWN, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"inter_fabric": "sockets"},
            r"`sockets` is no fabric \(at `inter_fabric`\)\nhint: did you mean `socket`\?",
        ),
        ({"node_count": "0"}, "`0` is not a number of node count"),
        ({"ranks_per_host": "9" * 5000}, "is not a number of ranks per host"),
    ],
)
def test_a_description_that_cannot_be_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replayed_topology({**META, **change}, replay_inventory(2))
