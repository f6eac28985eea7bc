"""NCCL logs: every recorded one, other versions' lines, causes of failures, and texts that are no log at all."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from golden_facts import FACTS, beside_the_repository, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.job_output.log_lines import (
    HEAD_LINES,
    TAIL_LINES,
    LogLine,
    log_lines,
    raw_lines,
    unlabelled,
)
from topo_tune.records.nccl_documents import CauseKind, NcclLog
from topo_tune.scan.documents.nccl_log import KINDS, parse

LOGS = sorted((FACTS / "nccl-logs").glob("*.log"))


def log_of(name: str) -> NcclLog:
    return parse(text_of(FACTS / "nccl-logs" / name))


def said(*messages: str, place: str = "") -> NcclLog:
    """A log of these messages, each of a rank of its own; a place makes them warnings."""
    level = f"{place} NCCL WARN" if place else "NCCL INFO"
    lines = [
        f"node01:{100 + rank}:{200 + rank} [{rank}] {level} {text}" for rank, text in enumerate(messages)
    ]
    return parse("\n".join(lines))


@pytest.mark.parametrize("file", LOGS, ids=lambda file: file.name)
def test_a_recorded_log_is_read_as_before(file, golden) -> None:  # type: ignore[no-untyped-def]
    read = msgspec.json.encode(parse(text_of(file)))

    golden(f"facts/nccl-logs/{file.name}.json", msgspec.json.format(read, indent=1).decode() + "\n")


EXPECTED: dict[str, dict[str, Any]] = {
    "v100-4gpu-omnipath-nccl2.7.log": {
        "version": "2.7.8+cuda10.2",
        "network": "IB",
        "ranks": 4,
        "nodes": 1,
        "cause": None,
    },
    "a100-4node-nccl-info.log": {
        "version": "2.10.3+cuda11.3",
        "ranks": 32,
        "nodes": 4,
        "hosts": ("node01", "node02", "node03", "node04"),
        "cause": None,
    },
    "azure-8xnd-a100-sharp-plugin.log": {
        "version": "2.12.10+cuda11.6",
        "network": "IBext",
        "out_of_band": "eth0",
        "ranks": 64,
        "nodes": 8,
        "cause": None,
    },
    "dell-2x8b200-srun-labels-mixed-roce-ib.log": {
        "version": "2.27.7+cuda13.0",
        "network": "IBext_v10",
        "ranks": 16,
        "nodes": 2,
        "cause": None,
    },
    "nebius-2x8h100-vm-topologyd.log": {
        "ranks": 16,
        "nvls": True,
        "network": "IBext",
        "transports": (("P2P/CUMEM", 88), ("NET/IBext/GDRDMA", 22)),
        "cause": None,
    },
    "4090-4rank-socket-fallback-interleaved.log": {
        "version": "2.28.9+cuda12.4",
        "network": "Socket",
        "hosts": ("node01",),
        "ranks": 4,
        "gpu_paths": (("SYS 16.0", 6),),
        "p2p_unsupported": 3,
        "finds_no_rdma": True,
        "nvls": False,
        "cause": None,
    },
    "rccl-mi300x-msccl-warnings.log": {
        "library": "RCCL",
        "version": "2.22.3-HEAD:271856d",
        "hosts": ("node03",),
        "cause": None,
    },
    "oci-128node-shutdown-warnings.log": {"library": "NCCL", "cause": None},
    "fail-no-algorithm-available.log": {"ranks": 4, "nvls_channels": 16, "channels": 24},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_log_tells_what_was_read_by_eye(name: str) -> None:
    log = log_of(name)

    assert {field: getattr(log, field) for field in EXPECTED[name]} == EXPECTED[name]


def test_network_cards_are_listed_in_nccls_order_with_their_kind() -> None:
    omnipath = log_of("v100-4gpu-omnipath-nccl2.7.log").nics
    azure = log_of("azure-8xnd-a100-sharp-plugin.log").nics
    mixed = log_of("dell-2x8b200-srun-labels-mixed-roce-ib.log").nics
    sockets = log_of("4090-4rank-socket-fallback-interleaved.log").nics

    assert [nic.name for nic in omnipath] == ["hfi1_2", "hfi1_0", "hfi1_3", "hfi1_1"]
    assert [nic.name for nic in log_of("a100-4node-nccl-info.log").nics] == [
        "hfi1_1",
        "hfi1_0",
        "hfi1_2",
        "hfi1_3",
    ]
    assert {nic.kind for nic in omnipath} == {"IB"}
    assert [(nic.name, nic.kind) for nic in azure] == [(f"mlx5_ib{n}", "IB/SHARP") for n in range(8)]
    assert [nic.name for nic in mixed if nic.kind == "RoCE"][:4] == ["mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4"]
    assert next(nic.name for nic in mixed if nic.kind == "IB/SHARP") == "mlx5_7"
    assert len(log_of("nebius-2x8h100-vm-topologyd.log").nics) == 8
    assert (len(sockets), sockets[4].address, sockets[4].gpu_direct) == (16, "fe80::1%cali1c7388b97f5", False)


def test_a_variable_in_force_is_told_with_the_processes_that_read_it() -> None:
    setting = log_of("nebius-2x8h100-vm-topologyd.log").settings[0]

    assert (setting.name, setting.value) == (
        "NCCL_TOPO_FILE",
        "/var/run/nvidia-topologyd/virtualTopology.xml",
    )
    assert log_of("dell-2x8b200-srun-labels-mixed-roce-ib.log").settings[0].processes == 16


CAUSES = {
    "fail-nvls-invalid-argument.log": (CauseKind.NVLS, 1, "NCCL_NVLS_ENABLE=0"),
    "fail-shm-no-space-timestamps.log": (CauseKind.SHARED_MEMORY, 2, "--shm-size"),
    "fail-duplicate-gpu-mpi-tags.log": (CauseKind.DUPLICATE_GPU, 5, "local rank"),
    "fail-connect-timeout-nccl2.2.log": (CauseKind.BOOTSTRAP_TIMEOUT, 2, "NCCL_SOCKET_IFNAME"),
    "fail-no-algorithm-available.log": (CauseKind.NO_ALGORITHM, 3, "NCCL_ALGO"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_failed_run_has_its_root_cause_with_the_code_and_advice(name: str) -> None:
    kind, code, words = CAUSES[name]

    cause = log_of(name).cause

    assert cause is not None
    assert (cause.kind, cause.code, cause.is_fatal) == (kind, code, True)
    assert words in cause.advice


def test_the_cause_shows_its_line() -> None:
    memory = log_of("fail-shm-no-space-timestamps.log").cause
    timeout = log_of("fail-connect-timeout-nccl2.2.log").cause

    assert memory is not None
    assert timeout is not None
    assert (memory.line, "to 9637892 bytes" in memory.text, memory.hosts) == (1, True, ("node01",))
    assert (timeout.line, timeout.text) == (10, "Call to connect failed : Connection timed out")
    assert timeout.code_name == "ncclSystemError"


def test_devices_that_cannot_be_opened_do_not_end_the_run() -> None:
    log = log_of("alibaba-a100-ibv-open-fails-in-container.log")

    assert log.cause is not None
    assert (log.cause.kind, log.cause.is_fatal, log.cause.code) == (CauseKind.RDMA_DEVICES, False, None)
    assert set(log.unopened_devices) == {*(f"mlx5_{n}" for n in range(2, 18)), "mlx5_bond_0"}
    assert "RDMA devices could not be opened and the run went on without them" in log.notes


def test_warnings_of_a_good_runs_end_are_noted_as_harmless() -> None:
    log = log_of("oci-128node-shutdown-warnings.log")

    assert log.hosts == ("GPU-94", "GPU-180", "GPU-146")
    assert sum(warning.count for warning in log.warnings) == 45
    assert any("harmless at the end of a run" in note for note in log.notes)
    assert any("MSCCL++" in note for note in log_of("rccl-mi300x-msccl-warnings.log").notes)


FAILURES = {
    "NET/IB : Got completion from peer 10.0.0.1<1> with status=12 opcode=0 len=0 vendor err 129 (Recv)": (
        CauseKind.RDMA_TRANSPORT,
        "ib_write_bw",
    ),
    "NET/IB : Got completion from peer 10.0.0.1<1> with error 12, opcode 32, len 0, vendor err 129": (
        CauseKind.RDMA_TRANSPORT,
        "PFC",
    ),
    "NET/IB: Got completion from peer a<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=x len=0": (
        CauseKind.RDMA_TRANSPORT,
        "MTU",
    ),
    "NET/IB : Got completion from peer 10.0.0.1<1> with status=5 opcode=0 len=0 vendor err 249 (Recv)": (
        CauseKind.RDMA_TRANSPORT,
        "already in error",
    ),
    "NET/IB : Got completion from peer 10.0.0.1<1> with error 4, opcode 1, len 21938, vendor err 81": (
        CauseKind.RDMA_TRANSPORT,
        "peermem",
    ),
    "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT": (
        CauseKind.RDMA_TRANSPORT,
        "NCCL_IB_GID_INDEX",
    ),
    "Call to ibv_reg_mr_iova2 failed with error Bad address": (CauseKind.RDMA_TRANSPORT, "nvidia_peermem"),
    "Call to ibv_reg_mr failed with error Cannot allocate memory": (CauseKind.MEMLOCK, "ulimit -l"),
    "Call to ibv_create_qp failed with error Unknown error -12": (CauseKind.MEMLOCK, "LimitMEMLOCK"),
    "Call to accept failed: Too many open files": (CauseKind.OPEN_FILES, "ulimit -n"),
    "Cuda failure 'uncorrectable ECC error encountered'": (CauseKind.GPU_MEMORY, "ROW_REMAPPER"),
    "Cuda failure 2 'out of memory'": (CauseKind.OUT_OF_MEMORY, "NCCL_BUFFSIZE"),
    "Cuda failure 'out of memory'": (CauseKind.OUT_OF_MEMORY, "cache"),
    "Cuda failure 802 'system not yet initialized'": (CauseKind.CUDA, "nvidia-fabricmanager"),
    "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'": (CauseKind.CUDA, "driver"),
    "Cuda failure 700 'an illegal memory access was encountered'": (CauseKind.CUDA, "xid"),
    "Mismatched NCCL version detected : rank 1 version 22705 rank 0 version 22703": (
        CauseKind.VERSION_MISMATCH,
        "same NCCL",
    ),
    "Message truncated : received 256 bytes instead of 4": (CauseKind.MISMATCH, "same order"),
    "NET/IB : req 0/1 tag 0 peer a<1> collective mismatch error, local size 496640 remote size 65536": (
        CauseKind.MISMATCH,
        "NCCL_PROTO",
    ),
    "Bootstrap : no socket interface found": (CauseKind.INVALID_SETTING, "NCCL_SOCKET_IFNAME"),
    "Error: network Foo not found.": (CauseKind.INVALID_SETTING, "NCCL_NET"),
    "socketPollConnect: Connect to 10.0.0.1<4000> returned 113(No route to host) errno 11": (
        CauseKind.BOOTSTRAP_TIMEOUT,
        "firewall",
    ),
    "socketProgress: Connection closed by remote peer node2<42830>": (CauseKind.PEER_GONE, "another rank"),
    "Net : Call to recv from 10.0.0.1<5> failed : Connection reset by peer": (
        CauseKind.PEER_GONE,
        "earliest",
    ),
    "NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive receiver": (
        CauseKind.RDMA_TRANSPORT,
        "efa",
    ),
}


@pytest.mark.parametrize("text", FAILURES)
def test_well_known_failures_are_named(text: str) -> None:
    kind, words = FAILURES[text]

    cause = said(text, place="src/some.cc:1").cause

    assert cause is not None
    assert (cause.kind, words in cause.advice) == (kind, True)


def test_words_of_torch_and_mpi_tell_too() -> None:
    watchdog = parse(
        "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout"
        ": WorkNCCL(SeqNum=5)\n"
        "NCCL version 2.21.5+cuda12.4\n"
    )
    error = parse(
        "NCCL version 2.26.2+cuda12.2\n[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77\n"
        "[rank1]: ncclRemoteError: A call failed possibly due to a network error\n"
        "[rank1]: Last error:\n[rank1]: socketPollConnect: connect returned Connection refused, exceeded"
        " error retry count"
    )

    assert watchdog.cause is not None
    assert watchdog.cause.kind is CauseKind.WATCHDOG
    assert error.cause is not None
    assert (error.cause.kind, error.cause.code) == (CauseKind.BOOTSTRAP_TIMEOUT, 6)


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        (
            "[rank1]:[E101 10:00:00.0 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600010 milliseconds before timing out.",
            CauseKind.WATCHDOG,
            None,
        ),
        (
            "step 1\ntorch.distributed.DistBackendError: NCCL error in: ../torch/ProcessGroupNCCL.cpp:1970, unhandled"
            " system error (run with NCCL_DEBUG=INFO for details)",
            CauseKind.OTHER,
            2,
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: NCCL operation ncclCommInitRank(&comm, 2) failed:"
            " unhandled cuda error. Last NCCL warning: NCCL error in ...",
            CauseKind.OTHER,
            1,
        ),
    ],
)
def test_what_a_framework_says_is_a_log_without_a_line_of_nccl(
    text: str, kind: CauseKind, code: int | None
) -> None:
    log = parse(text)

    assert KINDS[0].recognise(text)
    assert log.cause is not None
    assert (log.cause.kind, log.cause.code) == (kind, code)
    assert (log.version, log.ranks, log.hosts) == (None, None, ())


def test_the_root_counts_not_what_comes_first() -> None:
    text = (
        "a:1:1 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer b<1>\n"
        "a:1:1 [0] NCCL INFO misc/socket.cc:58 -> 6\n"
        "b:2:2 [1] transport/net_ib.cc:1 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
        "b:2:2 [1] NCCL INFO transport/net_ib.cc:2 -> 2\n"
    )

    cause = parse(text).cause

    assert cause is not None
    assert (cause.kind, cause.line, cause.code, cause.hosts) == (CauseKind.MEMLOCK, 3, 2, ("b",))


def test_a_warning_alone_is_no_failure_and_with_an_error_of_its_thread_it_is() -> None:
    warning = "a:1:1 [0] foo.cc:1 NCCL WARN Something never seen before"

    assert parse(warning).cause is None
    cause = parse(warning + "\na:1:1 [0] NCCL INFO foo.cc:2 -> 3").cause
    assert cause is not None
    assert (cause.kind, cause.code) == (CauseKind.OTHER, 3)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        " 0: ",
        "12: ",
        "[1,3]<stdout>:",
        "[0] ",
        "[rank0]:",
        "[default0]:",
        "worker-0: ",
        "[2026-04-22 21:34:20] ",
        "2024-05-01T10:20:30.123456789Z ",
        "[pod/job-worker-1/main] ",
        "\x1b[32m",
        "gpu-worker-1: [rank3]: ",
        "2025-03-11T10:00:00.000000000Z stdout F ",
        "(RayTrainWorker pid=41312, ip=10.0.23.7) ",
        "(train rank=3 pid=41312) ",
        "[rank=3] || ",
    ],
)
def test_labels_of_launchers_are_taken_off(prefix: str) -> None:
    line = f"{prefix}node01:42:43 [0] NCCL INFO Using network IB"

    assert log_lines(line) == [LogLine(1, "Using network IB", "INFO", "node01", "42", "43")]
    assert unlabelled(" 0: NCCL version 2.12.10+cuda11.6") == "NCCL version 2.12.10+cuda11.6"


def test_lines_cut_and_glued_are_taken_apart() -> None:
    text = (
        "node01:1:1 [0] NCCL INFO Using network Socket\n"
        "node01:2:2node01:3:3 [2] NCCL INFO Ring 00 : 1 -> 2 -> 3\n"
        "node01:4:4 [1] NCCL INFO comm 0x55node01:5:5 [1] foo.cc:3 NCCL WARN Bad\n"
        "     float     sumnode01:6:6 [5] NCCL INFO AllReduce: opCount 0\n"
    )

    read = [(line.host, line.process, line.level, line.text, line.place) for line in log_lines(text)]

    assert read[1:] == [
        ("", "", "", "node01:2:2", ""),
        ("node01", "3", "INFO", "Ring 00 : 1 -> 2 -> 3", ""),
        ("node01", "4", "INFO", "comm 0x55", ""),
        ("node01", "5", "WARN", "Bad", "foo.cc:3"),
        ("", "", "", "     float     sum", ""),
        ("node01", "6", "INFO", "AllReduce: opCount 0", ""),
    ]


def test_a_function_may_stand_where_a_file_does() -> None:
    line = "n:1:2 [0] int cm_req(nccl_ctx*, fid_cq*, uint16_t):46 NCCL WARN NET/OFI Request completed with error. RC: 1"

    read = log_lines(line)[0]

    assert (read.level, read.place) == ("WARN", "int cm_req(nccl_ctx*, fid_cq*, uint16_t):46")


def test_choices_are_counted_in_the_words_of_any_version() -> None:
    log = said(
        "AllReduce: 64 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3}",
        "AllReduce: 64 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3}",
        "AllGather: 64 Bytes -> Algo 1 proto 2 time 12.5",
        "64 Bytes -> Algo 0 proto 0 time 49.675526",
    )

    assert log.choices == (("AllReduce TREE LL", 2), ("AllGather RING SIMPLE", 1), ("TREE LL", 1))


def test_ways_between_ranks_are_counted_without_their_devices() -> None:
    log = said(
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/3(5)/GDRDMA/Shared",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0",
        "Channel 00 : 1[1] -> 0[0] via SHM/direct/direct",
        "Channel 01/0 : 0[0] -> 1[1] via P2P/direct pointer comm 0x55 nRanks 08",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read",
        "Ring 00 : 3 -> 0 [receive] via NET/IB/0/GDRDMA",
        "Ring 00 : 0 -> 1 -> 2",
    )

    assert dict(log.transports) == {
        "NET/AWS Libfabric/GDRDMA": 1,
        "NET/Socket": 1,
        "SHM/direct/direct": 1,
        "P2P/direct pointer": 1,
        "P2P/IPC/read": 1,
        "NET/IB/GDRDMA": 1,
    }


def test_lists_of_devices_in_other_layouts() -> None:
    rails = said("NET/IB : Using [0]mlx5_0:1:2:0/RoCE [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>")
    merged = said("NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [RO]; OOB eth0:10.0.0.1<0>")

    assert [(nic.index, nic.name, nic.kind, nic.port) for nic in rails.nics] == [
        (0, "mlx5_0", "RoCE", 1),
        (1, "mlx5_1", "IB", 1),
    ]
    assert [nic.name for nic in merged.nics] == ["mlx5_0", "mlx5_1"]
    assert rails.out_of_band == "eth0"


def test_interfaces_without_an_address_are_listed_too() -> None:
    nics = log_of("a100-sockets-without-addresses.log").nics

    assert [(nic.name, nic.kind, nic.address) for nic in nics] == [
        (name, "Socket", None) for name in ("ibp5s0", "ibp70s0", "ibp140s0", "ibp212s0")
    ]


def test_devices_that_old_versions_list_one_a_line_are_one_list() -> None:
    # NCCL 2.3.7, horovod/horovod#1097
    log = said(
        "NET/IB : Using interface ib0 for sideband communication",
        "NET/IB: [0] mlx5_0:1/IB",
        "NET/IB: [1] mlx5_1:1/RoCE",
        "NET/IB: [0] mlx5_0:1/IB",
        "Using internal Network IB",
    )

    assert [(nic.index, nic.name, nic.kind) for nic in log.nics] == [
        (0, "mlx5_0", "IB"),
        (1, "mlx5_1", "RoCE"),
    ]
    assert log.network == "IB"


def test_plugins_of_clouds_list_their_devices_like_nccl() -> None:
    rdma = said(
        "NET/gIB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.128.0.12<0>",
        "NET/gIB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        "Using network gIB",
    )
    sockets = said("NET/GPUDirectTCPX : Using [0]eth1:10.0.1.2<0> [1]eth2:10.0.2.2<0>")

    assert [(nic.name, nic.kind, nic.gpu_direct) for nic in rdma.nics] == [
        ("mlx5_0", "RoCE", True),
        ("mlx5_1", "RoCE", None),
    ]
    assert (rdma.network, rdma.out_of_band) == ("gIB", "eth0")
    assert [(nic.name, nic.kind, nic.address) for nic in sockets.nics] == [
        ("eth1", "Socket", "10.0.1.2"),
        ("eth2", "Socket", "10.0.2.2"),
    ]
    assert not said("NET/OFI : No device found").finds_no_rdma


def test_objects_that_docker_keeps_are_read_as_the_lines_within() -> None:
    lines = [
        "node01:42:43 [0] NCCL INFO Using network IB\n",
        "node01:42:43 [0] net_ib.cc:788 NCCL WARN NET/IB : Got completion with error 12\n",
        "",
    ]
    kept = [json.dumps({"log": line, "stream": "stdout", "time": "2025-03-11T10:00:00Z"}) for line in lines]
    text = "\n".join([*kept, '{"log":"cut off', "plain"])

    log = parse(text.replace('{"log": "', '{"log":"'))

    assert log.network == "IB"
    assert log.cause is not None
    assert (log.cause.line, log.cause.text) == (2, "NET/IB : Got completion with error 12")
    assert KINDS[0].recognise(text)


def test_gpu_direct_is_told_card_by_card() -> None:
    log = said(
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10.0.0.1<0>",
        "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        "NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'",
        "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
    )

    assert [nic.gpu_direct for nic in log.nics] == [True, False]


def test_values_that_nccl_refuses_are_kept() -> None:
    log = said(
        "Invalid NCCL_NTHREADS 100 (must be a multiple of 32)",
        "Invalid value 99999999999999999999 for NCCL_BUFFSIZE, using default -2.",
        "NCCL_MIN_CTAS 0 is too low, leaving it set at 1",
        "minCTAs 65 is larger than #channels upper limit 64",
        "NCCL_NTHREADS set by environment to 100.",
    )

    assert len(log.refused_settings) == 4
    assert [(setting.name, setting.value) for setting in log.settings] == [("NCCL_NTHREADS", "100")]


def test_plugins_that_were_not_asked_for_are_not_missed() -> None:
    silent = said(
        "NET/Plugin: Could not find: libnccl-net.so",
        "TUNER/Plugin: Could not find: libnccl-tuner.so",
        "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
        "NET/Plugin : Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or"
        " directory : when loading libnccl-net.so",
    )
    missed = said(
        "NCCL_TUNER_PLUGIN set by environment to libnccl-tuner-mine.so",
        "TUNER/Plugin: Could not find: libnccl-tuner-mine.so",
        "NET/Plugin: libnccl-net.so: libcudart.so.11.0: cannot open shared object file: No such file or directory",
        "NET/Plugin: libnccl-net-ofi.so: /opt/lib/libnccl-net-ofi.so: undefined symbol: fi_getinfo",
    )

    assert silent.failed_plugins == ()
    assert [text.split(":")[0] for text in missed.failed_plugins] == [
        "net plugin libnccl-net.so",
        "net plugin libnccl-net-ofi.so",
        "tuner plugin libnccl-tuner-mine.so",
    ]


def test_a_plugin_that_declines_is_not_loaded_either() -> None:
    log = said(
        "NET/OFI Only EFA provider is supported", "NET/OFI aws-ofi-nccl initialization failed", place="f():1"
    )

    assert log.failed_plugins == ("net plugin aws-ofi-nccl: initialization failed",)
    assert log.cause is None


def test_a_plugin_without_a_provider_has_given_up_and_one_without_gpudirect_has_not() -> None:
    alone = said("NET/OFI Could not find any optimal provider", place="get_ofi_provider():312")
    without = said("NET/OFI Could not find any optimal provider supporting GPUDirect RDMA", place="f():1")

    assert alone.failed_plugins == ("net plugin aws-ofi-nccl: could not find any optimal provider",)
    assert without.failed_plugins == ()


def test_two_versions_in_one_log_are_both_named() -> None:
    log = parse("NCCL version 2.21.5+cuda12.4\nNCCL version 2.21.5+cuda12.4\nNCCL version 2.20.3+cuda12.4\n")

    assert (log.version, log.versions) == ("2.21.5+cuda12.4", ("2.21.5+cuda12.4", "2.20.3+cuda12.4"))


def test_a_text_without_nccl_is_refused() -> None:
    with pytest.raises(InputError, match="NCCL_DEBUG=INFO"):
        parse("hello\nworld\n", file="x.log")


def test_only_logs_are_taken_for_logs() -> None:
    taken = [
        file.name
        for file in beside_the_repository(".")
        if KINDS[0].recognise(text_of(file)[:262_144]) and file.parent.name not in ("nccl-logs", "nccl-tests")
    ]

    assert taken == []


@pytest.mark.parametrize("file", LOGS, ids=lambda file: file.name)
def test_every_recorded_log_is_recognised(file) -> None:  # type: ignore[no-untyped-def]
    assert KINDS[0].recognise(text_of(file)) is True


_LINES = [line for file in LOGS for line in text_of(file).split("\n")[:40]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(_LINES), st.text(max_size=60)), max_size=30),
    st.integers(0, 400),
    st.sampled_from(["\n", "", "\r\n", "\0", " "]),
)
def test_any_mixture_gives_a_log_or_an_input_error(lines: list[str], cut: int, joint: str) -> None:
    text = joint.join(lines)[cut:]

    try:
        read: object = parse(text)
    except InputError as error:
        read = error

    assert isinstance(read, (NcclLog, InputError))


@pytest.mark.parametrize(
    "text",
    [
        "a" * 5_000_000,
        ":1:1 [0] " * 550_000,
        "host:1:1 [0] NCCL INFO " * 200_000,
        (":1:1 [0] " * 1_700 + "\n") * 300,
        "\n" * 5_000_000,
        "h:1:1 [0] x.cc:1 NCCL WARN Got completion from peer with error\n" * 75_000,
        "9" * 5_000_000,
    ],
    ids=[
        "one word",
        "half prefixes",
        "one line of prefixes",
        "lines of prefixes",
        "empty",
        "warnings",
        "digits",
    ],
)
def test_hostile_texts_cost_little(text: str) -> None:
    start = time.process_time()

    try:
        parse(text)
    except InputError:
        pass

    # One second is the promise; the rest is room for a slow machine.
    assert time.process_time() - start < 4


_CHATTER = "node01:42:43 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
_FAILURE = (
    "node07:4242:4243 [3] transport/net_ib.cc:788 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0",
    "node07:4242:4243 [3] NCCL INFO transport/net.cc:537 -> 6",
    "node07:4242:4243 [3] NCCL INFO transport.cc:163 -> 6 [Proxy Thread]",
)


@pytest.mark.parametrize("behind", [0, TAIL_LINES + 1_000], ids=["at the end", "in the middle"])
def test_a_failure_is_found_wherever_in_a_long_log_it_is(behind: int) -> None:
    lines = [_CHATTER] * (HEAD_LINES + TAIL_LINES) + [*_FAILURE] + [_CHATTER] * behind

    log = parse("\n".join(lines))

    assert log.cause is not None
    assert (log.cause.kind, log.cause.hosts) == (CauseKind.RDMA_TRANSPORT, ("node07",))
    assert log.cause.code_name == "ncclRemoteError"
    assert log.cause.line == HEAD_LINES + TAIL_LINES + 1


def test_what_is_passed_over_in_a_long_log_is_told() -> None:
    lines = HEAD_LINES + TAIL_LINES + 5

    _, problems = KINDS[0].document(("\n" + _CHATTER) * (lines - 1), "job.log")  # type: ignore[misc]

    assert [f"of {lines} lines only the first {HEAD_LINES}" in problem for problem in problems] == [True]


def test_other_lines_in_the_middle_of_a_long_log_are_kept_to_a_number() -> None:
    lines = ["step 1 loss 3.25"] * (HEAD_LINES + 60_000) + ["[rank3]: Watchdog caught a timeout"]
    text = "\n".join(lines + [_CHATTER] * TAIL_LINES)

    numbers = [number for number, _ in raw_lines(text)]

    assert numbers == sorted(numbers)
    assert len(lines) in numbers
    assert len(numbers) == HEAD_LINES + 50_000 + 1 + TAIL_LINES
