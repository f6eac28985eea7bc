from __future__ import annotations

import numpy as np
import pytest

from topo_tune.judge import IMPROVED_EDGE, judge_throughput
from topo_tune.records.bench import Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS
from topo_tune.records.verdict import Outcome, Verdict

SMALL, LARGE = 8192, 33554432


def launch(*seconds: float, error: str | None = None, is_correct: bool | None = True) -> Launch:
    results = tuple(
        SizeResult(size, (value,), 1, TimingMode.EAGER, is_correct)
        for size, value in zip((SMALL, LARGE), seconds, strict=False)
    )
    return Launch(0, "guard", ("n1",), DEFAULTS, BackendName.GLOO, 2, "t", 1.0, results, error)


def launches(*factors: float) -> tuple[Launch, ...]:
    return tuple(launch(50e-6 * factor, 10e-3 * factor) for factor in factors)


STEADY = launches(1.0, 1.01, 0.99, 1.0)


def judge(before: tuple[Launch, ...], after: tuple[Launch, ...], **options: object) -> Verdict:
    return judge_throughput(before, after, weights={}, **options)  # type: ignore[arg-type]


def test_the_same_times_pass() -> None:
    verdict = judge(STEADY, STEADY)
    assert verdict.outcome is Outcome.PASS
    assert verdict.change == pytest.approx(0.0)


def test_half_the_time_is_twice_the_throughput_and_an_improvement() -> None:
    verdict = judge(STEADY, launches(0.5, 0.5, 0.505))
    assert verdict.outcome is Outcome.IMPROVED
    assert verdict.change == pytest.approx(1.0, abs=0.02)
    assert verdict.low is not None
    assert verdict.low > IMPROVED_EDGE


def test_ten_per_cent_more_time_regresses() -> None:
    verdict = judge(STEADY, launches(1.1, 1.11, 1.09, 1.1))
    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.change == pytest.approx(1 / 1.1 - 1, abs=0.002)
    assert not verdict.lets_go_on


def test_an_interval_across_the_edge_is_inconclusive_and_says_how_many_launches_would_decide() -> None:
    verdict = judge(launches(0.9, 1.0, 1.1), launches(0.9, 1.0, 1.1))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "more on each side would probably decide" in verdict.reason


def test_an_estimate_on_the_edge_says_that_more_launches_would_hardly_help() -> None:
    verdict = judge(launches(0.9, 1.0, 1.1), launches(0.9 / 0.97, 1.0 / 0.97, 1.1 / 0.97))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "it sits on the edge" in verdict.reason


def test_two_launches_on_a_side_are_too_few() -> None:
    verdict = judge(STEADY, launches(0.5, 0.5))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert (verdict.change, verdict.low, verdict.high) == (pytest.approx(1.0, abs=0.01), None, None)


@pytest.mark.parametrize(("before", "after"), [((), STEADY), (STEADY, ()), ((), ())])
def test_a_side_without_launches_is_no_data(before: tuple[Launch, ...], after: tuple[Launch, ...]) -> None:
    verdict = judge(before, after)
    assert (verdict.outcome, verdict.change) == (Outcome.NO_DATA, None)


def test_failures_on_both_sides_are_no_data_with_the_reason() -> None:
    broken = (launch(error="deadline passed"),) * 3
    verdict = judge(broken, broken)
    assert verdict.outcome is Outcome.NO_DATA
    assert "deadline passed" in verdict.reason


def test_a_wrong_sum_after_the_change_regresses_however_fast_it_was() -> None:
    verdict = judge(STEADY, (*launches(0.5, 0.5, 0.5), launch(1e-6, 1e-3, is_correct=False)))
    assert verdict.outcome is Outcome.REGRESSED
    assert "wrong sums in 1 launch" in verdict.reason


def test_a_sum_that_was_not_checked_counts_as_usable() -> None:
    verdict = judge(STEADY, tuple(launch(50e-6, 10e-3, is_correct=None) for _ in range(4)))
    assert verdict.outcome is Outcome.PASS


def test_a_launch_that_fails_only_after_the_change_regresses() -> None:
    verdict = judge(STEADY, (*launches(0.5, 0.5, 0.5), launch(error="rank 1 died")))
    assert verdict.outcome is Outcome.REGRESSED
    assert "rank 1 died" in verdict.reason


def test_a_cluster_that_failed_before_as_well_never_passes_with_a_failure() -> None:
    verdict = judge((*STEADY, launch(error="rank 1 died")), (*STEADY, launch(error="rank 1 died")))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "rank 1 died" in verdict.reason
    assert (verdict.launches_before, verdict.launches_after) == (4, 4)


def test_a_cluster_that_failed_before_as_well_still_regresses_by_what_finished() -> None:
    slow = (*launches(2.0, 2.01, 1.99, 2.0), launch(error="rank 1 died"))
    assert judge((*STEADY, launch(error="rank 1 died")), slow).outcome is Outcome.REGRESSED


def test_failures_before_and_none_after_are_judged_by_what_finished() -> None:
    assert judge((*STEADY, launch(error="rank 1 died")), STEADY).outcome is Outcome.PASS


def test_one_failure_before_does_not_excuse_twelve_of_sixteen_after() -> None:
    after = (*launches(0.5, 0.5, 0.505, 0.5), *(launch(error="rank 1 hung"),) * 12)
    verdict = judge((*STEADY, launch(error="rank 1 died")), after)
    assert verdict.outcome is Outcome.REGRESSED
    assert "12 of 16 launches failed after the change, 1 of 5 before it: rank 1 hung" in verdict.reason


