from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from agent_doubles import READY, Channels, node

from topo_tune.bench.backends.replay import ReplayBackend
from topo_tune.bench.surface import Recording, Surface, load_surface
from topo_tune.errors import HostError
from topo_tune.records.bench import BenchPlan, Launch, Layout, TimingMode
from topo_tune.records.inventory import BackendName, Inventory, Rack, ReplayFault, ReplayOptions, SshOptions
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

SMALL, LARGE = 8192, 1 << 20
ONCE = nccl_env({"NCCL_SOCKET_NTHREADS": 4})
OFTEN = nccl_env({"NCCL_SOCKET_NTHREADS": 8})
FAILED = nccl_env({"NCCL_PROTO": "LL"})
NODES = (node("n1", "a"), node("n2", "b"))
PLAN = BenchPlan(BackendName.REPLAY, "all_reduce", "bfloat16", (SMALL, LARGE))


def recording(env: NcclEnv, small: float, large: float, error: str | None = None) -> Recording:
    return Recording(env, {SMALL: (small, small), LARGE: (large, large)}, error)


SURFACE = Surface(
    name="made-up",
    facts={"ranks": "2", "source": "a test"},
    recordings={
        DEFAULTS: tuple(recording(DEFAULTS, 1.0 + i / 100, 10.0 + i / 10) for i in range(9)),
        ONCE: (recording(ONCE, 0.5, 5.0),),
        OFTEN: tuple(recording(OFTEN, 0.2 + i, 2.0 + i) for i in range(5)),
        nccl_env({"NCCL_PROTO": "ll"}): (recording(FAILED, 1.0, 1.0, "recorded as failed: hung"),),
    },
    variables=frozenset({"NCCL_SOCKET_NTHREADS", "NCCL_PROTO"}),
)


class Site:
    """Two nodes, in racks `a` and `b`, that tell which variables their processes would have."""

    def __init__(
        self,
        surface: Surface = SURFACE,
        *,
        env: NcclEnv = DEFAULTS,
        seed: int = 1,
        faults: tuple[Any, ...] = (),
    ) -> None:
        self.files: dict[str, dict[str, str]] = {"n1": {}, "n2": {}}
        self.is_dead = False
        self.channels = Channels(self._answer)
        inventory = Inventory(
            "test",
            (Rack("a", NODES[:1]), Rack("b", NODES[1:])),
            SshOptions(),
            BackendName.REPLAY,
            env=env,
            replay=ReplayOptions("made-up", faults),
        )
        self.backend = ReplayBackend(inventory, self.channels.pool(), surface, seed)

    def measure(self, env: NcclEnv = DEFAULTS, index: int = 0, **changes: Any) -> Launch:
        nodes = changes.pop("nodes", NODES)
        plan = msgspec.structs.replace(PLAN, **changes)
        return self.backend.measure(nodes, env, plan, index=index, purpose="test")

    def medians(self, env: NcclEnv, count: int, size: int = LARGE) -> list[float]:
        return [self.measure(env, index).median_seconds()[size] for index in range(count)]

    def _answer(self, name: str, request: dict[str, Any]) -> Iterator[dict[str, Any] | bytes]:
        if request["op"] == "start":
            yield READY
        elif self.is_dead:
            yield b""
        else:
            settings = {k: [v, "environment"] for k, v in request["env"].items()}
            files = {k: [v, "/etc/nccl.conf:1"] for k, v in self.files[name].items()}
            yield {"event": "resolved", "settings": {**files, **settings}}


def test_the_same_seed_gives_the_same_times() -> None:
    assert Site().medians(ONCE, 5) == Site().medians(ONCE, 5)


def test_another_seed_gives_other_times() -> None:
    assert Site(seed=1).medians(ONCE, 5) != Site(seed=2).medians(ONCE, 5)


def test_launches_differ_from_each_other() -> None:
    assert len(set(Site().medians(ONCE, 20))) > 3


def test_a_launch_says_that_it_is_a_replay_and_that_no_sum_was_checked() -> None:
    launch = Site().measure(ONCE)

    assert (launch.backend, launch.ranks, launch.is_usable) == (BackendName.REPLAY, 2, True)
    assert {(result.mode, result.is_correct) for result in launch.results} == {(TimingMode.REPLAY, None)}


