"""The back end `nccl-tests` on real processes: doubles of its binaries, here and behind real SSH servers."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nccl_tests_double import change, install
from ssh_servers import SshCluster

from topo_tune.bench.agents import AgentPool
from topo_tune.bench.backends import BACKENDS, node_program
from topo_tune.bench.backends.interface import Backend
from topo_tune.connect.interface import Channel
from topo_tune.connect.local import LocalConnection
from topo_tune.connect.program import program_command
from topo_tune.errors import InputError, MissingCapability
from topo_tune.launch import LAUNCHERS
from topo_tune.on_node.tests_runner import count_gpus
from topo_tune.pipeline.cluster import reach
from topo_tune.records.bench import BenchPlan, Launch, Layout
from topo_tune.records.inventory import (
    BackendName,
    ConnectionKind,
    Inventory,
    NcclTestsOptions,
    Node,
    Rack,
    SshOptions,
)
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

LL = nccl_env({"NCCL_PROTO": "LL"})
ALGO = nccl_env({"NCCL_ALGO": "Ring"})
PLAN = BenchPlan(BackendName.NCCL_TESTS, "all_reduce", "bfloat16", (8192, 16384), repeats=3)


class Site:
    """Nodes on this machine, with doubles of nccl-tests in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = install(folder / "it's here")
        self.pools: list[AgentPool] = []
        self.channels: list[Channel] = []

    @property
    def launcher(self) -> tuple[str, ...]:
        return (str(self.folder / "mpirun_double"), "-np", "{processes}", "-H", "{slots}")

    def nodes(self, count: int) -> tuple[Node, ...]:
        return tuple(
            Node(f"n{i}", "r1", f"host{i}", ConnectionKind.LOCAL, python=(sys.executable,))
            for i in range(1, count + 1)
        )

    def backend(
        self, nodes: int = 2, *, ranks: int | None = 2, env: NcclEnv = DEFAULTS, **options: Any
    ) -> Backend:
        chosen = NcclTestsOptions(**{"folder": str(self.folder), "launcher": self.launcher, **options})
        inventory = Inventory(
            "site",
            (Rack("r1", self.nodes(nodes)),),
            SshOptions(),
            BackendName.NCCL_TESTS,
            ranks_per_node=ranks,
            env=env,
            nccl_tests=chosen,
        )
        launcher = LAUNCHERS["local"]()
        program = node_program(BackendName.NCCL_TESTS)
        self.pools.append(
            AgentPool(
                BackendName.NCCL_TESTS,
                lambda node: launcher.commands((node,), program)[node.name],
                self._open,
            )
        )
        return BACKENDS[BackendName.NCCL_TESTS](inventory, self.pools[-1], 1)

    def _open(self, node: Node, command: Any) -> Channel:
        self.channels.append(LocalConnection(node).start(command))
        return self.channels[-1]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for pool in site.pools:
        pool.close()


def measure(backend: Backend, nodes: tuple[Node, ...], env: NcclEnv = DEFAULTS, **changes: Any) -> Launch:
    plan = msgspec.structs.replace(PLAN, **changes)
    return backend.measure(nodes, env, plan, index=7, purpose="candidate")


def medians_us(launch: Launch) -> list[float]:
    assert launch.error is None
    return [round(seconds * 1e6, 3) for seconds in launch.median_seconds().values()]


# --- measuring ---


def test_a_job_of_a_launcher_is_measured_with_the_setting_in_every_process(site: Site) -> None:
    backend, nodes = site.backend(), site.nodes(2)

    default, tuned = measure(backend, nodes), measure(backend, nodes, LL)

    assert (default.index, default.purpose, default.nodes) == (7, "candidate", ("n1", "n2"))
    assert (default.backend, default.ranks, default.communicator_ranks) == (BackendName.NCCL_TESTS, 4, 4)
    assert (default.collective, default.dtype, default.in_place) == ("all_reduce", "bfloat16", True)
    assert [len(result.samples_seconds) for result in default.results] == [3, 3]
    assert all(result.is_correct for result in default.results)
    assert medians_us(default) == [17.192, 25.384]
    # The double takes half the time with this setting.
    assert medians_us(tuned) == [8.596, 12.692]
    assert default.notes == ("nccl-tests ran with NCCL 2.28.9",)


