"""`topo-tune bench` as it is used, and what is left when something is killed in the middle of it.

Real processes throughout, gloo on the CPUs of this machine. Every process of a run carries its mark in its environment,
so that none can hide.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from topo_tune.bench.agents import AgentPool
from topo_tune.bench.backends.agent import AgentBackend
from topo_tune.connect.local import LocalConnection
from topo_tune.launch import LAUNCHERS
from topo_tune.records.bench import BenchPlan, Launch
from topo_tune.records.envelope import load_lines
from topo_tune.records.inventory import BackendName, ConnectionKind, Inventory, Node, Rack, SshOptions
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

pytestmark = pytest.mark.gloo

SECONDS = 60.0
DOUBLE = Path(__file__).parent / "torch_double"
CLUSTER = """\
name: kills
connection: local
root: nodes/{{node}}
bench: {{backend: gloo, sizes: [1K]}}
python: {python}
racks:
  - {{name: r1, nodes: "n[1-2]"}}
"""
FEW = ("--repeats", "1", "-n", "3")
MANY = ("--repeats", "20", "-n", "3")
"""launches of about a second each, long enough to be killed in"""


class Run:
    """One `topo-tune bench`, its file, and every process that it started."""

    def __init__(self, folder: Path) -> None:
        self.tag = f"TOPO_TUNE_TEST={uuid.uuid4()}"
        self.file = folder / "launches.jsonl"
        self.cluster = folder / "cluster.yaml"
        for node in ("n1", "n2"):
            (folder / "nodes" / node).mkdir(parents=True)
        self.cluster.write_text(CLUSTER.format(python=sys.executable))
        self.controller: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, most_bytes: int | None = None) -> subprocess.Popen[str]:
        """`most_bytes`: no file may grow beyond, as on a disk that is full."""
        command = [sys.executable, "-m", "topo_tune", "bench", "-c", str(self.cluster), "--despite-findings"]
        command += ["--set", "NCCL_ALGO=allreduce:ring", "-o", str(self.file), *arguments]
        name, _, value = self.tag.partition("=")

        def limit() -> None:
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

        self.controller = subprocess.Popen(
            command,
            env={**os.environ, name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )
        return self.controller

    def finish(self, *arguments: str) -> tuple[int, str]:
        """Start, wait, and all that it said."""
        return self.end_of(self.start(*arguments))

    def end_of(self, controller: subprocess.Popen[str]) -> tuple[int, str]:
        out, err = controller.communicate(timeout=SECONDS)
        return controller.returncode, out + err

    def launches(self) -> tuple[Launch, ...]:
        return load_lines(self.file, Launch) if self.file.exists() else ()

    def processes(self) -> dict[int, int]:
        """Every living process of the run but the controller: process to parent."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or (self.controller is not None and int(entry) == self.controller.pid):
                continue
            try:
                if self.tag.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                    found[int(entry)] = int(stat[1])
            except OSError:
                pass  # it has ended meanwhile
        return found

    def agents(self) -> list[int]:
        assert self.controller is not None
        return [pid for pid, parent in self.processes().items() if parent == self.controller.pid]

    def ranks(self) -> list[int]:
        agents = set(self.agents())
        return [pid for pid, parent in self.processes().items() if parent in agents]

    def in_the_middle(self, measured: int = 2) -> None:
        """Wait until some launches are on file and the ranks of the next one are there."""
        controller = self.controller
        assert controller is not None
        wait_for(
            lambda: (
                controller.poll() is not None or (len(self.launches()) >= measured and len(self.ranks()) == 4)
            )
        )
        assert controller.poll() is None, self.end_of(controller)

    def kill_all(self) -> None:
        for pid in [*self.processes(), *([self.controller.pid] if self.controller else [])]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.controller is not None:
            self.controller.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.kill_all()


def test_a_controller_that_is_killed_leaves_no_process_and_loses_nothing_that_was_measured(
    running: Run,
) -> None:
    controller = running.start(*MANY)
    running.in_the_middle()

    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()

    wait_for(lambda: running.processes() == {})
    before = running.launches()
    assert len(before) >= 2
    status, said = running.finish(*MANY)
    assert status == 0, said
    after = running.launches()
    assert after[: len(before)] == before
    assert [(launch.index, launch.is_usable) for launch in after] == [(index, True) for index in range(6)]


def test_a_rank_that_is_killed_costs_one_launch_and_the_next_one_runs(running: Run) -> None:
    controller = running.start(*MANY)
    running.in_the_middle()

    victim = running.ranks()[-1]
    os.kill(victim, signal.SIGKILL)

    status, said = running.end_of(controller)
    assert status == 0, said
    failed = [launch for launch in running.launches() if not launch.is_usable]
    assert [
        launch.error for launch in failed if "was killed by signal 9 (SIGKILL)" not in str(launch.error)
    ] == []
    assert len(failed) <= 1  # it may have been at its end already
    assert len(running.launches()) == 6
    wait_for(lambda: running.processes() == {})


