"""Pruning: what brings nothing goes, what brings something stays and says how much."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from topo_tune.records.bench import Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import NcclEnv, nccl_env
from topo_tune.records.search import SearchSpace, SearchVariable
from topo_tune.search.prune import Pruned, prune

SMALL, LARGE = 8192, 33554432
SPACE = SearchSpace(
    (
        SearchVariable(("NCCL_MAX_CTAS", "NCCL_MIN_CTAS"), ("2", "4"), "test"),
        SearchVariable(("NCCL_SOCKET_NTHREADS",), ("2",), "test"),
        SearchVariable(("NCCL_NSOCKS_PERTHREAD",), ("2",), "test"),
        SearchVariable(("NCCL_SOCKET_INLINE",), ("16384",), "test"),
    ),
    (),
    100,
)
THREADS = nccl_env({"NCCL_SOCKET_NTHREADS": 2})
BOTH = nccl_env({"NCCL_SOCKET_NTHREADS": 2, "NCCL_SOCKET_INLINE": 16384})
ALL = nccl_env(
    {
        "NCCL_MAX_CTAS": 2,
        "NCCL_MIN_CTAS": 2,
        "NCCL_SOCKET_NTHREADS": 2,
        "NCCL_NSOCKS_PERTHREAD": 2,
        "NCCL_SOCKET_INLINE": 16384,
    }
)
Gain = Callable[[NcclEnv], tuple[float, float]]


def threads_and_inline_sends(env: NcclEnv) -> tuple[float, float]:
    given = env.as_dict()
    has_threads, has_inline = "NCCL_SOCKET_NTHREADS" in given, "NCCL_SOCKET_INLINE" in given
    return (1.2 if has_inline else 0.8 if has_threads else 1.0, 3.0 if has_threads else 1.0)


class Cluster:
    def __init__(self, gain: Gain, noise: float = 0.0, broken: tuple[NcclEnv, ...] = ()) -> None:
        self.gain, self.noise, self.broken = gain, noise, broken
        self.launches: list[Launch] = []
        self.rng = random.Random(1)

    def evaluate(self, env: NcclEnv, purpose: str) -> Launch:
        small, large = self.gain(env)
        times = ((SMALL, 50e-6 / small), (LARGE, 10e-3 / large))
        results = tuple(
            SizeResult(size, (seconds * math.exp(self.rng.gauss(0, self.noise)),), 1, TimingMode.EAGER, True)
            for size, seconds in times
        )
        error = "hung" if env in self.broken else None
        launch = Launch(
            len(self.launches),
            purpose,
            ("n1",),
            env,
            BackendName.NCCL,
            2,
            "now",
            1.0,
            () if error else results,
            error,
        )
        self.launches.append(launch)
        return launch


def pruned(candidate: NcclEnv, cluster: Cluster, **options: object) -> Pruned:
    return prune(candidate, SPACE, cluster.evaluate, weights={}, tolerance=0.03, **options)  # type: ignore[arg-type]


def test_what_brings_nothing_goes_and_what_brings_something_stays() -> None:
    assert pruned(ALL, Cluster(threads_and_inline_sends)).env == BOTH


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.06])
def test_launch_noise_does_not_take_away_what_matters(noise: float) -> None:
    left = pruned(ALL, Cluster(threads_and_inline_sends, noise=noise)).env
    assert {"NCCL_SOCKET_NTHREADS", "NCCL_SOCKET_INLINE"} <= set(left.names())


def test_a_setting_that_helps_at_one_size_only_stays() -> None:
    found = pruned(BOTH, Cluster(threads_and_inline_sends))
    assert found.env == BOTH
    inline = next(effect for effect in found.effects if effect.settings[0][0] == "NCCL_SOCKET_INLINE")
    assert (inline.best_size_bytes, inline.best_size_benefit) == (SMALL, pytest.approx(1.5))
    assert inline.benefit == pytest.approx(math.sqrt(1.5))


def test_a_candidate_of_one_dimension_is_launched_no_more() -> None:
    cluster = Cluster(threads_and_inline_sends)
    assert pruned(THREADS, cluster) == Pruned(THREADS, (), ())
    assert cluster.launches == []


def test_sockets_per_thread_go_with_the_threads_that_they_need() -> None:
    cluster = Cluster(threads_and_inline_sends)
    pruned(ALL, cluster)
    launched = [launch.env.names() for launch in cluster.launches]
    assert all("NCCL_SOCKET_NTHREADS" in names for names in launched if "NCCL_NSOCKS_PERTHREAD" in names)


def test_a_setting_whose_absence_fails_is_kept_and_not_launched_again() -> None:
    without_inline = nccl_env({"NCCL_SOCKET_NTHREADS": 2})
    cluster = Cluster(lambda env: (1.0, 1.0), broken=(without_inline,))
    found = pruned(BOTH, cluster)
    assert sum(launch.env == without_inline for launch in cluster.launches) == 1
    assert "NCCL_SOCKET_INLINE" in found.env.names()


def test_what_the_back_end_cannot_measure_is_not_tried() -> None:
    cluster = Cluster(threads_and_inline_sends)
    found = pruned(ALL, cluster, can_measure=lambda env: env == ALL)
    assert (found.env, cluster.launches) == (ALL, [])


def test_the_order_turns_round_from_block_to_block() -> None:
    cluster = Cluster(threads_and_inline_sends)
    pruned(BOTH, cluster)
    order = [launch.env for launch in cluster.launches[:6]]
    assert order[:3] == list(reversed(order[3:6]))
