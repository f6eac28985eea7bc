"""The surfaces of two real H200s in docs/results: read as they are, and replayed in both collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topo_tune.bench.surface import load_surface
from topo_tune.cli.app import run
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

RECORD = Path(__file__).parents[2] / "docs" / "results" / "h200x2-collectives"
REPLAY = """\
name: again
connection: local
root: nodes/{{node}}
bench: {{backend: replay}}
replay: {{surface: {surface}}}
racks:
  - {{name: rack1, nodes: "n[1-{nodes}]"}}
"""
HANGS_OFTEN = {
    "NCCL_SOCKET_NTHREADS": "2",
    "NCCL_NSOCKS_PERTHREAD": "4",
    "NCCL_MIN_CTAS": "8",
    "NCCL_MAX_CTAS": "8",
    "NCCL_BUFFSIZE": "8388608",
}
COLLECTIVES = ("all_reduce", "all_gather")
MANY_CTAS = nccl_env({"NCCL_MIN_CTAS": "64", "NCCL_MAX_CTAS": "64"})
THREADS = nccl_env({"NCCL_SOCKET_NTHREADS": "2"})


@pytest.mark.parametrize(
    ("name", "collective", "settings", "launches"),
    [
        ("nvlink", "all_reduce", 18, 4),
        ("nvlink", "all_gather", 14, 5),
        ("two-node-tcp", "all_reduce", 18, 3),
        ("two-node-tcp", "all_gather", 14, 4),
    ],
)
def test_every_setting_of_a_surface_was_launched_as_often_as_the_default_and_none_failed(
    name: str, collective: str, settings: int, launches: int
) -> None:
    recordings = load_surface(str(RECORD / f"{name}.jsonl")).measuring(collective).recordings

    assert len(recordings) == settings
    assert {len(of_setting) for of_setting in recordings.values()} == {launches}
    assert {one.error for of_setting in recordings.values() for one in of_setting} == {None}


@pytest.mark.parametrize("name", ["nvlink", "two-node-tcp"])
def test_every_recorded_sum_was_checked_and_right(name: str) -> None:
    rows = [json.loads(line) for line in (RECORD / f"{name}.jsonl").read_text().splitlines()[1:]]

    assert {sample["correct"] for row in rows for sample in row["samples"]} == {True}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_setting_that_is_known_to_hang_was_measured_too(collective: str) -> None:
    surface = load_surface(str(RECORD / "two-node-tcp.jsonl")).measuring(collective)

    assert nccl_env(HANGS_OFTEN) in surface.recordings


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("name", "nodes", "setting", "size", "gain"),
    [("nvlink", 1, MANY_CTAS, "32M", 1.05), ("two-node-tcp", 2, THREADS, "32M", 2.0)],
)
def test_a_replay_of_a_surface_has_what_was_recorded_of_a_collective(
    collective: str,
    name: str,
    nodes: int,
    setting: NcclEnv,
    size: str,
    gain: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for node in range(1, nodes + 1):
        (tmp_path / "nodes" / f"n{node}" / "etc").mkdir(parents=True)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(REPLAY.format(surface=RECORD / f"{name}.jsonl", nodes=nodes))
    words = " ".join(f"{name}={value}" for name, value in setting.settings)
    asked = ["-c", str(cluster), "--collective", collective, "--sizes", size, "--set", words]

    assert run(["bench", *asked, "-n", "6", "--json", "--quiet"]) == 0

    launches = json.loads(capsys.readouterr().out)
    fastest = {
        env: min(
            min(launch["results"][0]["samples_seconds"])
            for launch in launches
            if launch["env"]["settings"] == [list(pair) for pair in env.settings]
        )
        for env in (DEFAULTS, setting)
    }
    assert {launch["collective"] for launch in launches} == {collective}
    assert fastest[DEFAULTS] / fastest[setting] > gain
