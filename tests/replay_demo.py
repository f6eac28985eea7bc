"""Pretended clusters in a folder: real node files, real node programs, replayed times; and topo-tune run on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topo_tune.cli.app import run
from topo_tune.records.envelope import load, load_lines
from topo_tune.records.rollout import JournalEntry

TWO_RACKS = """\
name: demo
connection: local
root: nodes/{node}
bench:
  backend: replay
  nodes: n[1-2]
  sizes: [8K, 128K, 2M, 32M]
  weights: {8K: 0, 128K: 1, 2M: 1, 32M: 1}
replay:
  surface: h200x2-two-node-tcp
racks:
  - name: rack1
    nodes: n[1-2]
  - name: rack2
    nodes: n[3-4]
"""

FAULT_IN_RACK_2 = TWO_RACKS.replace(
    "  surface: h200x2-two-node-tcp\n",
    "  surface: h200x2-two-node-tcp\n  faults: [{racks: [rack2], tuned_time_factor: 1.25}]\n",
)

QUICK = ("--strategy", "halving", "--candidates", "16", "--blocks", "4")
"""A search of a second that still finds the setting which is twice as fast."""

OWN_FILES = {
    "n1/etc/nccl.conf": (b"NCCL_DEBUG=WARN\n", 0o644),
    "n3/etc/nccl.conf": (b"# set by the image, 2024\nNCCL_DEBUG=WARN", 0o600),
}
"""What somebody put on the nodes before: one file without a final newline, one that only its owner may read."""


@dataclass(frozen=True)
class Demo:
    """A folder with a cluster file, a folder a node, and later a run folder."""

    home: Path

    @property
    def cluster(self) -> Path:
        return self.home / "cluster.yaml"

    @property
    def run_dir(self) -> Path:
        return self.home / "run"

    def node(self, name: str) -> Path:
        return self.home / "nodes" / name

    def __call__(self, command: str, *arguments: str) -> int:
        """Run a command on the run folder, in this process; its exit code."""
        return run([command, str(self.run_dir), *arguments])

    def init(self, *arguments: str) -> int:
        return run(["init", "-c", str(self.cluster), "-o", str(self.run_dir), *arguments])

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Run a command as a process of its own, in its own process group."""
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
        } | options
        return subprocess.Popen(
            [sys.executable, "-m", "topo_tune", *arguments], text=True, start_new_session=True, **options
        )

    def body(self, name: str, record: type[Any]) -> Any:
        return load(self.run_dir / name, record)

    def actions(self) -> list[str]:
        """What the journal tells so far; nothing where there is none."""
        path = self.run_dir / "60-journal.jsonl"
        return [entry.action.value for entry in load_lines(path, JournalEntry)] if path.exists() else []

    def picture(self, *nodes: str) -> dict[str, tuple[int, bytes | None]]:
        """Every path below some nodes, or below the whole folder, with its mode and its bytes."""
        tops = [self.node(node) for node in nodes] or [self.home]
        return {
            str(path.relative_to(self.home)): (
                path.stat().st_mode,
                path.read_bytes() if path.is_file() else None,
            )
            for top in tops
            for path in sorted(top.rglob("*"))
        }


def make_demo(home: Path, cluster: str, nodes: tuple[str, ...] = ("n1", "n2", "n3", "n4")) -> Demo:
    """A cluster as an operator finds it."""
    for node in nodes:
        (home / "nodes" / node / "etc").mkdir(parents=True)
    for name, (content, mode) in OWN_FILES.items():
        path = home / "nodes" / name
        if path.parent.is_dir():
            path.write_bytes(content)
            path.chmod(mode)
    (home / "cluster.yaml").write_text(cluster)
    return Demo(home)


def copied(demo: Demo, home: Path) -> Demo:
    """A demo moved to another folder, as it is, with the paths in its files moved along."""
    shutil.copytree(demo.home, home)
    for path in (home / "run").glob("*.json*"):
        path.write_bytes(path.read_bytes().replace(os.fsencode(demo.home), os.fsencode(home)))
    return Demo(home)


def wait_until(holds: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Poll until something holds, or fail."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


def processes_marked(mark: str) -> list[str]:
    """Command lines of every process with `TOPO_TUNE_TEST=mark` in its environment, in whatever session it is."""
    wanted = f"TOPO_TUNE_TEST={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return found
