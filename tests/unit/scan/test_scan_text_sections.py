"""Texts that hold more than one output: taken apart at marks, at labels, or known for a complaint."""

from __future__ import annotations

import time

import pytest
from golden_facts import beside_the_repository
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_answers import MATRIX

from topo_tune.errors import InputError
from topo_tune.scan.complaints import complaint
from topo_tune.scan.facts.words import without_escapes
from topo_tune.scan.node_labels import by_label, without_labels
from topo_tune.scan.saved_file import kind_of, open_saved, text_of
from topo_tune.scan.text_sections import SECTIONS_LIMIT, sections


def titles(text: str) -> list[tuple[str | None, int, int]]:
    return [(section.title, section.line, section.last_line) for section in sections(text)]


@pytest.mark.parametrize(
    ("mark", "title"),
    [
        ("$ lscpu", "lscpu"),
        ("# lscpu", "lscpu"),
        ("## lscpu", "lscpu"),
        ("## What the CPUs are", "What the CPUs are"),
        ("===== lscpu =====", "lscpu"),
        ("--- lscpu ---", "lscpu"),
        ("### `lscpu`", "`lscpu`"),
        ("+ lscpu", "lscpu"),
        ("[root@gpu001 ~]# lscpu", "lscpu"),
        ("ann@gpu001:~/x$ sudo lscpu", "sudo lscpu"),
    ],
)
def test_what_people_put_between_outputs_is_a_mark(mark: str, title: str) -> None:
    assert titles(f"one\n\n{mark}\n\ntwo\nthree\n") == [(None, 1, 1), (title, 5, 6)]


@pytest.mark.parametrize(
    "line",
    ["# nThread 1 nGpus 1", "==============NVSMI LOG==============", "#comment", "$HOME/x", "+---+", "1: a"],
)
def test_lines_of_outputs_are_no_marks(line: str) -> None:
    assert titles(f"one\n{line}\ntwo\n") == [(None, 1, 3)]


def test_a_fence_keeps_the_title_above_it() -> None:
    text = "## lscpu\n```sh\nArchitecture:  x\n# a comment\n```\nmore\n"

    assert titles(text) == [("lscpu", 3, 4), (None, 6, 6)]


def test_outputs_without_anything_between_them_are_told_by_their_first_lines() -> None:
    table = "+" + "-" * 40 + "+\n| NVIDIA-SMI 570.86 |\n+" + "-" * 40 + "+\n"

    assert titles(f"Mon Jun 22\n{table}{MATRIX}Linux n1 6.8.0 #1\n") == [
        (None, 1, 4),
        (None, 5, 12),
        (None, 13, 13),
    ]


def test_a_job_log_is_one_section_whatever_it_comments() -> None:
    text = "# nThread 1 nGpus 1\n# \n#\n\n# Using devices\n## rank 0\n\n# out of bounds\nn1:1:1 [0] NCCL INFO x\n"

    assert titles(text) == [(None, 1, 9)]


def test_no_more_sections_than_a_script_makes() -> None:
    assert len(sections("$ ls\nx\n" * 1000)) == SECTIONS_LIMIT + 1


@pytest.mark.parametrize(
    "file", beside_the_repository("."), ids=lambda file: f"{file.parent.name}/{file.name}"
)
def test_the_output_of_one_tool_stays_whole(file) -> None:  # type: ignore[no-untyped-def]
    try:
        kind = kind_of(text_of(file.read_bytes()))
    except InputError:
        return

    (opened,) = open_saved(file, file.name)

    assert [output.kind for output in opened.outputs] == [kind]
    assert opened.notes == ()


