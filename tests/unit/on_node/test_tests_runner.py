"""The runner's parts that need no process of nccl-tests; tests/local runs the whole of it."""

from __future__ import annotations

import ast
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from topo_tune.connect.program import MARKER, bundle
from topo_tune.on_node import tests_runner
from topo_tune.on_node.tests_runner import Runner, Running, count_gpus, look


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """What the runner does with signals is for a process of its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _all_gpus_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def made(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).mkdir(parents=True)
    return str(folder)


def test_gpus_are_those_of_the_driver(tmp_path: Path) -> None:
    root = made(
        tmp_path,
        "proc/driver/nvidia/gpus/0000:1b:00.0",
        "proc/driver/nvidia/gpus/0000:43:00.0",
        "dev/nvidia0",
    )

    assert count_gpus(root) == 2


def test_gpus_of_a_container_are_its_device_files(tmp_path: Path) -> None:
    root = made(
        tmp_path, *(f"dev/{name}" for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "sda"))
    )

    assert count_gpus(root) == 2


def test_nothing_that_tells_is_unknown_and_not_none(tmp_path: Path) -> None:
    assert count_gpus(str(tmp_path)) is None
    assert count_gpus(made(tmp_path, "dev/null", "proc/driver/nvidia/gpus")) is None


@pytest.mark.parametrize(
    ("visible", "count"), [("0,1,2", 3), ("GPU-ab,GPU-cd", 2), ("", 0), ("-1", 0), ("3", 1)]
)
def test_what_a_process_may_see_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert count_gpus(made(tmp_path, "dev/nvidia0")) == count


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_first_candidate_that_is_there_tells_its_options(tmp_path: Path) -> None:
    test = script(tmp_path / "all_reduce_perf", 'echo "[-b,--minbytes <n>] $1"; exit 3')

    found = look([[str(tmp_path / "all_reduce_perf_mpi")], [test]])

    assert (found["found"], found["error"]) == ([test], None)
    assert found["help"] == "[-b,--minbytes <n>] --help\n"


def test_candidates_that_are_not_there_are_named(tmp_path: Path) -> None:
    found = look([[str(tmp_path / "a")], [str(tmp_path / "b")]])

    assert (found["found"], found["error"]) == (None, f"not found: {tmp_path}/a, {tmp_path}/b")


def answer_of(argv: list[str], **changes: Any) -> dict[str, Any]:
    running = Running({"id": 3, "argv": argv, "deadline_seconds": 20.0, "node": "n1", **changes})
    while True:
        running.read(running.open_pipes())
        answer = running.answer_if_over()
        if answer is not None:
            assert not os.path.exists(running.folder)
            return answer


def test_a_command_gives_its_status_and_all_it_wrote_in_order(tmp_path: Path) -> None:
    test = script(tmp_path / "test", "echo one; echo two >&2; echo three; exit 7")

    answer = answer_of([test])

    assert (answer["id"], answer["node"], answer["ok"], answer["status"]) == (3, "n1", False, 7)
    assert (answer["output"], answer["report"], answer["error"]) == ("one\ntwo\nthree\n", None, None)


def test_a_report_comes_without_the_environment(tmp_path: Path) -> None:
    test = script(
        tmp_path / "test", """echo '{"version": 3, "env": ["TOKEN=secret"], "results": [1]}' > "$2" """
    )

    answer = answer_of([test, "-J", "{report}"])

    assert (answer["ok"], answer["report"]) == (True, {"version": 3, "results": [1]})
    assert "secret" not in json.dumps(answer)


@pytest.mark.parametrize("written", ['{"env": ["TOKEN=secret"', "[1]", "", "\udcff"])
def test_half_a_report_is_none(tmp_path: Path, written: str) -> None:
    text = tmp_path / "text"
    text.write_text(written, errors="surrogateescape")
    test = script(tmp_path / "test", f'cp {text} "$1"')

    answer = answer_of([test, "{report}"])

    assert answer["report"] is None
    assert "secret" not in json.dumps(answer)


def test_what_is_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests_runner, "OUTPUT_LIMIT_BYTES", 10)
    test = script(tmp_path / "test", "echo 123456789012345")

    answer = answer_of([test])

    assert (answer["output"], answer["error"]) == ("1234567890", "it wrote 6 bytes too many")


def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    answer = answer_of([str(tmp_path / "nothing")])

    assert answer["error"] == f"cannot start `{tmp_path}/nothing`: No such file or directory"


def said(requests: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    read_end, write_end = os.pipe()
    os.write(write_end, b"".join(json.dumps(request).encode() + b"\n" for request in requests))
    os.close(write_end)
    with open(read_end, "rb", buffering=0) as given:
        assert Runner(given.fileno()).serve() == 0
    return [json.loads(line[len(MARKER) :]) for line in capfd.readouterr().out.splitlines()]


def test_it_says_what_it_is_and_ends_with_its_input(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    (ready, odd) = said([{"op": "start"}, {"op": "dance"}], capfd)

    assert (ready["event"], ready["gpus"]) == ("ready", 2)
    assert odd == {"event": "error", "error": "unknown operation `dance`"}


def test_it_travels_alone_and_is_read_by_python_3_8() -> None:
    modules = json.loads(bundle("tests_runner"))

    assert [name for name, _ in modules] == ["tests_runner"]
    ast.parse(modules[0][1], feature_version=(3, 8))
    assert "topo_tune" not in modules[0][1].partition('"""')[2].replace("topo-tune", "")
