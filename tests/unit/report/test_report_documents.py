"""What a saved file says, in a line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topo_tune.records.nccl_documents import (
    CauseKind,
    LogCause,
    MeasuredRow,
    MeasuredRun,
    MeasuredTime,
    NcclLog,
    NcclTests,
    TopologyFile,
)
from topo_tune.report.documents import summary

LOG = NcclLog("NCCL", "2.28.9", (), None, None, None)
RUN = MeasuredRun(2, (), (), None, "all_reduce", None, (), None, None, None)
XML = TopologyFile("unknown", None, (), (), (), 0, 0, 9, None)


def log(cause: LogCause | None) -> NcclLog:
    return msgspec.structs.replace(LOG, cause=cause)


def measured(*rows: MeasuredRow) -> NcclTests:
    return NcclTests((msgspec.structs.replace(RUN, rows=rows),))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (log(None), "NCCL 2.28.9"),
        (log(LogCause(CauseKind.NVLS, 1, "x")), "NCCL 2.28.9; failed: NVLS multicast setup failed"),
        (
            log(LogCause(CauseKind.RDMA_DEVICES, 1, "x", is_fatal=False)),
            "NCCL 2.28.9; went on despite: RDMA devices cannot be opened",
        ),
        (measured(), "all_reduce: 2 ranks, no row"),
        (
            measured(MeasuredRow(8, 2, "float", None, None, None, None)),
            "all_reduce: 2 ranks, 1 row",
        ),
        (
            measured(MeasuredRow(8, 2, "float", None, None, MeasuredTime(1, 2, 3.5, 0), None)),
            "all_reduce: 2 ranks, 1 row, best busbw 3.5 GB/s",
        ),
        (XML, "GPUs and NICs unknown, 0 NUMA nodes, 9 PCI devices without a class"),
        (msgspec.structs.replace(XML, unclassified=0), "0 GPUs, 0 NICs, 0 NUMA nodes"),
    ],
)
def test_a_file_is_told_by_what_it_holds(body: Any, text: str) -> None:
    assert summary(body) == text
