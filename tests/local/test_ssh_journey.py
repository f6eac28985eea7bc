"""The journey over real SSH servers: scans, real collectives between nodes, and rollouts that get cut off.

Four nodes in two racks; each is an sshd on loopback with a folder of its own as its file system.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ssh_servers import SshCluster

from topo_tune.bench.plan import plan_bench
from topo_tune.errors import EXIT_ANSWER_IS_NO, EXIT_DONE, EXIT_ENVIRONMENT
from topo_tune.pipeline import journey, rolling
from topo_tune.pipeline.benching import BenchOptions, bench
from topo_tune.pipeline.cluster import reach
from topo_tune.records.envelope import load
from topo_tune.records.inventory import (
    BackendName,
    Inventory,
    Node,
    Rack,
    ReplayFault,
    ReplayOptions,
)
from topo_tune.records.nccl_env import DEFAULTS, nccl_env
from topo_tune.records.recommendation import Advice
from topo_tune.records.rollout import RolloutResult
from topo_tune.records.run_folder import RunFolder
from topo_tune.rollout.execute import Policy

pytestmark = pytest.mark.ssh

OPTIONS = rolling.ApplyOptions(confined=True, policy=Policy(launches=5, more=5, most=20))
WRAPPER = Path(__file__).parent / "python_that_cuts.py"


class Quiet:
    """Nobody watches."""

    def on_progress(self, event: Any) -> None:
        pass

    def on_node(self, event: Any) -> None:
        pass

    def say(self, text: str) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def _no_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tester's own agent, keys and ssh_config stay out of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


# -- scanning


def of_four(cluster: SshCluster, **changes: Any) -> Inventory:
    nodes = [cluster.node(i, rack=f"r{1 + i // 2}") for i in range(4)]
    nodes[2] = msgspec.structs.replace(nodes[2], **changes)
    racks = (Rack("r1", tuple(nodes[:2])), Rack("r2", tuple(nodes[2:])))
    return Inventory("loopback", racks, cluster.options(), BackendName.GLOO)


def test_a_scan_asks_every_node(ssh_cluster: SshCluster) -> None:
    with reach(of_four(ssh_cluster), Quiet()) as cluster:
        found, _ = journey.scan(cluster)

    assert [scan.node for scan in found.nodes] == ["n1", "n2", "n3", "n4"]
    assert found.missing == ()
    assert all(scan.cpu.threads and scan.python for scan in found.nodes)


def test_a_node_that_cannot_be_reached_is_a_row_of_the_scan(ssh_cluster: SshCluster) -> None:
    with reach(of_four(ssh_cluster, address="127.0.0.99"), Quiet()) as cluster:
        found, _ = journey.scan(cluster)

    (missing,) = found.missing
    assert [scan.node for scan in found.nodes] == ["n1", "n2", "n4"]
    assert (missing.node, missing.kind) == ("n3", "unreachable")
    assert "127.0.0.99" in missing.reason


def test_a_node_without_a_python_is_a_row_of_the_scan(ssh_cluster: SshCluster) -> None:
    with reach(of_four(ssh_cluster, python=("no-such-python",)), Quiet()) as cluster:
        found, _ = journey.scan(cluster)

    (missing,) = found.missing
    assert (missing.node, missing.kind) == ("n3", "node program failed")


# -- real collectives


@pytest.mark.gloo
def test_four_ranks_on_two_nodes_meet_over_the_network_and_sum_right(
    ssh_cluster: SshCluster, tmp_path: Path
) -> None:
    nodes = tuple(ssh_cluster.node(i) for i in range(2))
    inventory = Inventory("gloo", (Rack("r1", nodes),), ssh_cluster.options(), BackendName.GLOO)
    plan = msgspec.structs.replace(plan_bench(inventory, repeats=2), sizes_bytes=(8192, 131072))
    output = tmp_path / "30-bench.jsonl"

    with reach(inventory, Quiet()) as cluster:
        tuned = nccl_env({"NCCL_ALGO": "allreduce:ring"})
        launches, notes = bench(cluster, (tuned,), (plan,), output, BenchOptions(launches=2), Quiet())

    assert [(launch.error, launch.ranks, launch.nodes) for launch in launches] == [
        (None, 4, ("n1", "n2"))
    ] * 4
    assert {result.is_correct for launch in launches for result in launch.results} == {True}
    assert [launch.env for launch in launches] == [DEFAULTS, tuned, tuned, DEFAULTS]
    assert "NCCL variables do nothing here" in notes[0]


# -- rollouts


@dataclass
class Site:
    """Four nodes whose files are folders, and a finished search on the first rack."""

    home: Path
    inventory: Inventory
    searched: Path
    """the run folder after `init`; tests work on copies"""
    before: dict[str, dict[str, tuple[int, bytes]]]

    def root(self, node: str) -> Path:
        return self.home / "nodes" / node

    def start_over(self, folder: Path) -> RunFolder:
        """The nodes as they were before any rollout, and a run folder that holds the recommendation."""
        make_files(self.home)
        shutil.copytree(self.searched, folder)
        return RunFolder.open(folder)

    def cut_at(self, *operations: str) -> None:
        """From now on n2's session is cut after a `write`, or before a `restore`; nothing: never again."""
        order = self.home / "cut"
        order.write_text(" ".join(operations)) if operations else order.unlink()

    def apply(self, folder: RunFolder) -> RolloutResult:
        """Roll out, or go on."""
        with reach(self.inventory, Quiet()) as cluster:
            recommendation = rolling.load_recommendation(folder)
            recorded = rolling.recorded_state(folder)
            plan = (
                recorded.plan
                if recorded is not None
                else rolling.plan_apply(folder, cluster, recommendation, OPTIONS)
            )
            return rolling.apply(
                folder,
                cluster,
                plan,
                OPTIONS,
                consent=lambda state: True,
                on_entry=lambda entry: None,
                watch=Quiet(),
            )

    def rollback(self, folder: RunFolder) -> RolloutResult:
        return rolling.rollback(
            folder, waves=(), racks=(), force=False, on_entry=lambda entry: None, watch=Quiet()
        )

    def standings(self, folder: RunFolder) -> dict[str, str]:
        """What the nodes themselves say of their files."""
        state = rolling.recorded_state(folder)
        assert state is not None
        with reach(self.inventory, Quiet()) as cluster:
            found, missing = rolling.standings(cluster, state.plan)
        assert missing == ()
        return found


