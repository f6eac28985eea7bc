"""Recorded noise, drawn again: what of the recording is kept, and how the draws are dealt to two settings."""

from __future__ import annotations

import numpy as np
import pytest

from topo_tune.stats.recorded_noise import RecordedNoise, alternating, draw, one_after_the_other, take_apart

SIZES = (8192, 131072, 2097152)
COVARIANCE = np.array([[9.0, 4.0, 0.0], [4.0, 4.0, 1.0], [0.0, 1.0, 1.0]]) * 1e-4


def recording(launches: int = 40, *, slope: float = 0.0, seed: int = 1) -> RecordedNoise:
    positions = 3 * np.arange(launches)
    noise = np.random.default_rng(seed).multivariate_normal(np.zeros(3), COVARIANCE, launches)
    return take_apart("recording", SIZES, positions, noise + slope * positions[:, None])


def neighbours(logs: np.ndarray) -> float:
    return float(np.mean(logs[:, 1] * logs[:, 2]) / np.mean(logs[:, 1] ** 2))


def test_a_recording_is_taken_apart_into_its_course_and_the_rest() -> None:
    noise = recording(slope=0.01)

    assert noise.slopes == pytest.approx([0.01] * 3, abs=0.0003)
    assert noise.residuals.mean(axis=0) == pytest.approx([0.0] * 3)
    assert noise.cv() == pytest.approx(noise.logs.std(axis=0, ddof=1))


def test_draws_have_the_spread_and_the_correlation_of_sizes_that_were_recorded() -> None:
    noise = recording()._replace(slopes=np.zeros(3))
    drawn = draw(noise, 4000, 8, np.random.default_rng(2))

    found = np.cov(drawn.reshape(-1, 3), rowvar=False)
    assert found == pytest.approx(noise.residuals.T @ noise.residuals / 40, abs=5e-5)


def test_neighbours_stay_as_alike_as_they_were_recorded() -> None:
    steps = np.random.default_rng(3).normal(0.0, 0.01, (60, 3))
    wandering = take_apart("wandering", SIZES, np.arange(60), (steps + np.roll(steps, 1, axis=0)) / 2)

    assert neighbours(draw(wandering, 4000, 4, np.random.default_rng(4)).mean(axis=2)) == pytest.approx(
        0.5, abs=0.15
    )
    assert neighbours(draw(recording(), 4000, 4, np.random.default_rng(4)).mean(axis=2)) < 0.25


def test_a_short_recording_is_drawn_launch_by_launch() -> None:
    short = recording(7)

    assert (short.stretch, recording(12).stretch) == (1, 4)
    assert abs(neighbours(draw(short, 8000, 4, np.random.default_rng(5)).mean(axis=2))) < 0.05


def test_without_smoothing_launches_are_drawn_as_they_were_recorded() -> None:
    noise = recording(7)._replace(slopes=np.zeros(3))
    plain, smoothed = (
        draw(noise, 50, 4, np.random.default_rng(9), stretch=2, is_smoothed=is_smoothed)[:, :, 0]
        for is_smoothed in (False, True)
    )

    assert set(plain.flat) <= set(noise.residuals[:, 0])
    assert not set(smoothed.flat) & set(noise.residuals[:, 0])


def test_the_course_is_walked_at_the_recorded_pace_and_never_leaves_the_recording() -> None:
    still = np.zeros((20, 3))
    steep = take_apart("steep", SIZES, np.arange(20), still + 0.02 * np.arange(20)[:, None])
    drawn = draw(steep, 500, 60, np.random.default_rng(6))[:, :, 0]
    paces = np.abs(np.diff(drawn, axis=1))

    assert np.median(paces) == pytest.approx(0.02)
    assert paces.max() <= 0.02 + 1e-9
    assert np.abs(drawn).max() <= 0.02 * 19 / 2 + 1e-9


def test_the_same_seed_draws_the_same() -> None:
    one, other = (draw(recording(), 5, 7, np.random.default_rng(7)) for _ in range(2))

    assert one.shape == (5, 7, 3)
    assert np.array_equal(one, other)


def test_the_order_turns_round_from_block_to_block_and_every_other_comparison_begins_with_the_candidate() -> (
    None
):
    rising = np.tile(np.arange(6.0), (2, 1))

    # AB BA AB: baseline less candidate is -1, +1, -1 on a straight line; then BA AB BA.
    assert alternating(rising).tolist() == [[-1.0, 1.0, -1.0], [1.0, -1.0, 1.0]]
    assert alternating(rising, 0.5)[0].tolist() == [-0.5, 1.5, -0.5]


def test_sizes_stay_apart_when_launches_are_dealt() -> None:
    logs = np.random.default_rng(8).normal(size=(3, 8, 2))

    assert alternating(logs).shape == (3, 4, 2)
    assert alternating(logs)[:, :, 1] == pytest.approx(alternating(logs[:, :, 1]))


def test_without_blocks_the_first_half_is_the_baselines() -> None:
    first, second = one_after_the_other(np.arange(6.0)[None, :])

    assert (first.tolist(), second.tolist()) == ([[0.0, 1.0, 2.0]], [[3.0, 4.0, 5.0]])


@pytest.mark.parametrize(
    ("positions", "shape"), [(range(5), (5, 3)), (range(8), (8, 2)), ([0, 1, 2, 3, 4, 4], (6, 3))]
)
def test_what_is_no_recording_is_refused(positions: list[int], shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="needs 6 launches in order"):
        take_apart("x", SIZES, list(positions), np.zeros(shape))
