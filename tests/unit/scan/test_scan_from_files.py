"""The scan that saved files tell."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden_facts import FACTS, beside_the_repository
from raw_answers import MATRIX, QUERY, raw_answer
from scans import node_scan, scan_of

from topo_tune.connect.program import MARKER
from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import HostList
from topo_tune.records.document import Document
from topo_tune.records.envelope import save
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.nccl_documents import JobSettings
from topo_tune.records.provenance import Layer
from topo_tune.records.run_folder import RunFolder
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

    assert ("n1/b.txt", "left out: this node has one already, from n1/a.txt") in [
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
        (random.Random(1).randbytes(5000), "n1.txt: not read: binary data"),
        (b"<!DOCTYPE html>\n<html></html>\n", "a web page"),
    ],
)
def test_what_is_no_dump_is_refused_by_name(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "n1.txt").write_bytes(data)

    with pytest.raises(InputError, match=reason):
        scan_from(tmp_path / "n1.txt")


def test_a_node_none_of_whose_files_can_be_read_is_missing(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(MATRIX)
    (tmp_path / "n2").mkdir()
    (tmp_path / "n2/topo.txt").write_text("nothing of use\n")
    (tmp_path / "n3").mkdir()

    found = scan_from(tmp_path)

    assert [(gone.node, gone.reason) for gone in found.missing] == [
        ("n2", "n2/topo.txt: not read: its content is of no known kind"),
        ("n3", "an empty folder"),
    ]
    assert found.unread == ()


def test_a_file_that_is_no_nodes_and_cannot_be_read_makes_no_node(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(MATRIX)
    (tmp_path / "notes.txt").write_text("nothing of use\n")
    (tmp_path / "n1-todo.txt").write_text("nothing of use\n")
    (tmp_path / "logs").mkdir()

    found = scan_from(tmp_path)

    assert found.missing == ()
    assert [(file.what, file.reason) for file in found.unread] == [
        ("notes.txt", "not read: its content is of no known kind"),
        ("logs", "an empty folder"),
    ]
    assert ("n1-todo.txt", "not read: its content is of no known kind") in [
        (absent.what, absent.reason) for absent in found.nodes[0].absent
    ]


def test_a_folder_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/topo.txt").write_text(MATRIX)
    (tmp_path / "n2").mkdir()
    (tmp_path / "secret").mkdir()
    listed = os.scandir

    def scandir(path: str) -> Any:
        if Path(path).name in ("n2", "secret"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = scan_from(tmp_path)

    reason = "a folder that cannot be read: Permission denied"
    assert [(gone.node, gone.reason) for gone in found.missing] == [("n2", reason)]
    assert [(file.what, file.reason) for file in found.unread] == [("secret", reason)]


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
    assert message.endswith(
        "hint: kinds that are read: docs/reference/saved-files.md, or `topo-tune scan --kinds`"
    )


def test_the_kinds_are_no_help_where_the_content_is_known(tmp_path: Path) -> None:
    (tmp_path / "dump.tar").write_bytes(b"\0" * 257 + b"ustar\x0000" + b"\0" * 250)

    with pytest.raises(InputError, match=r"unpack it first: `tar xf dump\.tar`") as caught:
        scan_from(tmp_path)

    assert caught.value.hint is None


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
    assert found.unread == ()
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
    assert found.missing == ()
    assert [(file.what, file.reason) for file in found.unread] == [
        ("job/notes.txt", "not read: its content is of no known kind")
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


def test_a_scan_that_was_saved_is_read_as_that_scan_and_judged_anew(tmp_path: Path) -> None:
    stale = Finding("gpu-xid", Severity.ERROR, ("n1",), "what", "why")
    document = Document("job/hosts", "job", "host file", HostList("host file", ("n1", "n2")))
    record = scan_of(node_scan("n1"), node_scan("n2"), documents=(document,), findings=(stale,))
    save(tmp_path / "monday.json", record)
    (tmp_path / "n1.txt").write_text(MATRIX)

    alone = scan_from(tmp_path / "monday.json")
    both = scan_from(tmp_path)

    assert alone == msgspec.structs.replace(record, findings=())
    assert [node.node for node in both.nodes] == ["n1", "monday/n1", "n2"]
    assert both.documents == (document,)


def test_what_scan_prints_with_json_is_a_scan_too(tmp_path: Path) -> None:
    record = scan_of(node_scan("n1"))
    (tmp_path / "n1.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))

    assert scan_from(tmp_path / "n1.json") == record


def test_of_a_run_folder_only_its_scan_is_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    save(run.scan, scan_of(node_scan("n1")))
    run.inventory.write_text("{}")
    run.fragment.write_text("NCCL_ALGO=Ring\n")
    run.snippets.write_text("# The settings, as launchers take them\n\n```\nexport NCCL_ALGO=Ring\n```\n")
    run.lock.write_text("")

    found = scan_from(run.path)

    assert [node.node for node in found.nodes] == ["n1"]
    assert (found.documents, found.missing, found.unread) == ((), (), ())


def test_other_files_of_topo_tune_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "n1.txt").write_text(MATRIX)
    (tmp_path / "50-launchers.md").write_text(
        "# The settings, as launchers take them\n\nexport NCCL_ALGO=Ring\n"
    )
    (tmp_path / ".run.lock").write_text("")
    (tmp_path / "cluster.yaml").write_text("racks:\n  - name: r1\n    nodes: n1\nenv:\n  NCCL_ALGO: Ring\n")
    (tmp_path / "25-bench-plan.json").write_text('{"head": {"schema": "topo-tune/bench-plan"}, "body": {}}')
    (tmp_path / "10-scan.json").write_text('{"head": {"schema": "topo-tune/scan"}, "body": {}}')

    found = scan_from(tmp_path)

    assert [node.node for node in found.nodes] == ["n1"]
    assert {file.what: file.reason for file in found.unread} == {
        ".run.lock": "not read: a lock of topo-tune, which is always empty",
        "10-scan.json": "not read: Object missing required field `version` - at `$.head`",
        "25-bench-plan.json": "not read: topo-tune's own record `topo-tune/bench-plan`, which is no scan; its run "
        "folder has one in `10-scan.json`",
        "50-launchers.md": "not read: topo-tune's own snippets for launchers: `topo-tune lint` checks them",
        "cluster.yaml": "not read: topo-tune's own cluster file: give it to `--cluster-config`",
    }


def test_files_of_a_job_alone_make_no_node(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\nexport NCCL_ALGO=Ring\n")

    found = scan_from(tmp_path)

    assert found.nodes == ()
    assert [(d.file, d.kind) for d in found.documents] == [
        ("job.sbatch", "settings of a job (shell, launcher options, YAML, env-file)")
    ]


def test_an_env_file_by_its_name_is_a_jobs_and_no_configuration_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "app.env").write_text('NCCL_DEBUG="INFO"\n')
    (tmp_path / "n1.conf").write_text('NCCL_DEBUG="INFO"\n')

    found = scan_from(tmp_path)

    assert [(d.file, d.body.format) for d in found.documents if isinstance(d.body, JobSettings)] == [
        ("app.env", "env-file")
    ]
    assert [file.path for node in found.nodes for file in node.nccl_files] == ["n1.conf"]


@pytest.mark.parametrize("name", ["n1/job.sh", "n1-job.sh"])
def test_a_jobs_file_beside_a_nodes_files_is_of_that_node_too(tmp_path: Path, name: str) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / Path(name).parent / "n1.txt").write_text(MATRIX)
    (tmp_path / name).write_text("export NCCL_ALGO=Ring\n")

    found = scan_from(tmp_path)

    assert [(o.name, o.layer, o.path) for o in found.nodes[0].settings] == [
        ("NCCL_ALGO", Layer.LAUNCHER, name)
    ]
    assert [document.file for document in found.documents] == [name]


def test_a_tool_that_was_not_there_is_absent_on_its_node(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/topo.txt").write_text(MATRIX)
    (tmp_path / "n1/ibstat.txt").write_text("bash: ibstat: command not found\n")
    (tmp_path / "show_gids.txt").write_text("sh: 1: show_gids: not found\n")

    found = scan_from(tmp_path)

    assert ("ibstat", "not installed there: `bash: ibstat: command not found`") in [
        (absent.what, absent.reason) for absent in found.nodes[0].absent
    ]
    assert [(file.what, file.reason) for file in found.unread] == [
        ("show_gids.txt", "show_gids: not installed there: `sh: 1: show_gids: not found`")
    ]


REPORT = f"""# Nodes

