from __future__ import annotations

import msgspec
import pytest

from topo_tune.errors import BrokenRecord, NotEnoughEvidence
from topo_tune.recommend.choose import NOT_PRUNED, recommend
from topo_tune.records.bench import BenchPlan, Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.records.recommendation import Advice, Recommendation
from topo_tune.records.search import SearchSpace, SearchTrace, SearchVariable, SettingEffect, TraceStep
from topo_tune.records.topology import Fabric, Topology

SMALL, LARGE = 8192, 33554432
PLAN = BenchPlan(BackendName.REPLAY, "all_reduce", "bfloat16", (SMALL, LARGE))
TOPOLOGY = Topology(
    node_count=2,
    ranks_per_host=1,
    intra_fabric=Fabric.NONE,
    inter_fabric=Fabric.SOCKET,
    nccl_version="2.28.9",
    gpu_model="NVIDIA H200",
    compute_capability="9.0",
    driver="580.159",
    cpu_vendor=None,
)
ONE = nccl_env({"NCCL_SOCKET_NTHREADS": 2})
TWO = nccl_env({"NCCL_SOCKET_NTHREADS": 4, "NCCL_NSOCKS_PERTHREAD": 2})
SPACE = SearchSpace(
    (
        SearchVariable(("NCCL_SOCKET_NTHREADS",), ("2", "4"), "test"),
        SearchVariable(("NCCL_NSOCKS_PERTHREAD",), ("2",), "test"),
    ),
    (),
    3,
)
NOISE = (1.00, 1.01, 0.99, 1.005, 0.995, 1.00)
"""What each block multiplies all its times with, and in reverse its candidates once more."""

Factors = tuple[float, float]


def advice(
    finalists: dict[NcclEnv, Factors],
    *,
    weights: dict[int, float] | None = None,
    blocks: int = 6,
    errors: dict[tuple[NcclEnv, int], str] | None = None,
    wrong: tuple[NcclEnv, int] | None = None,
    noise: tuple[float, ...] = NOISE,
    minimum_gain: float = 0.03,
    effects: tuple[SettingEffect, ...] = (),
) -> Recommendation:
    """What is recommended when finalists take these multiples of the default's times at (SMALL, LARGE)."""
    steps, launches = [], []
    for block in range(blocks):
        for env, (small, large) in {DEFAULTS: (1.0, 1.0), **finalists}.items():
            own = 1.0 if env == DEFAULTS else noise[-1 - block]
            seconds = ((SMALL, 50e-6 * small), (LARGE, 10e-3 * large))
            error = (errors or {}).get((env, block))
            results = tuple(
                SizeResult(s, (t * noise[block] * own,), 1, TimingMode.REPLAY, (env, block) != wrong)
                for s, t in seconds
            )
            index = len(launches)
            launches.append(
                Launch(
                    index=index,
                    purpose="confirm",
                    nodes=("n1", "n2"),
                    env=env,
                    backend=BackendName.REPLAY,
                    ranks=0 if error else 2,
                    started_at="2026-01-01T00:00:00Z",
                    wall_seconds=1.0,
                    results=() if error else results,
                    error=error,
                )
            )
            steps.append(TraceStep(index, "confirm", env, None if error else 0.0, "", block + 1))
    trace = SearchTrace("halving", 0, SPACE, tuple(finalists), tuple(steps), tuple(finalists), tuple(effects))
    return recommend(
        trace,
        launches,
        cluster="lab",
        plan=PLAN,
        topology=TOPOLOGY,
        weights=weights or {},
        minimum_gain=minimum_gain,
        notes=("replayed",),
    )


def test_a_proved_gain_without_a_slower_size_is_recommended() -> None:
    answer = advice({ONE: (0.9, 0.5)})
    assert (answer.advice, answer.env) == (Advice.CHANGE, ONE)
    assert answer.finalists[0].mean_speedup == pytest.approx(1 / (0.9 * 0.5) ** 0.5, rel=0.01)
    assert answer.finalists[0].low > 1.4


