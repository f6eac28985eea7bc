"""PyTorch profiler traces."""

from __future__ import annotations

import gzip
import json

import pytest
from golden_facts import FACTS
from hypothesis import given, settings
from saved_file_trials import beginning, damaged, huge, read_or_refused

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import TraceSummary
from topo_tune.scan.documents.traces import parse, recognise

FILES = {file.name.removesuffix(".json.gz"): file for file in sorted((FACTS / "traces").glob("*.json.gz"))}

SEND_RECEIVE = (("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 10),)


def text_of(name: str) -> str:
    return gzip.decompress(FILES[name].read_bytes()).decode()


def trace(*events: object, **info: object) -> str:
    return json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events})


def kernel(name: str, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 1, "dur": 1, "args": args}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hta-sampled-rank0", TraceSummary(0, 128, "nccl", 4855, SEND_RECEIVE, 10, False)),
        ("hta-sampled-rank1", TraceSummary(1, 128, "nccl", 4720, SEND_RECEIVE, 10, False)),
        (
            "hta-nccl-metadata-rank0",
            TraceSummary(
                0,
                2,
                "nccl",
                40573,
                (
                    ("ncclKernel_AllReduce_RING_LL_Sum_float", 15),
                    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", 6),
                ),
                21,
                True,
            ),
        ),
        ("hta-no-rank", TraceSummary(None, None, "nccl", 2467, (), 6, False)),
        ("hta-base-rank1", TraceSummary(1, None, None, 33, (), 2, False)),
    ],
)
def test_what_its_files_have_of_nccl(name: str, expected: TraceSummary) -> None:
    assert parse(text_of(name), name) == (expected, ())


@pytest.mark.parametrize("name", FILES)
def test_its_files_are_recognised(name: str) -> None:
    assert recognise(beginning(text_of(name)))


@pytest.mark.parametrize(
    ("name", "called"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("void ncclDevKernel_Generic_4(ncclDevComm*)", "ncclDevKernel_Generic_4"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "ncclKernel_Broadcast_RING_LL_Sum_int8_t"),
    ],
)
def test_kernels_are_called_without_their_arguments(name: str, called: str) -> None:
    assert parse(trace(kernel(name), kernel("gemm")), "x")[0].kernels == ((called, 1),)


def test_sizes_may_be_on_the_operation_that_starts_the_kernel() -> None:
    operation = {"cat": "cpu_op", "name": "record_param_comms", "args": {"In msg nelems": 8}}
    other = {"cat": "cpu_op", "name": "aten::add", "args": {"In msg nelems": 8}}

    assert parse(trace(operation), "x")[0].has_message_sizes
    assert not parse(trace(other), "x")[0].has_message_sizes


def test_a_list_of_events_is_a_trace() -> None:
    text = json.dumps([kernel("ncclKernel_AllGather")])

    assert recognise(text)
    assert parse(text, "x")[0].kernels == (("ncclKernel_AllGather", 1),)


def test_words_that_json_has_not_are_passed_over() -> None:
    text = trace(kernel("ncclKernel_AllGather", occupancy=float("nan"), load=float("inf")), rank=0)

    assert "NaN" in text
    assert parse(text, "x")[0].rank == 0


def test_odd_ranks_and_names_are_unknown() -> None:
    found, _ = parse(
        trace({"name": 7}, {"cat": ["kernel"], "name": "nccl"}, rank="zero", world_size=-1, backend=3), "x"
    )

    assert (found.rank, found.world_size, found.backend, found.events) == (None, None, None, 2)


def test_a_trace_that_is_cut_off_says_so() -> None:
    with pytest.raises(InputError, match="is a profiler trace that is cut off"):
        parse(text_of("hta-sampled-rank0")[:100_000], "trace.json")


def test_json_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match="is no profiler trace"):
        parse('{"traceEvents": {}}', "trace.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        "[]",
        "[1, 2]",
        '{"distributedInfo": {}}',
        "{",
        'x {"traceEvents": []}',
        '{"name": "schemaVersion"}',
    ],
)
def test_other_json_is_not_recognised(text: str) -> None:
    assert not recognise(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": ['
        + huge('{"name": "ncclKernel_A", "cat": "kernel", "args": {"a": [1]}},')[1]
        + "{}]}",
        '{"traceEvents": [' + huge("[")[1],
        '{"traceEvents": [' + huge('{"name": ')[1],
        '{"traceEvents": [], "a": ' + huge("NaN ")[1],
        huge("{")[1],
        " " * 5_000_000,
    ],
    ids=lambda text: f"{text[:40]!r}-{len(text)}",
)
def test_five_megabytes_are_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    read = read_or_refused(parse, text)

    assert read is None or isinstance(read[0], TraceSummary)


@settings(max_examples=60, deadline=None)
@given(
    damaged(
        [text_of("hta-base-rank1"), text_of("hta-no-rank")[:20_000], trace(kernel("ncclKernel_A"), rank=0)]
    )
)
def test_any_text_is_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    read = read_or_refused(parse, text)

    assert read is None or isinstance(read[0], TraceSummary)