def make_files(home: Path) -> None:
    """Files as an operator finds them: none, one without a final newline, one that only root may read."""
    shutil.rmtree(home / "nodes", ignore_errors=True)
    for name in ("n1", "n2", "n3", "n4"):
        (home / "nodes" / name / "etc").mkdir(parents=True)
    (home / "nodes/n2/etc/nccl.conf").write_bytes(b"# by the image\nNCCL_DEBUG=WARN")
    (home / "nodes/n3/etc/nccl.conf").write_bytes(b"NCCL_DEBUG=WARN\r\n")
    (home / "nodes/n3/etc/nccl.conf").chmod(0o600)


def files_of(home: Path) -> dict[str, dict[str, tuple[int, bytes]]]:
    """Node to every path below its root: mode, and the bytes of files."""
    return {
        node.name: {
            str(place.relative_to(node)): (
                place.stat().st_mode,
                place.read_bytes() if place.is_file() else b"",
            )
            for place in sorted(node.rglob("*"))
        }
        for node in sorted((home / "nodes").iterdir())
    }


@pytest.fixture(scope="module")
def site(ssh_cluster: SshCluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    home = tmp_path_factory.mktemp("site")
    make_files(home)
    cutting = (sys.executable, str(WRAPPER), str(home / "cut"))

    def node(index: int, rack: str) -> Node:
        python = cutting if index == 1 else (sys.executable,)
        return ssh_cluster.node(index, rack=rack, root=str(home / "nodes" / f"n{index + 1}"), python=python)

    inventory = Inventory(
        "replayed",
        (
            Rack("rack1", (node(0, "rack1"), node(1, "rack1"))),
            Rack("rack2", (node(2, "rack2"), node(3, "rack2"))),
        ),
        ssh_cluster.options(),
        BackendName.REPLAY,
        bench_nodes=("n1", "n2"),
        sizes_bytes=(128 << 10, 2 << 20, 32 << 20),
        replay=ReplayOptions("h200x2-two-node-tcp", (ReplayFault(("rack2",), 1.25),)),
    )
    recommendation = journey.init(inventory, home / "run", journey.SearchOptions(candidates=24), Quiet())
    assert recommendation.advice is Advice.CHANGE, recommendation.reason
    return Site(home, inventory, home / "run", files_of(home))


def test_a_search_changes_nothing_on_the_nodes(site: Site) -> None:
    assert files_of(site.home) == site.before


def test_a_rollout_writes_over_ssh_and_the_guard_puts_the_rack_with_the_fault_back(
    site: Site, tmp_path: Path
) -> None:
    folder = site.start_over(tmp_path / "run")

    result = site.apply(folder)

    fragment = folder.fragment.read_bytes()
    after = files_of(site.home)
    assert (result.kept, result.rolled_back) == (("rack1",), ("rack2",))
    assert (result.exit_code, result.unsettled) == (EXIT_ANSWER_IS_NO, ())
    assert [after[name]["etc/nccl/conf.d/50-topo-tune.conf"][1] for name in ("n1", "n2")] == [fragment] * 2
    assert after["n2"]["etc/nccl.conf"][1].startswith(b"# by the image\nNCCL_DEBUG=WARN\n")
    assert {name: after[name] for name in ("n3", "n4")} == {name: site.before[name] for name in ("n3", "n4")}
    assert site.standings(folder) == {"n1": "new", "n2": "new", "n3": "old", "n4": "old"}


def test_a_rollback_leaves_the_exact_old_bytes(site: Site, tmp_path: Path) -> None:
    folder = site.start_over(tmp_path / "run")
    site.apply(folder)

    result = site.rollback(folder)

    assert (result.exit_code, result.unsettled) == (EXIT_DONE, ())
    assert files_of(site.home) == site.before


def test_a_connection_cut_after_a_write_puts_the_wave_back(site: Site, tmp_path: Path) -> None:
    folder = site.start_over(tmp_path / "run")
    site.cut_at("write")

    result = site.apply(folder)

    site.cut_at()
    assert (result.exit_code, result.unsettled, result.kept) == (EXIT_ENVIRONMENT, (), ())
    assert result.reason.startswith("n2: the session ended")
    assert files_of(site.home) == site.before


def test_a_rollout_that_was_cut_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    folder = site.start_over(tmp_path / "run")
    site.cut_at("write")
    site.apply(folder)
    site.cut_at()

    result = site.apply(folder)

    assert (result.kept, result.rolled_back) == (("rack1",), ("rack2",))


def test_a_node_that_stays_cut_off_is_unsettled_until_a_rollback_reaches_it(
    site: Site, tmp_path: Path
) -> None:
    folder = site.start_over(tmp_path / "run")
    site.cut_at("write", "restore")
    cut = site.apply(folder)
    site.cut_at()
    standings = site.standings(folder)

    settled = site.rollback(folder)

    (unsettled,) = cut.unsettled
    assert cut.exit_code == EXIT_ENVIRONMENT
    assert unsettled.node == "n2"
    assert "the session ended" in unsettled.reason
    assert standings == {"n1": "old", "n2": "new", "n3": "old", "n4": "old"}
    assert (settled.exit_code, settled.unsettled) == (EXIT_DONE, ())
    assert files_of(site.home) == site.before


def test_a_node_that_stays_cut_off_is_settled_before_a_rollout_goes_on(site: Site, tmp_path: Path) -> None:
    folder = site.start_over(tmp_path / "run")
    site.cut_at("write", "restore")
    site.apply(folder)
    site.cut_at("restore")
    still_cut = site.apply(folder)
    site.cut_at()

    gone_on = site.apply(folder)

    assert (still_cut.exit_code, still_cut.kept) == (EXIT_ENVIRONMENT, ())
    assert [missing.node for missing in still_cut.unsettled] == ["n2"]
    assert (gone_on.kept, gone_on.rolled_back, gone_on.unsettled) == (("rack1",), ("rack2",), ())


def test_the_run_folder_knows_the_nodes_it_was_made_from(site: Site) -> None:
    assert load(RunFolder.open(site.searched).inventory, Inventory) == site.inventory
