"""`topo-tune bench` on a replay: options that say what is measured, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topo_tune.cli.app import run
from topo_tune.cli.bench import _collectives
from topo_tune.errors import InputError
from topo_tune.records.bench import Collective

CLUSTER = """\
name: demo
connection: local
root: nodes/{node}
bench: {backend: replay, sizes: [8K, 32M]}
replay: {surface: h200x2-two-node-tcp}
racks:
  - {name: rack1, nodes: "n[1-2]"}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    for name in ("n1", "n2"):
        (tmp_path / "nodes" / name / "etc").mkdir(parents=True)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return str(tmp_path / "cluster.yaml")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["all_reduce"], [Collective.ALL_REDUCE]),
        (["alltoall,all_gather", "alltoall"], [Collective.ALL_TO_ALL, Collective.ALL_GATHER]),
        (
            ["broadcast", "all"],
            [Collective.BROADCAST, *(c for c in Collective if c is not Collective.BROADCAST)],
        ),
    ],
)
def test_collectives_are_named_as_nccl_tests_names_them(words: list[str], found: list[Collective]) -> None:
    assert list(_collectives(words)) == found


@pytest.mark.parametrize("word", ["allgather", "", "all_reduce,"])
def test_what_is_no_collective_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="is not a collective"):
        _collectives([word])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--collective", "all_gatter"), "did you mean `all_gather`?"),
        (("--dtype", "float99"), "`float99` is not a data type"),
        (("--layout", "ring"), "`ring` is not a layout"),
        (("--until", "3"), "`3` is not a share"),
        (("--collective", "sendrecv"), "holds no sendrecv"),
        (("--dtype", "int8"), "holds no all_reduce, int8"),
        (("--layout", "rails"), "layout rails"),
        (("--out-of-place",), "holds no all_reduce"),
        (("--overlap",), "a replay has neither"),
        (("--single-calls", "100"), "a replay has neither"),
        (("--sizes", "8K..1M x4"), "holds no 32K, 512K"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_node_is_asked(
    cluster: str, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "-c", cluster, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_what_can_be_seen_is_said_first(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "-c", cluster, "--set", "NCCL_SOCKET_NTHREADS=4", "--despite-findings"]) == 0

    assert "all_reduce: 3 blocks show a change of " in capsys.readouterr().err


def test_a_failed_launch_comes_with_the_command_that_measures_it_again(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--set", "NCCL_CROSS_NIC=1", "-n", "2", "--despite-findings", "--limit", "n[1-2]"]

    assert run(["bench", "-c", cluster, *arguments]) == 0

    (again,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# to see it fail")]
    assert again.endswith(
        f"topo-tune bench -c {cluster} --set NCCL_CROSS_NIC=1 --sizes 8K,32M --collective all_reduce "
        "--dtype bfloat16 --limit 'n[1-2]' --despite-findings --launches 1"
    )


def test_settings_that_share_processes_are_in_the_record(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--set",
        "NCCL_SOCKET_NTHREADS=4",
        "--share-processes",
        "-n",
        "2",
        "--json",
        "--despite-findings",
    ]

    assert run(["bench", "-c", cluster, *arguments]) == 0

    launches = json.loads(capsys.readouterr().out)
    assert [launch["index"] for launch in launches] == [0, 1, 2, 3]
    assert [bool(launch["env"]["settings"]) for launch in launches] == [False, True, True, False]


def test_a_page_that_cannot_be_written_takes_no_table_along(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")

    status = run(["bench", "-c", cluster, "-n", "1", "--html", str(tmp_path / "file" / "page.html")])

    told = capsys.readouterr()
    assert status != 0
    assert "cannot write" in told.err
    assert "# all_reduce, 2 ranks" in told.out


def test_a_wrong_result_makes_the_answer_a_no(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other settings may have been measured well: a pipeline must see that one computes wrongly."""
    from topo_tune.bench.backends.replay import ReplayBackend

    measure = ReplayBackend.measure

    def wrong_at_two_threads(self: ReplayBackend, *given: Any, **named: Any) -> Any:
        launch = measure(self, *given, **named)
        if not launch.env.settings:
            return launch
        results = tuple(msgspec.structs.replace(result, is_correct=False) for result in launch.results)
        return msgspec.structs.replace(launch, results=results, error="wrong all_reduce at 8K on rank 1")

    monkeypatch.setattr(ReplayBackend, "measure", wrong_at_two_threads)

    assert run(["bench", "-c", cluster, "-n", "2", "--set", "NCCL_SOCKET_NTHREADS=2"]) == 1
    assert run(["bench", "-c", cluster, "-n", "2"]) == 0
