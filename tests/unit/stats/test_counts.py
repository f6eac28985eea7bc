from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_tune.stats.counts import chance_of_as_many


@given(st.integers(1, 20), st.integers(1, 20), st.data())
def test_it_is_fishers_exact_test(of_first: int, of_second: int, data: st.DataObject) -> None:
    from scipy.stats import fisher_exact

    first, second = data.draw(st.integers(0, of_first)), data.draw(st.integers(0, of_second))
    table = [[second, of_second - second], [first, of_first - first]]

    expected = fisher_exact(table, alternative="greater").pvalue

    assert chance_of_as_many(first, of_first, second, of_second) == pytest.approx(expected)


def test_all_against_none_of_four_is_one_in_seventy() -> None:
    assert chance_of_as_many(0, 4, 4, 4) == pytest.approx(1 / 70)
