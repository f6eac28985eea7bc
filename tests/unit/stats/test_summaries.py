from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from topo_tune.stats.summaries import coefficient_of_variation, median, p99, spread


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_p99_is_a_sample_that_was_seen() -> None:
    assert p99(np.arange(1, 201)) == 198.0


def test_p99_of_few_samples_is_the_largest() -> None:
    assert p99([3.0, 9.0, 1.0]) == 9.0


def test_spread_is_the_largest_over_the_smallest_less_one() -> None:
    assert spread([2.0, 2.5, 3.0]) == pytest.approx(0.5)


def test_the_coefficient_of_variation_is_scipys() -> None:
    samples = [1.0, 1.1, 0.9, 1.3]
    assert coefficient_of_variation(samples) == pytest.approx(scipy.stats.variation(samples, ddof=1))


@pytest.mark.parametrize("summary", [median, p99, spread, coefficient_of_variation])
def test_no_samples_have_no_summary(summary: object) -> None:
    with pytest.raises(ValueError, match="samples"):
        summary([])  # type: ignore[operator]


def test_one_sample_has_no_variation() -> None:
    with pytest.raises(ValueError, match="at least two"):
        coefficient_of_variation([1.0])
