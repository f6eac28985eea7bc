from __future__ import annotations

from typing import Any

import pytest
from pci_machines import device
from scans import gpu, node_scan, scan_of

from topo_tune.findings.host import RULES
from topo_tune.findings.judge import find
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import UNLIMITED, Host, KernelEvent, KernelEventKind
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import RDMA_DEVICE_FILES, Absent, Cpu, Nic, NodeScan, NumaNode, Scan

MIB = 1 << 20
GIB = 1 << 30
CARD = Nic("mlx5_0", "infiniband", True, 400.0, 0, "mlx5_core")
TWO_SOCKETS = (NumaNode(0, "0-55,112-167", None), NumaNode(1, "56-111,168-223", None))
MODULES = (("nvidia", "550.54.15"), ("nvidia_peermem", "550.54.15"), ("gdrdrv", "2.4"), ("mlx5_core", None))
HEALTHY: dict[str, Any] = {
    "memlock_bytes": UNLIMITED,
    "memlock_hard_bytes": UNLIMITED,
    "open_files": 131072,
    "open_files_hard": 131072,
    "stack_bytes": 8 * MIB,
    "shm_bytes": 512 * GIB,
    "shm_free_bytes": 511 * GIB,
    "hypervisor": "none",
    "container": "none",
    "allowed_cpus": "0-223",
    "governors": (("performance", 224),),
    "numa_balancing": False,
    "iommu": "passthrough",
    "modules": MODULES,
    "is_open_nvidia_module": True,
    "dma_buf": True,
    "gdrcopy": "2.4",
    "services": (("nvidia-persistenced", "active"), ("openibd", "active")),
}


def node(name: str = "gpu001", *, host: dict[str, Any] | None = None, **changes: Any) -> NodeScan:
    """A healthy node with eight GPUs and an RDMA card; `host` are fields of Host to be changed."""
    given: dict[str, Any] = {
        "gpus": tuple(gpu(index) for index in range(8)),
        "nics": (CARD,),
        "numa": TWO_SOCKETS,
        "driver": "550.54.15",
        "cuda_driver": "12.4",
        "torch_nccl": "2.27.3",
    }
    return node_scan(name, host=Host(**(HEALTHY | (host or {}))), **(given | changes))


def scanned(host: dict[str, Any] | None = None, **changes: Any) -> Scan:
    """Two nodes of one kind."""
    return scan_of(node("gpu001", host=host, **changes), node("gpu002", host=host, **changes))


def plain_matrix(word: str) -> TopologyMatrix:
    """Four GPUs, each pair joined by this word."""
    names = tuple(f"GPU{index}" for index in range(4))
    links = tuple(tuple("X" if a == b else word for b in names) for a in names)
    return TopologyMatrix(names, (), links, (None,) * 4, (None,) * 4)


def near_matrix(word: str) -> TopologyMatrix:
    """One GPU and one card, joined by this word."""
    return TopologyMatrix(("GPU0",), ("mlx5_0",), (("X", word), (word, "X")), (None,), (None,))


NO_PEERMEM = (("nvidia", "535.129.03"), ("mlx5_core", None))
PROPRIETARY = {"modules": NO_PEERMEM, "is_open_nvidia_module": False, "dma_buf": False}
RACK = tuple(gpu(index, name="NVIDIA GB200") for index in range(4))
AMD = Cpu("AuthenticAMD", "EPYC 9654", "x86_64", 2, 192, 384)
NO_FILES = (Absent(RDMA_DEVICE_FILES, "no device file there that this session may open"),)
MISMATCH = Absent(
    "GPUs", "`nvidia-smi` exited with status 18: Failed to initialize NVML: Driver/library version mismatch"
)

CARD_ON_BUS = device("0000:18:00.0", "0302", "10de", driver="nvidia")
NO_GPU_ON_BUS = device("0000:1a:00.0", "0200", "15b3")


def failing(*sentences: str, **changes: Any) -> Scan:
    """A node on which `nvidia-smi` says this in place of an answer."""
    return scan_of(node_scan(driver_trouble=sentences, **changes))


