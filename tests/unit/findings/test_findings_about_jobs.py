"""Findings about NCCL logs and nccl-tests output: what fires on which, and silence over healthy jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from golden_facts import FACTS, text_of
from scans import gpu, node_scan, scan_of

from topo_tune.findings.jobs import RULES
from topo_tune.findings.judge import find
from topo_tune.records.document import Document, DocumentBody
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import PciDevice
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.nccl_documents import (
    CauseKind,
    LogCause,
    LogNic,
    LogSetting,
    MeasuredRow,
    MeasuredRun,
    MeasuredTime,
    NcclLog,
    NcclTests,
)
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.scan import Nic, NodeScan, Scan
from topo_tune.scan.documents import nccl_log, nccl_tests
from topo_tune.scan.facts.nccl import job_settings


def document(body: DocumentBody, file: str = "job.log", node: str = "gpu001") -> Document:
    return Document(file, node, "NCCL log", body)


def log(**changes: Any) -> NcclLog:
    """A healthy job of 16 ranks on two nodes, over InfiniBand with GPU Direct."""
    given: dict[str, Any] = {
        "library": "NCCL",
        "version": "2.28.9+cuda13.0",
        "hosts": ("gpu001", "gpu002"),
        "ranks": 16,
        "nodes": 2,
        "network": "IB",
        "nics": tuple(LogNic(n, f"mlx5_{n}", "IB", gpu_direct=True) for n in range(8)),
        "out_of_band": "eth0",
        "transports": (("P2P/CUMEM", 112), ("NET/IB/GDRDMA", 16)),
        "nvls": True,
        "versions": ("2.28.9+cuda13.0",),
    }
    return NcclLog(**(given | changes))


SOCKETS = (LogNic(0, "eth0", "Socket", "10.0.0.1"),)


def job(*nodes: NodeScan, **changes: Any) -> Scan:
    return scan_of(*nodes, documents=(document(log(**changes)),))


def rdma_node(state: str = "Active") -> NodeScan:
    return node_scan(rdma=(RdmaDevice("mlx5_0", (RdmaPort(1, state=state),)),))


def matrix(word: str) -> TopologyMatrix:
    return TopologyMatrix(("GPU0", "GPU1"), (), (("X", word), (word, "X")), (None, None), (None, None))


def half(busbw: float | None = 100.0, wrong: float | None = 0.0) -> MeasuredTime:
    return MeasuredTime(10.0, busbw, busbw, wrong)


def run(busbw: float = 100.0, wrong: float | None = 0.0, **changes: Any) -> MeasuredRun:
    """A healthy run of 16 ranks over three sizes."""
    given: dict[str, Any] = {
        "ranks": 16,
        "hosts": ("a", "b"),
        "gpu_names": ("NVIDIA H100",),
        "devices": 16,
        "test": "all_reduce",
        "nccl_version": None,
        "rows": tuple(
            MeasuredRow(size, size // 4, "float", "sum", -1, half(busbw, wrong), half(busbw, wrong))
            for size in (1 << 20, 1 << 24, 1 << 28)
        ),
        "average_busbw_gb_per_s": busbw,
        "out_of_bounds": 0,
        "failed": False,
        "validation": True,
    }
    return MeasuredRun(**(given | changes))


def with_runs(*runs: MeasuredRun) -> Scan:
    return scan_of(documents=(document(NcclTests(runs), "a.log"),))


def twins(one: MeasuredRun, other: MeasuredRun) -> Scan:
    files = (document(NcclTests((one,)), "ib.log"), document(NcclTests((other,)), "tcp.log"))
    return scan_of(documents=files)


def recorded(kind: str, name: str) -> Scan:
    text = text_of(FACTS / kind / name)
    body: DocumentBody = nccl_log.parse(text) if kind == "nccl-logs" else nccl_tests.parse(text)
    return scan_of(documents=(document(body, name),))


def job_file(text: str, file: str = "train.sh") -> Scan:
    return scan_of(documents=(document(job_settings.parse(text, file)[0], file),))


NVSWITCH = PciDevice("0000:05:00.0", vendor_id="10de", class_code="068000")
HOPPERS = {"gpus": (gpu(0), gpu(1)), "pci": (NVSWITCH,)}

FIRES: dict[str, Scan] = {
    "job-failed": recorded("nccl-logs", "fail-shm-no-space-timestamps.log"),
    "job-nccl-versions": job(versions=("2.28.9+cuda13.0", "2.27.7+cuda13.0")),
    "job-socket-fallback": job(rdma_node(), network="Socket", nics=SOCKETS),
    "job-sockets-at-scale": job(network="Socket", nics=SOCKETS, ranks=64),
    # One node's job is no job over TCP, and shows what jobs over several will meet.
    "job-ib-finds-nothing": job(
        rdma_node(), network="Socket", nics=SOCKETS, finds_no_rdma=True, nodes=1, hosts=("gpu001",)
    ),
    "job-gdr-in-part": job(transports=(("NET/IB", 2), ("NET/IB/GDRDMA", 14))),
    "job-gdr-disabled": job(nics=(LogNic(0, "mlx5_0", "RoCE", gpu_direct=False),)),
    "job-no-p2p": job(node_scan(matrix=matrix("NV18")), transports=(("SHM/direct/direct", 8),)),
    "job-bootstrap-virtual": job(out_of_band="docker0"),
    "job-sockets-virtual": job(network="Socket", nics=(*SOCKETS, LogNic(1, "br-702d9f064725", "Socket"))),
    "job-mixed-links": recorded("nccl-logs", "dell-2x8b200-srun-labels-mixed-roce-ib.log"),
    "job-nvls-unavailable": job(node_scan(**HOPPERS), nvls=False),
    "job-setting-refused": job(refused_settings=("Invalid NCCL_NTHREADS 100 (must be a multiple of 32)",)),
    "job-settings-differ": job(
        settings=(LogSetting("NCCL_BUFFSIZE", "4194304", 8), LogSetting("NCCL_BUFFSIZE", "8388608", 8))
    ),
    "job-plugin-missing": job(failed_plugins=("tuner plugin libmine.so: no such library",)),
    "job-settings-lint": job_file("export NCCL_ALGO=Foo\nexport NCCL_DEBUG=WARN\n"),
    "test-wrong-results": recorded("nccl-tests", "2xa100-ll128-failed-no-hash.log"),
    "test-one-rank": recorded("nccl-tests", "smci-b200-alltoall-1rank-zero-busbw.log"),
    "test-ranks-apart": with_runs(run(ranks=2, repeated_ranks=True)),
    "test-gpu-shared": recorded("nccl-tests", "5090-2rank-same-gpu-socket.log"),
    "test-did-not-start": recorded("nccl-tests", "gcm-no-slots-failure.log"),
    "test-slower-than-twin": twins(run(180.0), run(3.0)),
    "test-unfinished": with_runs(run(problems=("the table has no closing lines: the run did not end",))),
    "test-unchecked": recorded("nccl-tests", "superbench-allreduce-8a100.log"),
}

QUIET: dict[str, Scan] = {
    # A good run's end is full of warnings.
    "job-failed": recorded("nccl-logs", "oci-128node-shutdown-warnings.log"),
    # NCCL compares its own version, not CUDA's.
    "job-nccl-versions": job(versions=("2.28.9+cuda13.0", "2.28.9+cuda12.9")),
    # TCP was asked for.
    "job-socket-fallback": job(
        rdma_node(), network="Socket", nics=SOCKETS, settings=(LogSetting("NCCL_IB_DISABLE", "1", 16),)
    ),
    "job-sockets-at-scale": job(network="Socket", nics=SOCKETS, ranks=64, nodes=1, hosts=("gpu001",)),
    # The node's only RDMA port is down.
    "job-ib-finds-nothing": job(rdma_node("Down"), network="Socket", nics=SOCKETS, finds_no_rdma=True),
    "job-gdr-in-part": job(transports=(("NET/IB/GDRDMA", 16), ("NET/Socket", 4))),
    # Omni-Path has no GPU Direct through verbs.
    "job-gdr-disabled": job(nics=(LogNic(0, "hfi1_0", "IB", gpu_direct=False),)),
    # NVLink joins pairs only: the others have nothing better than shared memory.
    "job-no-p2p": job(
        node_scan(
            matrix=TopologyMatrix(
                ("GPU0", "GPU1", "GPU2"),
                (),
                (("X", "NV12", "SYS"), ("NV12", "X", "SYS"), ("SYS", "SYS", "X")),
                (None,) * 3,
                (None,) * 3,
            )
        ),
        transports=(("SHM/direct/direct", 8),),
    ),
    # On one node the bootstrap may take any way.
    "job-bootstrap-virtual": job(out_of_band="docker0", nodes=1, hosts=("gpu001",)),
    # The same list where RDMA carries the data.
    "job-sockets-virtual": job(nics=(*log().nics, LogNic(1, "br-702d9f064725", "Socket"))),
    # RoCE only, and SHARP beside plain InfiniBand.
    "job-mixed-links": job(nics=(LogNic(0, "mlx5_0", "IB"), LogNic(1, "mlx5_1", "IB/SHARP"))),
    # Switched off on purpose.
    "job-nvls-unavailable": job(
        node_scan(**HOPPERS), nvls=False, settings=(LogSetting("NCCL_NVLS_ENABLE", "0", 8),)
    ),
    "job-setting-refused": job(settings=(LogSetting("NCCL_NTHREADS", "512", 16),)),
    # May differ from node to node.
    "job-settings-differ": job(
        settings=(LogSetting("NCCL_SOCKET_IFNAME", "eth0", 8), LogSetting("NCCL_SOCKET_IFNAME", "ens1", 8))
    ),
    "job-plugin-missing": recorded("nccl-logs", "azure-8xnd-a100-sharp-plugin.log"),
    # Lint's notices are none of an operator's.
    "job-settings-lint": job_file("export NCCL_DEBUG=INFO\nexport NCCL_IB_TC=106\n"),
    # Rounding in the old error column.
    "test-wrong-results": recorded("nccl-tests", "deepops-4xdgxa100-old-error-column.log"),
    "test-one-rank": recorded("nccl-tests", "smci-8b200-1proc-8threads.log"),
    "test-ranks-apart": recorded("nccl-tests", "gcp-64h200-8nodes.log"),
    # Bus IDs that a virtual machine hides.
    "test-gpu-shared": recorded("nccl-tests", "gcm-pairwise-2x8a100.log"),
    # A noisy launcher.
    "test-did-not-start": recorded("nccl-tests", "smc-8h100-pmix-noise.log"),
    # Noise between launches; and other GPUs are no twins.
    "test-slower-than-twin": twins(run(180.0), run(160.0)),
    "test-unfinished": recorded("nccl-tests", "cscs-2xgh200-busid-domain.log"),
    "test-unchecked": recorded("nccl-tests", "deepops-4xdgxa100-old-error-column.log"),
}

HEALTHY_LOGS = (
    "a100-4node-nccl-info.log",
    "azure-8xnd-a100-sharp-plugin.log",
    "nebius-2x8h100-vm-topologyd.log",
    "oci-128node-shutdown-warnings.log",
    "rccl-mi300x-msccl-warnings.log",
    "v100-4gpu-omnipath-nccl2.7.log",
    "4090-4rank-socket-fallback-interleaved.log",
)
HEALTHY_TESTS = (
    "cscs-2xgh200-busid-domain.log",
    "gcm-pairwise-2x8a100.log",
    "gcp-64h200-8nodes.log",
    "smc-8h100-pmix-noise.log",
    "smci-8b200-1proc-8threads.log",
    "oci-8h100-odd-size.log",
    "deepops-4xdgxa100-old-error-column.log",
)


def found(scan: Scan, rule: str) -> tuple[Finding, ...]:
    return find(scan, rules=[one for one in RULES if one.id == rule])


@pytest.mark.parametrize("name", HEALTHY_LOGS)
def test_a_healthy_log_gives_no_finding(name: str) -> None:
    assert find(recorded("nccl-logs", name), rules=RULES) == ()


@pytest.mark.parametrize("name", HEALTHY_TESTS)
def test_a_healthy_run_gives_no_finding(name: str) -> None:
    assert find(recorded("nccl-tests", name), rules=RULES) == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fail-connect-timeout-nccl2.2.log", "ranks cannot reach each other"),
        ("fail-duplicate-gpu-mpi-tags.log", "two ranks on one GPU"),
        ("fail-no-algorithm-available.log", "no algorithm or protocol left"),
        ("fail-nvls-invalid-argument.log", "NVLS multicast setup failed"),
        ("fail-shm-no-space-timestamps.log", "shared memory too small"),
    ],
)
def test_a_failed_job_is_an_error_with_its_line_and_its_cure(name: str, words: str) -> None:
    (finding,) = find(recorded("nccl-logs", name), rules=RULES)

    assert finding.what == f"a job failed: {words}"
    assert finding.severity is Severity.ERROR
    assert finding.evidence[0].startswith(f"{name}:")
    assert "it returned" in finding.evidence[1]
    assert len(finding.fix) == 1
    assert "`" in finding.fix[0]


def test_devices_that_a_job_does_without_are_a_warning() -> None:
    (finding,) = find(recorded("nccl-logs", "alibaba-a100-ibv-open-fails-in-container.log"), rules=RULES)

    assert finding.severity is Severity.WARNING
    assert finding.what == "a job went on with less than it should have had: RDMA devices cannot be opened"
    assert "fail again" not in finding.why
    assert "slower" in finding.why


def test_the_same_failure_on_many_nodes_is_one_finding() -> None:
    cause = LogCause(CauseKind.MEMLOCK, 3, "Call to ibv_reg_mr failed", ("gpu001",), "ulimit")
    documents = tuple(document(log(cause=cause), f"{n}.log", f"gpu{n:03}") for n in range(1, 40))

    (finding,) = found(scan_of(documents=documents), "job-failed")

    assert len(finding.nodes) == 39
    assert len(finding.evidence) <= 12


def test_a_fall_back_names_the_devices_that_were_there() -> None:
    (finding,) = found(FIRES["job-socket-fallback"], "job-socket-fallback")

    assert finding.severity is Severity.ERROR
    assert finding.evidence == ("job.log: `Using network Socket`, 16 ranks", "RDMA devices: mlx5_0")


def test_a_fall_back_is_told_by_nccls_own_list_too() -> None:
    assert found(job(network="Socket", nics=(*SOCKETS, LogNic(0, "mlx5_0", "IB"))), "job-socket-fallback")


def over_tcp(*nodes: NodeScan, **changes: Any) -> tuple[Finding, ...]:
    return found(job(*nodes, network="Socket", nics=SOCKETS, **changes), "job-socket-fallback")


def wanting(value: str) -> dict[str, Any]:
    return {"settings": (LogSetting("NCCL_IB_HCA", value, 16),)}


def test_a_job_that_looked_for_rdma_in_vain_is_a_warning_by_its_log_alone() -> None:
    (wanted,) = over_tcp(**wanting("=mlx5_0"))
    (none_found,) = over_tcp(finds_no_rdma=True)

    assert {wanted.severity, none_found.severity} == {Severity.WARNING}
    assert wanted.evidence[1] == "job.log: NCCL_IB_HCA==mlx5_0"
    assert none_found.evidence[1] == "job.log: `NET/IB : No device found`"


def test_where_the_plugin_of_aws_gave_up_its_own_devices_are_to_be_looked_for() -> None:
    (finding,) = over_tcp(
        finds_no_rdma=True, failed_plugins=("net plugin aws-ofi-nccl: initialization failed",)
    )

    assert "fi_info -p efa" in finding.fix[0]
    assert not any("ibv_devinfo" in line for line in finding.fix)


def test_a_job_that_has_nothing_but_ethernet_did_not_fall_back() -> None:
    ethernet = node_scan(nics=(Nic("eth0", "ethernet", True, 100.0, 0, "mlx5_core"),))

    assert over_tcp(ethernet, finds_no_rdma=True) == ()
    assert over_tcp(finds_no_rdma=True, nodes=1, hosts=("gpu001",)) == ()
    assert over_tcp(**wanting("^mlx5_0")) == ()


def test_a_large_job_that_found_no_rdma_is_told_once() -> None:
    scan = job(network="Socket", nics=SOCKETS, ranks=128, finds_no_rdma=True)

    assert [finding.rule for finding in find(scan, rules=RULES)] == ["job-socket-fallback"]


@pytest.mark.parametrize(
    ("cause", "cure"),
    [
        ("not enough slots for 16 processes", "slots"),
        ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "NCCL_DEBUG=WARN"),
        ("out of memory", "nvidia-smi"),
        ("error while loading shared libraries: libmpi.so.40: cannot open", "ldd"),
        ("Invalid number of GPUs: 8 requested but only 4 were found", "-g 1"),
        ("CUDA driver version is insufficient for CUDA runtime version", "nvidia-smi"),
        ("all_reduce_perf: command not found", "whole path"),
    ],
)
def test_what_helps_a_test_that_did_not_start_fits_its_cause(cause: str, cure: str) -> None:
    (finding,) = found(scan_of(documents=(document(NcclTests((), cause)),)), "test-did-not-start")

    assert cure in finding.fix[0]


def test_a_test_that_nccl_ended_is_told_as_a_job_that_failed() -> None:
    said = log(cause=LogCause(CauseKind.CUDA, 3, "Cuda failure 'out of memory'"))
    scan = scan_of(documents=(document(NcclTests((), "unhandled cuda error", log=said)),))

    assert [finding.rule for finding in find(scan, rules=RULES)] == ["job-failed"]


def test_sockets_within_a_node_and_without_rdma_are_no_fall_back() -> None:
    alone = job(rdma_node(), network="Socket", nics=SOCKETS, nodes=1, hosts=("gpu001",))

    assert found(alone, "job-socket-fallback") == ()
    assert found(job(network="Socket", nics=SOCKETS), "job-socket-fallback") == ()


def test_a_fall_back_of_devices_that_cannot_be_opened_is_told_once() -> None:
    cause = LogCause(CauseKind.RDMA_DEVICES, 4, "Call to ibv_open_device failed", is_fatal=False)
    scan = job(rdma_node(), network="Socket", nics=SOCKETS, cause=cause)

    assert [finding.rule for finding in find(scan, rules=RULES)] == ["job-failed"]


def test_mixed_ports_are_listed_by_their_kind() -> None:
    (finding,) = found(FIRES["job-mixed-links"], "job-mixed-links")

    assert "RoCE mlx5_1, mlx5_2, mlx5_3, mlx5_4" in finding.evidence[0]
    assert "InfiniBand mlx5_7" in finding.evidence[1]
    assert finding.fix == (
        "to use RoCE alone: `NCCL_IB_HCA==mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_11:1,mlx5_12:1,mlx5_15:1,"
        "mlx5_17:1`",
        "or InfiniBand alone: `NCCL_IB_HCA==mlx5_7:1,mlx5_8:1,mlx5_9:1,mlx5_10:1`",
    )


def test_gpu_direct_is_not_missed_on_geforce() -> None:
    geforce = node_scan(gpus=(gpu(0, name="NVIDIA GeForce RTX 4090"),))

    assert (
        found(job(geforce, nics=(LogNic(0, "mlx5_0", "RoCE", gpu_direct=False),)), "job-gdr-disabled") == ()
    )


def test_peer_to_peer_is_not_missed_where_it_was_switched_off_or_nvlink_is_not_known() -> None:
    shared = {"transports": (("SHM/direct/direct", 8),)}
    off = job(node_scan(matrix=matrix("NV18")), **shared, settings=(LogSetting("NCCL_P2P_DISABLE", "1", 16),))

    assert found(off, "job-no-p2p") == ()
    assert found(job(**shared), "job-no-p2p") == ()


def test_multicast_is_not_missed_on_ampere() -> None:
    ampere = node_scan(
        gpus=(gpu(0, compute_capability="8.0"), gpu(1, compute_capability="8.0")), pci=(NVSWITCH,)
    )

    assert found(job(ampere, nvls=False), "job-nvls-unavailable") == ()


def test_a_job_is_matched_with_its_nodes_by_host_name() -> None:
    elsewhere = msgspec.structs.replace(rdma_node(), node="rack1-gpu001", hostname="gpu001")
    (finding,) = found(
        job(elsewhere, network="Socket", nics=SOCKETS, finds_no_rdma=True, nodes=1, hosts=("gpu001",)),
        "job-ib-finds-nothing",
    )

    assert finding.nodes == ("rack1-gpu001",)


def test_a_job_over_tcp_is_told_once() -> None:
    scan = job(rdma_node(), network="Socket", nics=SOCKETS, finds_no_rdma=True, ranks=128)

    assert found(scan, "job-socket-fallback")
    assert found(scan, "job-ib-finds-nothing") == ()
    assert found(scan, "job-sockets-at-scale") == ()


def test_logs_inside_nccl_tests_output_are_judged_too() -> None:
    tests = NcclTests((run(),), log=log(out_of_band="veth12"))

    assert found(scan_of(documents=(document(tests),)), "job-bootstrap-virtual")


def test_the_pair_over_infiniband_and_over_tcp_is_told() -> None:
    names = ("aks-2xnd-a100-ib.log", "aks-2xnd-a100-ipoib-slow.log")
    documents = tuple(
        document(nccl_tests.parse(text_of(FACTS / "nccl-tests" / name)), name) for name in names
    )

    (finding,) = found(scan_of(documents=documents), "test-slower-than-twin")

    assert finding.severity is Severity.WARNING
    assert finding.evidence == (
        "aks-2xnd-a100-ipoib-slow.log: 3.15 GB/s busbw at 8589934592 bytes",
        "aks-2xnd-a100-ib.log: 187.22 GB/s busbw at 8589934592 bytes",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_names": ("NVIDIA A100",)},
        {"ranks": 8},
        {"test": "all_gather"},
        {"hosts": ("a",)},
        {"is_graph": True},
        {"rows": run().rows[:2]},
    ],
)
def test_runs_of_another_kind_are_no_twins(changes: dict[str, Any]) -> None:
    assert found(twins(run(180.0), run(3.0, **changes)), "test-slower-than-twin") == ()


def test_runs_of_one_file_are_no_twins() -> None:
    assert found(with_runs(run(180.0), run(3.0)), "test-slower-than-twin") == ()


def test_one_rank_is_an_error_that_says_what_was_measured() -> None:
    (finding,) = found(FIRES["test-one-rank"], "test-one-rank")

    assert finding.severity is Severity.ERROR
    assert finding.evidence == ("smci-b200-alltoall-1rank-zero-busbw.log: 1 rank, best busbw 0 GB/s",)


def test_what_lint_says_of_a_jobs_file_is_shown_worst_first() -> None:
    text = "NCCL_IB_HCA=mlx5_0\nexport NCCL_ALGO=Foo\n"

    (finding,) = found(job_file(text), "job-settings-lint")

    assert finding.severity is Severity.WARNING
    assert finding.evidence[0].startswith("train.sh:2: `foo` is no word of `NCCL_ALGO`")
    assert finding.evidence[1].startswith("train.sh:1: ")


def test_a_jobs_file_with_many_mistakes_is_shown_in_part() -> None:
    text = "".join(f"export NCCL_BUFFSIZE={number}M\n" for number in range(1, 40))

    (finding,) = found(job_file(text), "job-settings-lint")

    assert len(finding.evidence) == 8
    assert finding.evidence[-1].endswith("more in train.sh")


def test_unknown_ranks_are_no_alarm() -> None:
    unknown = run(ranks=None, hosts=(), gpu_names=(), devices=None, validation=None)

    assert find(with_runs(unknown), rules=RULES) == ()


def test_checking_that_was_off_is_seen_by_its_columns_too() -> None:
    assert found(recorded("nccl-tests", "aks-2xnd-a100-ib.log"), "test-unchecked")
    assert found(with_runs(run(wrong=None, validation=None)), "test-unchecked")