def test_a_setting_recorded_once_varies_as_the_launches_of_the_default_do() -> None:
    surface = load_surface("h200x2-two-node-tcp")
    default = [
        statistics.median(r.samples[LARGE * 2]) for r in surface.recordings[DEFAULTS] if r.error is None
    ]
    site = Site(surface)
    once = next(
        env for env, found in surface.recordings.items() if len(found) == 1 and found[0].error is None
    )

    drawn = [
        site.measure(once, index, sizes_bytes=(LARGE * 2,)).median_seconds()[LARGE * 2]
        for index in range(300)
    ]

    recorded = statistics.median(surface.recordings[once][0].samples[LARGE * 2])
    expected = statistics.pstdev(default) / statistics.mean(default)
    assert statistics.pstdev(drawn) / statistics.mean(drawn) == pytest.approx(expected, rel=0.25)
    assert statistics.median(drawn) == pytest.approx(recorded, rel=0.05)


def test_the_sizes_of_one_launch_move_together() -> None:
    launch = Site().measure(ONCE, index=3)

    small, large = launch.median_seconds().values()
    assert large / 5.0 == pytest.approx(small / 0.5, rel=0.02)


def test_a_setting_with_five_recordings_gives_one_of_them_as_it_was() -> None:
    drawn = set(Site().medians(OFTEN, 60))

    assert drawn == {2.0, 3.0, 4.0, 5.0, 6.0}


def test_a_setting_that_was_not_recorded_is_an_error_and_no_guess() -> None:
    launch = Site().measure(nccl_env({"NCCL_SOCKET_NTHREADS": 2}))

    assert launch.error == "not recorded in `made-up`: NCCL_SOCKET_NTHREADS=2"
    assert launch.results == ()


def test_a_variable_that_was_never_recorded_is_an_error() -> None:
    site = Site()
    site.files = {"n1": {"NCCL_CROSS_NIC": "1"}, "n2": {"NCCL_CROSS_NIC": "1"}}

    assert site.measure().error == "not recorded in `made-up`: NCCL_CROSS_NIC=1"


def test_a_recorded_failure_is_replayed() -> None:
    assert Site().measure(FAILED).error == "recorded as failed: hung"


def test_a_size_that_was_not_recorded_is_an_error() -> None:
    assert Site().measure(sizes_bytes=(SMALL, 77)).error == "size 77 was not recorded in `made-up`"


def test_files_of_the_nodes_decide_what_is_drawn() -> None:
    site = Site()
    site.files = {"n1": dict(ONCE.settings), "n2": dict(ONCE.settings)}

    launch = site.measure()

    assert launch.notes == ("in force: NCCL_SOCKET_NTHREADS=4",)
    assert launch.median_seconds()[LARGE] < 7


def test_nodes_that_differ_in_their_files_are_an_error() -> None:
    site = Site()
    site.files["n1"] = dict(ONCE.settings)

    error = site.measure().error

    assert error is not None
    assert error.startswith(
        "nodes differ in their settings, which can hang NCCL: n1: NCCL_SOCKET_NTHREADS=4; n2: "
    )


def test_where_nccl_logs_to_changes_no_time() -> None:
    site = Site()
    site.files["n1"] = {"NCCL_DEBUG": "WARN"}

    assert site.measure().error is None


def test_the_inventorys_own_variables_are_part_of_the_recording() -> None:
    assert Site(env=nccl_env({"NCCL_CROSS_NIC": 1})).measure().error is None


def test_a_setting_that_changes_one_of_the_inventorys_own_variables_is_not_taken_for_the_default() -> None:
    launch = Site(env=nccl_env({"NCCL_CROSS_NIC": 1})).measure(nccl_env({"NCCL_CROSS_NIC": 2}))

    assert launch.error == "not recorded in `made-up`: NCCL_CROSS_NIC=2"