FIRES: dict[str, Scan] = {
    "memlock-limited": scanned({"memlock_bytes": 8 * MIB, "memlock_hard_bytes": 8 * MIB}),
    "open-files-few": scanned({"open_files": 1024, "open_files_hard": 4096}),
    "stack-unlimited": scanned({"stack_bytes": UNLIMITED}),
    "shm-small": scanned({"shm_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB}),
    "shm-nearly-full": scanned({"shm_free_bytes": 100 * MIB}),
    "gpudirect-rdma-off": scanned(PROPRIETARY),
    "legacy-peer-memory": scanned({"modules": (*MODULES, ("nv_peer_mem", "1.2"))}),
    "gdrcopy-absent": scanned(
        {"gdrcopy": None, "modules": MODULES[:2]}, nccl_environment=(("NCCL_GDRCOPY_ENABLE", "1"),)
    ),
    "kernel-without-dma-buf": scanned({"dma_buf": False}, kernel="5.4.0-150-generic"),
    "driver-version-mismatch": scanned(absent=(MISMATCH,), driver=None, gpus=()),
    "nouveau-loaded": scanned({"modules": (("nouveau", None),)}),
    "driver-not-loaded": failing(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    ),
    "driver-finds-no-gpu": failing("No devices were found", pci=(CARD_ON_BUS,)),
    "driver-out-of-reach": failing("Failed to initialize NVML: Unknown Error"),
    "rdma-device-files-missing": scanned({"container": "docker"}, absent=NO_FILES),
    "imex-not-active": scanned({"services": (("nvidia-imex", "inactive"),)}, gpus=RACK),
    "imex-channel-missing": scanned({"has_imex_channel": False}, gpus=RACK),
    "service-failed": scanned({"services": (("openibd", "failed"),)}),
    "cpu-governor": scanned({"governors": (("powersave", 224),)}),
    "numa-balancing-on": scanned({"numa_balancing": True}),
    "session-few-cpus": scanned({"allowed_cpus": "0-7"}),
    "amd-one-numa-node-per-socket": scanned(cpu=AMD, matrix=plain_matrix("SYS")),
}

QUIET: dict[str, Scan] = {
    # No RDMA, nothing to lock.
    "memlock-limited": scanned({"memlock_bytes": 8 * MIB}, nics=()),
    # Two GPUs open few sockets.
    "open-files-few": scan_of(
        node(host={"open_files": 1024, "open_files_hard": 4096}, gpus=(gpu(0), gpu(1)))
    ),
    "stack-unlimited": scanned({"stack_bytes": UNLIMITED}, torch_nccl="2.28.9"),
    "shm-small": scanned({"shm_bytes": GIB, "shm_free_bytes": GIB}),
    "shm-nearly-full": scanned({"shm_free_bytes": 400 * GIB}),
    # The open module and DMA-BUF need no peer-memory module.
    "gpudirect-rdma-off": scanned({"modules": NO_PEERMEM}),
    "legacy-peer-memory": scanned(),
    # NCCL does not use it unless it is told to.
    "gdrcopy-absent": scanned({"gdrcopy": None, "modules": MODULES[:2]}),
    "kernel-without-dma-buf": scanned({"dma_buf": False, "is_open_nvidia_module": False}),
    # `nvidia-smi` of some versions cuts the last part off.
    "driver-version-mismatch": scanned(driver="550.54"),
    # A login node that has the tools and no GPU.
    "driver-not-loaded": failing(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", pci=(NO_GPU_ON_BUS,)
    ),
    # A job that got none of the node's GPUs.
    "driver-finds-no-gpu": failing(
        "No devices were found", pci=(CARD_ON_BUS,), host=Host(slurm=(("SLURM_JOB_ID", "17"),))
    ),
    # Another output shows GPUs: the driver was reached.
    "driver-out-of-reach": failing("Failed to initialize NVML: Unknown Error", gpus=(gpu(0),)),
    "nouveau-loaded": scan_of(node_scan(host=Host(modules=(("nouveau", None),)))),
    "rdma-device-files-missing": scanned({"container": "docker"}, absent=NO_FILES, gpus=()),
    "imex-not-active": scanned({"services": (("nvidia-imex", "inactive"),)}),
    "imex-channel-missing": scanned({"has_imex_channel": True}, gpus=RACK),
    "service-failed": scanned({"services": (("openibd", "inactive"),)}),
    "cpu-governor": scanned({"governors": (("powersave", 8),)}, gpus=()),
    "numa-balancing-on": scanned({"numa_balancing": True}, numa=TWO_SOCKETS[:1]),
    # Slurm gives a job the CPUs that it asked for.
    "session-few-cpus": scanned({"allowed_cpus": "0-7", "slurm": (("SLURM_JOB_ID", "17"),)}),
    "amd-one-numa-node-per-socket": scanned(cpu=AMD, matrix=plain_matrix("NV18")),
}


def found(rule: str, scan: Scan) -> tuple[Finding, ...]:
    return find(scan, rules=[one for one in RULES if one.id == rule])


def test_a_healthy_node_has_no_findings() -> None:
    assert find(scanned(), rules=RULES) == ()


def test_a_node_that_told_nothing_has_no_findings() -> None:
    assert find(scan_of(node_scan(gpus=(gpu(0), gpu(1)), nics=(CARD,))), rules=RULES) == ()


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "driver-version-mismatch"),
        ("Failed to initialize NVML: Driver Not Loaded", "driver-not-loaded"),
        ("No devices were found", "driver-finds-no-gpu"),
        ("Failed to initialize NVML: Insufficient Permissions", "driver-out-of-reach"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "driver-out-of-reach"),
    ],
)
def test_each_error_of_the_tool_is_one_finding(said: str, rule: str) -> None:
    scan = failing(said, "NVML library version: 570.86", absent=(Absent("GPUs", said),))

    (finding,) = find(scan, rules=RULES)

    assert finding.rule == rule
    assert any(said in line for line in finding.evidence)


