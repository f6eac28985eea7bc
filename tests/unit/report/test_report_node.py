"""One node from near."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from report_text import text_of
from scans import gpu, node_scan, scan_of

from topo_tune.errors import InputError
from topo_tune.records.hardware import GpuHealth, Host, PciDevice, PcieLink
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import Nic, NodeScan, NumaNode
from topo_tune.report.node import node_report
from topo_tune.report.node_matrix import MatrixView
from topo_tune.report.node_tree import node_tree
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
        "│   └── GPU0 NVIDIA H100 80GB HBM3 0000:18:00.0",
        "└── NUMA node 1",
        "    └── GPU1 NVIDIA H100 80GB HBM3 0000:19:00.0",
    ]


def joined_dump() -> NodeScan:
    """What `nvidia-smi`, its `topo -m` and `-q`, and `ibstat` tell together; nobody kept the PCI tree."""
    return node_scan(
        gpus=(gpu(0, numa_node=None), gpu(1, numa_node=None)),
        gpu_health=(GpuHealth("0000:18:00.0", link=LINK),),
        nics=(
            Nic("mlx5_0", "roce", True, 400.0, None, None),
            Nic("mlx5_1", "roce", False, 400.0, None, None),
        ),
        matrix=TopologyMatrix(
            ("GPU0", "GPU1"),
            ("mlx5_0", "mlx5_1"),
            (
                ("X", "NV18", "PIX", "SYS"),
                ("NV18", "X", "SYS", "NODE"),
                ("?", "?", "X", "?"),
                ("?", "?", "?", "X"),
            ),
            (None, None),
            ("0", "1,3-9"),
        ),
    )


def test_a_tree_without_pci_joins_what_each_dump_knows() -> None:
    text = text_of([node_tree(joined_dump())])

    assert text.splitlines()[1:] == [
        "├── NUMA node 0",
        "│   ├── GPU0 NVIDIA H100 80GB HBM3 0000:18:00.0 x16 32 GT/s",
        "│   └── mlx5_0 400 Gbit/s roce",
        "└── NUMA node 1",
        "    ├── GPU1 NVIDIA H100 80GB HBM3 0000:19:00.0",
        "    └── mlx5_1 400 Gbit/s roce down",
    ]


def test_devices_that_nobody_can_place_on_the_bus_are_shown_beside_it() -> None:
    pci = (PciDevice("0000:18:00.0", "0302", "10de", "2330"),)
    text = text_of([node_tree(msgspec.structs.replace(joined_dump(), pci=pci, matrix=None))])

    assert text.splitlines()[1:] == [
        "├── NUMA node not known",
        "│   └── GPU0 NVIDIA H100 80GB HBM3 0000:18:00.0 x16 32 GT/s",
        "└── place on the PCI bus not known",
        "    ├── GPU1 NVIDIA H100 80GB HBM3 0000:19:00.0",
        "    ├── mlx5_0 400 Gbit/s roce",
        "    └── mlx5_1 400 Gbit/s roce down",
    ]


def test_a_node_of_which_the_matrix_alone_is_known_has_a_tree_too() -> None:
    bare = node_scan(matrix=joined_dump().matrix)

    assert "│   └── mlx5_0" in text_of([node_tree(bare)])


def test_rows_that_were_not_read_are_left_out_of_the_matrix() -> None:
    matrix = joined_dump().matrix
    assert matrix is not None

    assert text_of([MatrixView(matrix)]).splitlines() == [
        "      GPU0  GPU1  mlx5_0  mlx5_1",
        "GPU0   X    NV18   PIX     SYS",
        "GPU1  NV18   X     SYS     NODE",
    ]


def test_a_wide_matrix_is_broken_into_blocks_that_fit() -> None:
    gpus, nics = tuple(f"GPU{i}" for i in range(8)), tuple(f"mlx5_{i}" for i in range(12))
    links = tuple(tuple("X" if i == j else "NODE" for j in range(20)) for i in range(20))

    text = text_of([MatrixView(TopologyMatrix(gpus, nics, links, (None,) * 8, (None,) * 8))])

    heads = [line.split() for line in text.splitlines() if not line.startswith(("GPU", "mlx")) and line]
    assert [name for head in heads for name in head] == [*gpus, *nics]
    assert len(heads) == 3
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) == 3 * 21 + 2


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
