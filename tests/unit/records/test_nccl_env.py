"""One set of NCCL variables: what NCCL would misread is refused, and equal sets are equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env, parse_assignments


def test_a_set_is_sorted_by_name() -> None:
    env = nccl_env({"NCCL_SOCKET_IFNAME": "lo", "NCCL_ALGO": "Ring"})

    assert env.settings == (("NCCL_ALGO", "Ring"), ("NCCL_SOCKET_IFNAME", "lo"))
    assert env.names() == ("NCCL_ALGO", "NCCL_SOCKET_IFNAME")
    assert env.as_dict() == {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "lo"}


SETTINGS = {"NCCL_ALGO": "Ring", "NCCL_MIN_CTAS": 4, "NCCL_MAX_CTAS": 8, "NCCL_SOCKET_IFNAME": "lo"}


@given(st.permutations(sorted(SETTINGS)))
def test_the_order_in_which_settings_come_does_not_matter(names: list[str]) -> None:
    env = nccl_env({name: SETTINGS[name] for name in names})

    assert env == nccl_env(SETTINGS)
    assert env.short_hash() == nccl_env(SETTINGS).short_hash()


def test_numbers_become_text() -> None:
    assert nccl_env({"NCCL_MIN_CTAS": 4}) == nccl_env({"NCCL_MIN_CTAS": "4"})


def test_the_hash_of_a_set_is_the_same_on_every_machine_and_version() -> None:
    # `printf NCCL_ALGO=Ring | sha256sum`, 12 digits; written down, because run folders hold such hashes.
    assert nccl_env({"NCCL_ALGO": "Ring"}).short_hash() == "b509e4c6c965"
    # SHA-256 of nothing: FIPS 180-2.
    assert DEFAULTS.short_hash() == "e3b0c44298fc"


def test_different_sets_have_different_hashes() -> None:
    assert nccl_env({"NCCL_MIN_CTAS": 4}).short_hash() != nccl_env({"NCCL_MAX_CTAS": 4}).short_hash()


def test_merging_lets_the_other_set_win() -> None:
    merged = nccl_env({"NCCL_ALGO": "Ring", "NCCL_MIN_CTAS": 4}).merged(nccl_env({"NCCL_ALGO": "Tree"}))

    assert merged == nccl_env({"NCCL_ALGO": "Tree", "NCCL_MIN_CTAS": 4})


def test_merging_with_nothing_changes_nothing() -> None:
    env = nccl_env({"NCCL_ALGO": "Ring"})

    assert env.merged(DEFAULTS) == DEFAULTS.merged(env) == env


def test_a_set_is_shown_as_assignments() -> None:
    assert str(nccl_env({"NCCL_MIN_CTAS": 4, "NCCL_ALGO": "Ring"})) == "NCCL_ALGO=Ring NCCL_MIN_CTAS=4"


def test_the_empty_set_is_shown_as_nccls_defaults() -> None:
    assert str(NcclEnv()) == "NCCL's defaults"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("NCCL_SOCKET_IFNAM", "did you mean `NCCL_SOCKET_IFNAME`?"),
        ("nccl_algo", "did you mean `NCCL_ALGO`?"),
        ("NCCL_PROTOCOL", "no such name; use `NCCL_PROTO`"),
        ("NCCL_IB_MTU", "no such name; NCCL takes the port active MTU"),
        ("NCCL_BLOCKING_WAIT", "PyTorch; use `TORCH_NCCL_BLOCKING_WAIT`"),
        ("NCCL_TESTS_DEVICE", "read by nccl-tests"),
        ("", None),
        ("PATH", None),
    ],
)
def test_an_unknown_name_is_refused_with_the_right_one(name: str, hint: str | None) -> None:
    with pytest.raises(InputError, match="is not an NCCL variable known to topo-tune") as caught:
        nccl_env({name: "1"})

    assert caught.value.hint == hint


def test_a_variable_that_nccl_stopped_reading_is_refused() -> None:
    with pytest.raises(InputError, match=r"`NCCL_TREE_THRESHOLD` was last read by NCCL 2\.4"):
        nccl_env({"NCCL_TREE_THRESHOLD": 0})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NCCL_BUFFSIZE", "4M", "`4M` would mean 4"),
        ("NCCL_BUFFSIZE", "4194304B", "drops trailing text"),
        ("NCCL_BUFFSIZE", "4e6", "drops trailing text"),
        ("NCCL_BUFFSIZE", "0x400000", "reads an integer here"),
        ("NCCL_BUFFSIZE", "010", "reads an integer here"),
        ("NCCL_BUFFSIZE", "+", "reads an integer here"),
        ("NCCL_BUFFSIZE", "1 2", "reads an integer here"),
        ("NCCL_BUFFSIZE", "٤", "must be printable"),
        ("NCCL_BUFFSIZE", "", "not empty"),
        ("NCCL_SOCKET_IFNAME", "", "not empty"),
        ("NCCL_SOCKET_IFNAME", " lo", "without outer spaces"),
        ("NCCL_SOCKET_IFNAME", "lo\n", "without outer spaces"),
        ("NCCL_SOCKET_IFNAME", "l\to", "must be printable"),
        ("NCCL_SOCKET_IFNAME", "lo\0", "must be printable"),
        ("NCCL_SOCKET_IFNAME", '"lo"', "quotes would become part of the value"),
        ("NCCL_SOCKET_IFNAME", "'lo'", "quotes would become part of the value"),
        ("NCCL_SOCKET_IFNAME", "a" * 1024, "longer than 1023 characters"),
        ("NCCL_IB_DISABLE", "2", "is not one of `0`, `1`"),
        ("NCCL_IB_DISABLE", "true", "reads an integer here"),
    ],
)
def test_a_value_that_nccl_would_misread_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        nccl_env({name: value})


@pytest.mark.parametrize("value", ["-2", "0", "4194304"])
def test_plain_integers_are_taken(value: str) -> None:
    assert nccl_env({"NCCL_BUFFSIZE": value}).as_dict() == {"NCCL_BUFFSIZE": value}


def test_a_text_may_hold_an_equals_sign() -> None:
    assert parse_assignments(("NCCL_SOCKET_IFNAME==eth0",)) == nccl_env({"NCCL_SOCKET_IFNAME": "=eth0"})


def test_assignments_are_read_like_a_command_line() -> None:
    env = parse_assignments(("NCCL_MIN_CTAS=4", "NCCL_ALGO=allreduce:ring"))

    assert env == nccl_env({"NCCL_ALGO": "allreduce:ring", "NCCL_MIN_CTAS": 4})


def test_a_word_without_an_equals_sign_is_refused() -> None:
    with pytest.raises(InputError, match="`NCCL_ALGO` is not `NAME=VALUE`"):
        parse_assignments(("NCCL_ALGO",))


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="`NCCL_ALGO` is given twice"):
        parse_assignments(("NCCL_ALGO=Ring", "NCCL_ALGO=Tree"))
