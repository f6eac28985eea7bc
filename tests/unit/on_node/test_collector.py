"""The collector, run for real by this Python through the loader that nodes get, and some of its parts."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from topo_tune.connect.program import find_answer, program_command
from topo_tune.on_node import collector, gather, nccl_conf, probes
from topo_tune.scan.answer import FORMAT, VERSION

MATRIX = "\tGPU0\tCPU Affinity\nGPU0\t X \t0-3\n"


def run(request: dict[str, Any], **environment: str) -> dict[str, Any]:
    """One round trip with an environment of nothing but PATH and what is given."""
    command = program_command(
        (sys.executable,), "collector", json.dumps(request).encode(), deadline_seconds=60
    )
    ended = subprocess.run(
        command.argv,
        input=command.stdin,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    answer = find_answer(ended.stdout)
    assert answer is not None
    return answer


def tool(folder: Path, name: str, script: str) -> str:
    """An executable of that name; the PATH that finds it first."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def ends_within(seconds: float, process: str) -> bool:
    """Whether a process is gone, or dead and only not yet collected by init, within that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if not Path(f"/proc/{process}/cmdline").read_bytes():
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """What this machine answers."""
    return run({"root": "/"}, NCCL_DEBUG="WARN", SECRET_TOKEN="hunter2")


def test_this_machine_tells_what_every_linux_has(here: dict[str, Any]) -> None:
    assert (here["format"], here["version"]) == (FORMAT, VERSION)
    assert here["kernel"] == os.uname().release
    assert "MemTotal:" in here["machine"]["meminfo"]
    assert here["cpu"]["threads"] >= 1
    assert "lo" in [interface["name"] for interface in here["network"]["interfaces"]]
    assert here["seconds"] < 25


def test_nothing_of_the_environment_leaves_the_node_but_nccl_variables(here: dict[str, Any]) -> None:
    assert here["environment"] == [["NCCL_DEBUG", "WARN"]]
    assert "hunter2" not in json.dumps(here)


def test_the_marker_and_the_versions_are_those_of_the_other_side() -> None:
    from topo_tune.connect.program import MARKER

    assert (collector.MARKER, collector.FORMAT, collector.VERSION) == (MARKER, FORMAT, VERSION)


@pytest.mark.parametrize("module", [collector, gather, nccl_conf, probes], ids=lambda module: module.__name__)
def test_what_runs_on_a_node_is_python_3_8(module: Any) -> None:
    ast.parse(Path(module.__file__).read_text(), feature_version=(3, 8))


def test_a_missing_tool_is_absent_with_its_reason_and_no_error(tmp_path: Path) -> None:
    answer = run({"root": "/"}, PATH=str(tmp_path))

    assert answer["nvidia_smi"]["topology"]["absent"] == "`nvidia-smi` is not installed here"
    assert answer["nvidia_smi"]["topology"]["status"] is None


def test_the_outputs_of_nvidia_smi_travel_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "matrix").write_text(MATRIX)
    script = f'case "$1" in topo) cat {tmp_path}/matrix;; --query*) echo "0, H200";; *) echo heading;; esac'
    path = tool(tmp_path / "bin", "nvidia-smi", script)

    smi = run({"root": "/"}, PATH=path)["nvidia_smi"]

    assert smi["topology"]["stdout"] == MATRIX
    assert smi["query"]["stdout"] == "0, H200\n"
    assert smi["header"]["status"] == 0


def test_an_old_nvidia_smi_is_asked_again_without_the_field_it_lacks(tmp_path: Path) -> None:
    refusal = 'echo "Field compute_cap is not a valid field to query."; exit 2'
    script = f'case "$1" in *compute_cap*) {refusal};; esac; echo ok'

    smi = run({"root": "/"}, PATH=tool(tmp_path, "nvidia-smi", script))["nvidia_smi"]

    assert (smi["query"]["status"], smi["query"]["stdout"]) == (0, "ok\n")


def test_a_failing_tool_keeps_its_status_and_its_last_words(tmp_path: Path) -> None:
    script = 'echo "couldn\'t communicate with the NVIDIA driver" >&2; exit 9'

    topology = run({"root": "/"}, PATH=tool(tmp_path, "nvidia-smi", script))["nvidia_smi"]["topology"]

    assert (topology["status"], topology["absent"]) == (9, None)
    assert "NVIDIA driver" in topology["stderr"]


def test_a_hanging_nvidia_smi_costs_its_deadline_once_and_nothing_else(tmp_path: Path) -> None:
    path = tool(tmp_path, "nvidia-smi", "sleep 60")
    started = time.monotonic()

    answer = run({"root": "/", "command_deadline_seconds": 0.5}, PATH=path)

    smi = answer["nvidia_smi"]
    assert time.monotonic() - started < 10
    assert smi["topology"]["absent"] == "`nvidia-smi topo -m` gave no answer in 0.5 s"
    assert smi["header"]["absent"] == "not asked: `nvidia-smi` hung just before"
    assert answer["machine"]["meminfo"]


def test_what_a_hanging_tool_started_is_ended_with_it(tmp_path: Path) -> None:
    path = tool(tmp_path, "nvidia-smi", f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' & wait")

    run({"root": "/", "command_deadline_seconds": 0.5}, PATH=path)

    assert ends_within(5.0, (tmp_path / "pid").read_text().strip())


def test_a_tool_that_floods_its_output_is_stopped(tmp_path: Path) -> None:
    topology = run({"root": "/"}, PATH=tool(tmp_path, "nvidia-smi", "exec yes"))["nvidia_smi"]["topology"]

    assert topology["absent"] == "`nvidia-smi topo -m` wrote more than 1048576 bytes"
    assert len(topology["stdout"]) == 1 << 20


def test_output_that_is_no_utf8_still_arrives(tmp_path: Path) -> None:
    topology = run({"root": "/"}, PATH=tool(tmp_path, "nvidia-smi", "printf 'GPU\\377'"))["nvidia_smi"][
        "topology"
    ]

    assert topology["stdout"] == "GPU\N{REPLACEMENT CHARACTER}"


def test_the_questions_of_facts_are_answered_in_the_same_round_trip(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/modprobe.conf").write_text("options nvidia a=1\n")
    request = {
        "root": str(tmp_path),
        "commands": [{"argv": ["echo", "hello"]}, {"argv": ["no-such-tool", "-v"]}],
        "files": [{"pattern": "/etc/*.conf"}],
        "environment": ["FI_*"],
    }

    gathered = run(request, FI_PROVIDER="efa", SECRET_TOKEN="hunter2")["gathered"]

    assert [(command["status"], command["stdout"]) for command in gathered["commands"]] == [
        (0, "hello\n"),
        (None, ""),
    ]
    assert gathered["commands"][1]["absent"] == "`no-such-tool` is not installed here"
    assert [file["text"] for file in gathered["files"]] == ["options nvidia a=1\n"]
    assert gathered["environment"] == [["FI_PROVIDER", "efa"]]


def test_a_hanging_tool_costs_the_questions_that_are_asked_of_it_and_no_others(tmp_path: Path) -> None:
    path = tool(tmp_path, "ibstat", "sleep 60")
    commands = [{"argv": argv} for argv in (["ibstat"], ["ibstat", "-p"], ["echo", "fine"])]

    gathered = run({"root": "/", "command_deadline_seconds": 0.5, "commands": commands}, PATH=path)[
        "gathered"
    ]

    assert [command["absent"] for command in gathered["commands"]] == [
        "`ibstat` gave no answer in 0.5 s",
        "not asked: `ibstat` hung just before",
        None,
    ]


def test_facts_ask_nvidia_smi_only_after_the_collector_has_asked_it(tmp_path: Path) -> None:
    path = tool(
        tmp_path, "nvidia-smi", f'echo "$1" >> {tmp_path}/calls; sleep 0.05; echo end >> {tmp_path}/calls'
    )

    gathered = run({"root": "/", "commands": [{"argv": ["nvidia-smi", "-q"]}]}, PATH=path)["gathered"]

    calls = (tmp_path / "calls").read_text().split("\n")
    assert gathered["commands"][0]["status"] == 0
    assert calls[0] == "topo"
    assert calls[-3:] == ["-q", "end", ""]
    assert calls[1::2] == ["end"] * 4


def test_an_answer_that_no_connection_takes_is_sent_without_what_facts_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collector, "ANSWER_LIMIT_BYTES", 10)
    request = json.dumps({"root": "/", "commands": [{"argv": ["echo", "hello"]}]}).encode()

    collector.main(io.BytesIO(request))

    answer = find_answer(capsys.readouterr().out.encode())
    assert answer is not None
    assert answer["gathered"] == {}
    assert "more than the connection takes" in answer["absent"][-1]["reason"]


def test_the_files_that_nccl_reads_come_in_its_order_below_the_root(tmp_path: Path) -> None:
    fragments = tmp_path / "etc/nccl/conf.d"
    fragments.mkdir(parents=True)
    (fragments / "50-b.conf").write_text("NCCL_PROTO=LL\n")
    (fragments / "10-a.conf").write_text("NCCL_ALGO=Ring\n")
    (fragments / "notes.txt").write_text("not a fragment\n")
    (tmp_path / "etc/nccl.conf").write_bytes(b"NCCL_ALGO=Tree\r\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.nccl.conf").write_text("NCCL_DEBUG=INFO\n")

    found = run({"root": str(tmp_path), "home": "/home"})["files"]["files"]

    paths = [os.path.relpath(file["path"], tmp_path) for file in found]
    assert paths == [
        "home/.nccl.conf",
        "etc/nccl.conf",
        "etc/nccl/conf.d/10-a.conf",
        "etc/nccl/conf.d/50-b.conf",
    ]
    assert [file["role"] for file in found] == ["nccl", "nccl", "drop-in", "drop-in"]
    assert found[1]["text"] == "NCCL_ALGO=Tree\r\n"
    assert found[1]["sha256"] == hashlib.sha256(b"NCCL_ALGO=Tree\r\n").hexdigest()


def test_the_key_of_nccls_encryption_leaves_no_node(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_PSK=hunter2 hunter2\nNCCL_ALGO=Ring\n")
    (tmp_path / "etc/profile").write_text("export NCCL_PSK=hunter2\n")
    files = [{"pattern": "/etc/profile", "keep": "NCCL_", "mode": "numbered"}]

    answer = run({"root": str(tmp_path), "home": "/root", "files": files}, NCCL_PSK="hunter2")

    assert answer["environment"] == [["NCCL_PSK", "(not kept)"]]
    assert answer["files"]["files"][1]["text"] == "NCCL_PSK=(not kept)\nNCCL_ALGO=Ring\n"
    assert "hunter2" not in json.dumps(answer)


def test_the_file_named_in_the_environment_stands_in_for_the_one_at_home(tmp_path: Path) -> None:
    found = run({"root": str(tmp_path)}, NCCL_CONF_FILE="/opt/nccl.conf")["files"]["files"]

    assert [file["path"] for file in found] == [f"{tmp_path}/opt/nccl.conf", f"{tmp_path}/etc/nccl.conf"]
    assert [file["exists"] for file in found] == [False, False]


def test_a_pipe_in_place_of_a_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/nccl.conf")

    answer = run({"root": str(tmp_path), "home": "/root", "files": [{"pattern": "$NCCL_TOPO_FILE"}]})

    (_, system) = answer["files"]["files"]
    assert (system["exists"], system["problem"]) == (True, "is not an ordinary file")
    assert answer["seconds"] < 5


def test_only_the_beginning_of_a_large_file_travels_and_its_hash_is_of_the_whole(tmp_path: Path) -> None:
    data = b"NCCL_ALGO=Ring\n" * 10_000
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_bytes(data)

    (_, system) = run({"root": str(tmp_path), "home": "/root"})["files"]["files"]

    assert len(system["text"]) == 64 << 10
    assert system["sha256"] == hashlib.sha256(data).hexdigest()
    assert system["problem"] == "only the first 65536 of 150000 bytes were looked at"


def test_hardware_below_the_root_is_read_instead_of_the_machines_own(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/infiniband/mlx5_0"
    (device / "ports/1").mkdir(parents=True)
    (device / "ports/1/state").write_text("4: ACTIVE\n")
    (device / "ports/1/rate").write_text("400 Gb/sec (4X NDR)\n")
    (device / "ports/1/link_layer").write_text("InfiniBand\n")
    (tmp_path / "sys/class/net/eth7").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth7/speed").write_text("100000\n")

    answer = run({"root": str(tmp_path)})

    assert answer["sys"] == f"{tmp_path}/sys"
    assert answer["proc"] == "/proc"
    assert answer["network"]["rdma"][0]["ports"] == [
        {"port": "1", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    ]
    assert [interface["name"] for interface in answer["network"]["interfaces"]] == ["eth7"]


def library(path: Path, text: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF" + b"\0" * 5000 + text + b"\0" * 100)
    return path


def test_the_version_of_a_library_is_read_from_its_bytes(tmp_path: Path) -> None:
    library(tmp_path / "libnccl.so.2", b"NCCL version 2.28.9+cuda13.0\0")

    found = run({"root": "/"}, LD_LIBRARY_PATH=str(tmp_path))["libraries"]["found"]

    assert {
        "path": f"{tmp_path}/libnccl.so.2",
        "found_in": "LD_LIBRARY_PATH",
        "version": "2.28.9",
    }.items() <= next(entry.items() for entry in found if entry["path"].startswith(str(tmp_path)))


def test_the_version_of_a_library_is_read_from_its_name_where_its_bytes_are_silent(tmp_path: Path) -> None:
    library(tmp_path / "libnccl.so.2.27.3")
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.27.3")
    library(tmp_path / "other/libnccl.so.2")

    found = run({"root": "/"}, LD_LIBRARY_PATH=f"{tmp_path}:{tmp_path}/other:/nonexistent:")["libraries"][
        "found"
    ]

    assert [entry["version"] for entry in found if entry["path"].startswith(str(tmp_path))] == [
        "2.27.3",
        None,
    ]


def torch_package(site: Path, version: str, cuda: str) -> None:
    (site / "torch/lib").mkdir(parents=True)
    (site / "torch/__init__.py").write_text("raise SystemExit('torch must not be imported')\n")
    (site / "torch/version.py").write_text(
        f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n"
    )


def test_torch_and_the_nccl_wheel_beside_it_are_told_without_importing_them(tmp_path: Path) -> None:
    torch_package(tmp_path, "2.11.0+cu130", "'13.0'")
    library(tmp_path / "nvidia/nccl/lib/libnccl.so.2")
    (tmp_path / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir()

    libraries = run({"root": "/"}, PYTHONPATH=str(tmp_path))["libraries"]

    assert (libraries["torch"], libraries["torch_cuda"], libraries["torch_nccl"]) == (
        "2.11.0+cu130",
        "13.0",
        "2.28.9",
    )
    assert [entry["found_in"] for entry in libraries["found"] if entry["version"] == "2.28.9"] == ["pip"]


def test_the_nccl_that_is_built_into_torch_is_found_in_its_bytes(tmp_path: Path) -> None:
    torch_package(tmp_path, "1.13.0", "'11.7'")
    library(tmp_path / "torch/lib/libtorch_cuda.so", b"NCCL version 2.14.3+cuda11.7\0")

    assert run({"root": "/"}, PYTHONPATH=str(tmp_path))["libraries"]["torch_nccl"] == "2.14.3"


def test_a_torch_for_cpus_brings_no_nccl(tmp_path: Path) -> None:
    torch_package(tmp_path, "2.13.0+cpu", "None")

    libraries = run({"root": "/"}, PYTHONPATH=str(tmp_path))["libraries"]

    assert (libraries["torch"], libraries["torch_nccl"]) == ("2.13.0+cpu", None)


def test_gpus_come_from_nvml_where_this_python_has_it(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "class Memory: total = 1 << 37\n"
        "class Pci: busId = b'00000000:18:00.0'\n"
        "def nvmlInit(): pass\n"
        "def nvmlSystemGetDriverVersion(): return b'580.159'\n"
        "def nvmlSystemGetCudaDriverVersion(): return 13000\n"
        "def nvmlDeviceGetCount(): return 2\n"
        "def nvmlDeviceGetHandleByIndex(i):\n"
        "    if i: raise NVMLError('GPU is lost')\n"
        "    return i\n"
        "def nvmlDeviceGetName(h): return 'NVIDIA H200'\n"
        "def nvmlDeviceGetMemoryInfo(h): return Memory\n"
        "def nvmlDeviceGetPciInfo(h): return Pci\n"
    )

    answer = run({"root": "/"}, PYTHONPATH=str(tmp_path))

    assert answer["nvml"] == {
        "driver": "580.159",
        "cuda_driver": "13.0",
        "gpus": [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "uuid": None,
                "pci_bus_id": "00000000:18:00.0",
                "memory_bytes": 1 << 37,
                "compute_capability": None,
            }
        ],
    }
    assert {"what": "GPU 1", "reason": "NVML counts it and gives no handle for it"} in answer["absent"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
            "the probe crashed before it could answer",
        ),
        ("import time\ntime.sleep(60)", "gave no answer in its time and was ended"),
        ("class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('no library')", "no library"),
        ("raise RuntimeError('broken package')", "the probe failed: RuntimeError: broken package"),
    ],
    ids=["crashes", "hangs", "refuses", "is broken"],
)
def test_an_nvml_that_fails_in_any_way_costs_only_itself(tmp_path: Path, body: str, reason: str) -> None:
    (tmp_path / "pynvml.py").write_text(body + "\n")

    answer = run({"root": "/", "command_deadline_seconds": 2.0}, PYTHONPATH=str(tmp_path))

    assert reason in [absent["reason"] for absent in answer["absent"] if absent["what"].casefold() == "nvml"]
    assert answer["network"]["interfaces"]


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (b"[1]", "it is not an object"),
        (b"{", "Expecting property name"),
        (b"\xff", "utf-8"),
        (b'{"root": 3}', "`root` is not text"),
        (b'{"commands": [{"argv": []}]}', "a command has no program"),
        (b'{"command_deadline_seconds": "soon"}', "`command_deadline_seconds` is not a number of seconds"),
        (
            b'{"command_deadline_seconds": -1, "deadline_seconds": 5}',
            "`command_deadline_seconds` is not a number",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_with_an_error(request_: bytes, complaint: str) -> None:
    command = program_command((sys.executable,), "collector", request_, deadline_seconds=60)
    ended = subprocess.run(command.argv, input=command.stdin, capture_output=True, timeout=60, check=False)

    answer = find_answer(ended.stdout)

    assert answer is not None
    assert complaint in answer["error"]


def test_an_answer_is_found_behind_a_greeting_without_a_line_end() -> None:
    command = program_command((sys.executable,), "collector", b"{}", deadline_seconds=60)
    argv = ("sh", "-c", 'printf "Welcome to node01"; exec "$@"', "sh", *command.argv)

    ended = subprocess.run(argv, input=command.stdin, capture_output=True, timeout=60, check=False)

    assert find_answer(ended.stdout) is not None
