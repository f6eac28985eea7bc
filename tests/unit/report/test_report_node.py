"""One node from near."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from report_text import text_of
from scans import gpu, node_scan, scan_of

from topo_tune.errors import InputError
from topo_tune.records.hardware import Host, PciDevice, PcieLink
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import Nic, NodeScan, NumaNode
from topo_tune.report.node import node_report, node_tree
from topo_tune.report.scan import node_or_refusal

LINK = PcieLink(32.0, 32.0, 16, 16)


def bridge(address: str, parent: str | None, numa: int | None = 0) -> PciDevice:
    return PciDevice(address, "0604", "1000", "c030", None, parent, numa)


def node() -> NodeScan:
    """Two sockets; one switch with a GPU and a NIC, one GPU behind its own root port."""
    return node_scan(
        "gpu001",
        host=Host(hypervisor="none"),
        numa=(NumaNode(0, "0-55", 1 << 40), NumaNode(1, "56-111", 1 << 40)),
        gpus=(gpu(0, pci_bus_id="0000:18:00.0"), gpu(1, pci_bus_id="0000:98:00.0", numa_node=1)),
        nics=(Nic("mlx5_0", "infiniband", True, 400.0, 0, "mlx5_core"),),
        rdma=(RdmaDevice("mlx5_0", (), pci_bus_id="0000:19:00.0"),),
        pci=(
            bridge("0000:15:01.0", None),
            bridge("0000:16:00.0", "0000:15:01.0"),
            bridge("0000:17:00.0", "0000:16:00.0"),
            bridge("0000:17:01.0", "0000:16:00.0"),
            PciDevice("0000:18:00.0", "0302", "10de", "2330", None, "0000:17:00.0", 0, "nvidia", LINK),
            PciDevice(
                "0000:19:00.0",
                "0207",
                "15b3",
                "1021",
                None,
                "0000:17:01.0",
                0,
                "mlx5_core",
                PcieLink(16, 32, 8, 16),
            ),
            bridge("0000:97:01.0", None, 1),
            PciDevice("0000:98:00.0", "0302", "10de", "2330", None, "0000:97:01.0", 1, "nvidia", LINK),
        ),
        matrix=TopologyMatrix(
            ("GPU0", "GPU1"),
            ("mlx5_0",),
            (("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X")),
            ("0-55", "56-111"),
            ("0", "1"),
        ),
        settings=(
            SettingOrigin("NCCL_ALGO", "Ring", Layer.ENVIRONMENT, Reach.WINS),
            SettingOrigin(
                "NCCL_ALGO",
                "Tree",
                Layer.SYSTEM_FILE,
                Reach.HIDDEN,
                "/etc/nccl.conf",
                3,
                "the environment is stronger",
            ),
        ),
    )


def test_a_node_is_a_tree_a_matrix_and_its_settings(golden: Callable[[str, str], None]) -> None:
    golden("reports/node-80.txt", text_of(node_report(node())))


def test_without_a_pci_tree_gpus_and_nics_hang_from_their_numa_nodes() -> None:
    text = text_of([node_tree(node_scan(gpus=(gpu(0), gpu(1, numa_node=1)), pci=()))])

    assert text.splitlines()[1:] == [
        "├── NUMA node 0",
        "│   └── GPU0 NVIDIA H100 80GB HBM3",
        "└── NUMA node 1",
        "    └── GPU1 NVIDIA H100 80GB HBM3",
    ]


def test_bridges_in_a_circle_end_the_tree_and_not_the_program() -> None:
    circle = (
        bridge("0000:01:00.0", "0000:02:00.0"),
        bridge("0000:02:00.0", "0000:01:00.0"),
        PciDevice("0000:03:00.0", "0302", "10de", parent="0000:01:00.0"),
    )

    assert "gpu001" in text_of([node_tree(node_scan(pci=circle))])


def test_a_node_that_the_scan_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean `gpu001`"):
        node_or_refusal(scan_of(node()), "gpu01")
