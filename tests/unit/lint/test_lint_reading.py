"""How settings are found in texts of every format, with their places."""

from __future__ import annotations

import pytest

from topo_tune.lint.formats import read, recognise
from topo_tune.lint.message import Format
from topo_tune.lint.setting import Setting, Target

NEWEST = Target((2, 30, 7))


def settings(text: str, format: Format) -> tuple[Setting, ...]:
    return read(text, format, NEWEST).settings


def pairs(text: str, format: Format) -> list[tuple[str, str]]:
    return [(setting.name, setting.value) for setting in settings(text, format)]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("export NCCL_X=1", "1"),
        ("export NCCL_X='a b'", "a b"),
        ('export NCCL_X="a b"  # why', "a b"),
        ("export NCCL_X=a#b", "a#b"),
        ("export NCCL_X=$((2 * 1024 * 1024))", "2097152"),
        ('export NCCL_X="$((1 << 20))"', "1048576"),
        ("export NCCL_X=a\\ b", "a b"),
        ("export NCCL_X=a'b'\"c\"", "abc"),
        ("declare -x NCCL_X=1", "1"),
        ("setenv NCCL_X 1", "1"),
        ("ENV NCCL_X 1", "1"),
        ("NCCL_X=1 python train.py", "1"),
        ("mpirun -np 2 -x NCCL_X=1 ./a", "1"),
        ("mpirun -genv NCCL_X 1 ./a", "1"),
        ("docker run -e NCCL_X=1 image", "1"),
        ("docker run --env=NCCL_X=1 image", "1"),
        ("srun --export=ALL,NCCL_X=1 ./a", "1"),
        ("srun bash -c 'export NCCL_X=1; ./a'", "1"),
        ('ARGS="-x NCCL_X=1 -x A=2"', "1"),
        ("if true; then export NCCL_X=1; fi", "1"),
        ("mpirun \\\n  -x NCCL_X=1 \\\n  ./a", "1"),
        ("mpirun \\\r\n  -x NCCL_X=1 \\\r\n  ./a", "1"),
    ],
)
def test_shell_code_is_read_as_a_shell_does(line: str, value: str) -> None:
    found = [setting for setting in settings(line, Format.SHELL) if setting.name == "NCCL_X"]

    assert [(setting.value, setting.is_plain, setting.is_passed) for setting in found] == [
        (value, True, True)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "export NCCL_X=$VALUE",
        "export NCCL_X=${VALUE:-1}",
        'export NCCL_X="$VALUE"',
        "export NCCL_X=$(cat file)",
        "export NCCL_X=`cat file`",
        "export NCCL_X=$((A + 1))",
        "export NCCL_X=$((1 / 0))",
        "export NCCL_X=$((9 ** 9 ** 9))",
    ],
)
def test_a_value_that_only_a_shell_can_tell_is_marked(line: str) -> None:
    (setting,) = settings(line, Format.SHELL)

    assert not setting.is_plain


@pytest.mark.parametrize(
    "line", ["# export NCCL_X=1", "unset NCCL_X", "echo $NCCL_X", "grep NCCL_X file", "export NCCL_X"]
)
def test_what_sets_nothing_is_no_setting(line: str) -> None:
    assert settings(line, Format.SHELL) == ()


def test_an_apostrophe_in_a_text_hides_nothing() -> None:
    text = "echo don't stop\nexport NCCL_X=1\necho it's\n"

    assert pairs(text, Format.SHELL) == [("NCCL_X", "1")]


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("NCCL_DEBUG=WARN\n", False),
        ("NCCL_DEBUG=WARN\nexport NCCL_DEBUG\n", True),
        ("set -a\nNCCL_DEBUG=WARN\n", True),
        ("set -o allexport\nNCCL_DEBUG=WARN\n", True),
        ("local NCCL_DEBUG=WARN\n", False),
        ("set -e\nNCCL_DEBUG=WARN\n", False),
        ("cat > /etc/nccl.conf <<EOF\nNCCL_DEBUG=WARN\nEOF\n", True),
        ("cat <<'END'\nA=1\nEND\nNCCL_DEBUG=WARN\n", False),
    ],
)
def test_a_plain_shell_variable_reaches_no_program(text: str, passed: bool) -> None:
    (setting,) = settings(text, Format.SHELL)

    assert setting.is_passed is passed


def test_places_count_from_one_and_point_at_the_name_and_the_value() -> None:
    (first, second) = settings('#!/bin/sh\nexport NCCL_A="x"\n  mpirun -x NCCL_B=yy\n', Format.SHELL)

    assert (first.line, first.column) == (2, 8)
    assert (second.line, second.column, second.value_column) == (3, 13, 20)