def test_no_gpu_is_an_error_only_where_the_bus_shows_some() -> None:
    (with_bus,) = found("driver-finds-no-gpu", FIRES["driver-finds-no-gpu"])
    (without,) = found("driver-finds-no-gpu", failing("No devices were found"))

    assert (with_bus.severity, without.severity) == (Severity.ERROR, Severity.WARNING)
    assert with_bus.evidence == ("nvidia-smi: No devices were found", "0000:18:00.0")


def test_gpus_of_virtual_machines_and_gpus_that_the_kernel_tells_of_are_not_missed() -> None:
    passed_on = device("0000:18:00.0", "0302", "10de", driver="vfio-pci")
    failed = KernelEvent(KernelEventKind.DRIVER, "NVRM: GPU 0000:18:00.0: RmInitAdapter failed!")

    assert found("driver-finds-no-gpu", failing("No devices were found", pci=(passed_on,))) == ()
    assert found("driver-finds-no-gpu", failing("No devices were found", kernel_events=(failed,))) == ()


def test_a_driver_that_nouveau_stands_in_for_is_told_once() -> None:
    scan = failing(
        "Failed to initialize NVML: Driver Not Loaded",
        pci=(CARD_ON_BUS,),
        host=Host(modules=(("nouveau", None),)),
    )

    assert [finding.rule for finding in find(scan, rules=RULES)] == ["nouveau-loaded"]


@pytest.mark.parametrize("limit", [64 << 10, 8 * MIB, GIB])
def test_limited_memory_is_a_warning_since_root_is_exempt(limit: int) -> None:
    (finding,) = found("memlock-limited", scanned({"memlock_bytes": limit}))

    assert finding.severity is Severity.WARNING
    assert finding.nodes == ("gpu001", "gpu002")
    assert finding.evidence == ("hard limit: unlimited",)


def test_few_open_files_are_a_notice_where_the_process_may_raise_them() -> None:
    usual = {"open_files": 1024, "open_files_hard": 1048576}
    many = scan_of(*(node(f"gpu{i:03d}", host=usual) for i in range(16)))

    (finding,) = found("open-files-few", many)

    assert finding.severity is Severity.NOTICE
    assert finding.what == "a process may open 1024 files, and may raise that itself"
    assert found("open-files-few", scanned(usual)) == ()  # every Linux starts so


def test_small_shared_memory_breaks_old_nccl_only() -> None:
    small = {"shm_bytes": 64 * MIB}

    (old,) = found("shm-small", scanned(small, torch_nccl="2.18.6"))
    (new,) = found("shm-small", scanned(small, torch_nccl="2.27.3", cuda_driver="12.8"))

    assert (old.severity, new.severity) == (Severity.ERROR, Severity.WARNING)
    assert old.what == "`/dev/shm` holds 64 MiB; expected for NCCL: 1 GiB or more"


def test_free_bytes_are_evidence_so_that_nodes_fold() -> None:
    scan = scan_of(
        node("gpu001", host={"shm_free_bytes": 100 * MIB}), node("gpu002", host={"shm_free_bytes": 200 * MIB})
    )

    (finding,) = found("shm-nearly-full", scan)

    assert finding.what == "`/dev/shm` is nearly full"
    assert finding.evidence == ("gpu001: 100 MiB of 512 GiB free", "gpu002: 200 MiB of 512 GiB free")


def test_missing_peer_memory_is_an_error_where_a_card_is_near_and_nothing_else_helps() -> None:
    (near,) = found("gpudirect-rdma-off", scanned(PROPRIETARY, matrix=near_matrix("PIX")))
    (far,) = found("gpudirect-rdma-off", scanned(PROPRIETARY, matrix=near_matrix("SYS")))

    assert (near.severity, far.severity) == (Severity.ERROR, Severity.WARNING)
    assert near.evidence == ("kernel 6.8.0", "NVIDIA module 535.129.03: proprietary")


def test_missing_peer_memory_is_a_notice_where_dma_buf_is_not_known() -> None:
    unknown = {"modules": NO_PEERMEM, "is_open_nvidia_module": None, "dma_buf": None}

    (finding,) = found("gpudirect-rdma-off", scanned(unknown, matrix=near_matrix("PIX")))

    assert finding.severity is Severity.NOTICE
    assert "not known whether DMA-BUF works" in finding.what