Saved on Monday.

## nvidia-smi topo -m
```
{MATRIX}```

[root@n1 ~]# nvidia-smi --query-gpu=...
{QUERY}
===== nproc =====
64
# ibstat
bash: ibstat: command not found
$ cat /etc/nccl.conf
# tuned
NCCL_ALGO=Ring
"""


def test_a_report_of_several_outputs_is_read_section_by_section(tmp_path: Path) -> None:
    (tmp_path / "n1.md").write_text(REPORT)

    (node,) = scan_from(tmp_path).nodes

    assert node.node == "n1"
    assert node.matrix is not None
    assert len(node.gpus) == 2
    assert [(o.path, o.line, o.layer) for o in node.settings] == [("/etc/nccl.conf", 2, Layer.SYSTEM_FILE)]
    reasons = {absent.what: absent.reason for absent in node.absent}
    assert reasons["n1.md"] == "also holds what is of no kind that is read: line 3, `nproc`"
    assert reasons["ibstat"] == "not installed there: `bash: ibstat: command not found`"


def test_a_second_output_of_one_tool_in_a_report_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "n1.md").write_text(f"{REPORT}\n## nvidia-smi topo -m\n{MATRIX}")

    (node,) = scan_from(tmp_path).nodes

    place = REPORT.count("\n") + 3
    assert (f"n1.md, from line {place}", "left out: this node has one already, from n1.md, from line 7") in [
        (absent.what, absent.reason) for absent in node.absent
    ]


def test_an_environment_and_a_configuration_in_one_report_are_two_outputs(tmp_path: Path) -> None:
    environment = "HOME=/root\nPATH=/bin\nLANG=C\nSHELL=/bin/sh\nNCCL_NET=IB\n"
    (tmp_path / "n1.md").write_text(f"## env\n{environment}## cat /etc/nccl.conf\nNCCL_ALGO=Ring\n")

    (node,) = scan_from(tmp_path).nodes

    assert [(o.name, o.layer) for o in node.settings] == [
        ("NCCL_ALGO", Layer.SYSTEM_FILE),
        ("NCCL_NET", Layer.ENVIRONMENT),
    ]


def test_a_script_with_comments_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(
        "## env of the job\nexport NCCL_NET=IB\n\n## ip of the first node\nNCCL_ALGO=Ring\n"
    )

    (document,) = scan_from(tmp_path).documents

    assert (document.file, document.body.format) == ("job.sh", "shell")


def test_a_job_log_behind_other_outputs_is_a_document(tmp_path: Path) -> None:
    log = (FACTS / "nccl-logs/a100-4node-nccl-info.log").read_text()
    (tmp_path / "job.out").write_text(f"{MATRIX}+ mpirun all_reduce_perf\n{log}")

    found = scan_from(tmp_path)

    assert found.nodes[0].matrix is not None
    assert [document.kind for document in found.documents] == ["NCCL log"]


def labelled(texts: dict[str, str]) -> str:
    """Lines of several nodes by turns, as pdsh writes them."""
    turns = itertools.zip_longest(
        *([f"{node}: {line}" for line in text.splitlines()] for node, text in texts.items())
    )
    return "".join(f"{line}\n" for turn in turns for line in turn if line is not None)


def test_each_label_of_pdsh_is_a_node(tmp_path: Path) -> None:
    texts = {"n1": MATRIX, "n2": MATRIX, "n3": "bash: line 1: nvidia-smi: command not found"}
    (tmp_path / "topo.txt").write_text(labelled(texts))
    (tmp_path / "query.txt").write_text(labelled({"n1": QUERY, "n2": QUERY}))

    found = scan_from(tmp_path)

    assert [(node.node, node.matrix is not None, len(node.gpus)) for node in found.nodes] == [
        ("n1", True, 2),
        ("n2", True, 2),
    ]
    assert [(gone.node, gone.reason) for gone in found.missing] == [
        ("n3", "nvidia-smi: not installed there: `bash: line 1: nvidia-smi: command not found`")
    ]


def test_a_job_log_with_labels_stays_one_document(tmp_path: Path) -> None:
    log = (FACTS / "nccl-logs/a100-4node-nccl-info.log").read_text()
    lines = [f"n{number % 2}: {line}" for number, line in enumerate(log.splitlines())]
    (tmp_path / "job.log").write_text("\n".join(lines))

    found = scan_from(tmp_path)

    assert found.nodes == ()
    assert [document.kind for document in found.documents] == ["NCCL log"]