def test_out_of_place_is_the_other_half(site: Site) -> None:
    assert medians_us(measure(site.backend(), site.nodes(2), in_place=False)) == [18.192, 26.384]


def test_without_a_launcher_one_process_drives_all_gpus_of_a_node(site: Site) -> None:
    launch = measure(site.backend(1, ranks=8, launcher=()), site.nodes(1))

    assert (launch.ranks, launch.communicator_ranks) == (8, 8)
    assert launch.is_usable


def test_nodes_are_measured_side_by_side_within_themselves(site: Site) -> None:
    launch = measure(site.backend(ranks=8, launcher=()), site.nodes(2), layout=Layout.WITHIN_NODE)

    assert launch.is_usable
    assert (launch.ranks, launch.communicator_ranks) == (16, 8)


def test_between_nodes_a_launcher_is_needed(site: Site) -> None:
    with pytest.raises(InputError, match=r"cannot measure between 2 nodes[\s\S]*launcher"):
        measure(site.backend(launcher=()), site.nodes(2))


@pytest.mark.parametrize(
    ("layout", "ranks"), [(Layout.WITHIN_NODE, 2), (Layout.RAILS, 2), (Layout.PAIRS, 2), (Layout.WORLD, 4)]
)
def test_layouts_split_the_job(site: Site, layout: Layout, ranks: int) -> None:
    launch = measure(site.backend(), site.nodes(2), layout=layout)

    assert (launch.error, launch.communicator_ranks) == (None, ranks)


def test_a_binary_that_does_not_split_is_found_out(site: Site) -> None:
    change(site.folder, knows_split=False)

    launch = measure(site.backend(), site.nodes(2), layout=Layout.RAILS)

    assert launch.error is not None
    assert "does not know NCCL_TESTS_SPLIT" in launch.error


@pytest.mark.parametrize("test", ["alltoall", "sendrecv"])
def test_every_collective_has_a_binary_of_its_own(site: Site, test: str) -> None:
    assert measure(site.backend(1), site.nodes(1), collective=test).is_usable


@pytest.mark.parametrize(
    ("generation", "samples", "notes"),
    [
        (2020, 1, ["this nccl-tests measures each size once a launch: it does not know `-N`"]),
        (2022, 1, ["this nccl-tests measures each size once a launch: it does not know `-N`"]),
        (2025, 3, []),
    ],
)
def test_older_binaries_are_read_from_their_tables(
    site: Site, generation: int, samples: int, notes: list[str]
) -> None:
    change(site.folder, generation=generation)

    launch = measure(site.backend(), site.nodes(2))

    assert [len(result.samples_seconds) for result in launch.results] == [samples, samples]
    assert [note for note in launch.notes if "-N" in note] == notes
    assert medians_us(launch)[0] == pytest.approx(17.19, abs=0.01)


def test_half_a_json_file_leaves_the_table(site: Site) -> None:
    change(site.folder, cut_report=True)

    assert medians_us(measure(site.backend(), site.nodes(2))) == [17.19, 25.38]


def test_calls_are_timed_one_by_one_where_the_binary_can(site: Site) -> None:
    launch = measure(site.backend(), site.nodes(2), single_calls=40)

    assert [len(result.single_seconds) for result in launch.results] == [40, 40]
    assert launch.results[0].single_seconds[39] == pytest.approx(17.192e-6 + 0.39e-6)


def test_sizes_without_a_pattern_are_several_runs_of_one_launch(site: Site) -> None:
    launch = measure(site.backend(), site.nodes(2), sizes_bytes=(8192, 16384, 1000000))

    assert [result.size_bytes for result in launch.results] == [8192, 16384, 1000000]


def test_the_clusters_own_variables_stand_beside_the_setting(site: Site) -> None:
    backend = site.backend(env=ALGO)

    probe = backend.probe(site.nodes(2), LL)

    assert (probe.error, probe.ranks, probe.source) == (None, 4, "nccl log")
    assert probe.values("NCCL_ALGO") == dict.fromkeys(range(4), "Ring")
    assert probe.values("NCCL_PROTO") == dict.fromkeys(range(4), "LL")
    assert {setting.node for setting in probe.settings if setting.rank > 1} == {"n2"}
    assert "NCCL_PROTO set by environment to LL" in probe.log_of_rank_0


