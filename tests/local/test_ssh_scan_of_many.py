"""One scan of 64 nodes behind real SSH servers, one of them dead and one that does not answer in time."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ssh_servers import SshCluster, start_cluster

from topo_tune.pipeline import journey
from topo_tune.pipeline.cluster import reach
from topo_tune.records.inventory import Inventory, Node

pytestmark = pytest.mark.ssh

COUNT = 64
DEAD, SLOW = "n7", "n23"
SLOW_PYTHON = (sys.executable, "-c", "import time; time.sleep(600)")
DEADLINE_SECONDS = 45.0


class Watching:
    """Keeps when each node was done."""

    def __init__(self) -> None:
        self.done: dict[str, float] = {}

    def on_progress(self, event: Any) -> None:
        pass

    def on_node(self, event: Any) -> None:
        if event.state == "done":
            self.done[event.node] = time.monotonic()

    def say(self, text: str) -> None:
        pass


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshCluster]:
    # VERBOSE writes a line for every session: that is how round trips are counted.
    cluster = start_cluster(tmp_path_factory.mktemp("many"), COUNT, extra_configuration="LogLevel VERBOSE")
    yield cluster
    cluster.stop()


def _inventory(cluster: SshCluster) -> Inventory:
    def changed(node: Node) -> Node:
        return msgspec.structs.replace(node, python=SLOW_PYTHON) if node.name == SLOW else node

    given = cluster.inventory(racks=4, command_timeout_seconds=DEADLINE_SECONDS)
    racks = tuple(
        msgspec.structs.replace(rack, nodes=tuple(changed(node) for node in rack.nodes))
        for rack in given.racks
    )
    return msgspec.structs.replace(given, racks=racks)


def _sessions(cluster: SshCluster, index: int) -> int:
    log = cluster.folder / f"sshd_{cluster.addresses[index]}.log"
    return len(re.findall(r"Starting session: command", log.read_text()))


def test_64_nodes_are_scanned_at_once_with_one_round_trip_each(
    many: SshCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    dead = int(DEAD[1:]) - 1
    many.servers[dead].terminate()
    many.servers[dead].wait(5)
    used = resource.getrusage(resource.RUSAGE_SELF)
    started = time.monotonic()

    watching = Watching()
    with reach(_inventory(many), watching) as cluster:
        found, _ = journey.scan(cluster)

    wall = time.monotonic() - started
    now = resource.getrusage(resource.RUSAGE_SELF)
    client = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    answered_after = max(watching.done.values()) - started
    print(
        f"{COUNT} nodes: {answered_after:.1f} s until the last answer, {wall:.1f} s until the slow one was given up; "
        f"{client:.1f} s of the client's CPU"
    )
    assert len(found.nodes) == COUNT - 2
    assert {missing.node: missing.kind for missing in found.missing} == {
        DEAD: "unreachable",
        SLOW: "deadline passed",
    }
    answered = {scan.node for scan in found.nodes}
    counts = {f"n{index + 1}": _sessions(many, index) for index in range(COUNT)}
    assert {counts[name] for name in answered} == {1}
    # The slow node costs its own deadline, and nothing waits for it twice.
    assert wall < 2 * DEADLINE_SECONDS
