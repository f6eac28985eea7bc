"""The bench agent as a real process with real ranks; only torch is a double, so that it can go wrong on demand.

The double is in `torch_double/`: the variable DOUBLE of a trial says what happens and on which rank.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_processes import DOUBLE, SECONDS, Running, all_pids, pipes_of, read, wait_for

from topo_tune.bench.agents import AgentPool
from topo_tune.bench.backends.agent import AgentBackend
from topo_tune.connect.local import LocalConnection
from topo_tune.errors import ConnectionLost, MissingCapability, NodeProgramFailed
from topo_tune.launch import LAUNCHERS
from topo_tune.records.bench import BenchPlan
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv

PLAN = BenchPlan(BackendName.GLOO, "all_reduce", "float32", (1024,), repeats=1, deadline_seconds=20.0)


def errors_of(answer: dict[str, Any]) -> str:
    return str(answer["error"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One agent for all tests that leave it alive: trials after failures are a part of what is tested."""
    running = Running(tmp_path_factory.mktemp("double"))
    running.start()
    yield running
    running.close()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Running]:
    """An agent of one's own."""
    running = Running(tmp_path)
    running.start()
    yield running
    running.close()


# -- trials


def test_a_trial_gives_every_rank_a_result_with_a_checked_sum(shared: Running) -> None:
    answer = shared.trial(ranks=3)

    assert answer["ok"], answer["error"]
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1, 2]
    assert [rank["results"][0]["is_correct"] for rank in answer["ranks"]] == [True, True, True]
    assert {"context", "communicator", "first_call", "release"} == set(answer["ranks"][0]["setup"])


def test_two_trials_in_a_row_have_fresh_ranks(shared: Running) -> None:
    first, second = shared.trial(), shared.trial()

    assert (first["ok"], second["ok"]) == (True, True)
    assert second["id"] == first["id"] + 1


def test_a_wrong_sum_is_reported_on_the_rank_that_saw_it(shared: Running) -> None:
    answer = shared.trial("wrong@1")

    assert [rank["results"][0]["is_correct"] for rank in answer["ranks"]] == [True, False]


def test_a_rank_that_crashes_fails_the_trial_with_its_signal(shared: Running) -> None:
    answer = shared.trial("crash@1")

    assert errors_of(answer).startswith("rank 1 was killed by signal 11 (SIGSEGV)")


def test_after_a_crash_the_next_trial_is_clean(shared: Running) -> None:
    shared.trial("crash@0")

    assert shared.trial()["ok"]


def test_a_rank_that_ends_without_an_answer_is_quoted(shared: Running) -> None:
    assert errors_of(shared.trial("exit@0")) == "rank 0 ended with status 3: my last words"


def test_a_rank_that_raises_fails_the_trial_at_once_though_its_peers_wait_for_it(shared: Running) -> None:
    began = time.monotonic()

    answer = shared.trial("raise@1")

    assert errors_of(answer) == "rank 1: RuntimeError: no luck today | with details"
    assert time.monotonic() - began < 5


def test_a_rank_that_hangs_is_killed_at_the_deadline_and_the_agent_says_where_it_was(shared: Running) -> None:
    answer = shared.trial("hang@1", deadline_seconds=1.5)

    assert errors_of(answer) == (
        "still running at its deadline of 1.5 s, killed; "
        "rank 0: checking 1024 bytes, rank 1: checking 1024 bytes"
    )
    assert shared.ranks() == []


def test_an_abort_ends_the_trial_at_once(shared: Running) -> None:
    identity = shared.begin("hang@0")
    shared.await_hanging_ranks()
    began = time.monotonic()

    shared.agent.send({"op": "abort", "id": identity, "reason": "another node failed"})
    answer = shared.result()

    assert errors_of(answer) == "aborted: another node failed"
    assert time.monotonic() - began < 5
    assert shared.ranks() == []


def test_an_abort_of_an_older_trial_is_ignored(shared: Running) -> None:
    shared.agent.send({"op": "abort", "id": 0})

    assert shared.trial()["ok"]


def test_a_second_trial_is_refused_while_one_runs(shared: Running) -> None:
    running = shared.begin("hang@0")
    shared.agent.send({"op": "trial", "id": -1, "plan": {"deadline_seconds": 1}})

    refused = shared.result()

    shared.agent.send({"op": "abort", "id": running})
    assert (refused["id"], refused["error"]) == (-1, "another trial is running")
    assert shared.result()["id"] == running


