"""Node names as operators write them: what they stand for, and what is never let in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.records.nodeset import expand, fold, is_node_name, repeated


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu1", ("gpu1",)),
        ("gpu[1-3]", ("gpu1", "gpu2", "gpu3")),
        ("gpu[001-003]", ("gpu001", "gpu002", "gpu003")),
        ("gpu[1,3-4]", ("gpu1", "gpu3", "gpu4")),
        ("gpu[0-4/2]", ("gpu0", "gpu2", "gpu4")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("gpu[1-2]-ib0.example.org", ("gpu1-ib0.example.org", "gpu2-ib0.example.org")),
        ("10.0.0.[1-2]", ("10.0.0.1", "10.0.0.2")),
        ("2001:db8::1", ("2001:db8::1",)),
        (" a , b ", ("a", "b")),
        ("gpu[1-4]!gpu2", ("gpu1", "gpu3", "gpu4")),
        ("login", ("login",)),
    ],
)
def test_a_pattern_stands_for_its_nodes(pattern: str, names: tuple[str, ...]) -> None:
    assert expand(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("gpu1!gpu1", "is empty"),
        ("gpu[3-1]", "bad node set"),
        ("gpu[1", "bad node set"),
        ("gpu1]", "bad node set"),
        ("gpu[a-b]", "bad node set"),
        ("gpu[]", "bad node set"),
        ("a,,b", "bad node set"),
        ("@gpus", "node groups"),
        ("@gpus:all,n1", "node groups"),
        ("*", "`\\*` is not a node name"),
        ("gpu*", "is not a node name"),
        ("n1 n2", "is not a node name"),
        ("n1\nn2", "is not a node name"),
        ("gpu{1..3}", "is not a node name"),
        ("-oProxyCommand=reboot", "is not a node name"),
        ("ops@n1", "node groups"),
        ("n1;reboot", "is not a node name"),
        ("$(reboot)", "is not a node name"),
        ("`reboot`", "is not a node name"),
        ("n1|tee", "is not a node name"),
        ("n1>x", "is not a node name"),
        ("../../etc/passwd", "is not a node name"),
        ("n1/", "is not a node name"),
        ("n%s", "is not a node name"),
        ("n1\x00", "is not a node name"),
        ("nöde", "is not a node name"),
        ("n" * 300, "is not a node name"),
        ("n[1-99999999999]", "names more than 65536 nodes"),
        ("n[1-1000]m[1-1000]", "names more than 65536 nodes"),
        ("a[1-65536],b", "names more than 65536 nodes"),
    ],
)
def test_what_is_no_node_set_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        expand(pattern)


def test_groups_of_this_machine_are_never_asked() -> None:
    # `*` is every node of /etc/clustershell where NodeSet is given its default resolver.
    with pytest.raises(InputError, match="is not a node name"):
        expand("*")


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("n1 n2", "put a comma between two nodes"),
        ("gpu{1..3}", "write a range as `gpu[001-016]`"),
        ("gpu[3-1]", "write ranges as `gpu[001-016]` or `gpu[1,3-5]`"),
        ("@gpus", "write the nodes out"),
    ],
)
def test_a_refusal_says_how_to_write_it(pattern: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        expand(pattern)

    assert caught.value.hint == hint


NAMES = st.sets(
    st.from_regex(r"[a-z]{1,4}(-?[0-9]{1,3}){0,2}([a-z]{1,2})?(\.[a-z]{2,3})?", fullmatch=True),
    min_size=1,
    max_size=8,
)


@given(NAMES)
def test_folding_and_expanding_keeps_every_name(names: set[str]) -> None:
    assert set(expand(fold(names))) == names


@given(st.sets(st.tuples(st.integers(0, 255), st.integers(1, 254)), min_size=1, max_size=8))
def test_folding_and_expanding_keeps_every_ip_address(ends: set[tuple[int, int]]) -> None:
    names = {f"10.0.{third}.{fourth}" for third, fourth in ends}

    assert set(expand(fold(names))) == names


def test_folding_names_ranges() -> None:
    assert fold(["gpu003", "gpu001", "gpu002", "login"]) == "gpu[001-003],login"


def test_folding_nothing_is_a_dash() -> None:
    assert fold([]) == "-"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("n1", ()),
        ("n[1-3]", ()),
        ("n1,n2", ()),
        ("n1,n1", ("n1",)),
        ("n[1-3],n2", ("n2",)),
        ("n[1-3,2]", ("n2",)),
        ("n[1,01]", ()),
        ("r[1-2]n[1,1]", ("r1n1", "r2n1")),
        ("n[1-3]!n2", ()),
    ],
)
def test_a_node_named_twice_is_found(pattern: str, names: tuple[str, ...]) -> None:
    assert repeated(pattern) == names


@pytest.mark.parametrize("name", ["n1", "gpu-1.example.org", "10.0.0.1", "fe80::1", "a_b", "0"])
def test_host_names_and_addresses_are_node_names(name: str) -> None:
    assert is_node_name(name)


@pytest.mark.parametrize("name", ["", "-n", "n-", ".n", "n.", "n 1", "n1\n", "n/1", "n[1]", "~", "n'"])
def test_other_texts_are_no_node_names(name: str) -> None:
    assert not is_node_name(name)