def test_a_probe_without_a_launcher_asks_each_node(site: Site) -> None:
    probe = site.backend(launcher=()).probe(site.nodes(2), LL)

    assert (probe.error, probe.ranks) == (None, 4)
    assert probe.values("NCCL_PROTO") == dict.fromkeys(range(4), "LL")
    assert [setting.node for setting in probe.settings] == ["n1", "n1", "n2", "n2"]


def test_settings_are_measured_one_after_the_other(site: Site) -> None:
    kept: list[Launch] = []

    made = site.backend().measure_together(
        site.nodes(2), (DEFAULTS, LL), PLAN, first_index=4, purpose="bench", on_launch=kept.append
    )

    assert [(launch.index, launch.env, launch.processes) for launch in made] == [
        (4, DEFAULTS, None),
        (5, LL, None),
    ]
    assert kept == list(made)


def test_what_the_binary_writes_of_its_environment_stays_on_the_node(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-of-somebody")
    heard: list[bytes] = []
    backend = site.backend()
    measure(backend, site.nodes(2))
    receive = type(site.channels[0]).receive
    monkeypatch.setattr(
        type(site.channels[0]),
        "receive",
        lambda *given: heard.append(receive(*given) or b"") or heard[-1] or None,
    )

    assert measure(backend, site.nodes(2)).is_usable

    assert b'"report": {"version"' in b"".join(heard)
    assert b"secret-of-somebody" not in b"".join(heard)


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"wrong_with": "NCCL_PROTO"}, "12 value(s) out of bounds: results were wrong"),
        ({"ranks": 1}, "it ran with 1 rank where 4 were asked for, so nothing was communicated"),
        ({"same_gpu": True}, "4 ranks shared 2 GPUs"),
        ({"skips": 1}, "it measured 3 sizes, and not 2"),
        (
            {"says": "n1: Test NCCL failure common.cu:958 'unhandled cuda error'", "status": 2},
            "unhandled cuda error",
        ),
        ({"says": "something else", "status": 3}, "it ended with status 3: something else"),
    ],
)
def test_numbers_of_no_use_are_an_error_of_the_launch(site: Site, how: dict[str, Any], error: str) -> None:
    change(site.folder, **how)

    launch = measure(site.backend(), site.nodes(2), LL)

    assert launch.error is not None
    assert launch.error.startswith(error)
    assert not launch.is_usable


def test_a_setting_with_wrong_results_is_not_tried_again(site: Site) -> None:
    change(site.folder, wrong_with="NCCL_PROTO")
    backend = site.backend()

    launch = measure(backend, site.nodes(2), LL)

    assert {result.is_correct for result in launch.results} == {False}
    assert not backend.can_measure(LL)
    assert backend.can_measure(ALGO)


def test_a_missing_binary_is_told_with_its_node_and_what_to_set(site: Site) -> None:
    (site.folder / "reduce_perf").unlink()

    with pytest.raises(
        MissingCapability, match=r"n1: nccl-tests cannot measure `reduce`: not found: .*reduce_perf"
    ):
        measure(site.backend(), site.nodes(2), collective="reduce")


def test_a_binary_that_cannot_start_is_told_in_its_words(site: Site) -> None:
    broken = site.folder / "reduce_perf"
    broken.write_text("#!/bin/sh\necho 'error while loading shared libraries: libnccl.so.2'; exit 127\n")

    with pytest.raises(MissingCapability, match=r"names no options: error while loading shared libraries"):
        measure(site.backend(), site.nodes(2), collective="reduce")


def test_a_launcher_that_is_not_there_is_an_error_of_the_launch(site: Site) -> None:
    launch = measure(site.backend(launcher=("no-such-mpirun", "-np", "{processes}")), site.nodes(2))

    assert launch.error is not None
    assert launch.error.startswith("cannot start `no-such-mpirun`")


