"""Blocks of a measurement: their order, when they end, and what is never measured again."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_doubles import node

from topo_tune.bench.backends.interface import OnLaunch
from topo_tune.bench.plan import plan_bench
from topo_tune.bench.surface import canonical, load_surface
from topo_tune.errors import HostError, MeasurementFailed, Refused
from topo_tune.pipeline import benching
from topo_tune.pipeline.benching import BenchOptions, bench, record_surface
from topo_tune.records.bench import BenchPlan, Collective, Launch, SizeResult, TimingMode
from topo_tune.records.envelope import load_lines
from topo_tune.records.inventory import BackendName, Inventory, Node, Rack, SshOptions
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.records.progress import NodeProgress, Progress
from topo_tune.records.topology import Fabric, Topology

RING, TREE = nccl_env({"NCCL_ALGO": "Ring"}), nccl_env({"NCCL_ALGO": "Tree"})
INVENTORY = Inventory(
    "test", (Rack("r1", (node("n1"), node("n2"))),), SshOptions(), BackendName.NCCL, sizes_bytes=(8, 16)
)
TOPOLOGY = Topology(2, 2, Fabric.NVLINK, Fabric.SOCKET, "2.28.9", "NVIDIA H200", "9.0", "580.159", "intel")
PLANS = tuple(plan_bench(INVENTORY, collective=one) for one in (Collective.ALL_REDUCE, Collective.ALL_GATHER))


class Site:
    """A back end whose launches take the seconds that a function says, and a watch that remembers."""

    def __init__(self, seconds: Callable[[NcclEnv], float] = lambda env: 1.0) -> None:
        self.inventory = INVENTORY
        self.seconds = seconds
        self.wrong: set[NcclEnv] = set()
        self.lost_at: int | None = None
        self.asked: list[tuple[NcclEnv, str]] = []
        self.together: list[int] = []
        self.said: list[str] = []
        self.progress: list[Progress] = []

    # -- a cluster and its back end

    @contextlib.contextmanager
    def backend(self) -> Iterator[Site]:
        yield self

    def measure(
        self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan, *, index: int, purpose: str
    ) -> Launch:
        if index == self.lost_at:
            raise HostError("n2", "gone")
        self.asked.append((env, plan.collective))
        results = tuple(
            SizeResult(size // 8 * 8, (self.seconds(env),), 1, TimingMode.EAGER, env not in self.wrong)
            for size in plan.sizes_bytes
        )
        return Launch(
            index,
            purpose,
            ("n1", "n2"),
            env,
            plan.backend,
            4,
            "2026-01-01",
            1.0,
            results,
            error="wrong all_reduce at 8 on rank 1" if env in self.wrong else None,
            collective=plan.collective,
        )

    def measure_together(
        self,
        nodes: tuple[Node, ...],
        settings: tuple[NcclEnv, ...],
        plan: BenchPlan,
        *,
        first_index: int,
        purpose: str,
        on_launch: OnLaunch,
    ) -> None:
        self.together.append(len(settings))
        for index, env in enumerate(settings, start=first_index):
            on_launch(self.measure(nodes, env, plan, index=index, purpose=purpose))

    def notes(self) -> tuple[str, ...]:
        return ("a note",)

    # -- a watch

    def on_progress(self, event: Progress) -> None:
        self.progress.append(event)

    def on_node(self, event: NodeProgress) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def bench(
        self,
        *settings: NcclEnv,
        output: Path | None = None,
        plans: tuple[BenchPlan, ...] = PLANS[:1],
        **options: Any,
    ) -> tuple[Launch, ...]:
        made, _ = bench(self, settings, plans, output, BenchOptions(**options), self)  # type: ignore[arg-type]
        return made

    def settings_asked(self) -> list[NcclEnv]:
        return [env for env, _ in self.asked]


def noisy(factor: float, env: NcclEnv = RING, cv: float = 0.02) -> Callable[[NcclEnv], float]:
    """One setting takes a share of the default's time; launches differ."""
    rng = random.Random(1)
    return lambda asked: (factor if asked == env else 1.0) * math.exp(rng.gauss(0, cv))


# -- order