@pytest.mark.parametrize(
    "told",
    [
        {"gpus": (gpu(0, name="NVIDIA GeForce RTX 4090"),)},
        {"nics": (Nic("rdmap0", "other", True, 100.0, 0, "efa"),)},
        {"host": PROPRIETARY | {"modules": ()}},
    ],
)
def test_consumer_cards_other_networks_and_untold_modules_are_no_alarm(told: dict[str, Any]) -> None:
    assert found("gpudirect-rdma-off", scan_of(node(**({"host": PROPRIETARY} | told)))) == ()


def test_both_peer_memory_modules_are_worse_than_the_old_one() -> None:
    (both,) = found("legacy-peer-memory", FIRES["legacy-peer-memory"])
    (alone,) = found("legacy-peer-memory", scanned({"modules": (("nvidia", None), ("nv_peer_mem", "1.2"))}))

    assert (both.severity, alone.severity) == (Severity.WARNING, Severity.NOTICE)
    assert both.what == "the old module `nv_peer_mem` is loaded beside `nvidia_peermem`"


def test_gdrcopy_that_was_asked_for_is_a_warning() -> None:
    lost = {"gdrcopy": None, "modules": MODULES[:2]}

    (finding,) = found("gdrcopy-absent", scanned(lost, nccl_environment=(("NCCL_GDRCOPY_ENABLE", "1"),)))

    assert finding.severity is Severity.WARNING


def test_libraries_of_another_version_than_the_module_are_told_with_both() -> None:
    (finding,) = found("driver-version-mismatch", scanned(driver="570.86.15"))

    assert finding.severity is Severity.ERROR
    assert finding.evidence == ("loaded module: 550.54.15", "libraries: 570.86.15")


def test_nouveau_in_place_of_the_driver_is_an_error() -> None:
    lonely = node_scan(
        pci=(device("0000:01:00.0", "0300", "10de", driver="nouveau"),),
        host=Host(modules=(("nouveau", None),)),
    )

    (finding,) = found("nouveau-loaded", scan_of(lonely))

    assert finding.severity is Severity.ERROR
    assert finding.what == "the kernel's own driver `nouveau` is loaded in place of NVIDIA's"


def test_device_files_that_a_container_lacks_are_told_with_the_container() -> None:
    (finding,) = found("rdma-device-files-missing", FIRES["rdma-device-files-missing"])

    assert finding.severity is Severity.ERROR
    assert finding.what.endswith("it is in a container (docker)")


def test_a_single_node_of_a_rack_needs_no_imex() -> None:
    alone = node(host={"services": (("nvidia-imex", "inactive"),), "has_imex_channel": False}, gpus=RACK)

    assert found("imex-not-active", scan_of(alone)) == ()
    assert found("imex-channel-missing", scan_of(alone)) == ()


def test_few_cpus_for_the_gpus_are_worse_than_not_all() -> None:
    (few,) = found("session-few-cpus", scanned({"allowed_cpus": "0-7"}))
    (some,) = found("session-few-cpus", scanned({"allowed_cpus": "0-111"}))

    assert (few.severity, some.severity) == (Severity.WARNING, Severity.NOTICE)
    assert some.evidence == ("112 of 224: 0-111",)


def test_a_consumer_workstation_has_no_findings() -> None:
    desk = node(
        host={
            "memlock_bytes": 8 * MIB,
            "open_files": 1024,
            "open_files_hard": 1048576,
            "shm_bytes": 32 * GIB,
            "shm_free_bytes": 32 * GIB,
            "allowed_cpus": "0-31",
            "iommu": "translated",
            "modules": (("nvidia", "550.54.15"),),
            "is_open_nvidia_module": False,
            "dma_buf": False,
            "gdrcopy": None,
        },
        gpus=(gpu(0, name="NVIDIA GeForce RTX 4090"), gpu(1, name="NVIDIA GeForce RTX 4090")),
        nics=(Nic("enp5s0", "ethernet", True, 2.5, None, "igc"),),
        numa=TWO_SOCKETS[:1],
        cpu=Cpu("AuthenticAMD", "Ryzen 9 7950X", "x86_64", 1, 16, 32),
        matrix=plain_matrix("PHB"),
    )

    assert find(scan_of(desk), rules=RULES) == ()


def test_a_grace_rack_with_its_services_has_no_findings() -> None:
    tray = {
        "modules": (("nvidia", "570.86.15"), ("mlx5_core", None), ("gdrdrv", "2.4")),
        "services": (("nvidia-imex", "active"),),
        "has_imex_channel": True,
        "iommu": "translated",
        "allowed_cpus": "0-143",
    }
    cpu = Cpu("ARM", "Neoverse-V2", "aarch64", 2, 144, 144)

    assert find(scanned(tray, gpus=RACK, driver="570.86.15", cpu=cpu), rules=RULES) == ()
