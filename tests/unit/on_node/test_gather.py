"""The questions of facts, asked of this machine: what comes back, what stays, and what a trouble costs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from topo_tune.on_node import gather
from topo_tune.on_node.gather import Place, Questions
from topo_tune.on_node.probes import Commands


def questions(**asked: Any) -> Questions:
    return Questions(asked)


def read(place: Place, *files: dict[str, Any], seconds: float = 20.0) -> dict[str, Any]:
    return gather.read_files(questions(files=list(files)), place, time.monotonic() + seconds)


def at(root: Path, home: str = "/root", **environment: str) -> Place:
    return Place(str(root), "/proc", f"{root}/sys", home, environment)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run(*commands: dict[str, Any]) -> dict[str, Any]:
    asked = questions(commands=list(commands))
    until = time.monotonic() + 20
    (group,) = asked.by_program().values()
    return gather.run_commands(Commands(os.environ, 10.0, until), group)


def test_a_file_comes_with_its_path_on_the_node(tmp_path: Path) -> None:
    write(tmp_path / "etc/slurm/slurm.conf", "ClusterName=a\n")

    found = read(at(tmp_path), {"pattern": "/etc/slurm/slurm.conf"})

    assert found["files"] == [
        {"pattern": "/etc/slurm/slurm.conf", "path": "/etc/slurm/slurm.conf", "text": "ClusterName=a\n"}
    ]


def test_files_of_sys_are_read_where_the_nodes_sys_is_and_named_as_in_sys(tmp_path: Path) -> None:
    write(tmp_path / "sys/class/infiniband/mlx5_0/node_desc", "n1 mlx5_0\n")
    write(tmp_path / "sys/class/infiniband/mlx5_1/node_desc", "n1 mlx5_1\n")

    found = read(at(tmp_path), {"pattern": "/sys/class/infiniband/*/node_desc"})

    assert {file["path"]: file["text"] for file in found["files"]} == {
        "/sys/class/infiniband/mlx5_0/node_desc": "n1 mlx5_0\n",
        "/sys/class/infiniband/mlx5_1/node_desc": "n1 mlx5_1\n",
    }


def test_a_link_tells_where_it_leads_without_the_root(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/pci0000:00/0000:00:03.0").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:00:03.0").symlink_to("../../../devices/pci0000:00/0000:00:03.0")

    (found,) = read(at(tmp_path), {"pattern": "/sys/bus/pci/devices/*", "mode": "link"})["files"]

    assert (found["path"], found["text"]) == (
        "/sys/bus/pci/devices/0000:00:03.0",
        "/sys/devices/pci0000:00/0000:00:03.0",
    )


def test_the_home_of_topo_tunes_user_can_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "home/ada/.bashrc", "export NCCL_DEBUG=INFO\n")

    (found,) = read(at(tmp_path, home="/home/ada"), {"pattern": "~/.bashrc"})["files"]

    assert found["path"] == "/home/ada/.bashrc"


def test_only_the_lines_that_are_asked_for_leave_the_node(tmp_path: Path) -> None:
    write(tmp_path / "etc/environment", "TOKEN=hunter2\nNCCL_IB_HCA=mlx5\nPATH=/bin\n")
    write(tmp_path / "etc/default/slurmd", "TOKEN=hunter2\n")

    found = read(
        at(tmp_path), {"pattern": "/etc/environment", "keep": "NCCL_"}, {"pattern": "/etc/default/*"}
    )
    silent = read(at(tmp_path), {"pattern": "/etc/default/*", "keep": "NCCL_"})

    assert found["files"][0]["text"] == "NCCL_IB_HCA=mlx5\n"
    assert silent["files"] == []


def test_two_facts_that_ask_the_same_file_get_the_lines_of_both_once(tmp_path: Path) -> None:
    write(tmp_path / "a", "one\ntwo\nthree\n")

    found = read(at(tmp_path), {"pattern": "/a", "keep": "one"}, {"pattern": "/a", "keep": "three"})

    assert [file["text"] for file in found["files"]] == ["one\nthree\n"]


def test_lines_that_stay_on_the_node_leave_their_numbers_behind(tmp_path: Path) -> None:
    write(tmp_path / "etc/profile", "TOKEN=hunter2\nexport NCCL_DEBUG=INFO\n")

    (found,) = read(at(tmp_path), {"pattern": "/etc/profile", "keep": "NCCL_", "mode": "numbered"})["files"]

    assert found["text"] == "2:export NCCL_DEBUG=INFO\n"


def test_the_file_that_a_variable_names_is_told_or_said_to_be_missing(tmp_path: Path) -> None:
    write(tmp_path / "opt/topo.xml", "<system/>")
    write(tmp_path / "etc/nccl.conf", "NCCL_GRAPH_FILE=/opt/graph.xml\nNCCL_TUNER_CONFIG_FILE=here.csv\n")
    names = ("$NCCL_TOPO_FILE", "$NCCL_GRAPH_FILE", "$NCCL_TUNER_CONFIG_FILE", "$NCCL_DEBUG_FILE")

    found = read(
        at(tmp_path, NCCL_TOPO_FILE="/opt/topo.xml"), *({"pattern": n, "mode": "exists"} for n in names)
    )["files"]

    assert found == [
        {"pattern": "$NCCL_TOPO_FILE", "path": "/opt/topo.xml", "text": ""},
        {"pattern": "$NCCL_GRAPH_FILE", "path": "/opt/graph.xml", "problem": "No such file or directory"},
    ]


def test_zero_bytes_end_lines_so_that_an_environment_is_chosen_from_by_variable(tmp_path: Path) -> None:
    write(tmp_path / "environ", "TOKEN=hunter2\0NCCL_NET=IB\0")

    (found,) = read(at(tmp_path), {"pattern": "/environ", "keep": "^NCCL_"})["files"]

    assert found["text"] == "NCCL_NET=IB\n"


def test_a_file_that_is_not_there_is_not_told_and_one_that_is_no_file_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    found = read(at(tmp_path), {"pattern": "/none"}, {"pattern": "/none/*"}, {"pattern": "/pipe"})

    assert found == {
        "files": [{"pattern": "/pipe", "path": "/pipe", "problem": "is not an ordinary file"}],
        "absent": [],
    }


def test_what_is_longer_than_asked_is_cut_and_said(tmp_path: Path) -> None:
    write(tmp_path / "long", "x" * 5000)

    (found,) = read(at(tmp_path), {"pattern": "/long"})["files"]

    assert (found["text"], found["problem"]) == ("x" * 4096, "only the first 4096 of 5000 characters")


def test_the_texts_of_all_files_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "TEXTS_LIMIT_BYTES", 10)
    write(tmp_path / "d/a", "x" * 8)
    write(tmp_path / "d/b", "x" * 8)

    found = read(at(tmp_path), {"pattern": "/d/*"})["files"]

    assert [len(file["text"]) for file in found] == [8, 2]


def test_the_files_of_a_pattern_are_bounded_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "FILES_LIMIT", 2)
    for name in ("a", "b", "c"):
        write(tmp_path / "d" / name, name)

    found = read(at(tmp_path), {"pattern": "/d/*"})["files"]

    assert [file.get("problem") for file in found] == ["3 files found, the first 2 read", None, None]


def test_a_file_that_does_not_answer_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_STALL_SECONDS", 0.3)
    monkeypatch.setattr(gather, "_text", hangs_at("eth1", gather._text))
    for name in ("eth0", "eth1", "eth2"):
        write(tmp_path / "sys/class/net" / name / "speed", name)

    found = read(at(tmp_path), {"pattern": "/sys/class/net/*/speed"}, {"pattern": "/sys/class/net/eth0/*"})

    assert [(file["path"], file.get("text"), file.get("problem")) for file in found["files"]] == [
        ("/sys/class/net/eth0/speed", "eth0", None),
        ("/sys/class/net/eth1/speed", None, "gave no answer in 0.3 s"),
        ("/sys/class/net/eth2/speed", "eth2", None),
        ("/sys/class/net/eth0/speed", "eth0", None),
    ]


def test_files_that_wait_for_the_same_lock_are_given_up_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_STALL_SECONDS", 0.2)
    monkeypatch.setattr(gather, "_text", hangs_at("speed", gather._text))
    for name in ("eth0", "eth1", "eth2", "eth3"):
        write(tmp_path / "sys/class/net" / name / "speed", name)
    write(tmp_path / "other", "fine")

    found = read(at(tmp_path), {"pattern": "/sys/class/net/*/speed"}, {"pattern": "/other"})

    assert [file.get("problem") for file in found["files"]] == [
        "gave no answer in 0.2 s",
        "gave no answer in 0.2 s",
        None,
    ]
    assert [absent["what"] for absent in found["absent"]] == ["/sys/class/net/*/speed"]


def test_reading_ends_in_its_time_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "_text", hangs_at("b", gather._text))
    write(tmp_path / "a", "first")
    write(tmp_path / "b", "second")
    began = time.monotonic()

    found = read(at(tmp_path), {"pattern": "/a"}, {"pattern": "/b"}, seconds=1.0)

    assert time.monotonic() - began < 2.0
    assert [file["path"] for file in found["files"]] == ["/a"]
    assert found["absent"] == [{"what": "/b", "reason": "the time for this node was used up while reading"}]


def hangs_at(word: str, reads: Any) -> Any:
    def reading(path: str, *others: Any) -> Any:
        if word in os.path.relpath(path, os.path.dirname(os.path.dirname(path))):
            time.sleep(60)
        return reads(path, *others)

    return reading


def test_a_command_is_run_once_for_all_who_ask_and_tells_only_what_they_keep(tmp_path: Path) -> None:
    script = f"echo run >> {tmp_path}/runs; printf 'NVRM: Xid\\nsecret\\nmlx5_core\\n'"

    (answer,) = run(
        {"argv": ["sh", "-c", script], "keep": "NVRM"}, {"argv": ["sh", "-c", script], "keep": "^mlx5"}
    )["commands"]

    assert answer["stdout"] == "NVRM: Xid\nmlx5_core\n"
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_keep_that_is_no_regular_expression_keeps_everything_on_the_node() -> None:
    told = run({"argv": ["echo", "secret"], "keep": "("})

    assert told["commands"][0]["absent"].startswith("`keep` is no regular expression: missing )")
    assert "secret" not in told["commands"][0]["stdout"]
    assert told["absent"][0]["what"] == "`echo secret`"


def test_a_long_output_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "KEPT_OUTPUT_LIMIT_BYTES", 3)

    told = run({"argv": ["echo", "abcdef"]})

    assert told["commands"][0]["stdout"] == "abc"
    assert told["absent"] == [
        {"what": "`echo abcdef`", "reason": "only the first 3 of 7 characters were kept"}
    ]


def test_variables_are_told_by_whole_name_or_beginning() -> None:
    environment = {"LD_LIBRARY_PATH": "/a", "FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1", "TOKEN": "hunter2"}

    assert gather.variables(["LD_LIBRARY_PATH", "FI_*", "HOME"], environment) == [
        ["FI_EFA_FORK_SAFE", "1"],
        ["FI_PROVIDER", "efa"],
        ["LD_LIBRARY_PATH", "/a"],
    ]


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"commands": "lspci"}, "`commands` is no list of objects"),
        ({"commands": [{"argv": []}]}, "a command has no program"),
        ({"commands": [{"argv": ["a", 1]}]}, "`argv` is no list of texts"),
        ({"commands": [{"argv": ["a"], "keep": 1}]}, "`keep` is no text"),
        ({"files": [{"pattern": "etc/passwd"}]}, "no absolute path"),
        ({"files": [{"pattern": "/a", "mode": "write"}]}, "`mode` of /a is none of text, numbered, link"),
        ({"files": [{"pattern": "/a", "limit_bytes": -1}]}, "`limit_bytes` of /a is no number of bytes"),
        ({"environment": [1]}, "`environment` is no list of texts"),
    ],
)
def test_questions_of_the_wrong_shape_are_refused(asked: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Questions(asked)