@pytest.mark.parametrize(
    "text",
    [
        '"NCCL_X=1",\n"NCCL_Y=a,b",\n',
        '["NCCL_X=1", "NCCL_Y=a,b"]',
        '["-x","NCCL_X=1","-x","NCCL_Y=a,b"]',
        "- NCCL_X=1\n- 'NCCL_Y=a,b'\n",
        "- -x\n- NCCL_X=1\n- -x\n- NCCL_Y=a,b\n",
        "    -x NCCL_X=1 \\\n    -x NCCL_Y=a,b \\\n",
    ],
)
def test_lists_of_arguments_come_in_many_shapes(text: str) -> None:
    assert pairs(text, Format.ARGS) == [("NCCL_X", "1"), ("NCCL_Y", "a,b")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('- name: NCCL_X\n  value: "1"\n', "1"),
        ("- name: NCCL_X\n  value: '1'  # why\n", "1"),
        ("- name: 'NCCL_X'\n  # why\n  value: a b # c\n", "a b"),
        ('- {name: NCCL_X, value: "1"}\n', "1"),
        ("environment:\n  NCCL_X: one\n", "one"),
        ('{"env": {\n  "NCCL_X": "1",\n}}', "1"),
        ("environment:\n  - NCCL_X=1\n", "1"),
        ("args:\n- |\n  export NCCL_X=1\n", "1"),
        ('command: ["bash", "-c", "export NCCL_X=1 && ./a"]\n', "1"),
    ],
)
def test_yaml_and_json_are_read_line_by_line(text: str, value: str) -> None:
    assert pairs(text, Format.YAML) == [("NCCL_X", value)]


@pytest.mark.parametrize(
    "text",
    [
        "- name: NCCL_X\n  valueFrom:\n    fieldRef: a\n",
        '- name: NCCL_X\n  value: "{{ .Values.x }}"\n',
        '- name: NCCL_X\n  value: "$(OTHER)"\n',
    ],
)
def test_a_value_from_elsewhere_is_not_known(text: str) -> None:
    (setting,) = settings(text, Format.YAML)

    assert not setting.is_plain


def test_names_of_containers_are_no_variables() -> None:
    assert settings("- name: nccl_tests\n  image: nccl:1\nnccl_version: 2\n", Format.YAML) == ()


def test_two_containers_are_two_environments() -> None:
    block = '- name: {}\n  env:\n  - name: NCCL_IB_SL\n    value: "1"\n'
    listing = read(block.format("a") + block.format("b"), Format.YAML, NEWEST)

    assert len({setting.scope for setting in listing.settings}) == 2
    assert len(listing.effective()) == 2


def test_an_env_file_keeps_quotes_and_knows_comment_lines() -> None:
    text = '# NCCL_A=1\nNCCL_X="1"\n  NCCL_Y=2\nPATH=/bin\nNCCL_Z\n'

    assert pairs(text, Format.ENV_FILE) == [("NCCL_X", '"1"'), ("NCCL_Y", "2")]


def test_nccl_conf_is_cut_at_the_first_equals_sign() -> None:
    assert pairs("NCCL_IB_HCA==mlx5_0\n", Format.CONF) == [("NCCL_IB_HCA", "=mlx5_0")]


@pytest.mark.parametrize(
    ("text", "path", "format"),
    [
        ("export NCCL_X=1\n", "/etc/nccl.conf", Format.CONF),
        ("export NCCL_X=1\n", "/etc/nccl/conf.d/50-site.conf", Format.CONF),
        ("export NCCL_X=1\n", "site.conf", Format.SHELL),
        ("NCCL_X=1\n", "-", Format.CONF),
        ("NCCL_X=1\n", "job.env", Format.ENV_FILE),
        ("NCCL_X=1\n", ".env", Format.ENV_FILE),
        ("NCCL_X=1\n", "job.sh", Format.SHELL),
        ("#!/bin/bash\nNCCL_X=1\n", "job", Format.SHELL),
        ("#SBATCH -N 2\nNCCL_X=1\n", "-", Format.SHELL),
        ("FROM a\nENV NCCL_X=1\n", "Dockerfile", Format.SHELL),
        ("NCCL_X=1\nmpirun ./a\n", "-", Format.SHELL),
        ('- name: NCCL_X\n  value: "1"\n', "-", Format.YAML),
        ("environment:\n  NCCL_X: 1\n", "compose", Format.YAML),
        ('["-x","NCCL_X=1"]', "-", Format.ARGS),
        ("-x NCCL_X=1 \\\n", "-", Format.ARGS),
        ("NCCL_X=1\nNCCL_Y=2\nexport NCCL_Z=3\n", "-", Format.CONF),
    ],
)
def test_a_format_is_recognised(text: str, path: str, format: Format) -> None:
    assert recognise(text, path) is format