def test_a_size_that_loses_half_regresses_however_much_the_others_gain() -> None:
    after = tuple(launch(100e-6 * noise, 4e-3 * noise) for noise in (1.0, 1.01, 0.99, 1.0))
    verdict = judge(STEADY, after)
    assert verdict.change == pytest.approx(0.118, abs=0.01)
    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.reason.startswith("at 8K, throughput -50.0%")


def test_nothing_passes_while_the_estimate_of_a_size_is_beyond_twice_the_edge() -> None:
    before = tuple(launch(50e-6 * noise, 10e-3 / noise) for noise in (1.0, 1.1, 0.9, 1.0))
    after = tuple(launch(55e-6 * noise, 8e-3 / noise) for noise in (1.0, 1.1, 0.9, 1.0))
    verdict = judge(before, after)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "but at 8K, throughput -9.1%" in verdict.reason


def test_each_look_gets_its_share_of_the_confidence() -> None:
    once, four = judge(STEADY, STEADY), judge(STEADY, STEADY, looks=4)
    assert once.confidence == pytest.approx(0.95)
    assert four.confidence == pytest.approx(0.9875)
    assert four.low is not None
    assert once.low is not None
    assert four.low < once.low


def test_a_launch_without_a_weighted_size_does_not_count() -> None:
    mixed = (*STEADY, launch(50e-6))
    verdict = judge_throughput(mixed, mixed, weights={LARGE: 1.0})
    assert (verdict.outcome, verdict.launches_before) == (Outcome.PASS, 4)


def test_a_size_of_weight_zero_is_reported_and_does_not_decide() -> None:
    after = tuple(launch(100e-6, 5e-3) for _ in range(4))
    verdict = judge_throughput(STEADY, after, weights={SMALL: 0.0, LARGE: 1.0})
    assert verdict.outcome is Outcome.IMPROVED
    assert dict(verdict.per_size)[SMALL] == pytest.approx(-0.5, abs=0.01)


def test_without_weights_only_sizes_that_every_launch_measured_count() -> None:
    verdict = judge((*STEADY, launch(50e-6)), STEADY)
    assert (verdict.outcome, verdict.per_size[0][0], len(verdict.per_size)) == (Outcome.PASS, SMALL, 1)


def test_launches_without_spread_are_judged_without_dividing_by_zero() -> None:
    verdict = judge(launches(1.0, 1.0, 1.0), launches(1.0, 1.0, 1.0))
    assert (verdict.outcome, verdict.low, verdict.high) == (
        Outcome.PASS,
        pytest.approx(0.0),
        pytest.approx(0.0),
    )


def outcomes(change: float, cv: float, count: int, seed: int, each: int = 6) -> dict[Outcome, float]:
    """Share of each outcome over `count` judgements; `change` is the true change of throughput."""
    rng = np.random.default_rng(seed)
    found = dict.fromkeys(Outcome, 0.0)
    for noise in np.exp(rng.normal(0.0, cv, (count, 2, each))):
        after = launches(*(noise[1] / (1 + change)))
        found[judge(launches(*noise[0]), after).outcome] += 1 / count
    return found


@pytest.mark.parametrize(("cv", "each"), [(0.02, 6), (0.08, 6), (0.2, 3)])
def test_ten_thousand_judgements_of_no_change_regress_more_rarely_than_promised(cv: float, each: int) -> None:
    found = outcomes(0.0, cv, 10_000, seed=20260105, each=each)
    assert found[Outcome.REGRESSED] <= 0.025
    assert found[Outcome.IMPROVED] <= 0.025


def test_a_change_on_the_edge_is_let_through_no_more_often_than_promised() -> None:
    found = outcomes(-0.03, 0.05, 4000, seed=20260106)
    assert found[Outcome.PASS] + found[Outcome.IMPROVED] <= 0.025 + 0.005
    assert found[Outcome.REGRESSED] <= 0.025 + 0.005


def test_a_change_of_ten_per_cent_at_two_per_cent_noise_is_nearly_always_caught() -> None:
    assert outcomes(-0.10, 0.02, 1000, seed=20260107)[Outcome.REGRESSED] > 0.98


@pytest.mark.parametrize(("cv", "each"), [(0.02, 6), (0.08, 5), (0.2, 3)])
def test_sizes_that_vary_by_themselves_do_not_raise_more_false_alarms(cv: float, each: int) -> None:
    rng = np.random.default_rng(20260108)
    regressed = 0
    for noise in np.exp(rng.normal(0.0, cv, (10_000, 2, each, 2))):
        before, after = (tuple(launch(50e-6 * a, 10e-3 * b) for a, b in side) for side in noise)
        regressed += judge(before, after).outcome is Outcome.REGRESSED
    assert regressed / 10_000 <= 0.025


def test_four_looks_at_growing_data_without_a_change_regress_more_rarely_than_promised() -> None:
    rng = np.random.default_rng(20260109)
    regressed = 0
    for noise in np.exp(rng.normal(0.0, 0.2, (2500, 25))):
        before = launches(*noise[:5])
        regressed += any(
            judge(before, launches(*noise[5:end]), looks=4).outcome is Outcome.REGRESSED
            for end in (10, 15, 20, 25)
        )
    assert regressed / 2500 <= 0.025