def test_the_order_turns_round_from_block_to_block() -> None:
    site = Site()

    site.bench(RING, launches=4)

    assert site.settings_asked() == [DEFAULTS, RING, RING, DEFAULTS, DEFAULTS, RING, RING, DEFAULTS]


def test_the_default_is_always_there_and_once() -> None:
    site = Site()

    site.bench(RING, DEFAULTS, RING, launches=1)

    assert site.settings_asked() == [DEFAULTS, RING]


def test_settings_of_one_collective_stand_beside_each_other() -> None:
    site = Site()

    made = site.bench(RING, plans=PLANS, launches=2)

    assert [collective for _, collective in site.asked] == ["all_reduce"] * 2 + ["all_gather"] * 2 + [
        "all_reduce"
    ] * 2 + ["all_gather"] * 2
    assert [launch.index for launch in made] == list(range(8))


def test_a_block_is_measured_together_where_that_is_asked_for() -> None:
    site = Site()

    made = site.bench(RING, TREE, launches=2, share_processes=True)

    assert site.together == [3, 3]
    assert [launch.env for launch in made] == [DEFAULTS, RING, TREE, TREE, RING, DEFAULTS]


def test_each_launch_is_told_once_as_soon_as_it_ended() -> None:
    site = Site()

    site.bench(RING, launches=2)

    assert [(event.done, event.total) for event in site.progress] == [(1, 4), (2, 4), (3, 4), (4, 4)]


# -- what it can show


def test_what_can_be_seen_is_said_before_anything_is_measured() -> None:
    site = Site()
    site.measure = lambda *a, **k: pytest.fail("measured") if not site.said else Site.measure(site, *a, **k)  # type: ignore[method-assign]

    site.bench(RING, launches=4)

    assert site.said[0].startswith("all_reduce: 4 blocks show a change of ")
    assert "launches differ by 6.5%, from an expectation" in site.said[0]


def test_what_is_the_same_of_all_collectives_is_said_once() -> None:
    site = Site()

    site.bench(RING, launches=4, plans=PLANS)

    (said,) = [text for text in site.said if "show a change" in text]
    assert said.startswith("all_reduce, all_gather: 4 blocks show")


def test_what_is_on_file_tells_how_launches_differ(tmp_path: Path) -> None:
    site = Site(noisy(1.0))
    site.bench(RING, launches=6, output=tmp_path / "launches.jsonl")

    site.said.clear()
    site.bench(RING, launches=8, output=tmp_path / "launches.jsonl")

    assert "from 6 baseline launches" in " ".join(site.said)


def test_one_launch_of_each_shows_nothing_and_that_is_said() -> None:
    site = Site()

    site.bench(RING, launches=1)

    assert "shows no change of any size" in site.said[0]


def test_the_default_alone_is_compared_with_nothing() -> None:
    site = Site()

    site.bench(launches=3)

    assert site.said == []


# -- the end


def test_it_stops_once_the_difference_is_seen() -> None:
    site = Site(noisy(0.5))

    made = site.bench(RING, launches=12, until=0.03)

    assert len(made) == 2 * 4
    assert "stopped after 4 of 12 launches of each setting: each setting differs visibly" in site.said[-1]


def test_sizes_that_became_one_in_the_measurement_still_decide() -> None:
    plan = msgspec.structs.replace(PLANS[0], sizes_bytes=(8, 9, 16))
    site = Site(noisy(0.5))
    site.inventory = msgspec.structs.replace(INVENTORY, sizes_bytes=(8, 9, 16))

    assert len(site.bench(RING, launches=12, until=0.03, plans=(plan,))) == 2 * 4


def test_it_stops_once_alike_settings_are_known_well_enough() -> None:
    made = Site(noisy(1.0, cv=0.002)).bench(RING, launches=12, until=0.03)

    assert len(made) < 2 * 12


def test_it_goes_on_while_one_of_the_settings_is_undecided() -> None:
    rng = random.Random(2)
    times: dict[NcclEnv, Callable[[], float]] = {
        DEFAULTS: lambda: math.exp(rng.gauss(0, 0.01)),
        RING: lambda: 0.5 * math.exp(rng.gauss(0, 0.01)),
        TREE: lambda: math.exp(rng.gauss(0, 0.5)),
    }

    made = Site(lambda env: times[env]()).bench(RING, TREE, launches=6, until=0.01)

    assert len(made) == 3 * 6