def test_an_agent_that_is_killed_costs_no_launch_at_all(running: Run) -> None:
    controller = running.start(*MANY)
    running.in_the_middle()

    os.kill(running.agents()[0], signal.SIGKILL)

    status, said = running.end_of(controller)
    assert status == 0, said
    assert [launch.error for launch in running.launches()] == [None] * 6
    wait_for(lambda: running.processes() == {})


def test_settings_that_share_processes_survive_an_agent_as_well(running: Run) -> None:
    controller = running.start("--share-processes", *MANY)
    running.in_the_middle()

    os.kill(running.agents()[0], signal.SIGKILL)

    status, said = running.end_of(controller)
    assert status == 0, said
    assert [launch.error for launch in running.launches()] == [None] * 6
    assert [launch.index for launch in running.launches()] == list(range(6))
    wait_for(lambda: running.processes() == {})


def test_a_disk_that_fills_up_ends_the_run_and_what_is_on_it_can_be_gone_on_with(running: Run) -> None:
    assert running.finish(*FEW[:2], "-n", "1")[0] == 0
    whole = running.launches()
    size = running.file.stat().st_size

    # Room for half a launch more.
    status, said = running.end_of(running.start(*FEW, most_bytes=size + 200))

    assert status == 3, said
    assert f"cannot write {running.file}: File too large" in said
    wait_for(lambda: running.processes() == {})
    assert running.launches() == whole
    status, said = running.finish(*FEW)
    assert status == 0, said
    assert running.launches()[: len(whole)] == whole
    assert [launch.index for launch in running.launches()] == list(range(6))


def test_an_interrupt_ends_every_process_and_says_how_to_go_on(running: Run) -> None:
    controller = running.start(*MANY)
    running.in_the_middle()

    controller.send_signal(signal.SIGINT)

    status, said = running.end_of(controller)
    assert status == 130, said
    assert "the same command goes on from there" in said
    wait_for(lambda: running.processes() == {})


def test_two_runs_on_one_host_do_not_meet_each_other(running: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Run(tmp_path / "other")

    both = [running.start(*FEW), other.start(*FEW)]
    ends = [running.end_of(both[0]), other.end_of(both[1])]

    assert [status for status, _ in ends] == [0, 0], ends
    for run in (running, other):
        assert [(launch.error, launch.ranks) for launch in run.launches()] == [(None, 4)] * 6
        wait_for(lambda run=run: run.processes() == {})  # type: ignore[misc]


def test_a_setting_that_hangs_is_killed_at_its_deadline_and_the_next_one_runs(tmp_path: Path) -> None:
    tag = f"TOPO_TUNE_TEST={uuid.uuid4()}"
    python = ("env", tag, f"PYTHONPATH={DOUBLE}", f"DOUBLE_FOLDER={tmp_path}", sys.executable)
    nodes = tuple(Node(n, "r1", "127.0.0.1", ConnectionKind.LOCAL, python=python) for n in ("n1", "n2"))
    inventory = Inventory("double", (Rack("r1", nodes),), SshOptions(), BackendName.GLOO)
    connections = {node.name: LocalConnection(node) for node in nodes}
    launcher = LAUNCHERS["local"]()
    pool = AgentPool(
        BackendName.GLOO,
        lambda node: launcher.commands((node,), "bench_agent")[node.name],
        lambda node, command: connections[node.name].start(command),
    )
    backend = AgentBackend(inventory, pool)
    plan = BenchPlan(BackendName.GLOO, "all_reduce", "float32", (1024,), repeats=1, deadline_seconds=3.0)
    hangs, ring = NcclEnv((("DOUBLE", "hang@2"),)), nccl_env({"NCCL_ALGO": "allreduce:ring"})

    made = backend.measure_together(nodes, (hangs, DEFAULTS, ring), plan, first_index=0, purpose="test")
    backend.close()

    assert [launch.env for launch in made] == [hangs, DEFAULTS, ring]
    # The node whose clock ran out first tells where its ranks were: the others are aborted then.
    assert re.match(r"still running at its deadline of 3 s, killed; rank [0-3]: ", str(made[0].error))
    assert [launch.error for launch in made[1:]] == [None, None]
    assert [launch.processes for launch in made] == [0, 1, 1]
    wait_for(lambda: marked(tag) == [])


def marked(tag: str) -> list[str]:
    """Processes of a run, without this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if tag.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass  # it has ended meanwhile
    return found
