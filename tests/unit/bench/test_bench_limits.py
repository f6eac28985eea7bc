"""What a setting may take, from what the default took."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topo_tune.bench.limits import cut_off, fair_deadline, slowest_calls
from topo_tune.records.bench import Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS

MIB = 1 << 20


def launch(wall_seconds: float = 2.0, **sizes: Any) -> Launch:
    """`m32=(samples, warm-up)`: one size in MiB each."""
    results = tuple(
        SizeResult(int(name[1:]) * MIB, samples, 20, TimingMode.GRAPH, True, warmup)
        for name, (samples, warmup) in sizes.items()
    )
    return Launch(0, "bench", ("n1",), DEFAULTS, BackendName.NCCL, 2, "2026-01-01", wall_seconds, results)


def test_without_a_default_nothing_is_cut_off_before_the_plans_deadline() -> None:
    assert slowest_calls([], (MIB,)) == ()
    assert fair_deadline(60.0, []) == 60.0


def test_a_call_may_take_eight_times_the_slowest_of_the_defaults_medians() -> None:
    defaults = [launch(m32=((0.01, 0.01, 9.0), ())), launch(m32=((0.02, 0.02, 0.02), ()))]

    assert slowest_calls(defaults, (32 * MIB,)) == ((32 * MIB, pytest.approx(0.16)),)


def test_calls_that_the_host_issues_are_measured_by_the_defaults_calls_of_that_kind() -> None:
    assert slowest_calls([launch(m1=((6e-6,), (5e-3, 1e-3)))], (MIB,)) == ((MIB, pytest.approx(8e-3)),)


def test_a_short_call_is_never_cut_off_for_a_moment_of_a_busy_host() -> None:
    assert slowest_calls([launch(m1=((6e-6,), (4e-5,)))], (MIB,)) == ((MIB, 2e-3),)


def test_limits_are_of_sizes_as_they_were_asked_for() -> None:
    assert slowest_calls([launch(m1=((1.0,), ()))], (MIB + 5,)) == ((MIB + 5, 8.0),)


@pytest.mark.parametrize(("wall", "deadline"), [(0.1, 15.0), (3.0, 24.0), (9.0, 60.0)])
def test_a_deadline_is_eight_launches_of_the_default_within_reason(wall: float, deadline: float) -> None:
    assert fair_deadline(60.0, [launch(1.0), launch(wall), launch(0.01)]) == max(15.0, deadline)


def test_a_launch_that_was_cut_off_says_where_and_by_how_much() -> None:
    slow = SizeResult(32 * MIB, (), 0, TimingMode.EAGER, True, slower_than_seconds=0.08)
    cut = msgspec.structs.replace(launch(m1=((1e-5,), ())), results=(slow,))

    assert cut_off(cut, [launch(m32=((0.01,), ()))]) == (
        "cut off at 32M: a call took longer than 80.0 ms, 8 times the default's"
    )
    assert cut_off(cut, []) == "cut off at 32M: a call took longer than 80.0 ms"


def test_a_launch_that_was_not_cut_off_has_no_such_error() -> None:
    assert cut_off(launch(m1=((1e-5,), ())), []) is None