def test_a_fault_makes_a_tuned_setting_slower_than_the_default_in_its_rack_only() -> None:
    fault = ReplayFault(("b",), 3.0)
    with_fault, without = Site(faults=(fault,)), Site()

    in_rack = with_fault.measure(ONCE, nodes=NODES[1:]).median_seconds()[LARGE]
    elsewhere = with_fault.measure(ONCE, nodes=NODES[:1]).median_seconds()[LARGE]

    assert 30.0 <= in_rack <= 3 * 10.8 + 1e-9
    assert elsewhere == without.measure(ONCE, nodes=NODES[:1]).median_seconds()[LARGE]


def test_a_fault_leaves_the_default_alone() -> None:
    assert Site(faults=(ReplayFault(("b",), 3.0),)).medians(DEFAULTS, 5) == Site().medians(DEFAULTS, 5)


def test_notes_name_the_surface_and_the_fault() -> None:
    replay, fault = Site(faults=(ReplayFault(("b",), 1.25),)).backend.notes()

    assert replay.startswith("replay of `made-up` (a test): times are recorded ones")
    assert fault == "replay with a fault put in: on b any tuned setting takes 1.25 times the default's time"


def test_only_what_was_recorded_can_be_measured() -> None:
    backend = Site().backend

    assert backend.can_measure(ONCE)
    assert backend.can_measure(nccl_env({"NCCL_PROTO": "LL"}))
    assert not backend.can_measure(nccl_env({"NCCL_SOCKET_NTHREADS": 2}))


def test_a_probe_tells_each_nodes_variables_with_the_line_they_come_from() -> None:
    site = Site()
    site.files["n2"] = dict(ONCE.settings)

    probe = site.backend.probe(NODES, DEFAULTS)

    assert (probe.source, probe.ranks, probe.error) == ("nccl's reading rules (replay)", 2, None)
    assert [(s.rank, s.node, s.value, s.evidence) for s in probe.settings] == [
        (1, "n2", "4", "/etc/nccl.conf:1")
    ]


def test_a_node_that_is_lost_is_no_launch_and_is_started_anew_for_the_next() -> None:
    site = Site()
    site.measure()
    site.is_dead = True
    with pytest.raises(HostError, match="n1: the bench agent ended"):
        site.measure()
    site.is_dead = False

    again = site.measure()

    assert again.error is None
    assert len(site.channels.opened["n1"]) == 3


def test_a_node_that_is_lost_is_no_probe() -> None:
    site = Site()
    site.measure()
    site.is_dead = True

    with pytest.raises(HostError, match="n1: the bench agent ended"):
        site.backend.probe(NODES, DEFAULTS)


def test_settings_that_are_asked_for_together_are_drawn_one_after_the_other() -> None:
    site = Site()
    kept: list[Launch] = []

    made = site.backend.measure_together(
        NODES, (DEFAULTS, ONCE), PLAN, first_index=3, purpose="test", on_launch=kept.append
    )

    assert made == tuple(kept)
    assert [(launch.index, launch.env, launch.processes) for launch in made] == [
        (3, DEFAULTS, None),
        (4, ONCE, None),
    ]
    assert made[1].results == site.measure(ONCE, 4).results


@pytest.mark.parametrize(
    "wanted", [{"collective": "all_gather"}, {"layout": Layout.RAILS}, {"in_place": False}]
)
def test_what_the_surface_lacks_is_an_error_and_no_guess(wanted: dict[str, Any]) -> None:
    launch = Site().measure(**wanted)

    assert launch.error is not None
    assert launch.error.startswith("the surface `made-up` holds no ")


def test_recordings_that_name_no_type_are_taken_for_any() -> None:
    assert Site().measure(dtype="int8").error is None


def test_a_launch_says_what_it_replays() -> None:
    launch = Site().measure()

    assert (launch.collective, launch.dtype, launch.in_place) == ("all_reduce", "bfloat16", True)


def test_a_launch_has_the_ranks_that_were_recorded() -> None:
    of_nodes = tuple(
        msgspec.structs.replace(one, ranks=16, communicator_ranks=8) for one in SURFACE.recordings[DEFAULTS]
    )
    surface = msgspec.structs.replace(SURFACE, recordings={**SURFACE.recordings, DEFAULTS: of_nodes})

    launch, usual = Site(surface).measure(), Site().measure()

    assert (launch.ranks, launch.communicator_ranks) == (16, 8)
    assert (usual.ranks, usual.communicator_ranks) == (2, None)
