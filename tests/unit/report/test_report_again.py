"""The command that measures a failed launch again."""

from __future__ import annotations

import shlex

import msgspec

from topo_tune.records.bench import Launch, Layout
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, nccl_env
from topo_tune.report.again import again

LAUNCH = Launch(
    4,
    "bench",
    ("n1", "n2"),
    nccl_env({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}),
    BackendName.NCCL,
    16,
    "2026-01-01",
    1.0,
    error="wrong all_gather at 32M on rank 3",
    collective="all_gather",
    dtype="int8",
)


def test_a_failure_can_be_seen_again_with_one_command() -> None:
    assert again(LAUNCH, "cluster.yaml", (8192, 32 << 20)) == (
        "topo-tune bench -c cluster.yaml --set 'NCCL_ALGO=Ring NCCL_PROTO=LL' --sizes 8K,32M "
        "--collective all_gather --dtype int8 --launches 1"
    )


def test_the_default_needs_no_setting() -> None:
    launch = msgspec.structs.replace(LAUNCH, env=DEFAULTS, dtype="")

    assert again(launch, "c.yaml", (8,)) == (
        "topo-tune bench -c c.yaml --sizes 8 --collective all_gather --launches 1"
    )


def test_layout_and_place_are_told_where_they_are_not_the_usual_ones() -> None:
    launch = msgspec.structs.replace(LAUNCH, layout=Layout.RAILS, in_place=False)

    assert "--layout rails --out-of-place" in again(launch, "c.yaml", (8,))


def test_a_shell_takes_it_as_it_stands() -> None:
    launch = msgspec.structs.replace(LAUNCH, env=nccl_env({"NCCL_SOCKET_IFNAME": "^lo;rm -rf /"}))

    words = shlex.split(again(launch, "my cluster's file.yaml", (8,), ["--limit", "n[1-2]"]))

    assert words[3] == "my cluster's file.yaml"
    assert words[5] == "NCCL_SOCKET_IFNAME=^lo;rm -rf /"
    assert words[-4:] == ["--limit", "n[1-2]", "--launches", "1"]