def test_each_size_has_its_speedup_with_an_interval() -> None:
    small, large = advice({ONE: (0.9, 0.5)}).finalists[0].comparisons
    assert (small.size_bytes, large.size_bytes) == (SMALL, LARGE)
    assert large.low < 2.0 < large.high
    assert large.speedup == pytest.approx(large.baseline_seconds / large.candidate_seconds)
    assert large.launches == 6


def test_the_setting_with_the_higher_lower_end_wins() -> None:
    answer = advice({ONE: (0.9, 0.8), TWO: (0.9, 0.5)})
    assert [finalist.env for finalist in answer.finalists] == [TWO, ONE]
    assert all(finalist.is_accepted for finalist in answer.finalists)


def test_the_ranks_are_those_of_a_launch_that_gave_numbers() -> None:
    answer = advice({ONE: (0.9, 0.5)}, errors={(DEFAULTS, 0): "no luck"})
    assert answer.ranks == 2


def test_no_difference_means_change_nothing() -> None:
    answer = advice({ONE: (1.0, 1.0)})
    assert (answer.advice, answer.env) == (Advice.CHANGE_NOTHING, DEFAULTS)
    assert "the gain is not proved" in answer.reason


def test_launches_of_another_setting_than_the_search_names_are_refused() -> None:
    launch = Launch(0, "confirm", ("n1",), TWO, BackendName.REPLAY, 2, "2026-01-01T00:00:00Z", 1.0)
    steps = (TraceStep(0, "confirm", ONE, 0.0, "", 1),)
    trace = SearchTrace("halving", 0, SPACE, (ONE,), steps, (ONE,), ())

    with pytest.raises(
        BrokenRecord, match=r"launch 0 was one of .*NSOCKS.*, and the search says of NCCL_SOCKET"
    ):
        recommend(trace, (launch,), cluster="lab", plan=PLAN, topology=TOPOLOGY, weights={})


def test_a_gain_with_one_size_slower_means_change_nothing_and_says_which_size() -> None:
    answer = advice({ONE: (1.25, 0.4)})
    assert answer.advice is Advice.CHANGE_NOTHING
    assert "slower at 8K: 0.80x" in answer.reason
    assert f"the closest was `{ONE}`" in answer.reason


def test_a_slower_size_of_weight_zero_does_not_decide_and_is_told() -> None:
    answer = advice({ONE: (1.25, 0.4)}, weights={SMALL: 0.0, LARGE: 1.0})
    assert answer.advice is Advice.CHANGE
    assert [c.weight for c in answer.finalists[0].comparisons] == [0.0, 1.0]
    assert "8K has weight zero, so it did not decide: it runs at 0.80x" in answer.notes


def test_a_size_that_is_proved_slower_within_the_tolerance_still_stops_a_setting() -> None:
    answer = advice({ONE: (1.02, 0.5)}, noise=(1.0, 1.001, 0.999, 1.0, 1.0, 1.0))
    assert answer.advice is Advice.CHANGE_NOTHING
    assert "proved slower at 8K" in answer.reason


def test_a_size_that_varies_too_much_to_exclude_a_loss_stops_a_setting() -> None:
    answer = advice({ONE: (1.0, 0.2)}, noise=(0.8, 1.25, 0.9, 1.1, 1.2, 0.85))
    assert answer.advice is Advice.CHANGE_NOTHING
    assert "8K varies too much to exclude a loss" in answer.reason


def test_a_gain_too_small_to_be_worth_a_change_means_change_nothing() -> None:
    answer = advice({ONE: (0.98, 0.98)}, noise=(1.0, 1.001, 0.999, 1.0, 1.0, 1.0))
    assert answer.advice is Advice.CHANGE_NOTHING
    assert "the least worth a change" in answer.reason
    assert advice({ONE: (0.98, 0.98)}, noise=(1.0,) * 6, minimum_gain=0.01).advice is Advice.CHANGE


