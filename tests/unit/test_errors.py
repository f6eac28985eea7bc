"""Errors: exit codes as the tree at the top of errors.py draws them, and messages that name the place."""

from __future__ import annotations

import re

import pytest

from topo_tune import errors
from topo_tune.errors import HostError, InputError, TopoTuneError, Unreachable, did_you_mean, nearest

assert errors.__doc__ is not None
DRAWN = re.findall(r"[├└]── (\w+) +(?:(\d+) )?", errors.__doc__)
"""(class name, exit code or "") of every line of the tree."""

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, TopoTuneError) and kind is not TopoTuneError
}


def test_every_class_is_drawn_in_the_tree() -> None:
    assert {name for name, _ in DRAWN} == set(CLASSES)


@pytest.mark.parametrize(("name", "code"), [(name, int(code)) for name, code in DRAWN if code])
def test_a_class_has_the_exit_code_that_is_drawn(name: str, code: int) -> None:
    assert CLASSES[name].exit_code == code


@pytest.mark.parametrize("name", [name for name, code in DRAWN if not code])
def test_a_class_without_a_drawn_code_is_a_host_error(name: str) -> None:
    assert issubclass(CLASSES[name], HostError)
    assert CLASSES[name].exit_code == errors.EXIT_ENVIRONMENT


def test_every_kind_of_host_error_has_its_own_word() -> None:
    kinds = [kind.kind for kind in CLASSES.values() if issubclass(kind, HostError)]

    assert len(kinds) == len(set(kinds))


def test_only_an_unreachable_host_is_worth_a_second_try() -> None:
    retryable = [kind for kind in CLASSES.values() if issubclass(kind, HostError) and kind.is_retryable]

    assert retryable == [Unreachable]


def test_a_hint_stands_on_its_own_line() -> None:
    assert str(TopoTuneError("it failed", hint="do this")) == "it failed\nhint: do this"


def test_a_message_without_a_hint_is_one_line() -> None:
    assert str(TopoTuneError("it failed")) == "it failed"


@pytest.mark.parametrize(
    ("file", "line", "field", "text"),
    [
        ("a.yaml", 3, "$.racks", "a.yaml:3: is wrong (at `$.racks`)"),
        ("a.yaml", None, None, "a.yaml: is wrong"),
        (None, None, "$.racks", "is wrong (at `$.racks`)"),
        (None, None, None, "is wrong"),
    ],
)
def test_an_input_error_names_file_line_and_field(
    file: str | None, line: int | None, field: str | None, text: str
) -> None:
    error = InputError("is wrong", file=file, line=line, field=field)

    assert str(error) == text
    assert (error.file, error.line, error.field) == (file, line, field)


def test_a_host_error_carries_what_happened_there() -> None:
    error = HostError(
        "gpu1", "it failed", command="nvidia-smi", status=9, stderr_tail="no driver", hint="load it"
    )

    assert str(error) == "gpu1: it failed\nhint: load it"
    assert (error.host, error.command, error.status, error.stderr_tail) == (
        "gpu1",
        "nvidia-smi",
        9,
        "no driver",
    )


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("nccl_algo", ["NCCL_ALGO", "NCCL_PROTO"]) == "NCCL_ALGO"


def test_nothing_is_near_to_a_stranger() -> None:
    assert nearest("xyz", ["NCCL_ALGO"]) is None


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("shh", ["ssh", "local"], "did you mean `ssh`?"),
        ("xyz", ["ssh", "local"], "known: `ssh`, `local`"),
        ("xyz", [], None),
    ],
)
def test_a_hint_names_the_nearest_or_else_all(name: str, known: list[str], hint: str | None) -> None:
    assert did_you_mean(name, iter(known)) == hint


def test_a_set_of_names_is_listed_in_the_same_order_every_time() -> None:
    assert did_you_mean("xyz", {"ssh", "local", "gloo"}) == "known: `gloo`, `local`, `ssh`"


def test_of_a_long_list_a_hint_names_the_nearest_five_and_where_all_are() -> None:
    known = [f"gpu-rule-{number}" for number in range(40)] + ["abc-1"]

    assert did_you_mean("abcdefgh", known, listed_in="docs/reference/findings.md") == (
        "41 are known, the nearest: `abc-1`, `gpu-rule-9`, `gpu-rule-8`, `gpu-rule-7`, `gpu-rule-6`; all are in "
        "docs/reference/findings.md"
    )
