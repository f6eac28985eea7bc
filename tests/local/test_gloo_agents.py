"""Bench agents with the real torch: gloo on the CPUs of this machine, two nodes of two ranks each."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topo_tune.bench.agents import AgentPool
from topo_tune.bench.backends.agent import AgentBackend
from topo_tune.bench.plan import plan_bench
from topo_tune.connect.local import LocalConnection
from topo_tune.launch import LAUNCHERS
from topo_tune.records.bench import BenchPlan, Launch, Layout, TimingMode
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

pytestmark = pytest.mark.gloo

TAG = "TOPO_TUNE_TEST=gloo-agents"
PYTHON = ("env", TAG, sys.executable)
NODES = tuple(Node(name, "r1", "127.0.0.1", ConnectionKind.LOCAL, python=PYTHON) for name in ("n1", "n2"))
INVENTORY = Inventory("gloo", (Rack("r1", NODES),), SshOptions(), BackendName.GLOO)
PLAN = msgspec.structs.replace(
    plan_bench(INVENTORY, repeats=3, deadline_seconds=30.0), sizes_bytes=(8192, 131072)
)
ENDLESS = msgspec.structs.replace(PLAN, repeats=1_000_000)
SECONDS = 15.0


@pytest.fixture(scope="module")
def backend() -> Iterator[AgentBackend]:
    launcher = LAUNCHERS["local"]()
    connections = {node.name: LocalConnection(node) for node in NODES}
    pool = AgentPool(
        BackendName.GLOO,
        lambda node: launcher.commands((node,), "bench_agent")[node.name],
        lambda node, command: connections[node.name].start(command),
    )
    made = AgentBackend(INVENTORY, pool)
    yield made
    made.close()


def measure(backend: AgentBackend, env: NcclEnv = DEFAULTS, plan: Any = PLAN) -> Launch:
    return backend.measure(NODES, env, plan, index=0, purpose="test")


def processes() -> dict[int, int]:
    """Every living process of these agents: process to parent."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and TAG.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                found[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # it has ended meanwhile
    return found


def ranks() -> list[int]:
    """The processes that were forked by another one of them."""
    found = processes()
    return sorted(pid for pid, parent in found.items() if parent in found)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def during_a_launch(backend: AgentBackend, disturb: Callable[[], None], plan: Any = ENDLESS) -> Launch:
    """An endless launch, and what is done once its four ranks are there."""
    made: list[Launch] = []
    thread = threading.Thread(target=lambda: made.append(measure(backend, plan=plan)))
    thread.start()
    wait_for(lambda: len(ranks()) == 4)
    disturb()
    thread.join(2 * SECONDS)
    assert made, "the launch did not end"
    return made[0]


def test_four_ranks_of_two_nodes_sum_right(backend: AgentBackend) -> None:
    launch = measure(backend)

    assert (launch.error, launch.ranks) == (None, 4)
    assert [(r.size_bytes, r.mode, r.is_correct) for r in launch.results] == [
        (8192, TimingMode.EAGER, True),
        (131072, TimingMode.EAGER, True),
    ]
    assert [len(result.samples_seconds) for result in launch.results] == [3, 3]


def test_times_are_those_of_calls_and_not_of_samples(backend: AgentBackend) -> None:
    launch = measure(backend)

    assert all(1e-6 < median < 1.0 for median in launch.median_seconds().values())
    assert dict(launch.setup_seconds).keys() == {"communicator", "context", "first_call", "release"}


def test_a_later_launch_needs_no_new_import(backend: AgentBackend) -> None:
    measure(backend)
    before = set(processes())

    measure(backend, nccl_env({"NCCL_ALGO": "allreduce:ring"}))

    assert set(processes()) == before


def test_a_launch_past_its_deadline_is_killed_and_tells_what_its_ranks_did(backend: AgentBackend) -> None:
    launch = measure(backend, plan=msgspec.structs.replace(ENDLESS, deadline_seconds=3.0))

    assert launch.error is not None
    assert launch.error.startswith("still running at its deadline of 3 s, killed; rank ")
    assert "timing 8192 bytes" in launch.error
    assert ranks() == []


def test_a_rank_that_is_killed_is_named_and_not_its_peers_that_lost_it(backend: AgentBackend) -> None:
    launch = during_a_launch(backend, lambda: os.kill(ranks()[-1], signal.SIGSEGV))

    assert launch.error is not None
    assert "was killed by signal 11 (SIGSEGV)" in launch.error
    assert ranks() == []


