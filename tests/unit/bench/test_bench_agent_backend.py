"""The nccl and gloo back ends on scripted agents: requests, merging, deadlines and the cause of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agent_doubles import Channels, node

from topo_tune.bench.backends import agent as agent_module
from topo_tune.bench.backends.agent import AgentBackend, merge_ranks, settings_in_log, wrong_sums
from topo_tune.errors import HostError, InputError
from topo_tune.records.bench import BenchPlan, Launch, SizeResult, TimingMode
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

NODES = (node("n1", connection=ConnectionKind.SSH), node("n2", connection=ConnectionKind.SSH))
PLAN = BenchPlan(BackendName.NCCL, "all_reduce", "bfloat16", (8192,), repeats=2)
TUNED = nccl_env({"NCCL_SOCKET_NTHREADS": 4})


def of_size(
    size: int, samples: list[float], *, is_correct: bool = True, warmup: float = 1.0
) -> dict[str, Any]:
    return {
        "size_bytes": size,
        "samples_seconds": samples,
        "calls_per_sample": 20,
        "mode": "graph",
        "is_correct": is_correct,
        "warmup_seconds": [warmup],
    }


def answer(rank: int, results: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    usual = {"rank": rank, "setup": {"context": 0.5}, "log": [], "error": None}
    return {**usual, "results": results or [of_size(8192, [1.0 + rank, 2.0])], **fields}


class Site:
    """Two nodes with scripted agents: `errors` by node, `gpus` by node."""

    def __init__(self, backend: BackendName = BackendName.NCCL, **inventory: Any) -> None:
        self.errors: dict[str, list[str]] = {}
        self.gpus = {"n1": 2, "n2": 2}
        self.log: list[str] = []
        self.channels = Channels(self._answer)
        fields: dict[str, Any] = {"env": DEFAULTS, **inventory}
        self.inventory = Inventory("test", (Rack("r1", NODES),), SshOptions(), backend, **fields)
        self.backend = AgentBackend(self.inventory, self.channels.pool(backend))

    def measure(
        self, env: NcclEnv = DEFAULTS, nodes: tuple[Node, ...] = NODES, plan: BenchPlan = PLAN
    ) -> Launch:
        return self.backend.measure(nodes, env, plan, index=3, purpose="test")

    def trials(self, name: str = "n1") -> list[dict[str, Any]]:
        return self.channels.requests(name, "trial")

    def _answer(self, name: str, request: dict[str, Any]) -> Iterator[dict[str, Any] | bytes]:
        if request["op"] == "start":
            yield {"event": "ready", "gpus": self.gpus[name]}
        if request["op"] == "port":
            yield {"event": "port", "port": 4000 + len(self.channels.requests(name, "port"))}
        if request["op"] == "trial":
            errors = self.errors.get(name, [])
            error = errors.pop(0) if errors else None
            if error == "dies":
                yield b""
            ranks = range(request["first_rank"], request["first_rank"] + request["local_ranks"])
            answers = [answer(rank, log=self.log) for rank in ranks]
            yield {
                "event": "result",
                "id": request["id"],
                "ok": error is None,
                "error": error,
                "ranks": answers if error is None else [],
            }


# -- merging


def test_the_slowest_rank_counts_sample_by_sample() -> None:
    (merged,) = merge_ranks(
        [answer(0, [of_size(8, [1.0, 5.0], warmup=9.0)]), answer(1, [of_size(8, [2.0, 4.0], warmup=3.0)])]
    )

    assert merged == SizeResult(8, (2.0, 5.0), 20, TimingMode.GRAPH, True, (9.0,))


def test_a_size_is_correct_only_on_all_ranks() -> None:
    merged = merge_ranks(
        [
            answer(0, [of_size(8, [1.0]), of_size(16, [1.0])]),
            answer(1, [of_size(8, [1.0]), of_size(16, [1.0], is_correct=False)]),
        ]
    )

    assert [result.is_correct for result in merged] == [True, False]
    assert wrong_sums(merged) == "wrong sum at 16 bytes"


def test_right_sums_are_no_error() -> None:
    assert wrong_sums(merge_ranks([answer(0)])) is None


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
    monkeypatch.setattr(agent_module, "_SHORTEST_DEADLINE_SECONDS", 0.5)
    site = Site()

    site.measure()
    site.measure(TUNED)
    site.measure()

    deadlines = [request["plan"]["deadline_seconds"] for request in site.trials()]
    assert deadlines == [60.0, 0.5, 60.0]


def test_the_start_of_the_agents_makes_no_deadline_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "_SHORTEST_DEADLINE_SECONDS", 0.5)
    site = Site()
    open_channel = site.channels.open
    clock = [0.0]
    monkeypatch.setattr(agent_module.time, "monotonic", lambda: clock[0])

    def slow_open(node: Node, command: Any) -> Any:
        clock[0] += 5.0
        return open_channel(node, command)

    site.backend._pool._open_channel = slow_open
    site.measure()
    site.measure(TUNED)

    assert site.trials()[1]["plan"]["deadline_seconds"] == 0.5


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


# -- NCCL's log: lines of 2.27.7 and 2.28.9, and of real clusters (MLPerf Training v5.1, Dell; nebius-solution-library)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("NCCL_SOCKET_NTHREADS set by environment to 2.", "NCCL_SOCKET_NTHREADS", "2"),
        ("NCCL_SOCKET_IFNAME set by environment to lo", "NCCL_SOCKET_IFNAME", "lo"),
        ("NCCL_BUFFSIZE set by environment to -2.", "NCCL_BUFFSIZE", "-2"),
        ("NCCL_ALGO set by environment to allreduce:ring", "NCCL_ALGO", "allreduce:ring"),
        ("NCCL_MIN_CTAS set by environment to 32.", "NCCL_MIN_CTAS", "32"),
        (
            "NCCL_TOPO_FILE set by environment to /var/run/nvidia-topologyd/virtualTopology.xml",
            "NCCL_TOPO_FILE",
            "/var/run/nvidia-topologyd/virtualTopology.xml",
        ),
        ("NCCL_SOCKET_IFNAME set by environment to eth0.", "NCCL_SOCKET_IFNAME", "eth0."),
        ("NCCL_IB_HCA set to mlx5_0:1,mlx5_1:1", None, None),
        ("Channel 00/02 : 0 1", None, None),
    ],
)
def test_a_line_of_the_log_gives_the_variable_and_its_value(
    line: str, name: str | None, value: str | None
) -> None:
    found = settings_in_log(1, "n1", [line])

    assert [(s.name, s.value, s.evidence) for s in found] == ([(name, value, line)] if name else [])


def test_the_first_line_of_a_variable_is_kept() -> None:
    lines = ["NCCL_ALGO set by environment to Ring", "NCCL_ALGO set by environment to Tree"]

    assert [s.value for s in settings_in_log(0, "n1", lines)] == ["Ring"]
