"""The nccl and gloo back ends on scripted agents: requests, merging, deadlines and the cause of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from agent_doubles import Channels, node, of_size, trial_events

from topo_tune.bench import limits, sets
from topo_tune.bench.backends.agent import AgentBackend
from topo_tune.bench.memory import communicator_bytes
from topo_tune.errors import HostError, InputError
from topo_tune.records.bench import BenchPlan, Launch, Layout
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

NODES = (node("n1", connection=ConnectionKind.SSH), node("n2", connection=ConnectionKind.SSH))
PLAN = BenchPlan(BackendName.NCCL, "all_reduce", "bfloat16", (8192,), repeats=2)
TUNED = nccl_env({"NCCL_SOCKET_NTHREADS": 4})


RING, TREE = nccl_env({"NCCL_ALGO": "Ring"}), nccl_env({"NCCL_ALGO": "Tree"})


class Site:
    """Two nodes with scripted agents. By node: `errors` of trials to come, `gpus`; by setting: `script`."""

    def __init__(self, backend: BackendName = BackendName.NCCL, **inventory: Any) -> None:
        self.errors: dict[str, list[str | None]] = {}
        self.gpus = {"n1": 2, "n2": 2}
        self.nccl: dict[str, str | None] = {"n1": "2.28.9", "n2": "2.28.9"}
        self.log: list[str] = []
        self.script: dict[NcclEnv, Any] = {}
        """what ranks do under a setting: an error text, `dies`, or what changes in their answers"""
        self.ends_with: str | None = None
        """an error of the trial behind its last variant"""
        self.channels = Channels(self._answer)
        fields: dict[str, Any] = {"env": DEFAULTS, **inventory}
        self.inventory = Inventory("test", (Rack("r1", NODES),), SshOptions(), backend, **fields)
        self.backend = AgentBackend(self.inventory, self.channels.pool(backend))

    def measure(
        self, env: NcclEnv = DEFAULTS, nodes: tuple[Node, ...] = NODES, plan: BenchPlan = PLAN
    ) -> Launch:
        return self.backend.measure(nodes, env, plan, index=3, purpose="test")

    def together(self, *settings: NcclEnv, plan: BenchPlan = PLAN) -> tuple[Launch, ...]:
        self.kept: list[Launch] = []
        return self.backend.measure_together(
            NODES, settings, plan, first_index=5, purpose="test", on_launch=self.kept.append
        )

    def trials(self, name: str = "n1") -> list[dict[str, Any]]:
        return self.channels.requests(name, "trial")

    def _answer(self, name: str, request: dict[str, Any]) -> Iterator[dict[str, Any] | bytes]:
        if request["op"] == "start":
            yield {"event": "ready", "gpus": self.gpus[name], "nccl": self.nccl[name]}
        if request["op"] == "port":
            yield {"event": "port", "port": 4000 + len(self.channels.requests(name, "port"))}
        if request["op"] == "trial":
            errors = self.errors.get(name, [])
            error = errors.pop(0) if errors else None
            if error == "dies":
                yield b""
            yield from trial_events(
                request,
                error=error,
                log=self.log,
                script=lambda env: self.script.get(env, {}),
                ends_with=self.ends_with,
            )


# -- requests


def test_each_node_is_told_its_ranks_and_all_the_same_meeting_point() -> None:
    site = Site()

    launch = site.measure()

    (one,), (two,) = site.trials("n1"), site.trials("n2")
    assert (launch.error, launch.ranks, launch.index) == (None, 4, 3)
    assert [(r["node"], r["first_rank"], r["local_ranks"], r["world_size"]) for r in (one, two)] == [
        ("n1", 0, 2, 4),
        ("n2", 2, 2, 4),
    ]
    assert one["master"] == two["master"] == ["n1", 4001]


def test_nodes_of_this_machine_meet_on_loopback() -> None:
    site = Site()

    site.measure(nodes=(node("n1"), node("n2")))

    assert site.trials()[0]["master"][0] == "127.0.0.1"


def test_the_inventorys_variables_go_along_and_a_setting_wins_over_them() -> None:
    site = Site(env=nccl_env({"NCCL_CROSS_NIC": 1, "NCCL_SOCKET_NTHREADS": 1}))

    site.measure(TUNED)

    assert site.trials()[0]["env"] == {"NCCL_CROSS_NIC": "1", "NCCL_SOCKET_NTHREADS": "4"}


def test_ranks_of_the_cluster_file_win_over_the_gpus() -> None:
    assert Site(ranks_per_node=1).measure().ranks == 2


def test_gloo_has_two_ranks_a_node() -> None:
    assert Site(BackendName.GLOO).measure().ranks == 4


def test_nodes_with_different_numbers_of_gpus_are_refused() -> None:
    site = Site()
    site.gpus["n2"] = 8

    with pytest.raises(
        InputError, match=r"different numbers of GPUs \(n1: 2, n2: 8\)\nhint: set `ranks_per_node`"
    ):
        site.measure()


def test_one_rank_alone_is_refused() -> None:
    with pytest.raises(InputError, match="a collective needs at least 2 ranks; n1 alone has 1"):
        Site(ranks_per_node=1).measure(nodes=NODES[:1])


def test_parts_that_do_not_divide_a_host_are_refused() -> None:
    with pytest.raises(InputError, match="`as_nodes: 3` does not divide the 2 ranks"):
        Site(as_nodes=3).measure()


# -- failures


def test_a_failed_trial_is_the_error_of_the_launch() -> None:
    site = Site()
    site.errors = {"n2": ["rank 2 was killed by signal 11 (SIGSEGV)"]}

    launch = site.measure()

    assert (launch.error, launch.results) == ("rank 2 was killed by signal 11 (SIGSEGV)", ())


@pytest.mark.parametrize(
    "consequence",
    ["aborted: another node failed", "rank 0: RuntimeError: Connection closed by peer [10.0.0.2]:3333"],
)
def test_the_cause_is_told_and_not_its_consequence(consequence: str) -> None:
    site = Site()
    site.errors = {"n1": [consequence], "n2": ["rank 2: RuntimeError: out of memory"]}

    assert site.measure().error == "rank 2: RuntimeError: out of memory"


def test_a_port_that_was_taken_is_no_word_about_the_setting() -> None:
    site = Site()
    site.errors = {
        "n1": ["rank 0: DistNetworkError: failed to listen, name: EADDRINUSE, message: address already"]
    }

    launch = site.measure()

    assert launch.error is None
    assert [request["master"][1] for request in site.trials()] == [4001, 4002]


def test_a_port_that_is_taken_twice_is_told() -> None:
    site = Site()
    site.errors = {"n1": ["rank 0: EADDRINUSE", "rank 0: EADDRINUSE", "never asked"]}

    assert site.measure().error == "rank 0: EADDRINUSE"


def test_a_lost_agent_says_nothing_of_the_setting_so_its_launch_is_tried_with_fresh_ones() -> None:
    site = Site()
    site.errors = {"n2": ["dies"]}

    launch = site.measure(TUNED)

    assert launch.error is None
    assert [len(site.channels.opened[name]) for name in ("n1", "n2")] == [2, 2]
    assert [channel.closed for channel in site.channels.opened["n2"]] == [1, 0]


def test_an_agent_that_is_lost_twice_is_no_launch_at_all() -> None:
    site = Site()
    site.errors = {"n2": ["dies", "dies"]}

    with pytest.raises(HostError, match="n2: the bench agent ended without a word"):
        site.measure(TUNED)

    assert site.measure(TUNED).error is None


def test_a_node_that_is_lost_is_told_and_not_what_its_peers_saw_of_it() -> None:
    site = Site()
    site.errors = {"n1": ["rank 0: Connection reset by peer"] * 2, "n2": ["dies", "dies"]}

    with pytest.raises(HostError, match="n2: the bench agent ended"):
        site.measure(TUNED)


def test_a_setting_that_fails_in_its_ranks_is_not_tried_again() -> None:
    site = Site()
    site.errors = {"n2": ["rank 2: out of memory"]}

    assert site.measure(TUNED).error == "rank 2: out of memory"
    assert len(site.trials()) == 1


def test_a_bug_on_the_way_to_one_node_keeps_nobody_waiting_for_the_others() -> None:
    site = Site()
    site.backend._pool.agents(NODES)
    channels = site.channels.opened

    def broken(data: bytes) -> None:
        raise ZeroDivisionError

    def silent(name: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if request["op"] == "abort":
            yield {"event": "result", "id": request["id"], "ok": False, "error": "aborted"}
        if request["op"] == "port":
            yield {"event": "port", "port": 4001}

    channels["n1"][0].answer = silent
    channels["n2"][0].send = broken  # type: ignore[method-assign]

    with pytest.raises(ZeroDivisionError):
        site.measure()

    assert [request["op"] for request in channels["n1"][0].requests][-1] == "abort"


# -- deadlines


def test_a_setting_gets_the_plans_deadline_until_the_default_is_known() -> None:
    site = Site()

    site.measure(TUNED)

    assert site.trials()[0]["plan"]["deadline_seconds"] == 60.0


def test_a_setting_gets_no_more_time_than_some_launches_of_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SHORTEST_DEADLINE_SECONDS", 0.5)
    site = Site()

    site.measure()
    site.measure(TUNED)
    site.measure()

    deadlines = [request["plan"]["deadline_seconds"] for request in site.trials()]
    assert deadlines == [60.0, 0.5, 60.0]


def test_the_start_of_the_agents_makes_no_deadline_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHORTEST_DEADLINE_SECONDS", 0.5)
    site = Site()
    open_channel = site.channels.open
    clock = [0.0]
    monkeypatch.setattr(sets.time, "monotonic", lambda: clock[0])

    def slow_open(node: Node, command: Any) -> Any:
        clock[0] += 5.0
        return open_channel(node, command)

    site.backend._pool._open_channel = slow_open
    site.measure()
    site.measure(TUNED)

    assert site.trials()[1]["plan"]["deadline_seconds"] == 0.5


# -- what a plan asks for


def test_the_plan_goes_along_whole() -> None:
    site = Site(as_nodes=2)
    plan = BenchPlan(
        BackendName.NCCL,
        "all_gather",
        "int8",
        (8192,),
        repeats=2,
        layout=Layout.RAILS,
        in_place=False,
        single_calls=100,
        overlap=True,
    )

    launch = site.measure(TUNED, plan=plan)

    (trial,) = site.trials()
    needs_bytes = trial["plan"].pop("needs_bytes")
    assert trial["plan"] == {
        "collective": "all_gather",
        "dtype": "int8",
        "layout": "rails",
        "in_place": False,
        "sizes_bytes": [8192],
        "repeats": 2,
        "single_calls": 100,
        "overlap": True,
        "slowest_seconds": [],
        "deadline_seconds": 60.0,
    }
    assert needs_bytes == communicator_bytes(TUNED, "all_gather", ranks=4, nodes=4)
    assert (trial["ranks_per_node"], trial["as_nodes"], trial["local_ranks"]) == (1, 2, 2)
    assert (launch.collective, launch.dtype, launch.layout, launch.in_place) == (
        "all_gather",
        "int8",
        Layout.RAILS,
        False,
    )


@pytest.mark.parametrize(
    ("layout", "ranks"), [(Layout.WORLD, 4), (Layout.WITHIN_NODE, 2), (Layout.RAILS, 2), (Layout.PAIRS, 2)]
)
def test_a_launch_says_how_many_ranks_a_communicator_has(layout: Layout, ranks: int) -> None:
    launch = Site().measure(plan=msgspec.structs.replace(PLAN, layout=layout))

    assert (launch.ranks, launch.communicator_ranks) == (4, ranks)


@pytest.mark.parametrize(
    ("layout", "per_node"), [(Layout.WITHIN_NODE, 1), (Layout.PAIRS, 3), (Layout.RAILS, 2)]
)
def test_a_layout_that_leaves_a_rank_alone_is_refused_before_anything_is_started(
    layout: Layout, per_node: int
) -> None:
    site = Site(ranks_per_node=per_node)
    plan = msgspec.structs.replace(PLAN, layout=layout)

    with pytest.raises(InputError, match=f"layout `{layout.value}` leaves ranks alone"):
        site.measure(nodes=NODES if layout is Layout.WITHIN_NODE else NODES[:1], plan=plan)

    assert site.trials() == []


def test_a_size_of_which_no_rank_gets_a_part_is_refused_before_anything_is_started() -> None:
    site = Site()
    plan = msgspec.structs.replace(PLAN, collective="all_gather", sizes_bytes=(8, 8192))

    with pytest.raises(InputError, match="8 bytes are too few for all_gather of 4 ranks; the least is 64"):
        site.measure(plan=plan)

    assert site.trials() == []


def test_gloo_needs_no_memory_of_a_gpu() -> None:
    site = Site(BackendName.GLOO)

    site.measure()

    assert site.trials()[0]["plan"]["needs_bytes"] == 0


# -- limits of time


def test_a_setting_is_cut_off_at_some_times_what_the_default_takes() -> None:
    site = Site()

    site.measure()
    site.measure(TUNED)
    site.measure()

    # the slowest rank's median is (4 + 2) / 2, and its call before that took 1
    assert [trial["variants"][0]["slowest_seconds"] for trial in site.trials()] == [[], [[8192, 24.0]], []]


def test_limits_are_of_the_same_plan_and_the_same_nodes() -> None:
    site = Site()

    site.measure()
    site.measure(TUNED, plan=msgspec.structs.replace(PLAN, collective="broadcast"))
    site.measure(TUNED, nodes=NODES[:1])

    assert [trial["variants"][0]["slowest_seconds"] for trial in site.trials()] == [[], [], []]


def test_a_launch_that_was_cut_off_says_where_and_by_what() -> None:
    site = Site()
    site.script[TUNED] = {"results": [of_size(8192, [], slower_than_seconds=24.0)]}

    site.measure()
    launch = site.measure(TUNED)

    assert launch.error == "cut off at 8K: a call took longer than 24.0 s, 8 times the default's"
    assert (launch.results[0].slower_than_seconds, launch.is_usable) == (24.0, False)


def test_the_operators_own_limits_win() -> None:
    site = Site()

    site.measure(TUNED, plan=msgspec.structs.replace(PLAN, slowest_seconds=((8192, 0.5),)))

    assert site.trials()[0]["variants"][0]["slowest_seconds"] == [[8192, 0.5]]


# -- what was in force


def test_a_setting_that_did_not_reach_a_rank_is_an_error() -> None:
    site = Site()
    site.script[TUNED] = {"in_force": {"NCCL_SOCKET_NTHREADS": "1"}}

    launch = site.measure(TUNED)

    assert launch.error == "NCCL_SOCKET_NTHREADS=4 did not reach ranks 0-3: it has 1"
    assert launch.in_force == (("NCCL_SOCKET_NTHREADS", "1"),)


def test_a_launch_carries_what_rank_0_had() -> None:
    assert Site().measure(TUNED).in_force == (("NCCL_SOCKET_NTHREADS", "4"),)


# -- wrong results


def test_a_wrong_result_is_an_error_with_its_place_and_ends_the_setting() -> None:
    site = Site()
    site.script[TUNED] = {"results": [of_size(8192, [1.0, 1.0], is_correct=False)]}

    launch = site.measure(TUNED)

    assert launch.error == "wrong all_reduce at 8K on ranks 0-3"
    assert not launch.is_usable
    assert not site.backend.can_measure(TUNED)
    assert site.backend.can_measure(DEFAULTS)


def test_a_setting_that_gave_a_wrong_result_is_not_started_again() -> None:
    site = Site()
    site.script[RING] = {"results": [of_size(8192, [1.0, 1.0], is_correct=False)]}

    site.measure(RING)
    again = site.measure(RING)
    together = site.together(DEFAULTS, RING, TREE)

    error = "not measured again in this run: wrong all_reduce at 8K on ranks 0-3"
    assert again.error == error
    assert [(launch.index, launch.env, launch.error) for launch in together] == [
        (5, RING, error),
        (6, DEFAULTS, None),
        (7, TREE, None),
    ]
    assert len(site.trials()) == 2


def test_the_default_may_be_another_thing_after_the_next_write() -> None:
    site = Site()
    site.script[DEFAULTS] = {"results": [of_size(8192, [1.0, 1.0], is_correct=False)]}
    assert not site.measure().is_usable

    site.script.clear()

    assert site.measure().is_usable


# -- settings that share processes


def test_settings_that_are_read_again_share_one_trial() -> None:
    site = Site()

    made = site.together(DEFAULTS, RING, TREE)

    (trial,) = site.trials()
    assert [variant["env"] for variant in trial["variants"]] == [{}, RING.as_dict(), TREE.as_dict()]
    assert [(launch.index, launch.env, launch.processes) for launch in made] == [
        (5, DEFAULTS, 5),
        (6, RING, 5),
        (7, TREE, 5),
    ]
    assert [bool(launch.setup_seconds) for launch in made] == [True, False, False]
    assert site.kept == list(made)


def test_a_launch_by_itself_has_processes_of_its_own() -> None:
    assert Site().measure(RING).processes is None


def test_each_set_of_processes_has_a_number_that_no_other_one_of_the_file_has() -> None:
    made = Site().together(DEFAULTS, TUNED, RING)

    assert [(launch.index, launch.env, launch.processes) for launch in made] == [
        (5, DEFAULTS, 5),
        (6, RING, 5),
        (7, TUNED, 7),
    ]


def test_the_inventorys_variables_are_part_of_every_setting() -> None:
    site = Site(env=nccl_env({"NCCL_CROSS_NIC": 1, "NCCL_ALGO": "Tree"}))

    made = site.together(DEFAULTS, RING)

    (trial,) = site.trials()
    assert trial["env"] == {"NCCL_CROSS_NIC": "1"}
    assert [variant["env"]["NCCL_ALGO"] for variant in trial["variants"]] == ["Tree", "Ring"]
    assert [(launch.env, launch.error) for launch in made] == [(DEFAULTS, None), (RING, None)]


def test_limits_of_channels_go_into_the_configuration() -> None:
    site = Site()
    asked = nccl_env({"NCCL_MIN_CTAS": 16})

    made = site.together(DEFAULTS, asked)

    assert [variant["config"] for variant in site.trials()[0]["variants"]] == [
        {},
        {"minCTAs": 16, "maxCTAs": 64},
    ]
    assert [(launch.env, launch.error) for launch in made] == [(DEFAULTS, None), (asked, None)]


def test_an_older_library_on_one_node_decides_what_can_be_shared() -> None:
    site = Site()
    site.nccl["n2"] = "2.16.5"

    site.together(DEFAULTS, nccl_env({"NCCL_MIN_CTAS": 16}))

    assert len(site.trials()) == 2


def test_a_reloading_library_is_told_what_to_reload_and_readers_are_told_too() -> None:
    site = Site()
    site.nccl = dict.fromkeys(site.nccl, "2.30.7")

    made = site.together(DEFAULTS, TUNED)

    (trial,) = site.trials()
    assert trial["env"] == {"NCCL_NO_CACHE": "NCCL_SOCKET_NTHREADS"}
    assert all("no production setting" in launch.notes[0] for launch in made)


def test_a_setting_that_fails_ends_its_set_and_those_behind_it_run_in_a_new_one() -> None:
    site = Site()
    site.script[RING] = "rank 2 was killed by signal 11 (SIGSEGV)"

    made = site.together(DEFAULTS, RING, TREE)

    assert [launch.error for launch in made] == [None, "rank 2 was killed by signal 11 (SIGSEGV)", None]
    assert [(launch.index, launch.processes) for launch in made] == [(5, 5), (6, 5), (7, 7)]
    assert [[variant["env"] for variant in trial["variants"]] for trial in site.trials()] == [
        [{}, RING.as_dict(), TREE.as_dict()],
        [TREE.as_dict()],
    ]


def test_a_wrong_result_ends_its_set_and_is_not_blamed_on_the_next_setting() -> None:
    site = Site()
    site.script[RING] = {"results": [of_size(8192, [1.0, 1.0], is_correct=False)]}

    made = site.together(DEFAULTS, RING, TREE)

    assert [launch.error for launch in made] == [None, "wrong all_reduce at 8K on ranks 0-3", None]
    assert len(site.trials()) == 2


def test_every_setting_of_a_set_may_fail() -> None:
    site = Site()
    site.script = dict.fromkeys((DEFAULTS, RING, TREE), "no luck")

    made = site.together(DEFAULTS, RING, TREE)

    assert [launch.error for launch in made] == ["no luck"] * 3
    assert [launch.processes for launch in made] == [5, 6, 7]


def test_what_was_measured_counts_when_the_processes_fail_at_their_very_end() -> None:
    site = Site()
    site.ends_with = "rank 1: ncclCommDestroy: system error"

    made = site.together(DEFAULTS, RING)

    assert [launch.error for launch in made] == [None, None]
    assert [launch.notes for launch in made] == [
        (),
        ("measured, but its processes did not end well: rank 1: ncclCommDestroy: system error",),
    ]


def test_an_agent_that_is_lost_in_a_set_costs_nothing_that_was_measured() -> None:
    site = Site()
    deaths = iter(["dies"])

    def first_time_only(env: NcclEnv) -> Any:
        return next(deaths, {}) if env == TREE else {}

    site.script = _Script(first_time_only)

    made = site.together(DEFAULTS, RING, TREE)

    assert [(launch.env, launch.error, launch.processes) for launch in made] == [
        (DEFAULTS, None, 5),
        (RING, None, 5),
        (TREE, None, 7),
    ]


def test_launches_before_a_node_that_is_lost_for_good_have_been_kept() -> None:
    site = Site()
    site.script[TREE] = "dies"

    with pytest.raises(HostError, match="the bench agent ended"):
        site.together(DEFAULTS, RING, TREE)

    assert [launch.env for launch in site.kept] == [DEFAULTS, RING]


def test_a_launch_that_cannot_be_kept_ends_the_trial_everywhere() -> None:
    site = Site()

    def full(launch: Launch) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        site.backend.measure_together(
            NODES, (DEFAULTS, RING), PLAN, first_index=0, purpose="test", on_launch=full
        )

    assert site.measure().error is None


class _Script(dict[NcclEnv, Any]):
    """A script that is a function."""

    def __init__(self, does: Any) -> None:
        super().__init__()
        self._does = does

    def get(self, env: NcclEnv, default: Any = None) -> Any:
        return self._does(env)


# -- probes


def test_a_probe_tells_every_ranks_variables_with_nccls_own_line() -> None:
    site = Site()
    site.log = ["NCCL_SOCKET_NTHREADS set by environment to 2.", "NCCL version 2.28.9+cuda13.0"]

    probe = site.backend.probe(NODES, DEFAULTS)

    assert (probe.source, probe.ranks, probe.error) == ("nccl log", 4, None)
    assert probe.values("NCCL_SOCKET_NTHREADS") == dict.fromkeys(range(4), "2")
    assert [setting.node for setting in probe.settings] == ["n1", "n1", "n2", "n2"]
    assert probe.log_of_rank_0 == tuple(site.log)
    assert site.trials()[0]["probe"] is True


def test_a_probe_that_fails_keeps_its_error() -> None:
    site = Site()
    site.errors = {"n1": ["rank 0: no luck"]}

    assert site.backend.probe(NODES, DEFAULTS).error == "rank 0: no luck"


def test_a_probe_whose_agent_is_lost_is_made_again_and_at_last_no_probe_at_all() -> None:
    site = Site()
    site.errors = {"n1": ["dies", None, "dies", "dies"]}  # type: ignore[list-item]

    assert site.backend.probe(NODES, DEFAULTS).error is None
    with pytest.raises(HostError, match="n1: the bench agent ended"):
        site.backend.probe(NODES, DEFAULTS)


def test_a_probe_of_gloo_says_that_nobody_reads_the_variables() -> None:
    site = Site(BackendName.GLOO)

    probe = site.backend.probe(NODES, DEFAULTS)

    assert probe.source.startswith("nobody")
    assert site.channels.opened == {}
