"""The catalogue of NCCL variables: it loads, and it agrees with the checks that use it."""

from __future__ import annotations

import re

import pytest

from topo_tune.records.catalogue import (
    Variable,
    _file,
    catalogue,
    catalogue_version,
    misnomers,
    version_tuple,
)
from topo_tune.records.nccl_env import nccl_env

SEARCH_VALUES = [
    pytest.param(variable.name, value, id=f"{variable.name}={value}")
    for variable in catalogue().values()
    for value in variable.search_values or ()
]

SINGLE_NAME = re.compile(r"NCCL_[A-Z0-9_]+")


def test_the_catalogue_names_the_version_it_was_read_from() -> None:
    assert version_tuple(catalogue_version()) >= (2, 30)


def test_every_variable_is_under_its_own_name_and_is_nccls() -> None:
    assert all(name == variable.name for name, variable in catalogue().items())
    assert all(name.startswith("NCCL_") for name in catalogue())
    assert len(catalogue()) > 100


def test_every_variable_says_in_one_short_sentence_what_it_does() -> None:
    purposes = {name: variable.purpose for name, variable in catalogue().items()}

    assert [name for name, purpose in purposes.items() if not 15 <= len(purpose) <= 120] == []
    assert [
        name for name, purpose in purposes.items() if purpose.endswith(".") or not purpose[0].isupper()
    ] == []
    assert len(set(purposes.values())) == len(purposes)


@pytest.mark.parametrize(("name", "value"), SEARCH_VALUES)
def test_every_value_worth_searching_is_one_that_may_be_set(name: str, value: str | int) -> None:
    assert nccl_env({name: value}).as_dict() == {name: str(value)}


def test_no_misnomer_is_a_name_that_nccl_reads() -> None:
    live = {name for name, variable in catalogue().items() if variable.until is None}

    assert not live & set(misnomers())


def test_the_right_name_of_a_misnomer_is_one_that_nccl_reads() -> None:
    live = {*catalogue(), *_file().other_live_names}
    right_names = {
        entry.use for entry in misnomers().values() if entry.use and SINGLE_NAME.fullmatch(entry.use)
    }

    assert right_names <= live


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.28.9", (2, 28, 9)),
        ("2.28.9+cuda13.0", (2, 28, 9)),
        ("2.30", (2, 30)),
        ("2.28.9-1", (2, 28, 9)),
        ("2.x", (2,)),
        ("", ()),
        ("unknown", ()),
    ],
)
def test_a_version_is_its_leading_numbers(text: str, version: tuple[int, ...]) -> None:
    assert version_tuple(text) == version


@pytest.mark.parametrize(
    ("name", "version", "exists"),
    [
        ("NCCL_ALGO", (2, 4, 8), False),
        ("NCCL_ALGO", (2, 5, 6), True),
        ("NCCL_ALGO", (2, 30, 7), True),
        ("NCCL_TREE_THRESHOLD", (2, 4, 2), True),
        ("NCCL_TREE_THRESHOLD", (2, 4, 8), True),
        ("NCCL_TREE_THRESHOLD", (2, 5, 6), False),
        ("NCCL_SHM_USE_CUDA_MEMCPY", (2, 30, 4), True),
        ("NCCL_SHM_USE_CUDA_MEMCPY", (2, 30, 5), False),
    ],
)
def test_a_variable_exists_from_its_first_to_its_last_version(
    name: str, version: tuple[int, ...], exists: bool
) -> None:
    assert catalogue()[name].exists_in(version) is exists


def _variable(kind: str, allowed: str | tuple[str | int, ...] | None) -> Variable:
    return Variable(
        name="NCCL_X",
        group="misc",
        type=kind,
        scope="both",
        tunable=False,
        read_when=None,
        no_cache_reload=None,
        config_field=None,
        allowed=allowed,
        default=None,
        search_values=None,
        since=None,
        first_tag=None,
        until=None,
        documented=False,
        risk=None,
        must_match_across_ranks=None,
        match_basis=None,
        notes="",
        source="",
    )


@pytest.mark.parametrize(
    ("kind", "allowed", "is_integer"),
    [
        ("int", None, True),
        ("bool", (0, 1), True),
        ("size", None, True),
        ("enum", (0, 1, 2), True),
        ("enum", ("LOC", "PIX", 0), False),
        ("enum", "a text about it", False),
        ("string", None, False),
        ("list", None, False),
    ],
)
def test_integers_are_what_nccl_reads_as_integers(
    kind: str, allowed: str | tuple[str | int, ...] | None, is_integer: bool
) -> None:
    assert _variable(kind, allowed).is_integer is is_integer


def test_a_variable_of_unknown_age_exists_in_every_version() -> None:
    assert _variable("int", None).exists_in((2, 0, 5))
