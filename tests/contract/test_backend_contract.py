"""What every back end promises, over every entry of the table.

nccl runs on scripted agents, nccl-tests on doubles of its binaries, gloo and replay for real.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_doubles import Channels, trial_events
from nccl_tests_double import install

from topo_tune.bench.agents import AgentPool
from topo_tune.bench.backends import BACKENDS, node_program
from topo_tune.bench.backends.interface import Backend
from topo_tune.bench.plan import plan_bench
from topo_tune.connect.local import LocalConnection
from topo_tune.errors import ConnectionLost, HostError, Unreachable
from topo_tune.launch import LAUNCHERS
from topo_tune.records.bench import BenchPlan, Launch, Layout
from topo_tune.records.inventory import (
    BackendName,
    ConnectionKind,
    Inventory,
    NcclTestsOptions,
    Node,
    Rack,
    ReplayOptions,
    SshOptions,
)
from topo_tune.records.nccl_env import DEFAULTS, nccl_env

# Recorded in the bundled surface, and something that NCCL and gloo can be started with.
TUNED = nccl_env({"NCCL_SOCKET_NTHREADS": 4, "NCCL_NSOCKS_PERTHREAD": 4})


class Cut:
    """A channel that can be cut: then it is at its end and takes no more."""

    def __init__(self, name: str, channel: Any) -> None:
        self._name, self._channel = name, channel
        self.is_cut = False

    def send(self, data: bytes) -> None:
        if self.is_cut:
            raise ConnectionLost(self._name, "the line was cut")
        self._channel.send(data)

    def receive(self, timeout_seconds: float) -> bytes | None:
        return b"" if self.is_cut else self._channel.receive(timeout_seconds)

    def stderr_tail(self) -> str:
        return ""

    def close(self) -> None:
        self._channel.close()


class Subject:
    """A back end on two nodes, and a way to lose one of them."""

    def __init__(self, name: BackendName, folder: str) -> None:
        self.name = name
        nodes = tuple(
            Node(f"n{i}", "r1", "127.0.0.1", ConnectionKind.LOCAL, root=folder, python=(sys.executable,))
            for i in (1, 2)
        )
        replay = ReplayOptions("h200x2-two-node-tcp") if name is BackendName.REPLAY else None
        is_tests = name is BackendName.NCCL_TESTS
        tests = NcclTestsOptions(str(install(Path(folder) / "build"))) if is_tests else None
        self.inventory = Inventory(
            "contract",
            (Rack("r1", nodes),),
            SshOptions(),
            name,
            ranks_per_node=2 if is_tests else None,
            replay=replay,
            nccl_tests=tests,
        )
        # Without a launcher every node is talked to, and none is measured with another.
        layout = Layout.WITHIN_NODE if is_tests else Layout.WORLD
        self.plan = msgspec.structs.replace(
            plan_bench(self.inventory, layout=layout, repeats=2, deadline_seconds=60.0),
            sizes_bytes=(8 << 10,),
        )
        self._lost: set[str] = set()
        self._channels: dict[str, Cut] = {}
        self._scripted = Channels(self._as_an_agent_would)
        launcher = LAUNCHERS["local"]()
        program = node_program(name)
        pool = AgentPool(name, lambda node: launcher.commands((node,), program)[node.name], self._open)
        self.backend: Backend = BACKENDS[name](self.inventory, pool, 1)

    def measure(self, index: int = 5, purpose: str = "candidate", **changes: Any) -> Launch:
        plan: BenchPlan = msgspec.structs.replace(self.plan, **changes)
        return self.backend.measure(self.inventory.nodes(), DEFAULTS, plan, index=index, purpose=purpose)

    def lose(self, name: str) -> None:
        """From now on, and until it is found again, the node cannot be reached."""
        self._lost.add(name)
        self._channels[name].is_cut = True

    def find(self, name: str) -> None:
        self._lost.remove(name)

    def _open(self, node: Node, command: Any) -> Cut:
        if node.name in self._lost:
            raise Unreachable(node.name, "no route to it")
        is_scripted = self.name is BackendName.NCCL
        opened = self._scripted.open(node, command) if is_scripted else LocalConnection(node).start(command)
        self._channels[node.name] = Cut(node.name, opened)
        return self._channels[node.name]

    def _as_an_agent_would(self, name: str, request: dict[str, Any]) -> Iterator[dict[str, Any] | bytes]:
        if request["op"] == "start":
            yield {"event": "ready", "gpus": 2, "nccl": "2.28.9"}
        elif request["op"] == "port":
            yield {"event": "port", "port": 29500}
        elif request["op"] == "trial":
            yield from trial_events(request)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, id=name.value, marks=[pytest.mark.gloo] if name is BackendName.GLOO else [])
        for name in BACKENDS
    ],
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    subject = Subject(request.param, str(tmp_path_factory.mktemp("nodes")))
    yield subject
    subject.backend.close()


def test_every_name_has_a_back_end() -> None:
    assert set(BACKENDS) == set(BackendName)


def test_a_launch_carries_what_was_asked(subject: Subject) -> None:
    launch = subject.measure(index=5, purpose="candidate")

    assert launch.error is None
    assert (launch.index, launch.purpose, launch.nodes) == (5, "candidate", ("n1", "n2"))
    assert (launch.env, launch.backend) == (DEFAULTS, subject.name)
    assert launch.ranks >= 2


def test_a_launch_has_each_size_with_positive_times(subject: Subject) -> None:
    launch = subject.measure()

    assert launch.is_usable
    assert [result.size_bytes for result in launch.results] == [8 << 10]
    assert all(sample > 0 for sample in launch.results[0].samples_seconds)


def test_no_sum_is_wrong(subject: Subject) -> None:
    assert all(result.is_correct is not False for result in subject.measure().results)


def test_a_launch_can_be_kept(subject: Subject) -> None:
    launch = subject.measure()

    assert msgspec.json.decode(msgspec.json.encode(launch), type=Launch) == launch


def test_a_launch_says_what_it_measured(subject: Subject) -> None:
    launch = subject.measure()

    assert (launch.collective, launch.layout, launch.in_place) == ("all_reduce", subject.plan.layout, True)
    assert launch.dtype == subject.plan.dtype


def test_settings_that_are_measured_together_give_a_launch_each_as_soon_as_it_ended(subject: Subject) -> None:
    kept: list[Launch] = []

    made = subject.backend.measure_together(
        subject.inventory.nodes(),
        (DEFAULTS, TUNED),
        subject.plan,
        first_index=7,
        purpose="candidate",
        on_launch=kept.append,
    )

    assert kept == list(made)
    assert [launch.index for launch in made] == [7, 8]
    assert {launch.env for launch in made} == {DEFAULTS, TUNED}
    assert all(launch.is_usable and launch.purpose == "candidate" for launch in made)


def test_together_a_node_that_is_lost_is_an_exception_as_well(subject: Subject) -> None:
    subject.measure()
    subject.lose("n2")

    with pytest.raises(HostError, match="n2"):
        subject.backend.measure_together(
            subject.inventory.nodes(), (DEFAULTS,), subject.plan, first_index=0, purpose="candidate"
        )

    subject.find("n2")


def test_a_probe_names_its_nodes_and_who_says_so(subject: Subject) -> None:
    probe = subject.backend.probe(subject.inventory.nodes(), DEFAULTS)

    assert (probe.nodes, probe.error) == (("n1", "n2"), None)
    assert probe.source


def test_the_default_and_a_known_setting_can_be_measured(subject: Subject) -> None:
    assert subject.backend.can_measure(DEFAULTS)
    assert subject.backend.can_measure(TUNED)


def test_readers_are_told_what_the_numbers_are(subject: Subject) -> None:
    notes = subject.backend.notes()

    assert notes
    assert all(note.strip() for note in notes)


def test_a_node_that_is_lost_is_named_by_an_exception_and_no_launch_of_the_setting(subject: Subject) -> None:
    subject.measure()
    subject.lose("n2")

    with pytest.raises(HostError, match="n2") as lost:
        subject.measure()
    with pytest.raises(HostError, match="n2"):
        subject.measure()

    subject.find("n2")
    assert lost.value.host == "n2"


def test_a_line_that_is_cut_costs_no_launch_while_the_node_can_be_reached(subject: Subject) -> None:
    subject.measure()
    subject.lose("n2")
    subject.find("n2")

    assert subject.measure().error is None


def test_a_node_that_is_back_is_measured_again(subject: Subject) -> None:
    subject.measure()
    subject.lose("n1")
    with pytest.raises(HostError, match="n1"):
        subject.measure()
    subject.find("n1")

    assert subject.measure().error is None


def test_closing_twice_is_harmless(subject: Subject) -> None:
    subject.measure()

    subject.backend.close()
    subject.backend.close()
