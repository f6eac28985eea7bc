"""The recorded trial costs of two H200s: the page is made of the numbers, and the numbers keep what was promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from script_modules import load_script

REPOSITORY = Path(__file__).parents[3]
RECORD = REPOSITORY / "docs" / "results" / "h200x2-measuring"


COSTS = load_script("trial-costs")
MEASURED = msgspec.json.decode((RECORD / "trial-costs.json").read_bytes(), type=COSTS.Measured)


def test_the_page_is_that_of_the_numbers() -> None:
    assert (RECORD / "trial-costs.md").read_text() == COSTS.page(MEASURED)


def test_every_time_is_at_most_five_percent_longer_and_six_shorter_than_that_of_nccl_tests() -> None:
    found = COSTS.differences(MEASURED)

    assert len(found) == len(COSTS.REFERENCE_US)
    assert min(found) > -0.06
    assert max(found) < COSTS.WANTED_WITHIN


def test_every_recorded_result_is_exact() -> None:
    exact = COSTS.exactness(MEASURED)

    assert len(exact) > 40
    assert all(exact)


@pytest.mark.parametrize("network", COSTS.NETWORKS)
@pytest.mark.parametrize("way", COSTS.WANTED_TIMES)
def test_a_setting_costs_as_little_beside_a_relaunch_as_was_promised(network: str, way: str) -> None:
    loop = COSTS.each_seconds(MEASURED.cost(network, "relaunch"))

    assert loop / COSTS.each_seconds(MEASURED.cost(network, way)) >= COSTS.WANTED_TIMES[way]


def spread(*sets: tuple[float, ...]) -> Any:
    return COSTS.Spread("NVLink", tuple(tuple({"1024": one} for one in each) for each in sets))


def test_sets_that_differ_by_more_than_their_communicators_are_seen_to() -> None:
    ((*_, within, between, expected, first),) = COSTS.spread_rows(
        spread((2.2, 1.0, 1.0, 1.0), (2.2, 1.2, 1.2, 1.2))
    )

    assert (within, between, expected, first) == ("0.00%", "12.86%", "0.00%", "+100.0%")


def test_two_sets_are_the_fewest_that_say_anything() -> None:
    ((*_, within, _, _, _),) = COSTS.spread_rows(spread((1.0, 1.0, 1.0)))

    assert within == "too few sets"


def test_a_way_that_was_not_measured_has_no_row() -> None:
    costs = [COSTS.Cost("NVLink", "fork", (2.0, 4.0, 3.0))]
    text = COSTS.page(COSTS.Measured(costs=costs, problems=["launch again by torchrun, NVLink: no luck"]))

    assert "| NVLink | fresh fork of the agent | 3.00 s | 20.0 |  |" in text
    assert "launch again by torchrun |" not in text
    assert "- launch again by torchrun, NVLink: no luck" in text