def test_a_rank_that_writes_without_end_fills_no_disk_and_hides_no_mark(
    shared: Running, tmp_path: Path
) -> None:
    answer = shared.trial("flood@0")

    assert answer["ok"], answer["error"]
    assert not any("deleted" in os.readlink(entry) for entry in Path(f"/proc/{shared.pid}/fd").iterdir())


def test_trials_leave_neither_descriptors_nor_children_behind(shared: Running) -> None:
    shared.trial()
    before = len(os.listdir(f"/proc/{shared.pid}/fd"))

    shared.trial("crash@1")
    shared.trial()

    assert len(os.listdir(f"/proc/{shared.pid}/fd")) == before
    assert shared.ranks() == []


def test_ranks_share_no_pipe_with_each_other(shared: Running) -> None:
    identity = shared.begin("hang@0", ranks=3)
    ranks = shared.await_hanging_ranks(3)

    pipes = [pipes_of(pid) for pid in ranks]

    shared.agent.send({"op": "abort", "id": identity})
    shared.result()
    assert [len(found) for found in pipes] == [2, 2, 2]
    assert len(set.union(*pipes)) == 6


def test_ranks_are_one_process_group_that_is_not_the_agents(shared: Running) -> None:
    identity = shared.begin("hang@0", ranks=3)
    ranks = shared.await_hanging_ranks(3)

    groups = {os.getpgid(pid) for pid in ranks}

    shared.agent.send({"op": "abort", "id": identity})
    shared.result()
    assert groups == {min(ranks)}


def test_a_rank_makes_no_core_file(shared: Running) -> None:
    identity = shared.begin("hang@0")
    limits = [read(f"/proc/{pid}/limits").decode() for pid in shared.await_hanging_ranks()]

    shared.agent.send({"op": "abort", "id": identity})
    shared.result()
    core = [line.split()[4] for text in limits for line in text.splitlines() if "core file" in line]
    assert core == ["0", "0"]


def test_an_unknown_operation_is_answered(shared: Running) -> None:
    shared.agent.send({"op": "dance"})

    assert shared.result() == {"event": "error", "error": "unknown operation: 'dance'"}


# -- variants


def test_each_variant_is_told_before_the_result(shared: Running) -> None:
    *variants, result = shared.variants([{}, {}, {}])

    assert [(event["event"], event["index"]) for event in variants] == [("variant", n) for n in range(3)]
    assert [[rank["rank"] for rank in event["ranks"]] for event in variants] == [[0, 1]] * 3
    assert all(rank["results"][0]["is_correct"] for event in variants for rank in event["ranks"])
    assert (result["ok"], result["error"], result["variants_done"]) == (True, None, 3)


def test_a_single_variant_is_told_too_and_stands_in_the_result(shared: Running) -> None:
    variant, result = shared.variants([{}])

    assert (variant["index"], result["variants_done"]) == (0, 1)
    assert result["ranks"] == variant["ranks"]


def test_a_trial_that_knows_of_no_variants_tells_none(shared: Running) -> None:
    answer = shared.trial()

    assert (answer["event"], answer["variants_done"]) == ("result", 1)


# -- the end of an agent


def test_closing_the_input_in_the_middle_of_a_trial_leaves_no_process(mortal: Running) -> None:
    mortal.begin("hang@0")
    mortal.await_hanging_ranks()
    began = time.monotonic()

    mortal.agent.close()

    wait_for(mortal.processes, 0)
    # sooner than `close` kills an agent that does not end by itself
    assert time.monotonic() - began < 2


def test_killing_the_agent_leaves_no_rank(mortal: Running) -> None:
    mortal.begin("hang@0")
    mortal.await_hanging_ranks()

    os.kill(mortal.pid, signal.SIGKILL)

    wait_for(mortal.processes, 0)


def test_terminating_the_agent_leaves_no_rank(mortal: Running) -> None:
    mortal.begin("hang@0")
    mortal.await_hanging_ranks()

    os.kill(mortal.pid, signal.SIGTERM)

    wait_for(mortal.processes, 0)


def test_a_hang_up_does_not_keep_the_agent_from_cleaning_up(mortal: Running) -> None:
    mortal.begin("hang@0")
    ranks = mortal.await_hanging_ranks()

    os.kill(mortal.pid, signal.SIGHUP)
    mortal.agent.send({"op": "port"})

    assert mortal.result()["event"] == "port"
    assert mortal.ranks() == ranks


def test_a_dead_agent_is_told_with_the_node(mortal: Running) -> None:
    os.kill(mortal.pid, signal.SIGKILL)

    with pytest.raises(ConnectionLost, match="n1: the bench agent ended"):
        mortal.agent.next_event(SECONDS)


# -- how it is started