def test_unknown_numbers_of_gpus_must_be_given(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if count_gpus() is not None:
        pytest.skip("this machine has GPUs")

    with pytest.raises(InputError, match=r"unknown or differs \(n1: unknown\)[\s\S]*ranks_per_node"):
        measure(site.backend(ranks=None), site.nodes(2))


def test_the_gpus_that_are_visible_are_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")

    assert measure(site.backend(ranks=None), site.nodes(2)).ranks == 6


def alive(pattern: str) -> list[int]:
    """Processes whose command line holds a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if pattern in line:
                found.append(int(entry.name))
    return found


def gone(pattern: str, within_seconds: float = 15.0) -> bool:
    return waited(lambda: not alive(pattern), within_seconds)


def waited(until: Callable[[], bool], within_seconds: float = 15.0) -> bool:
    end = time.monotonic() + within_seconds
    while time.monotonic() < end:
        if until():
            return True
        time.sleep(0.05)
    return False


def test_a_setting_that_hangs_is_ended_with_all_of_its_processes(site: Site) -> None:
    change(site.folder, hangs_with="NCCL_PROTO")
    backend = site.backend()

    launch = measure(backend, site.nodes(2), LL, deadline_seconds=2.0)

    assert launch.error == "deadline of 2 s passed"
    assert gone(str(site.folder / "all_reduce_perf"))
    assert measure(backend, site.nodes(2)).is_usable


def test_nothing_is_left_when_the_line_is_cut(site: Site) -> None:
    change(site.folder, hangs_with="NCCL_PROTO")
    node = site.nodes(1)[0]
    command = program_command(node.python, "tests_runner", deadline_seconds=60.0)
    channel = LocalConnection(node).start(command)
    test = str(site.folder / "all_reduce_perf")
    argv = ["env", "NCCL_PROTO=LL", test, "-b", "8", "-e", "8", "-d", "float"]
    request = {"op": "run", "id": 1, "argv": argv, "deadline_seconds": 60}
    channel.send(msgspec.json.encode(request) + b"\n")
    assert waited(lambda: bool(alive(test)))

    channel.close()

    assert gone(test)


def test_nothing_is_left_when_the_runner_is_killed_by_force(site: Site) -> None:
    change(site.folder, hangs_with="NCCL_PROTO")
    node = site.nodes(1)[0]
    command = program_command(
        (*node.python, "-X", f"topo-tune-test={site.folder}"), "tests_runner", deadline_seconds=60
    )
    channel = LocalConnection(node).start(command)
    test = str(site.folder / "all_reduce_perf")
    argv = [sys.executable, test, "-b", "8", "-e", "8", "-d", "float"]
    request = {"op": "run", "id": 1, "argv": ["env", "NCCL_PROTO=LL", *argv], "deadline_seconds": 60}
    channel.send(msgspec.json.encode(request) + b"\n")
    assert waited(lambda: bool(alive(test)))
    runners = [pid for pid in alive(f"topo-tune-test={site.folder}") if test not in command_of(pid)]

    for runner in runners:
        os.kill(runner, signal.SIGKILL)

    assert gone(test)
    channel.close()


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


# --- real SSH ---


class Quiet:
    """Nobody watches."""

    def on_progress(self, event: Any) -> None:
        pass

    def on_node(self, event: Any) -> None:
        pass

    def say(self, text: str) -> None:
        pass


@pytest.mark.ssh
def test_the_same_holds_behind_real_ssh_servers(ssh_cluster: SshCluster, tmp_path: Path) -> None:
    folder = install(tmp_path / "build")
    launcher = (str(folder / "mpirun_double"), "-np", "{processes}", "-H", "{slots}")
    inventory = msgspec.structs.replace(
        ssh_cluster.inventory(backend=BackendName.NCCL_TESTS),
        racks=(Rack("r1", ssh_cluster.nodes()[:2]),),
        ranks_per_node=2,
        nccl_tests=NcclTestsOptions(str(folder), launcher),
    )

    with reach(inventory, Quiet()) as cluster, cluster.backend() as backend:
        default, tuned = (measure(backend, inventory.nodes(), env) for env in (DEFAULTS, LL))
        probe = backend.probe(inventory.nodes(), LL)

    assert medians_us(default) == [17.192, 25.384]
    assert medians_us(tuned) == [8.596, 12.692]
    assert probe.values("NCCL_PROTO") == dict.fromkeys(range(4), "LL")
