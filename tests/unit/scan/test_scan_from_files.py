"""The scan that saved files tell."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest
from golden_facts import FACTS, beside_the_repository
from raw_answers import MATRIX, QUERY, raw_answer

from topo_tune.connect.program import MARKER
from topo_tune.errors import InputError
from topo_tune.scan.from_files import scan_from


def test_one_matrix_is_one_node_named_by_its_file() -> None:
    (node,) = scan_from(FACTS / "smi-topo/l40s-4gpu-2nic.txt").nodes

    assert node.node == "l40s-4gpu-2nic"
    assert node.matrix is not None
    assert node.matrix.nics == ("mlx5_0", "mlx5_1")


def test_what_the_files_do_not_tell_is_absent_and_said() -> None:
    (node,) = scan_from(FACTS / "smi-topo/l40s-4gpu-2nic.txt").nodes

    assert {absent.reason for absent in node.absent} == {"not in the saved files"}
    assert node.python == "none: read from saved files"


def test_a_matrix_that_is_cut_off_is_told_among_what_was_not_seen() -> None:
    (node,) = scan_from(FACTS / "smi-topo/gb200-4gpu-6nic-truncated.txt").nodes

    reasons = {absent.what: absent.reason for absent in node.absent}
    assert reasons["part of the topology matrix"].startswith("the matrix is incomplete: no row for GPU3")


def test_a_folder_per_node_puts_its_files_together(tmp_path: Path) -> None:
    (tmp_path / "gpu001").mkdir()
    (tmp_path / "gpu001/topo.txt").write_text(MATRIX)
    (tmp_path / "gpu001/gpus.csv").write_text(QUERY)
    (tmp_path / "gpu001/nccl.conf").write_text("NCCL_ALGO=Ring\n")
    (tmp_path / "gpu002.txt").write_text(MATRIX)

    first, second = scan_from(tmp_path, cluster="c").nodes

    assert (first.node, second.node) == ("gpu001", "gpu002")
    assert (first.driver, len(first.gpus)) == ("580.159", 2)
    assert first.nccl_files[0].path == "gpu001/nccl.conf"
    assert first.nccl_files[0].sha256 is not None


def test_a_saved_answer_of_the_collector_is_the_whole_node(tmp_path: Path) -> None:
    (tmp_path / "gpu001.json").write_text(json.dumps(raw_answer()))

    (node,) = scan_from(tmp_path).nodes

    assert (node.node, node.hostname, node.torch_nccl) == ("gpu001", "node01", "2.28.9")


def test_a_saved_session_with_a_greeting_before_the_answer_is_read(tmp_path: Path) -> None:
    (tmp_path / "gpu001.log").write_text("Welcome!\n" + MARKER + json.dumps(raw_answer()) + "\n")

    assert scan_from(tmp_path / "gpu001.log").nodes[0].hostname == "node01"


def test_a_second_matrix_of_a_node_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/a.txt").write_text(MATRIX)
    (tmp_path / "n1/b.txt").write_text(MATRIX)

    (node,) = scan_from(tmp_path).nodes

    assert ("n1/b.txt", "left out: this node has one already, from another file") in [
        (absent.what, absent.reason) for absent in node.absent
    ]


def test_files_of_different_tools_beside_each_other_are_one_node_named_by_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "gpu007"
    folder.mkdir()
    (folder / "topo.txt").write_text(MATRIX)
    (folder / "query.csv").write_text(QUERY)
    (folder / "nccl.conf").write_text("NCCL_ALGO=Ring\n")
    (folder / "notes.md").write_text("looked fine on Monday\n")

    (node,) = scan_from(folder).nodes

    assert (node.node, len(node.gpus), node.nccl_files[0].path) == ("gpu007", 2, "nccl.conf")
    assert ("notes.md", "not read: its content is of no known kind") in [
        (absent.what, absent.reason) for absent in node.absent
    ]


@pytest.mark.parametrize("pattern", ["{node}-{tool}.txt", "{tool}_{node}.txt", "dump.{node}.{tool}.txt"])
def test_files_of_many_nodes_in_one_folder_are_sorted_by_the_nodes_name(tmp_path: Path, pattern: str) -> None:
    for node in ("gpu-001", "gpu-002"):
        for tool, text in (("topo", MATRIX), ("query", QUERY)):
            (tmp_path / pattern.format(node=node, tool=tool)).write_text(text)

    first, second = scan_from(tmp_path).nodes

    assert first.node.endswith("gpu-001")
    assert second.node.endswith("gpu-002")
    assert len(first.gpus) == len(second.gpus) == 2
    assert first.matrix is not None


def test_the_same_tool_twice_is_two_nodes_named_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "left.txt").write_text(MATRIX)
    (tmp_path / "right.txt").write_text(MATRIX)

    assert [node.node for node in scan_from(tmp_path).nodes] == ["left", "right"]


def test_packed_and_utf16_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "n1.txt.gz").write_bytes(gzip.compress(MATRIX.encode()))
    (tmp_path / "n2.txt").write_bytes(MATRIX.encode("utf-16"))

    assert all(node.matrix is not None for node in scan_from(tmp_path).nodes)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04....", "a zip archive: unpack it first"),
        (b"\x7fELF....", "a program or library"),
        (b"\x1f\x8b\x08garbage", "damaged gzip data"),
        (b"\0" * 257 + b"ustar\x0000" + b"\0" * 250, "a tar archive: unpack it first"),
        (b"=== ROCm System Management Interface ===\nGPU[0] : x\n", "output of AMD's tools"),
        (b"<!DOCTYPE html>\n<html></html>\n", "a web page"),
    ],
)
def test_what_is_no_dump_is_refused_by_name(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "n1.txt").write_bytes(data)

    with pytest.raises(InputError, match=reason):
        scan_from(tmp_path / "n1.txt")


def test_a_node_none_of_whose_files_can_be_read_is_missing(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(MATRIX)
    (tmp_path / "n2.txt").write_text("nothing of use\n")
    (tmp_path / "n3").mkdir()

    found = scan_from(tmp_path)

    assert [(gone.node, gone.reason) for gone in found.missing] == [
        ("n2", "n2.txt: not read: its content is of no known kind"),
        ("n3", "an empty folder"),
    ]


def test_a_truncated_answer_of_the_collector_is_a_reason_and_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "n1.json").write_text(json.dumps(raw_answer())[:-20])

    with pytest.raises(InputError, match=r"n1.json: a collector's answer that is no JSON"):
        scan_from(tmp_path)


def test_a_path_with_nothing_to_read_is_refused_with_every_files_reason(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "b.txt").write_text("")
    os.mkfifo(tmp_path / "c")

    with pytest.raises(InputError) as caught:
        scan_from(tmp_path)

    message = str(caught.value)
    assert "a.txt: not read: its content is of no known kind" in message
    assert "b.txt: is empty" in message
    assert "c: is not an ordinary file" in message
    assert "hint: kinds of files that are read: a collector's answer, " in message


@pytest.mark.parametrize("line", ["NVIDIA ", "GPU0 ", "\n", " ", "export ", "GPU0 X ", "index, name"])
def test_a_large_file_of_one_word_takes_no_time_to_refuse(tmp_path: Path, line: str) -> None:
    (tmp_path / "n1.txt").write_text(line * ((4 << 20) // len(line)))

    with pytest.raises(InputError):
        scan_from(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is empty"):
        scan_from(tmp_path)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        scan_from(tmp_path / "nothing")


@pytest.mark.parametrize(
    "file", beside_the_repository("."), ids=lambda file: f"{file.parent.name}/{file.name}"
)
def test_every_file_from_a_real_machine_is_read_or_named_with_a_reason(file: Path, tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(MATRIX)
    (tmp_path / "n2").mkdir()
    shutil.copy(file, tmp_path / "n2")

    found = scan_from(tmp_path)

    told = {node.node for node in found.nodes} | {document.node for document in found.documents}
    assert told | {gone.node for gone in found.missing} == {"n1", "n2"}
    # The two that are no dumps: a map for another library, and the table of these sources.
    refused = {"flagcx-gpu-net-map.xml", "SOURCES.md"}
    assert {gone.reason.split(":")[0].split("/")[-1] for gone in found.missing} <= refused
    assert bool(found.missing) == (file.name in refused)


def test_what_cannot_be_read_beside_a_document_is_said(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/hosts").write_text("n001 slots=8\nn002 slots=8\n")
    (tmp_path / "job/notes.txt").write_text("nothing of use\n")

    found = scan_from(tmp_path)

    assert [document.kind for document in found.documents] == ["host file"]
    assert [(gone.node, gone.reason) for gone in found.missing] == [
        ("job", "job/notes.txt: not read: its content is of no known kind")
    ]


def test_files_named_one_by_one_and_folders_are_read_together(tmp_path: Path) -> None:
    for name in ("a/n1", "b/n1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "topo.txt").write_text(MATRIX)
    (tmp_path / "single.txt").write_text(MATRIX)

    found = scan_from(tmp_path / "a", tmp_path / "single.txt", tmp_path / "b")

    assert [node.node for node in found.nodes] == ["single", "n1", "b/n1"]


def test_a_peer_matrix_behind_the_topology_is_read_as_well() -> None:
    (node,) = scan_from(FACTS / "smi-topo/5090-2gpu-phb-with-p2p-matrix.txt").nodes

    assert node.matrix is not None
    assert node.p2p[0].states == (("X", "GNS"), ("GNS", "X"))
