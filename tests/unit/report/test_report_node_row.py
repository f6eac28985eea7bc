"""The cells of one node in the table of all nodes."""

from __future__ import annotations

from typing import Any

import pytest
from scans import gpu, node_scan

from topo_tune.records.hardware import PciDevice
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.scan import Cpu, Nic
from topo_tune.report.node_row import cpu_told, gpus_told, ports_up_told, short_cpu_name

GPU_ON_THE_BUS = PciDevice("0000:18:00.0", "0302", "10de", "2330")
NIC_ON_THE_BUS = PciDevice("0000:19:00.0", "0207", "15b3", "1021")
MATRIX = TopologyMatrix(("GPU0",), ("mlx5_0",), (("X", "PIX"), ("PIX", "X")), (None,), (None,))


def nics(*numbers: int, kind: str = "roce", is_up: bool | None = True, speed: float | None = 400) -> Any:
    return tuple(Nic(f"mlx5_{number}", kind, is_up, speed, None, None) for number in numbers)


def rdma(name: str, state: str | None, layer: str | None = None, rate: float | None = None) -> RdmaDevice:
    return RdmaDevice(name, (RdmaPort(1, state, link_layer=layer, rate_gbit_per_s=rate),))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "-"),
        ({"collected_in_seconds": 0.5}, "none"),
        ({"gpu_source": "nvidia-smi"}, "none"),
        ({"pci": (GPU_ON_THE_BUS,)}, "1 (by lspci)"),
        ({"pci": (GPU_ON_THE_BUS,), "collected_in_seconds": 0.5}, "1 (by the PCI bus, not the driver)"),
        ({"matrix": MATRIX}, "1 (by the topology matrix)"),
        ({"gpus": (gpu(0), gpu(1))}, "2x H100 80GB HBM3"),
    ],
)
def test_gpus_are_none_only_where_somebody_asked(changes: dict[str, Any], told: str) -> None:
    assert gpus_told(node_scan(**changes)) == told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "-"),
        ({"collected_in_seconds": 0.5}, "none"),
        ({"matrix": MATRIX}, "1 (by the topology matrix)"),
        ({"pci": (NIC_ON_THE_BUS,)}, "1 (by lspci)"),
        ({"nics": nics(0, 1, 2, 3)}, "4x RoCE 400G (mlx5_[0-3])"),
        ({"nics": nics(3)}, "1x RoCE 400G (mlx5_3)"),
        ({"nics": nics(0, 3, 4, 6, 9)}, "5x RoCE 400G (mlx5_[0,3-4,6,9])"),
        ({"nics": nics(0, 1, is_up=False)}, "none of 2 up"),
        ({"nics": nics(0, is_up=False, kind="ethernet") + nics(1)}, "1x RoCE 400G (mlx5_1)"),
        ({"nics": nics(0, is_up=False) + nics(1)}, "1x RoCE 400G (mlx5_1)\n1 down"),
        ({"nics": nics(0, is_up=None)}, "1 of unknown state"),
        ({"nics": nics(0, kind="other")}, ""),
        ({"rdma": (rdma("mlx5_0", "Active"), rdma("mlx5_1", "Active"))}, "2x RDMA (mlx5_[0-1])"),
        ({"rdma": (rdma("mlx5_0", "Active", "InfiniBand", 200),)}, "1x IB 200G (mlx5_0)"),
        ({"rdma": (rdma("mlx5_0", "Down"),)}, "none of 1 up"),
        ({"rdma": (rdma("mlx5_0", None),)}, "1 of unknown state"),
        (
            {"nics": nics(0, kind="other", speed=None), "rdma": (rdma("mlx5_0", "Active"),)},
            "1x RDMA (mlx5_0)",
        ),
    ],
)
def test_nics_are_told_by_whatever_knows_them(changes: dict[str, Any], told: str) -> None:
    assert ports_up_told(node_scan(**changes)) == (told or "-")


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", "Xeon Platinum 8480C"),
        ("AMD EPYC 9654 96-Core Processor", "EPYC 9654"),
        ("Neoverse-V2", "Neoverse-V2"),
    ],
)
def test_the_name_of_a_cpu_is_what_tells_it_from_others(model: str, short: str) -> None:
    assert short_cpu_name(model) == short


@pytest.mark.parametrize(
    ("cpu", "told"),
    [
        (Cpu(None, None, "unknown", None, None, 0), "-"),
        (Cpu("AuthenticAMD", None, "x86_64", 1, None, 2), "AMD, 2 threads"),
        (Cpu(None, None, "aarch64", None, None, 0), "aarch64"),
        (
            Cpu("AuthenticAMD", "AMD EPYC 9654 96-Core Processor", "x86_64", 2, 192, 384),
            "2x EPYC 9654, 384 threads",
        ),
    ],
)
def test_a_cpu_is_told_by_its_model_where_that_is_known(cpu: Cpu, told: str) -> None:
    assert cpu_told(cpu) == told
