"""All rules over whole machines: the odd but healthy ones are left in peace, and one cause is told once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from scans import gpu, node_scan, scan_of

from topo_tune.findings.judge import find
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import (
    FabricManager,
    GpuHealth,
    GpuNvlinks,
    Host,
    KernelEvent,
    KernelEventKind,
    NvlinkLink,
    PciDevice,
    PcieLink,
)
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.scan import Absent, Cpu, NcclLibrary, NcclPlugin, Nic, NodeScan, NumaNode

LOOPBACK = Nic("lo", "loopback", True, None, None, None, ("127.0.0.1/8",), 65536, None, True)
DRIVER = (("nvidia", "570.124"), ("mlx5_core", "24.10"))
HOST = Host(
    memlock_bytes=-1,
    open_files=1024,
    open_files_hard=1048576,
    stack_bytes=8 << 20,
    shm_bytes=512 << 30,
    shm_free_bytes=500 << 30,
    hypervisor="none",
    container="none",
    governors=(("performance", 224),),
    numa_balancing=False,
    iommu="passthrough",
    modules=(*DRIVER, ("nvidia_peermem", None)),
    is_open_nvidia_module=True,
    dma_buf=True,
)
TORCH = {
    "torch": "2.8",
    "torch_nccl": "2.27.3",
    "nccl_libraries": (NcclLibrary("/x/libnccl.so.2", "2.27.3", "torch"),),
}


def host(**changes: Any) -> Host:
    return msgspec.structs.replace(HOST, **changes)


def with_driver(count: int, **changes: Any) -> dict[str, Any]:
    """Fields of a node with GPUs and a driver that works."""
    return {
        "gpus": tuple(gpu(index, **changes) for index in range(count)),
        "gpu_source": "nvml",
        "driver": "570.124",
        "cuda_driver": "12.8",
    }


def ethernet(name: str, address: str, speed: float | None = 100.0, driver: str = "mlx5_core") -> Nic:
    return Nic(name, "ethernet", True, speed, 0, driver, (address,), 9000)


def rdma(name: str, driver: str = "mlx5_core", layer: str = "InfiniBand", **port: Any) -> RdmaDevice:
    told = {
        "state": "Active",
        "link_layer": layer,
        "rate_gbit_per_s": 400.0,
        "active_mtu_bytes": 4096,
        "sm_lid": 1,
    }
    return RdmaDevice(name, (RdmaPort(1, **(told | port)),), type="MT4129", firmware="28.43", driver=driver)


def laptop(_: int) -> NodeScan:
    name = "NVIDIA GeForce RTX 4070 Laptop GPU"
    health = GpuHealth(
        "0000:18:00.0",
        name,
        "GPU-0",
        persistence=False,
        link=PcieLink(2.5, 16, 8, 8),
        performance_state="P8",
        throttle_reasons=("Idle",),
        power_limit_watts=60,
        default_power_limit_watts=80,
    )
    return node_scan(
        "laptop",
        **with_driver(1, name=name, compute_capability="8.9"),
        nics=(LOOPBACK, ethernet("wlp0s20f3", "192.168.1.5/24", None, "iwlwifi")),
        host=host(memlock_bytes=8 << 20, iommu="translated", governors=(("powersave", 24),), modules=DRIVER),
        gpu_health=(health,),
    )


def login(_: int) -> NodeScan:
    return node_scan(
        "login",
        nics=(LOOPBACK, ethernet("eno1", "10.0.0.9/24", 1.0, "igb")),
        host=host(modules=(), memlock_bytes=8 << 20, numa_balancing=True),
    )


def one_gpu_in_a_guest(_: int) -> NodeScan:
    return node_scan(
        "vm",
        **with_driver(1, name="NVIDIA A10G"),
        nics=(LOOPBACK, ethernet("ens5", "172.31.0.5/20", 10.0, "ena")),
        host=host(hypervisor="kvm", iommu=None, governors=(), modules=DRIVER),
    )


def efa(index: int) -> NodeScan:
    return node_scan(
        f"p5-{index}",
        **with_driver(8),
        **TORCH,
        nics=(
            LOOPBACK,
            ethernet("ens32", f"10.0.0.{index}/24", 100.0, "ena"),
            ethernet("ens33", f"10.0.0.1{index}/24", 100.0, "ena"),
            *(Nic(f"rdmap{i}s0", "other", True, 100.0, 0, "efa") for i in range(4)),
        ),
        rdma=tuple(rdma(f"rdmap{i}s0", "efa", "Unspecified") for i in range(4)),
        plugins=(NcclPlugin("net", "/opt/amazon/ofi-nccl/lib/libnccl-net.so", "LD_LIBRARY_PATH"),),
        nccl_environment=(("NCCL_IB_HCA", "mlx5"),),
        host=host(hypervisor="kvm", iommu=None, governors=(), modules=DRIVER),
    )


def slingshot(index: int) -> NodeScan:
    return node_scan(
        f"nid{index}",
        **with_driver(4, name="NVIDIA GH200 120GB"),
        **TORCH,
        cpu=Cpu("ARM", "Neoverse-V2", "aarch64", 4, 288, 288),
        nics=(
            LOOPBACK,
            ethernet("nmn0", f"10.1.0.{index}/24", 10.0, "e1000"),
            *(ethernet(f"hsn{i}", f"172.28.{i}.{index}/16", 200.0, "cxi_ss1") for i in range(4)),
        ),
        plugins=(NcclPlugin("net", "/opt/cray/libnccl-net.so", "LD_LIBRARY_PATH"),),
        nccl_environment=(("NCCL_NET", "AWS Libfabric"), ("NCCL_SOCKET_IFNAME", "hsn")),
        host=host(iommu="translated"),
    )


def rack(index: int) -> NodeScan:
    health = (
        GpuHealth(
            f"0000:{0x18 + i:02x}:00.0",
            "NVIDIA GB200",
            f"GPU-{i}",
            persistence=True,
            link=PcieLink(32, 32, 1, 16),
            fabric_state="Completed",
            fabric_status="Success",
            fabric_clique="c-1",
        )
        for i in range(4)
    )
    return node_scan(
        f"gb{index}",
        **with_driver(4, name="NVIDIA GB200", compute_capability="10.0"),
        **TORCH,
        cpu=Cpu("ARM", "Neoverse-V2", "aarch64", 2, 144, 144),
        gpu_health=tuple(health),
        nics=(LOOPBACK, ethernet("eth0", f"10.0.0.{index}/24")),
        rdma=tuple(rdma(f"mlx5_{i}") for i in range(4)),
        host=host(iommu="translated", services=(("nvidia-imex", "active"),), has_imex_channel=True),
    )


def amd(index: int) -> NodeScan:
    return node_scan(
        f"mi{index}",
        pci=tuple(PciDevice(f"0000:{i:02x}:00.0", "0380", "1002", driver="amdgpu") for i in range(1, 9)),
        nics=(LOOPBACK, ethernet("eth0", f"10.0.0.{index}/24")),
        rdma=tuple(rdma(f"bnxt_re{i}", "bnxt_en", "Ethernet") for i in range(8)),
        host=host(modules=(("amdgpu", None),), iommu="translated"),
    )


HEALTHY = {
    laptop: {"gpu-power-capped", "gpu-persistence-off", "cpu-governor", "nccl-absent"},
    login: set(),
    one_gpu_in_a_guest: {"nccl-absent"},
    efa: set(),
    slingshot: set(),
    rack: set(),
    amd: set(),
}


@pytest.mark.parametrize("machine", HEALTHY, ids=lambda machine: machine.__name__)
def test_a_healthy_machine_of_another_kind_is_left_in_peace(machine: Any) -> None:
    nodes = [
        machine(index) for index in ((1,) if machine in (laptop, login, one_gpu_in_a_guest) else (1, 2, 3))
    ]

    found = find(scan_of(*nodes))

    assert {finding.rule for finding in found} == HEALTHY[machine]
    assert all(finding.severity is not Severity.ERROR for finding in found)


# --- one cause, one finding ---------------------------------------------------------------------------------

H100 = "NVIDIA H100 80GB HBM3"


def board(index: int) -> NodeScan:
    """Eight H100 with a card each."""
    words = tuple(
        tuple(
            "X" if a == b else "NV18" if a < 8 and b < 8 else "PIX" if a % 8 == b % 8 else "SYS"
            for b in range(16)
        )
        for a in range(16)
    )
    gpus, cards = tuple(f"GPU{i}" for i in range(8)), tuple(f"mlx5_{i}" for i in range(8))
    return node_scan(
        f"dgx{index}",
        **with_driver(8),
        **TORCH,
        numa=(NumaNode(0, "0-55", 1 << 40), NumaNode(1, "56-111", 1 << 40)),
        matrix=TopologyMatrix(gpus, cards, words, (None,) * 8, (None,) * 8),
        nics=(LOOPBACK, ethernet("eth0", f"10.0.0.{index}/24")),
        rdma=tuple(rdma(name) for name in cards),
        host=HOST,
        gpu_health=tuple(
            GpuHealth(f"0000:{0x18 + i:02x}:00.0", H100, f"GPU-{i}", vbios="96", persistence=True)
            for i in range(8)
        ),
        nvlinks=tuple(
            GpuNvlinks(i, H100, f"GPU-{i}", tuple(NvlinkLink(link, True, 26.5, 0) for link in range(18)))
            for i in range(8)
        ),
    )


def told(**changes: Any) -> list[str]:
    """Rules that speak of a board of which this is changed, beside three that are fine."""
    nodes = [msgspec.structs.replace(board(1), **changes), board(2), board(3), board(4)]
    return [finding.rule for finding in find(scan_of(*nodes))]


def test_a_board_that_is_fine_says_nothing() -> None:
    assert told() == []


def test_a_port_that_is_down_is_told_once_although_its_name_is_set() -> None:
    names = "=" + ",".join(f"mlx5_{i}" for i in range(8))
    down = (rdma("mlx5_0", state="Down", physical_state="Polling"), *(rdma(f"mlx5_{i}") for i in range(1, 8)))

    assert told(rdma=down, nccl_environment=(("NCCL_IB_HCA", names),)) == ["rdma-port-down"]


def test_links_that_are_down_are_told_once() -> None:
    short = GpuNvlinks(0, H100, "GPU-0", tuple(NvlinkLink(link, link > 2, 26.5, 0) for link in range(18)))

    assert told(nvlinks=(short, *board(1).nvlinks[1:])) == ["nvlink-inactive"]


def test_a_gpu_that_fell_off_the_bus_is_told_once() -> None:
    fine = board(1)
    events = (
        KernelEvent(KernelEventKind.XID, "GPU has fallen off the bus", device="0000:1f:00.0", code=79),
        KernelEvent(KernelEventKind.GPU_LOST, "GPU has fallen off the bus", device="0000:1f:00.0"),
    )
    bus = tuple(PciDevice(one.pci_bus_id or "", "0302", "10de", driver="nvidia") for one in fine.gpus)

    assert told(gpus=fine.gpus[:7], pci=bus, kernel_events=events) == ["gpu-off-bus"]


def test_a_fabric_manager_that_failed_is_told_once() -> None:
    waiting = tuple(msgspec.structs.replace(one, fabric_state="In Progress") for one in board(1).gpu_health)

    assert told(
        fabric_manager=FabricManager(is_running=False),
        host=host(services=(("nvidia-fabricmanager", "failed"),)),
        pci=tuple(PciDevice(f"0000:e{i}:00.0", "0680", "10de") for i in range(4)),
        gpu_health=waiting,
    ) == ["fabric-manager-down"]


def test_a_driver_of_two_versions_is_told_once() -> None:
    reason = "Failed to initialize NVML: Driver/library version mismatch"
    event = KernelEvent(KernelEventKind.DRIVER, "NVRM: API mismatch: the client has the version 570.86")

    assert told(
        gpus=(),
        gpu_health=(),
        nvlinks=(),
        driver=None,
        absent=(Absent("GPUs", reason),),
        kernel_events=(event,),
    ) == ["driver-version-mismatch"]


def test_a_fault_that_a_reset_has_mended_is_no_error() -> None:
    fault = KernelEvent(KernelEventKind.XID, "Xid 48", device="0000:18:00.0", code=48)
    mended = tuple(msgspec.structs.replace(one, recovery_action="None") for one in board(1).gpu_health)

    (now,) = find(scan_of(msgspec.structs.replace(board(1), kernel_events=(fault,))))
    (then,) = find(scan_of(msgspec.structs.replace(board(1), kernel_events=(fault,), gpu_health=mended)))

    assert (now.rule, now.severity) == ("gpu-xid", Severity.ERROR)
    assert (then.rule, then.severity) == ("gpu-xid", Severity.WARNING)


@pytest.mark.parametrize(
    ("device", "severity"), [("0000:18:00.0", Severity.ERROR), ("0000:01:00.0", Severity.WARNING)]
)
@pytest.mark.parametrize(
    "event",
    [
        KernelEvent(KernelEventKind.AER, "PCIe Bus Error", severity="nonfatal"),
        KernelEvent(KernelEventKind.IOMMU, "DMAR: [DMA Write] fault", severity="fault"),
    ],
    ids=["pcie", "iommu"],
)
def test_faults_of_devices_that_are_not_nccls_are_no_errors(
    event: KernelEvent, device: str, severity: Severity
) -> None:
    scan = scan_of(
        msgspec.structs.replace(board(1), kernel_events=(msgspec.structs.replace(event, device=device),))
    )

    (finding,) = find(scan)

    assert finding.severity is severity