def test_what_a_login_script_prints_is_told_apart(tmp_path: Path) -> None:
    noise = 'echo Welcome; echo "@topo-tune@ not json"; exec "$@"'
    running = Running(tmp_path, "sh", "-c", noise, "sh")

    ready = running.start()

    running.close()
    assert (ready["event"], ready["torch"]) == ("ready", "0.0.double")


def test_a_command_that_passes_no_input_on_is_told_with_the_usual_reason() -> None:
    python = ("sh", "-c", 'exec "$@" </dev/null', "sh", sys.executable)
    node = Node("n1", "r1", "127.0.0.1", ConnectionKind.LOCAL, python=python)

    with pytest.raises(ConnectionLost, match=r"n1: [\s\S]*hint: .*`docker exec` needs `-i`"):
        pool_of(BackendName.REPLAY, node).agents((node,))


def test_a_torch_without_gloo_is_told(tmp_path: Path) -> None:
    running = Running(tmp_path, DOUBLE_HAS_GLOO="no")

    with pytest.raises(NodeProgramFailed, match=r"torch 0\.0\.double has no gloo"):
        running.start()

    running.close()


def test_a_python_without_torch_is_a_missing_capability_that_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is not here')\n")
    python = ("env", f"PYTHONPATH={tmp_path}", sys.executable)
    node = Node("n1", "r1", "127.0.0.1", ConnectionKind.LOCAL, python=python)

    with pytest.raises(
        MissingCapability, match=r"n1: cannot import torch: .*libtorch[\s\S]*hint: `python:`.*env "
    ):
        pool_of(BackendName.GLOO, node).agents((node,))


# -- the back end on top of it


def pool_of(backend: BackendName, *nodes: Node) -> AgentPool:
    connections = {node.name: LocalConnection(node) for node in nodes}
    launcher = LAUNCHERS["local"]()
    return AgentPool(
        backend,
        lambda node: launcher.commands((node,), "bench_agent")[node.name],
        lambda node, command: connections[node.name].start(command),
    )


class Site:
    """Two nodes of two ranks each on this machine, with a back end."""

    def __init__(self, folder: Path) -> None:
        self.tag = f"TOPO_TUNE_TEST={uuid.uuid4()}"
        python = ("env", self.tag, f"PYTHONPATH={DOUBLE}", f"DOUBLE_FOLDER={folder}", sys.executable)
        self.nodes = tuple(
            Node(name, "r1", "127.0.0.1", ConnectionKind.LOCAL, python=python) for name in ("n1", "n2")
        )
        inventory = Inventory("double", (Rack("r1", self.nodes),), SshOptions(), BackendName.GLOO)
        self.backend = AgentBackend(inventory, pool_of(BackendName.GLOO, *self.nodes))
        self.launches = 0

    def measure(self, double: str | None = None) -> Any:
        self.launches += 1
        env = DEFAULTS if double is None else NcclEnv((("DOUBLE", double),))
        return self.backend.measure(self.nodes, env, PLAN, index=self.launches, purpose="test")

    def processes(self) -> list[int]:
        return [pid for pid in all_pids() if self.tag.encode() in read(f"/proc/{pid}/environ")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.backend.close()


def test_ranks_of_two_agents_meet_and_their_sums_are_checked(site: Site) -> None:
    launch = site.measure()

    assert (launch.error, launch.ranks, launch.is_usable) == (None, 4, True)
    assert launch.results[0].is_correct is True


def test_a_wrong_sum_on_any_rank_of_any_node_spoils_the_launch(site: Site) -> None:
    launch = site.measure("wrong@3")

    assert (launch.error, launch.is_usable) == ("wrong all_reduce at 1K on rank 3", False)


def test_a_failure_on_one_node_ends_the_trial_on_the_other_and_is_told_as_the_cause(site: Site) -> None:
    began = time.monotonic()

    launch = site.measure("crash@2")

    assert launch.error.startswith("rank 2 was killed by signal 11")
    assert time.monotonic() - began < 8


def test_a_port_that_was_taken_meanwhile_is_tried_again_once(site: Site) -> None:
    launch = site.measure("port-taken")

    assert launch.error is None


def test_an_agent_that_died_between_two_launches_is_replaced_and_the_launch_made_all_the_same(
    site: Site,
) -> None:
    site.measure()
    killed = site.processes()[0]
    os.kill(killed, signal.SIGKILL)

    launch = site.measure()

    assert launch.error is None
    assert killed not in site.processes()


def test_closing_the_back_end_leaves_no_process(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.measure()

    site.backend.close()

    wait_for(site.processes, 0)