def test_after_all_that_a_launch_is_as_good_as_the_first(backend: AgentBackend) -> None:
    assert measure(backend).is_usable


def changed(**changes: Any) -> BenchPlan:
    """Another plan, of one size that four ranks cannot share evenly."""
    return msgspec.structs.replace(PLAN, **{"sizes_bytes": (5000,), "repeats": 1, **changes})


# Not in the list: sums, broadcasts and reductions out of place, which torch has not for any back end.
@pytest.mark.parametrize(
    ("collective", "in_place"),
    [
        ("all_reduce", True),
        ("all_gather", True),
        ("all_gather", False),
        ("reduce_scatter", True),
        ("reduce_scatter", False),
        ("broadcast", True),
        ("reduce", True),
        ("alltoall", False),
        ("sendrecv", False),
    ],
)
def test_every_collective_that_gloo_has_is_measured_and_right(
    backend: AgentBackend, collective: str, in_place: bool
) -> None:
    launch = measure(backend, plan=changed(collective=collective, in_place=in_place))

    assert launch.error is None
    (result,) = launch.results
    divided = collective in ("all_gather", "reduce_scatter", "alltoall")
    assert (result.size_bytes, result.is_correct) == (4992 if divided else 5000, True)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce"])
def test_what_gloo_does_in_place_only_is_refused_out_of_place(backend: AgentBackend, collective: str) -> None:
    launch = measure(backend, plan=changed(collective=collective, in_place=False))

    assert launch.error is not None
    assert launch.error.endswith(f"ValueError: gloo has {collective} in place only")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_sums_of_other_data_types_are_right(backend: AgentBackend, dtype: str) -> None:
    launch = measure(backend, plan=changed(dtype=dtype))

    assert (launch.error, launch.results[0].is_correct) == (None, True)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_gloo_sums_no_fp8_and_torch_says_so(backend: AgentBackend, dtype: str) -> None:
    launch = measure(backend, plan=changed(dtype=dtype))

    assert launch.error is not None
    assert "RuntimeError: " in launch.error


@pytest.mark.parametrize("layout", [Layout.WITHIN_NODE, Layout.RAILS, Layout.PAIRS])
def test_groups_of_a_layout_run_beside_each_other(backend: AgentBackend, layout: Layout) -> None:
    launch = measure(backend, plan=changed(layout=layout))

    assert (launch.error, launch.ranks, launch.results[0].is_correct) == (None, 4, True)


def test_calls_are_timed_one_by_one_where_that_is_asked(backend: AgentBackend) -> None:
    launch = measure(backend, plan=changed(single_calls=7))

    assert len(launch.results[0].single_seconds) == 7


def test_settings_that_share_processes_are_launches_of_their_own(backend: AgentBackend) -> None:
    settings = (DEFAULTS, nccl_env({"NCCL_ALGO": "allreduce:ring"}), DEFAULTS)

    launches = backend.measure_together(NODES, settings, changed(), first_index=3, purpose="test")

    assert [(launch.index, launch.error) for launch in launches] == [(3, None), (4, None), (5, None)]
    assert len({launch.processes for launch in launches}) == 1


def test_a_data_type_that_nobody_knows_is_refused(backend: AgentBackend) -> None:
    launch = measure(backend, plan=changed(dtype="float99"))

    assert launch.error is not None
    assert "no data type `float99` here; there are float32, " in launch.error


def test_an_agent_that_is_killed_takes_its_ranks_along_and_is_replaced(backend: AgentBackend) -> None:
    def kill_an_agent() -> None:
        found = processes()
        agents = [pid for pid, parent in found.items() if parent not in found]
        os.kill(agents[0], signal.SIGKILL)

    launch = during_a_launch(backend, kill_an_agent, msgspec.structs.replace(ENDLESS, deadline_seconds=5.0))

    # The second attempt, with fresh agents, is as endless as the first; what ended the first is not told of it.
    assert launch.error is not None
    assert launch.error.startswith("still running at its deadline of 5 s, killed")
    wait_for(lambda: ranks() == [])
    assert measure(backend).is_usable


def test_closing_the_back_end_leaves_no_process(backend: AgentBackend) -> None:
    measure(backend)

    backend.close()

    wait_for(lambda: processes() == {})
