"""From a collector's answer to a NodeScan: pure, and safe against whatever an answer holds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_answers import MATRIX, QUERY, command, raw_answer

from topo_tune.errors import InputError
from topo_tune.records.scan import RDMA_DEVICE_FILES, Absent, NodeScan
from topo_tune.scan.answer import node_scan_from_raw, with_facts
from topo_tune.scan.facts.fact import Fact, Gathered

NOT_ASKED = Absent("facts of a later topo-tune", "this collector was not asked for them")


def scan(**changes: Any) -> NodeScan:
    return node_scan_from_raw("n1", raw_answer(**changes))


def test_an_answer_becomes_the_scan_of_the_node_that_was_asked() -> None:
    node = scan()

    assert (node.node, node.hostname, node.operating_system) == ("n1", "node01", "Ubuntu 24.04 LTS")
    assert (node.gpu_source, node.driver, node.cuda_driver) == ("nvidia-smi", "580.159", "13.0")
    assert [gpu.numa_node for gpu in node.gpus] == [None, 1]
    assert node.matrix is not None
    assert node.matrix.link("GPU0", "mlx5_0") == "PIX"
    assert (node.cpu.vendor, node.cpu.sockets, node.cpu.threads) == ("GenuineIntel", 2, 224)
    assert (node.memory_bytes, node.numa[0].memory_bytes) == (1024 * 1024, 512 * 1024)
    assert [(nic.name, nic.kind) for nic in node.nics] == [("mlx5_0", "infiniband"), ("eth0", "ethernet")]
    assert (node.torch, node.torch_nccl, node.nccl_libraries[0].version) == ("2.11.0", "2.28.9", "2.27.3")
    assert [file.exists for file in node.nccl_files] == [False, True]
    assert "space around the name" in node.nccl_files[1].problems[0]
    assert node.absent == (Absent("NVML", "no pynvml"), NOT_ASKED)


def test_what_nvml_tells_of_gpus_goes_before_what_nvidia_smi_tells() -> None:
    gpu = {"index": 0, "name": "NVIDIA B200", "pci_bus_id": "00000000:2A:00.0", "memory_bytes": 5}

    node = scan(nvml={"driver": "590.1", "cuda_driver": None, "gpus": [gpu]})

    assert (node.gpu_source, node.driver, node.cuda_driver) == ("nvml", "590.1", "13.0")
    assert (node.gpus[0].name, node.gpus[0].numa_node) == ("NVIDIA B200", 1)


def test_a_node_without_a_driver_has_no_gpus_and_says_why() -> None:
    failed = command("", 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")

    node = scan(nvidia_smi={"topology": failed, "query": failed, "header": failed})

    assert (node.gpus, node.gpu_source, node.matrix, node.driver) == ((), None, None, None)
    assert {absent.what for absent in node.absent} >= {"GPUs", "topology matrix"}
    assert "exited with status 9: NVIDIA-SMI has failed" in node.absent[-2].reason


def test_a_matrix_that_cannot_be_read_is_absent_with_the_parsers_reason() -> None:
    node = scan(nvidia_smi={"topology": command("Failed to run topology matrix\n"), "query": command("")})

    reasons = {absent.what: absent.reason for absent in node.absent}
    assert "expected a header line" in reasons["topology matrix"]


def test_what_cannot_be_read_of_a_matrix_is_told_among_what_was_not_seen() -> None:
    torn = command(MATRIX.replace("NV18", "QUX"))

    node = scan(nvidia_smi={"topology": torn, "query": command(QUERY)})

    assert (
        Absent("part of the topology matrix", "line 2: GPU0 to GPU1: `QUX`, which is no link") in node.absent
    )


def test_rdma_devices_that_the_session_may_not_open_are_said() -> None:
    network = {**raw_answer()["network"], "rdma_files": []}

    assert RDMA_DEVICE_FILES in [absent.what for absent in scan(network=network).absent]


def test_hardware_that_is_not_this_machines_own_is_said() -> None:
    absent = scan(sys="/srv/fake/sys").absent[-2]

    assert (absent.what, absent.reason) == (
        "this machine's own hardware",
        "read from /proc and /srv/fake/sys instead",
    )


def test_a_probe_that_told_nothing_leaves_its_facts_unknown() -> None:
    raw = {name: part for name, part in raw_answer().items() if not isinstance(part, dict)}

    node = node_scan_from_raw("n1", raw)

    assert (node.gpus, node.nics, node.cpu.threads, node.torch) == ((), (), 0, None)


def test_characters_that_drive_a_terminal_do_not_reach_the_record() -> None:
    node = scan(hostname="node\x1b[2J01", python="3.12 \udcff")

    assert node.hostname == "node\N{REPLACEMENT CHARACTER}[2J01"
    assert msgspec.json.encode(node)


def test_facts_are_told_where_their_questions_were_asked() -> None:
    gathered = {"commands": [], "files": [], "environment": []}

    assert NOT_ASKED not in scan(gathered=gathered).absent


def test_a_fact_that_cannot_understand_its_answer_is_absent_and_the_next_one_is_told() -> None:
    def fails(_scan: NodeScan, _gathered: Gathered) -> NodeScan:
        raise InputError("expected a table")

    def tells(scan: NodeScan, _gathered: Gathered) -> NodeScan:
        return msgspec.structs.replace(scan, hostname="told")

    node = with_facts(scan(), Gathered(), (Fact("links", fails), Fact("name", tells)))

    assert node.hostname == "told"
    assert node.absent[-1] == Absent("links", "expected a table")


def test_only_nccl_variables_are_taken_from_an_answers_environment() -> None:
    assert scan(environment=[["HOME", "/root"], ["NCCL_NET", "IB"]]).nccl_environment == (("NCCL_NET", "IB"),)


def test_the_key_of_nccls_encryption_is_in_no_record() -> None:
    files = {"files": [{"path": "/etc/nccl.conf", "exists": True, "text": "NCCL_PSK=hunter2\n"}]}

    node = scan(environment=[["NCCL_PSK", "hunter2"]], files=files)

    assert node.nccl_environment == (("NCCL_PSK", "(not kept)"),)
    assert "hunter2" not in str(node)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "something"}, "this is no collector's answer"),
        ({"version": 7}, "of version 7, and this topo-tune reads version 1"),
        ({"hostname": 3}, r"Expected `str`, got `int` - at `\$.hostname`"),
        ({"numa": {"nodes": [{"index": -1}]}}, r"at `\$.numa.nodes\[0\].index`"),
        ({"seconds": float("nan")}, "damaged"),
    ],
)
def test_an_answer_of_the_wrong_shape_is_refused_with_the_place(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        scan(**changes)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(part=st.sampled_from(sorted(raw_answer())), key=st.text(max_size=10), value=VALUES)
def test_any_answer_gives_a_record_that_can_be_saved_or_a_refusal(part: str, key: str, value: Any) -> None:
    raw = raw_answer()
    raw[part] = {**raw[part], key: value} if isinstance(raw[part], dict) else value

    try:
        node = node_scan_from_raw("n1", json.loads(json.dumps(raw)))
    except InputError:
        return

    assert msgspec.json.decode(msgspec.json.encode(node), type=NodeScan) == node
