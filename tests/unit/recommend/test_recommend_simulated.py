"""Search and recommendation together on simulated clusters: claims are true, and noise makes none.

The clusters have four sizes whose times move together from launch to launch, as the recorded ones do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from topo_tune.recommend.choose import recommend
from topo_tune.records.bench import BenchPlan, Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.recommendation import Advice, Recommendation
from topo_tune.records.topology import Fabric, Topology
from topo_tune.search.loop import search
from topo_tune.search.space import build_space

SIZES = (8192, 131072, 2097152, 33554432)
DEFAULT_SECONDS = np.array([55e-6, 164e-6, 808e-6, 11.3e-3])
LARGE_ONES = dict(zip(SIZES, (0.0, 1.0, 1.0, 1.0), strict=True))
ALL_ALIKE = dict.fromkeys(SIZES, 1.0)
PLAN = BenchPlan(BackendName.GLOO, "all_reduce", "float32", SIZES)
CPUS = Topology(
    node_count=1,
    ranks_per_host=2,
    intra_fabric=Fabric.NONE,
    inter_fabric=Fabric.NONE,
    nccl_version=None,
    gpu_model=None,
    compute_capability=None,
    driver=None,
    cpu_vendor=None,
)
SPACE = build_space(CPUS)

Noise = Callable[[np.random.Generator, int], np.ndarray]


def normal(cv: float) -> Noise:
    return lambda rng, count: rng.normal(0.0, cv, count)


def heavy_tailed(scale: float) -> Noise:
    return lambda rng, count: scale * rng.standard_t(2.5, count)


def no_effect(env: NcclEnv) -> np.ndarray:
    return np.ones(4)


def socket_threads_help_large_and_hurt_small(env: NcclEnv) -> np.ndarray:
    """Speed-up per size: two helper threads are best, as on the recorded TCP surface."""
    threads = int(env.as_dict().get("NCCL_SOCKET_NTHREADS", 0))
    channels = int(env.as_dict().get("NCCL_MAX_CTAS", 0))
    speedup = {0: (1, 1, 1, 1), 1: (0.9, 1.2, 1.9, 2.2), 2: (0.8, 1.16, 2.5, 3.6), 4: (0.7, 0.95, 2.2, 3.0)}
    return np.array(speedup.get(threads, (0.5, 0.7, 1.0, 1.5))) * (0.6 if channels > 8 else 1.0)


def answer(
    seed: int,
    speedup: Callable[[NcclEnv], np.ndarray],
    noise: Noise,
    weights: dict[int, float],
    strategy_name: str = "halving",
) -> Recommendation:
    rng = np.random.default_rng([20260108, seed])
    launches: list[Launch] = []

    def evaluate(env: NcclEnv, purpose: str) -> Launch:
        logs = 0.8 * noise(rng, 1) + 0.6 * noise(rng, len(SIZES))
        seconds = DEFAULT_SECONDS / speedup(env) * np.exp(logs)
        results = tuple(
            SizeResult(size, (float(value),), 1, TimingMode.EAGER, True)
            for size, value in zip(SIZES, seconds, strict=True)
        )
        launches.append(
            Launch(len(launches), purpose, ("n1",), env, BackendName.GLOO, 2, "now", 1.0, results)
        )
        return launches[-1]

    trace = search(SPACE, evaluate, seed=seed, weights=weights, strategy_name=strategy_name)
    return recommend(
        trace, launches, cluster="simulated", plan=PLAN, topology=CPUS, weights=weights, confidence=0.99
    )


def true_gain(env: NcclEnv, speedup: Callable[[NcclEnv], np.ndarray], weights: dict[int, float]) -> float:
    share = np.array([weights[size] for size in SIZES])
    return float(np.exp(np.log(speedup(env)) @ share / share.sum()))


@pytest.mark.parametrize("weights", [LARGE_ONES, ALL_ALIKE], ids=["large", "all"])
@pytest.mark.parametrize("noise", [normal(0.05), normal(0.2), heavy_tailed(0.05)], ids=["5%", "20%", "tails"])
def test_where_no_setting_has_an_effect_nothing_is_changed_ninety_nine_times_in_a_hundred(
    noise: Noise, weights: dict[int, float]
) -> None:
    answers = [answer(seed, no_effect, noise, weights) for seed in range(1000)]
    assert sum(a.advice is Advice.CHANGE for a in answers) <= 10


def test_a_large_gain_on_the_weighted_sizes_is_found_and_recommended() -> None:
    answers = [
        answer(s, socket_threads_help_large_and_hurt_small, normal(0.08), LARGE_ONES) for s in range(60)
    ]
    gains = [true_gain(a.env, socket_threads_help_large_and_hurt_small, LARGE_ONES) for a in answers]
    assert sum(gain >= 1.9 for gain in gains) >= 54
    # 118 to screen and confirm; pruning a best candidate of seven dimensions takes up to 80 more.
    assert all(a.launches_total < 200 for a in answers)


def inline_sends_undo_what_socket_threads_cost(env: NcclEnv) -> np.ndarray:
    """Socket threads slow 8K unless sends are inline: the best setting is a combination of two dimensions."""
    speedup = socket_threads_help_large_and_hurt_small(env).copy()
    if int(env.as_dict().get("NCCL_SOCKET_INLINE", 0)) >= 16384:
        speedup[0] *= 1.35
    return speedup


def test_the_model_finds_a_combination_that_slows_no_size_where_halving_mostly_does_not() -> None:
    def found(strategy_name: str) -> int:
        answers = [
            answer(s, inline_sends_undo_what_socket_threads_cost, normal(0.06), ALL_ALIKE, strategy_name)
            for s in range(8)
        ]
        return sum(
            true_gain(a.env, inline_sends_undo_what_socket_threads_cost, ALL_ALIKE) >= 1.6 for a in answers
        )

    assert found("model") >= 6
    assert found("halving") < found("model")


def test_the_model_changes_nothing_where_no_setting_has_an_effect() -> None:
    answers = [answer(seed, no_effect, normal(0.08), ALL_ALIKE, "model") for seed in range(20)]
    assert all(a.advice is Advice.CHANGE_NOTHING for a in answers)


def test_intervals_cover_the_true_gain_of_what_is_recommended() -> None:
    answers = [
        answer(s, socket_threads_help_large_and_hurt_small, normal(0.08), LARGE_ONES) for s in range(60)
    ]
    covered = [
        a.finalists[0].low
        <= true_gain(a.finalists[0].env, socket_threads_help_large_and_hurt_small, LARGE_ONES)
        <= a.finalists[0].high
        for a in answers
    ]
    assert sum(covered) >= 57


def test_when_the_small_size_counts_as_well_a_setting_that_hurts_it_is_refused() -> None:
    answers = [
        answer(s, socket_threads_help_large_and_hurt_small, normal(0.08), ALL_ALIKE) for s in range(60)
    ]
    assert sum(a.advice is Advice.CHANGE for a in answers) <= 3
    assert any("slower at 8K" in a.reason for a in answers)
