"""What is known about a name."""

from __future__ import annotations

import pytest

from topo_tune.lint.explanation import Kind, explain, groups, in_group
from topo_tune.lint.names import DEPRECATED, RENAMED, is_known
from topo_tune.lint.owners import BUILD_NAMES, DEBUGGING_ONLY, PYTORCH_OLD_NAMES, owner_of
from topo_tune.lint.values import _MISSING
from topo_tune.records.catalogue import catalogue, misnomers, other_live_names


@pytest.mark.parametrize(
    ("name", "kind", "use"),
    [
        ("NCCL_ALGO", Kind.VARIABLE, None),
        ("algo", Kind.VARIABLE, None),
        ("nccl_ib_gdr_level", Kind.VARIABLE, "NCCL_NET_GDR_LEVEL"),
        ("NCCL_MIN_NCHANNELS", Kind.VARIABLE, "NCCL_MIN_CTAS"),
        ("NCCL_LSA_TEAM_SIZE", Kind.UNDESCRIBED, None),
        ("NCCL_FASTRAK_NUM_FLOWS", Kind.PLUGIN, None),
        ("NCCL_SHARP_DISABLE", Kind.PLUGIN, None),
        ("OFI_NCCL_PROTOCOL", Kind.PLUGIN, None),
        ("NCCL_BLOCKING_WAIT", Kind.FRAMEWORK, "TORCH_NCCL_BLOCKING_WAIT"),
        ("TORCH_NCCL_BLOCKING_WAIT", Kind.FRAMEWORK, None),
        ("NCCL_TIMEOUT", Kind.FRAMEWORK, None),
        ("NCCL_BUFFER_SIZE", Kind.MISNOMER, "NCCL_BUFFSIZE"),
        ("NCCL_IB_TIMOUT", Kind.UNKNOWN, "NCCL_IB_TIMEOUT"),
        ("NCCL_XYZZY", Kind.UNKNOWN, None),
    ],
)
def test_a_name_is_told_apart(name: str, kind: Kind, use: str | None) -> None:
    found = explain(name)

    assert (found.kind, found.use) == (kind, use)


@pytest.mark.parametrize("name", ["FI_PROVIDER", "ucx_tls", "CUDA_VISIBLE_DEVICES"])
def test_a_name_of_another_library_stays_as_it_is(name: str) -> None:
    found = explain(name)

    assert (found.name, found.kind) == (name.upper(), Kind.UNKNOWN)


def test_every_name_of_the_catalogue_is_explained() -> None:
    assert {explain(name).kind for name in catalogue()} == {Kind.VARIABLE}
    assert {explain(name).kind for name in other_live_names()} == {Kind.UNDESCRIBED}
    assert Kind.UNKNOWN not in {explain(name).kind for name in misnomers()}


def test_groups_hold_every_variable_once() -> None:
    listed = [variable.name for group in groups() for variable in in_group(group)]

    assert sorted(listed) == sorted(catalogue())


def test_the_tables_of_names_agree_with_the_catalogue() -> None:
    assert [name for name in (*DEBUGGING_ONLY, *DEPRECATED, *RENAMED) if not is_known(name)] == []
    assert [name for name in (*PYTORCH_OLD_NAMES, *BUILD_NAMES) if is_known(name)] == []
    assert [name for name in (*catalogue(), *other_live_names()) if owner_of(name)] == []
    assert [name for name in _MISSING if not is_known(name) and not owner_of(name)] == []
