"""`topo-tune lint` from the outside: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from topo_tune.cli.app import run


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one error, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nccl.conf"
    path.write_text("NCCL_CROSS_NIC=0\nNCCL_IB_TIMOUT=22\n")
    return path


def test_a_message_is_place_severity_text_rule_and_hint(
    wrong: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lint", "nccl.conf"]) == 1

    assert capsys.readouterr().out.splitlines() == [
        "nccl.conf:2:1: error: NCCL does not know `NCCL_IB_TIMOUT`, so the setting has no effect [misspelt-name]",
        "    hint: did you mean `NCCL_IB_TIMEOUT`?",
        "2 settings: 1 error; checked against NCCL 2.30.7 (the catalogue's version; --nccl for another)",
    ]


def test_a_clean_file_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "site.conf"
    path.write_text("NCCL_SOCKET_IFNAME=eth0\n")

    assert run(["lint", str(path)]) == 0
    assert capsys.readouterr().out.startswith("1 setting: nothing wrong; checked against")


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        ("NCCL_IB_TIMOUT=22", (1, 1, 1)),
        ("NCCL_LL_THRESHOLD=0", (0, 1, 1)),
        ("NCCL_DEBUG=INFO", (0, 0, 1)),
        ("NCCL_DEBUG=WARN", (0, 0, 0)),
    ],
)
def test_the_severity_that_fails_can_be_chosen(tmp_path: Path, line: str, codes: tuple[int, ...]) -> None:
    path = tmp_path / "site.conf"
    path.write_text(f"{line}\n")

    got = tuple(run(["lint", str(path), "--fail-on", on]) for on in ("error", "warning", "notice"))

    assert got == codes


def test_json_is_the_record(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "nccl.conf", "--json", "--nccl", "2.28.9"]) == 1

    report = json.loads(capsys.readouterr().out)
    assert (report["nccl"], report["nccl_from"]) == ("2.28.9", "--nccl")
    (file,) = report["files"]
    assert (file["path"], file["format"], file["settings"]) == ("nccl.conf", "nccl.conf", 2)
    (message,) = file["messages"]
    assert message == {
        "rule": "misspelt-name",
        "severity": "error",
        "line": 2,
        "column": 1,
        "name": "NCCL_IB_TIMOUT",
        "text": "NCCL does not know `NCCL_IB_TIMOUT`, so the setting has no effect",
        "hint": "did you mean `NCCL_IB_TIMEOUT`?",
    }


def test_standard_input_is_a_file_named_dash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"export NCCL_BUFFSIZE=4M\n"))
    monkeypatch.setattr(sys, "stdin", given)

    assert run(["lint", "-"]) == 1
    assert (
        "-:1:22: error: NCCL_BUFFSIZE: NCCL drops `M`: `4M` is 4 [number-suffix]" in capsys.readouterr().out
    )


def test_a_format_can_be_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "site"
    path.write_text("export NCCL_CROSS_NIC=0\n")

    codes = [run(["lint", str(path), "--format", name]) for name in ("shell", "nccl.conf", "env-file")]

    assert codes == [0, 1, 1]
    assert capsys.readouterr().out.count("[export-in-conf]") == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "FILE"),
        (["missing.conf"], "cannot read missing.conf"),
        (["."], "cannot read ."),
        (["nccl.conf", "--nccl", "newest"], "`newest` is no version of NCCL"),
        (["nccl.conf", "--fail-on", "warn"], "did you mean `warning`?"),
        (["nccl.conf", "--format", "yml"], "did you mean `yaml`?"),
        (["nccl.conf", "--library", "nccl.conf"], "is no ELF library"),
    ],
)
def test_bad_usage_exits_2(
    wrong: Path, arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lint", *arguments]) == 2

    said = capsys.readouterr()
    assert part in said.err
    assert said.out == ""


def test_a_library_gives_names_and_version(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = b"\0".join(b"NCCL_NAME_%c" % letter for letter in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    (wrong.parent / "libnccl.so.2").write_bytes(b"\x7fELF\0" + names + b"\0NCCL version 2.27.3+cuda12.9\0")

    assert run(["lint", "nccl.conf", "--library", "libnccl.so.2"]) == 1

    out = capsys.readouterr().out
    assert "[not-in-library]" in out
    assert "checked against NCCL 2.27.3 (the library's version)" in out


def test_paths_are_looked_at_when_asked(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong.write_text(f"NCCL_GRAPH_FILE={wrong}\nNCCL_TOPO_FILE={wrong}.gone\n")

    codes = [run(["lint", "nccl.conf", *option]) for option in ([], ["--check-paths"])]

    assert codes == [0, 1]
    assert capsys.readouterr().out.count("[missing-path]") == 1


def test_a_newer_nccl_than_the_catalogue_is_told(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["lint", "nccl.conf", "--nccl", "3.0"])

    assert "what came after 2.30.7 is not known" in capsys.readouterr().out


def test_nothing_of_a_file_drives_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a\x1b[2J.conf"
    path.write_text("NCCL_DEBUG=\x1b[2J\nNCCL_\x1b[31mX=1\nNCCL_TOPO_FILE=\x1b~\n\x1b[2J=1\n")

    assert run(["lint", str(path)]) == 1

    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err


def test_in_a_terminal_lines_are_wrapped(
    wrong: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topo_tune.cli.lint._width", lambda: 60)

    run(["lint", "nccl.conf"])

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("    ")


def test_nothing_heavy_is_imported_for_it(wrong: Path) -> None:
    probe = (
        "import sys; from topo_tune.cli.app import run; code = run(['lint', 'nccl.conf']);"
        "print(code, sorted({'rich', 'yaml', 'numpy', 'paramiko'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stderr.splitlines()[-1] == "1 []"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("README.md", b"# Cluster\n\nnodes = many\nthe next line\n", "holds no NCCL setting"),
        ("job.log", b"n1:7:7 [0] NCCL INFO cudaDriverVersion=12040\nn1:7:7 [0] NCCL INFO ring\n", "holds no"),
        ("ls", b"\x7fELF\x02\x01\x01" + bytes(range(32)) * 20, "is binary data"),
    ],
)
def test_what_is_no_file_of_settings_is_said_to_be_none(
    wrong: Path, name: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (wrong.parent / name).write_bytes(content)

    assert run(["lint", name]) == 2

    shown = capsys.readouterr()
    assert f"error: {name} {said}" in shown.err
    assert shown.out == ""


def test_other_files_are_read_beside_one_that_is_none_of_settings(
    wrong: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (wrong.parent / "README").write_text("read me\n")

    assert run(["lint", "README", "nccl.conf"]) == 2

    shown = capsys.readouterr()
    assert "[misspelt-name]" in shown.out
    assert shown.err == "error: README holds no NCCL setting\n"


@pytest.mark.parametrize("arguments", [["nccl.conf"], ["site", "--format", "nccl.conf"], ["job.sh"]])
def test_a_file_that_is_said_to_hold_settings_is_read_as_such(wrong: Path, arguments: list[str]) -> None:
    for name in ("nccl.conf", "site", "job.sh"):
        (wrong.parent / name).write_text("true\n")

    assert run(["lint", *arguments]) in (0, 1)


def test_an_empty_file_is_fine(wrong: Path) -> None:
    (wrong.parent / "site").write_text("# nothing yet\n")

    assert run(["lint", "site"]) == 0