@pytest.mark.parametrize(
    "line",
    [
        "$ ls\nx\n",
        "## a\n",
        "```\n",
        "=" * 80 + " a\n",
        "A=b " * 99 + "\n",
        "a@b" * 50,
        "#" * 90,
        "n1: x\n",
        "=== a   ",
    ],
)
def test_a_large_text_takes_no_time(line: str) -> None:
    text = line * ((5 << 20) // len(line))
    started = time.perf_counter()

    sections(text)
    by_label(text)

    assert time.perf_counter() - started < 3


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="a#$`=-+@: \nn1.", max_size=300))
def test_sections_hold_every_line_but_marks_in_their_order(text: str) -> None:
    found = sections(text)

    lines = text.split("\n")
    for section in found:
        assert section.text.rstrip("\n").split("\n")[0] == lines[section.line - 1]
        assert 1 <= section.line <= section.last_line <= len(lines)
    assert [s.line for s in found] == sorted({s.line for s in found})


# --- labels ---


def test_lines_behind_names_are_of_those_nodes() -> None:
    assert by_label("gpu001: a\ngpu002: b\ngpu001:\ngpu002: c\n\ngpu001:  d\n") == {
        "gpu001": "a\n\n d\n",
        "gpu002": "b\nc\n",
    }


@pytest.mark.parametrize(
    "text",
    [
        "driver: mlx5_core\nversion: 5.8\nbus-info: 0000:18:00.0\n",
        "NVRM: Xid (PCI:0000:9d:00): 79, pid=1\nNVRM: Xid (PCI:0000:9d:00): 79, pid=2\n",
        "gpu001: a\ngpu001: b\nsomething else\n",
        " 0: a\n 0: b\n",
        MATRIX,
        "",
    ],
)
def test_other_lines_with_colons_are_no_labels(text: str) -> None:
    assert by_label(text) == {}


def test_labels_can_be_taken_off() -> None:
    assert without_labels("n1: a\nn2: b\nc\n") == "a\nb\nc\n"


# --- complaints ---


@pytest.mark.parametrize(
    ("text", "what", "reason"),
    [
        ("bash: ibstat: command not found", "ibstat", "not installed there"),
        ("-bash: line 3: ibstat: command not found", "ibstat", "not installed there"),
        ("sh: 1: ibstat: not found", "ibstat", "not installed there"),
        ("zsh: command not found: ibstat", "ibstat", "not installed there"),
        ("./collect.sh: line 7: show_gids: command not found", "show_gids", "not installed there"),
        ("sudo: ibstat: command not found\n", "ibstat", "not installed there"),
        ("slurmstepd: error: execve(): ibstat: No such file or directory", "ibstat", "not installed there"),
        ("bash: /usr/sbin/ibstat: No such file or directory", "ibstat", "not installed there"),
        (
            "Command 'ibstat' not found, but can be installed with:\n\nsudo apt install infiniband-diags\n",
            "ibstat",
            "not installed there",
        ),
        ("cat: /etc/nccl.conf: No such file or directory", "/etc/nccl.conf", "no such file there"),
        (
            "ls: cannot access '/etc/nccl.conf': No such file or directory",
            "/etc/nccl.conf",
            "no such file there",
        ),
        ("dmesg: read kernel buffer failed: Operation not permitted", "dmesg", "not permitted there"),
        ("cat: /etc/slurm/gres.conf: Permission denied", "/etc/slurm/gres.conf", "not permitted there"),
    ],
)
def test_a_complaint_says_what_is_not_there(text: str, what: str, reason: str) -> None:
    found = complaint(text)

    assert found is not None
    assert found.what == what
    assert found.reason == f"{reason}: `{text.splitlines()[0]}`"


@pytest.mark.parametrize(
    "text",
    [
        "hello: world",
        "bash: ibstat: command not found\nCA 'mlx5_0'\n",
        "srun: error: n1: task 0: Exited with exit code 127",
        "bash: ibstat: command not found\n" * 20,
        "",
    ],
)
def test_other_texts_are_no_complaints(text: str) -> None:
    assert complaint(text) is None


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200) | st.text(alphabet="bash: '/not found.", max_size=200))
def test_any_text_can_be_asked(text: str) -> None:
    complaint(text)
    by_label(text)
    sections(without_escapes(text))