def test_without_a_word_about_it_every_launch_is_made() -> None:
    assert len(Site(noisy(0.5)).bench(RING, launches=12)) == 24


def test_a_setting_that_never_gives_a_number_keeps_nobody_waiting() -> None:
    times = noisy(0.5)
    site = Site(lambda env: math.nan if env == TREE else times(env))

    assert len(site.bench(RING, TREE, launches=12, until=0.03)) == 3 * 4


def test_a_budget_that_is_spent_ends_it_behind_a_whole_block(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(benching.time, "monotonic", lambda: clock[0])

    def takes_ten(env: NcclEnv) -> float:
        clock[0] += 5.0  # two sizes a launch
        return 1.0

    site = Site(takes_ten)

    made = site.bench(RING, launches=12, budget_seconds=70.0)

    assert len(made) == 2 * 3
    assert "another block would end after the 70 s" in site.said[-1]


# -- wrong results


def test_a_setting_with_a_wrong_result_is_not_measured_again() -> None:
    site = Site()
    site.wrong = {RING}

    site.bench(RING, TREE, plans=PLANS, launches=2)

    assert site.settings_asked().count(RING) == 1
    assert site.settings_asked().count(TREE) == 4
    assert "wrong all_reduce at 8 on rank 1; it is not measured again" in " ".join(site.said)


def test_where_the_default_is_wrong_nothing_is_compared_with_it() -> None:
    site = Site()
    site.wrong = {DEFAULTS}

    made = site.bench(RING, launches=5)

    assert len(made) == 2
    assert "the default itself gives wrong results" in site.said[-1]


# -- the file


def test_it_goes_on_in_the_middle_of_a_block(tmp_path: Path) -> None:
    file = tmp_path / "launches.jsonl"
    site = Site()
    site.lost_at = 4
    with pytest.raises(MeasurementFailed, match="the same command with --output"):
        site.bench(RING, TREE, launches=2, output=file, share_processes=True)
    assert len(load_lines(file, Launch)) == 4

    site.lost_at = None
    site.asked.clear()
    made = site.bench(RING, TREE, launches=2, output=file, share_processes=True)

    assert site.settings_asked() == [RING, DEFAULTS]
    assert made == load_lines(file, Launch)
    assert [launch.index for launch in made] == list(range(6))


def test_a_file_of_other_collectives_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "launches.jsonl"
    Site().bench(launches=1, output=file)

    with pytest.raises(Refused, match="`collective` differs"):
        Site().bench(launches=1, output=file, plans=PLANS)


def test_a_file_of_other_places_of_the_result_is_refused(tmp_path: Path) -> None:
    exchange = plan_bench(INVENTORY, collective=Collective.ALL_TO_ALL)
    elsewhere = plan_bench(INVENTORY, in_place=False)
    Site().bench(plans=(exchange, PLANS[0]), output=tmp_path / "b.jsonl")

    with pytest.raises(Refused, match="`in_place` differs"):
        Site().bench(plans=(exchange, elsewhere), output=tmp_path / "b.jsonl")


def test_other_limits_of_time_are_no_other_measurement(tmp_path: Path) -> None:
    file = tmp_path / "launches.jsonl"
    Site().bench(launches=1, output=file)
    plan = msgspec.structs.replace(PLANS[0], deadline_seconds=7.0, slowest_seconds=((8, 1.0),))

    assert len(Site().bench(launches=2, output=file, plans=(plan,))) == 2


# -- surfaces


def test_launches_are_added_to_a_surface_once(tmp_path: Path) -> None:
    surface = tmp_path / "surface.jsonl"
    made = tuple(
        msgspec.structs.replace(launch, started_at=f"2026-01-01T00:00:0{launch.index}")
        for launch in Site().bench(RING, launches=2)
    )

    added = [record_surface(surface, part, INVENTORY, TOPOLOGY, "bfloat16") for part in (made[:3], made)]

    assert added == [3, 1]
    loaded = load_surface(str(surface))
    assert {env: len(found) for env, found in loaded.recordings.items()} == {DEFAULTS: 2, canonical(RING): 2}
    assert loaded.facts["ranks"] == "4"