def test_noise_hides_a_gain_and_then_nothing_is_changed() -> None:
    assert advice({ONE: (0.9, 0.9)}, noise=(1.0, 1.3, 0.8, 1.2, 0.7, 1.1)).advice is Advice.CHANGE_NOTHING


def test_a_finalist_that_fails_once_is_out_however_fast() -> None:
    answer = advice({ONE: (0.5, 0.5), TWO: (0.8, 0.8)}, errors={(ONE, 5): "deadline passed"})
    assert answer.env == TWO
    assert answer.finalists[1].reason.endswith("a launch failed: deadline passed")
    assert f"`{ONE}` failed in the confirmation: deadline passed" in answer.notes


def test_a_wrong_sum_puts_a_finalist_out() -> None:
    answer = advice({ONE: (0.5, 0.5)}, wrong=(ONE, 2))
    assert answer.advice is Advice.CHANGE_NOTHING
    assert "wrong sums" in answer.reason


def test_finalists_that_all_fail_at_once_mean_change_nothing() -> None:
    answer = advice({ONE: (0.5, 0.5)}, blocks=1, errors={(ONE, 0): "hung"})
    assert (answer.advice, answer.finalists) == (Advice.CHANGE_NOTHING, ())
    assert answer.reason == "every setting that looked best failed when it was launched again"


def test_two_usable_blocks_are_not_enough_evidence() -> None:
    with pytest.raises(NotEnoughEvidence, match="2 usable blocks"):
        advice({ONE: (0.5, 0.5)}, blocks=3, errors={(DEFAULTS, 1): "hung"})


def test_a_search_in_which_nothing_finished_means_change_nothing() -> None:
    answer = advice({}, blocks=0)
    assert (answer.advice, answer.reason) == (Advice.CHANGE_NOTHING, "there was no setting to try")
    assert answer.ranks == 2


def test_more_finalists_need_more_confidence_each() -> None:
    assert advice({ONE: (0.5, 0.5)}).confidence == pytest.approx(0.99)
    assert advice({ONE: (0.5, 0.5), TWO: (0.5, 0.5)}).confidence == pytest.approx(0.995)


def test_the_fingerprint_says_what_the_advice_holds_for() -> None:
    assert dict(advice({ONE: (0.5, 0.5)}).fingerprint) == TOPOLOGY.fingerprint()


def test_notes_are_kept_and_say_that_several_variables_were_not_pruned() -> None:
    assert advice({TWO: (0.5, 0.5)}).notes == ("replayed", NOT_PRUNED)
    assert advice({ONE: (0.5, 0.5)}).notes == ("replayed",)


def test_what_each_setting_brings_is_handed_on_for_the_finalist_that_was_taken_apart() -> None:
    effect = SettingEffect((("NCCL_NSOCKS_PERTHREAD", "2"),), 1.1, 1.05, 1.2, SMALL, 1.2, 1.1, 4)
    answer = advice({TWO: (0.5, 0.4), ONE: (0.9, 0.9)}, effects=(effect,))
    assert (answer.env, answer.effects, answer.notes) == (TWO, (effect,), ("replayed",))
    other = advice({TWO: (0.9, 0.9), ONE: (0.5, 0.4)}, effects=(effect,))
    assert (other.env, other.effects) == (ONE, ())


def test_of_settings_that_gain_alike_the_smallest_is_recommended() -> None:
    assert advice({TWO: (0.9, 0.495), ONE: (0.9, 0.5)}).env == ONE
    assert advice({TWO: (0.9, 0.4), ONE: (0.9, 0.5)}).env == TWO


def test_the_recommended_finalist_is_listed_first() -> None:
    answer = advice({TWO: (0.9, 0.495), ONE: (0.9, 0.5)})
    assert [finalist.env for finalist in answer.finalists] == [ONE, TWO]


def test_a_recommendation_survives_json() -> None:
    answer = advice({ONE: (0.5, 0.5), TWO: (1.25, 0.4)}, errors={(TWO, 5): "hung"})
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Recommendation) == answer
