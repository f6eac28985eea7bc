"""Which settings share processes: every setting once, whole, and nothing in a communicator that NCCL would not see."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.bench.trials import LATCHED, NO_CACHE, Processes, Variant, alone, order
from topo_tune.on_node.nccl_api import config_fields
from topo_tune.records.catalogue import catalogue
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

OLD, USUAL, RELOADING = (2, 16, 5), (2, 28, 9), (2, 29, 7)
VERSIONS = (None, OLD, (2, 23, 4), USUAL, RELOADING, (2, 30, 7))

VALUES = {
    "NCCL_ALGO": ("Ring", "Tree"),
    "NCCL_PROTO": ("LL", "Simple"),
    "NCCL_MIN_CTAS": ("0", "1", "16", "40", "99"),
    "NCCL_MAX_CTAS": ("4", "32", "64"),
    "NCCL_CGA_CLUSTER_SIZE": ("0", "2", "9"),
    "NCCL_NVLS_NCHANNELS": ("8", "16"),
    "NCCL_NCHANNELS_PER_NET_PEER": ("2", "4"),
    "NCCL_BUFFSIZE": ("1048576", "8388608"),
    "NCCL_NTHREADS": ("256", "512"),
    "NCCL_SOCKET_NTHREADS": ("2", "4"),
    "NCCL_NVLS_ENABLE": ("0", "1"),
    "NCCL_COMM_ID": ("10.0.0.1:4000",),
    "NCCL_CTA_POLICY": ("EFFICIENCY",),
    "NCCL_P2P_LEVEL": ("SYS",),
    "NCCL_NET_GDR_LEVEL": ("PHB",),
    "NCCL_IB_HCA": ("mlx5_0",),
    "NCCL_SOCKET_IFNAME": ("eth0",),
    "NCCL_IB_TC": ("106",),
    "NCCL_NO_CACHE": ("ALL",),
}
some_settings = st.lists(
    st.dictionaries(st.sampled_from(sorted(VALUES)), st.integers(0, 4), max_size=5).map(
        lambda chosen: NcclEnv(tuple(sorted((n, VALUES[n][i % len(VALUES[n])]) for n, i in chosen.items())))
    ),
    max_size=12,
)
some_version = st.sampled_from(VERSIONS)

NAME_OF_FIELD = {
    variable.config_field: name
    for name, variable in catalogue().items()
    if variable.config_field not in (None, "trafficClass")
}


def put_together(processes: Processes, variant: Variant) -> NcclEnv:
    """What NCCL ends up with, as variables; without what only serves the measurement."""
    found = processes.env.merged(variant.env).as_dict()
    if variant.setting.as_dict().get(NO_CACHE) is None:
        found.pop(NO_CACHE, None)
    config = dict(variant.config)
    if "minCTAs" in config and "NCCL_MAX_CTAS" not in variant.setting.names():
        del config["maxCTAs"]
    return NcclEnv(
        tuple(sorted((found | {NAME_OF_FIELD[field]: str(value) for field, value in config.items()}).items()))
    )


@settings(max_examples=60)
@given(some_settings, some_version, st.booleans())
def test_every_setting_is_measured_once_and_whole(
    asked: list[NcclEnv], version: tuple[int, ...] | None, interleaved: bool
) -> None:
    planned = order(asked, version, interleaved=interleaved)

    variants = [(processes, variant) for processes in planned for variant in processes.variants]
    assert Counter(variant.position for _, variant in variants) == Counter(range(len(asked)))
    assert all(variant.setting == asked[variant.position] for _, variant in variants)
    assert all(put_together(processes, variant) == variant.setting for processes, variant in variants)


@settings(max_examples=60)
@given(some_settings, some_version)
def test_a_communicator_has_only_what_nccl_looks_up_again(
    asked: list[NcclEnv], version: tuple[int, ...] | None
) -> None:
    for processes in order(asked, version):
        named = processes.env.as_dict().get(NO_CACHE, "").split(",")
        for variant in processes.variants:
            assert not LATCHED & set(variant.env.names())
            assert all(
                catalogue()[name].read_when == "comm_init" or name in named for name in variant.env.names()
            )
            assert {field for field, _ in variant.config} <= set(config_fields(version or (0,)))
            # a variable would win over the field
            assert not {NAME_OF_FIELD[field] for field, _ in variant.config} & set(
                processes.env.merged(variant.env).names()
            )


@settings(max_examples=60)
@given(some_settings, some_version)
def test_what_is_interleaved_keeps_its_order(asked: list[NcclEnv], version: tuple[int, ...] | None) -> None:
    planned = order(asked, version, interleaved=True)

    assert [v.position for processes in planned for v in processes.variants] == list(range(len(asked)))


@settings(max_examples=60)
@given(some_settings, some_version)
def test_no_two_sets_of_processes_could_be_one(asked: list[NcclEnv], version: tuple[int, ...] | None) -> None:
    planned = order(asked, version)

    every = [variant.setting for processes in planned for variant in processes.variants]
    assert len(planned) == len(order(every, version))
    assert len(planned) <= len(order(asked, version, interleaved=True))


@pytest.mark.parametrize("name", sorted(LATCHED))
def test_every_latched_variable_is_one_that_nccl_has(name: str) -> None:
    assert name in catalogue()


def test_settings_that_are_looked_up_again_share_one_set_with_the_default() -> None:
    ring, tree = nccl_env({"NCCL_ALGO": "Ring"}), nccl_env({"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"})

    (only,) = order((DEFAULTS, ring, tree), USUAL)

    assert (only.env, only.notes) == (DEFAULTS, ())
    assert [variant.env for variant in only.variants] == [DEFAULTS, ring, tree]


def test_limits_of_channels_are_fields_of_the_configuration() -> None:
    asked = [nccl_env({"NCCL_MIN_CTAS": 16}), nccl_env({"NCCL_MAX_CTAS": 8})]

    (only,) = order((DEFAULTS, *asked), USUAL)

    assert [variant.config for variant in only.variants] == [
        (),
        (("maxCTAs", 64), ("minCTAs", 16)),
        (("maxCTAs", 8),),
    ]


def test_the_upper_limit_beside_a_lower_one_is_the_default_of_the_version() -> None:
    (only,) = order((DEFAULTS, nccl_env({"NCCL_MIN_CTAS": 16})), (2, 24, 3))

    assert only.variants[1].config == (("maxCTAs", 32), ("minCTAs", 16))


@pytest.mark.parametrize(
    "setting",
    [
        {"NCCL_MIN_CTAS": 16, "NCCL_MAX_CTAS": 8},
        {"NCCL_MIN_CTAS": 0},
        {"NCCL_MAX_CTAS": 65},
        {"NCCL_CGA_CLUSTER_SIZE": 9},
    ],
)
def test_what_a_configuration_would_refuse_stays_a_variable(setting: dict[str, int]) -> None:
    planned = order((DEFAULTS, nccl_env(setting)), USUAL)

    assert [processes.env for processes in planned] == [DEFAULTS, nccl_env(setting)]
    assert [v.config for processes in planned for v in processes.variants] == [(), ()]


def test_a_library_without_the_field_gets_the_variable() -> None:
    asked = nccl_env({"NCCL_MIN_CTAS": 16})

    assert order((DEFAULTS, asked), OLD) == (alone(DEFAULTS), alone(asked, 1))


def test_settings_group_by_what_their_processes_must_be_started_with() -> None:
    a = nccl_env({"NCCL_BUFFSIZE": 1048576})
    b = nccl_env({"NCCL_BUFFSIZE": 1048576, "NCCL_ALGO": "Ring"})
    c = nccl_env({"NCCL_ALGO": "Ring"})

    first, second = order((DEFAULTS, a, c, b), USUAL)

    assert [variant.position for variant in first.variants] == [0, 2]
    assert (second.env, [variant.position for variant in second.variants]) == (a, [1, 3])


def test_a_library_that_can_read_again_needs_one_set_and_says_how() -> None:
    asked = [nccl_env({"NCCL_BUFFSIZE": 1048576}), nccl_env({"NCCL_NTHREADS": 256})]

    (only,) = order((DEFAULTS, *asked), RELOADING)

    assert only.env == NcclEnv(((NO_CACHE, "NCCL_BUFFSIZE,NCCL_NTHREADS"),))
    assert [variant.env for variant in only.variants] == [DEFAULTS, *asked]
    assert "no production setting" in only.notes[0]


def test_one_version_earlier_it_cannot() -> None:
    assert len(order((DEFAULTS, nccl_env({"NCCL_BUFFSIZE": 1048576})), (2, 29, 6))) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_LEVEL", "SYS"),
        ("NCCL_NET_GDR_LEVEL", "PHB"),
        ("NCCL_IB_HCA", "mlx5_0"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("NCCL_COMM_ID", "10.0.0.1:4000"),
    ],
)
def test_what_is_latched_gets_fresh_processes_whatever_the_version(name: str, value: str) -> None:
    latched = NcclEnv(((name, value),))

    planned = order((DEFAULTS, latched), (2, 30, 7))

    assert [processes.env for processes in planned] == [DEFAULTS, latched]


def test_a_list_of_the_operators_own_is_not_added_to() -> None:
    own = NcclEnv(((NO_CACHE, "NCCL_NTHREADS"), ("NCCL_BUFFSIZE", "1048576")))

    planned = order((own, own.merged(nccl_env({"NCCL_BUFFSIZE": 8388608}))), RELOADING)

    assert [processes.env.as_dict()[NO_CACHE] for processes in planned] == ["NCCL_NTHREADS"] * 2


def test_a_set_of_one_has_everything_in_its_environment_as_production_has_it() -> None:
    asked = nccl_env({"NCCL_ALGO": "Ring", "NCCL_MIN_CTAS": 16, "NCCL_BUFFSIZE": 1048576})

    assert order((asked,), RELOADING) == (alone(asked),)


def test_blocks_that_turn_round_stay_as_they_are() -> None:
    a, b = DEFAULTS, nccl_env({"NCCL_IB_HCA": "mlx5_0"})

    planned = order((a, b, b, a), USUAL, interleaved=True)

    assert [[v.position for v in processes.variants] for processes in planned] == [[0], [1, 2], [3]]


def test_what_is_left_of_a_set_keeps_its_environment() -> None:
    (only,) = order((DEFAULTS, nccl_env({"NCCL_BUFFSIZE": 1048576})), RELOADING)

    rest = only.behind(1)

    assert (rest.env, rest.notes, rest.variants) == (only.env, only.notes, only.variants[1:])
