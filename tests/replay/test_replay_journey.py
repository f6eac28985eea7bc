"""The whole journey on recorded clusters: from the cluster file to the nodes' files, and back to the old bytes."""

from __future__ import annotations

import os
import pty
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replay_demo import QUICK, TWO_RACKS, Demo, copied, make_demo

from topo_tune.cli.app import run
from topo_tune.pipeline import journey, rolling
from topo_tune.records.bench import Launch
from topo_tune.records.envelope import load
from topo_tune.records.inventory import Missing
from topo_tune.records.recommendation import Advice, Recommendation
from topo_tune.records.rollout import RolloutPlan, RolloutResult
from topo_tune.records.scan import Scan

GO = ("--confined", "--yes")
"""Consent, and the word that makes any recommendation safe to roll out here."""


def decoded(text: str, record: Any) -> Any:
    return msgspec.json.decode(text, type=record)


def test_a_rack_with_a_fault_gets_its_old_bytes_back_and_the_answer_is_no(
    faulty: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    before = faulty.picture("n3", "n4")

    assert faulty("apply", *GO) == 1

    fragment = (faulty.run_dir / "50-topo-tune.conf").read_bytes()
    assert faulty.picture("n3", "n4") == before
    assert (faulty.node("n1") / "etc/nccl/conf.d/50-topo-tune.conf").read_bytes() == fragment
    assert b"NCCL_DEBUG=WARN\n" in (faulty.node("n1") / "etc/nccl.conf").read_bytes()
    assert "regressed" in capsys.readouterr().out
    assert faulty("status") == 0


def test_a_sound_cluster_is_tuned_and_rolled_back_to_its_old_bytes(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = ("n1", "n2", "n3", "n4")
    before = sound.picture(*nodes)

    assert sound("apply", *GO) == 0
    assert sound("status") == 0
    tuned = capsys.readouterr().out
    assert sound("rollback") == 0
    assert sound("status") == 0
    restored = capsys.readouterr().out

    assert sound.picture(*nodes) == before
    assert "as before the rollout" not in tuned
    assert "tuned" not in restored.split("by the journal")[1]


def test_one_rack_alone_can_be_rolled_back(sound: Demo) -> None:
    before = sound.picture("n3", "n4")
    assert sound("apply", *GO) == 0
    tuned = sound.picture("n1", "n2")

    assert sound("rollback", "--rack", "rack2") == 0

    assert sound.picture("n3", "n4") == before
    assert sound.picture("n1", "n2") == tuned


def test_status_says_who_edited_a_file_since(sound: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    assert sound("apply", *GO) == 0
    with (sound.node("n2") / "etc/nccl.conf").open("a") as file:
        file.write("NCCL_DEBUG=INFO\n")

    assert sound("status") == 1
    assert "edited by somebody since" in capsys.readouterr().out
    assert sound("rollback") == 3
    assert sound("rollback", "--force") == 0


def test_every_screen_says_that_numbers_are_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = make_demo(tmp_path / "demo", TWO_RACKS)
    cluster, run_dir = str(demo.cluster), str(demo.run_dir)
    commands = (
        ("init", "-c", cluster, "-o", run_dir, *QUICK),
        ("recommend", run_dir),
        ("apply", run_dir, "--dry-run", "--confined"),
        ("apply", run_dir, *GO),
        ("status", run_dir),
        ("bench", "-c", cluster, "-n", "1"),
        ("scan", "-c", cluster),
    )

    screens = [(run(list(command)), *capsys.readouterr()) for command in commands]

    assert [(code, "replay" in out) for code, out, _ in screens] == [(0, True)] * len(commands)
    progress = re.compile(r"(?m)^.*\b\d+/\d+.*$")
    numbers = [line for _, _, err in screens for line in progress.findall(err)]
    assert len(numbers) > 10
    assert [line for line in numbers if not line.startswith("replay ")] == []
    verdicts = [line for _, _, err in screens for line in err.splitlines() if "throughput" in line]
    assert ["replay" in line for line in verdicts] == [True, True]


def test_a_dry_run_changes_nothing_at_all(sound: Demo) -> None:
    before = sound.picture()

    assert sound("apply", "--dry-run", "--confined") == 0

    assert sound.picture() == before


def test_without_consent_and_without_a_terminal_nothing_changes(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sound.picture()

    assert sound("apply", "--confined") == 2

    assert sound.picture() == before
    assert "--yes" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["n\n", "\n", "nonsense\n"])
def test_whoever_does_not_agree_on_a_terminal_changes_nothing(sound: Demo, answer: str) -> None:
    before = sound.picture()

    code, screen = answered(sound, answer)

    assert code == 1
    assert "write to 4 nodes, wave by wave? [y/N]" in screen
    assert "nothing was changed" in screen
    assert sound.picture() == before


def test_whoever_agrees_on_a_terminal_gets_the_rollout(sound: Demo) -> None:
    code, screen = answered(sound, "y\n")

    assert code == 0
    assert "rack2: kept" in screen
    assert "replay guard-after" in screen


def answered(demo: Demo, answer: str) -> tuple[int, str]:
    """Exit code and screen of `apply`, with somebody at the terminal who types an answer when asked."""
    ours, theirs = pty.openpty()
    process = demo.start(
        "apply", str(demo.run_dir), "--confined", stdin=theirs, stdout=theirs, stderr=theirs, pass_fds=()
    )
    os.close(theirs)
    screen = b""
    try:
        while part := _read(ours):
            screen += part
            if b"[y/N]" in part:
                os.write(ours, answer.encode())
        return process.wait(timeout=60), screen.decode("utf-8", "replace")
    finally:
        process.kill()
        process.wait()
        process_stdout = process.stdout
        assert process_stdout is None
        os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux tells that nobody holds the other side any more
        return b""


def test_a_second_apply_is_refused_and_says_what_can_be_done(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sound("apply", *GO) == 0
    before = sound.picture()
    capsys.readouterr()

    assert sound("apply", *GO) == 2

    said = capsys.readouterr().err
    assert "holds a rollout already" in said
    assert "topo-tune rollback" in said
    assert sound.picture() == before


def test_there_is_nothing_to_resume_before_a_first_apply(sound: Demo) -> None:
    assert sound("apply", "--resume", *GO) == 2


def test_a_rollout_that_ended_gives_its_answer_again(faulty: Demo) -> None:
    assert faulty("apply", *GO) == 1
    before = faulty.picture("n1", "n2", "n3", "n4")

    assert faulty("apply", "--resume", *GO) == 1

    assert faulty.picture("n1", "n2", "n3", "n4") == before


def test_where_only_latency_counts_the_answer_is_to_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = "weights: {8K: 1, 128K: 0, 2M: 0, 32M: 0}"
    cluster = TWO_RACKS.replace("weights: {8K: 0, 128K: 1, 2M: 1, 32M: 1}", weights)
    demo = make_demo(tmp_path / "demo", cluster)

    assert demo.init(*QUICK) == 0
    assert "Change nothing on demo (replay: recorded times)" in capsys.readouterr().out
    assert demo.body("50-recommendation.json", Recommendation).advice is Advice.CHANGE_NOTHING
    assert not (demo.run_dir / "50-topo-tune.conf").exists()
    before = demo.picture()
    assert demo("apply", *GO) == 0
    assert demo.picture() == before
    assert "change nothing" in capsys.readouterr().err


def test_an_earlier_fragment_is_gone_when_the_answer_becomes_change_nothing(sound: Demo) -> None:
    assert (sound.run_dir / "50-topo-tune.conf").exists()

    assert sound("recommend", "--minimum-gain", "50") == 0
    assert (sound.run_dir / "50-topo-tune.conf").exists()

    assert sound("recommend", "--minimum-gain", "50", "--save") == 0
    assert not (sound.run_dir / "50-topo-tune.conf").exists()


BROKEN_RACK = "  - name: rack3\n    nodes: n5\n    python: /nowhere/python3\n"


def test_a_node_without_python_is_a_row_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = make_demo(tmp_path / "demo", TWO_RACKS + BROKEN_RACK, ("n1", "n2", "n3", "n4", "n5"))

    assert run(["scan", "-c", str(demo.cluster)]) == 3
    scanned = capsys.readouterr().out
    assert demo.init(*QUICK) == 0
    assert [missing.node for missing in demo.body("10-scan.json", Scan).missing] == ["n5"]
    assert "without n5, which did not answer the scan" in capsys.readouterr().out
    assert demo("apply", *GO) == 3  # all that could be reached has it, and one node could not

    applied = capsys.readouterr().out
    assert any(line.startswith("n[1-4]") for line in scanned.splitlines())
    assert any(line.startswith("n5") for line in scanned.splitlines())
    assert any(line.startswith("left out") and "n5" in line for line in applied.splitlines())
    assert list(demo.node("n5").rglob("*.conf")) == []
    assert demo("status") == 0


def test_a_node_that_the_scan_did_not_see_is_neither_planned_nor_written(
    sound: Demo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan_without_n4(cluster: Any) -> Any:
        found, topology = scan(cluster)
        left = tuple(node for node in found.nodes if node.node != "n4")
        missing = (Missing("n4", "deadline passed", "it took too long"),)
        return msgspec.structs.replace(found, nodes=left, missing=missing), topology

    scan = rolling.scan
    monkeypatch.setattr(rolling, "scan", scan_without_n4)
    before = sound.picture("n4")

    assert sound("apply", *GO) == 3

    assert sound.picture("n4") == before
    assert any(line.startswith("left out") and "n4" in line for line in capsys.readouterr().out.splitlines())


CLOSED_PORT = """\
  - name: rack3
    nodes: n5
    connection: ssh
    root: /
addresses: {n5: 127.0.0.1}
ssh: {port: 1, connect_timeout: 1}
"""


def test_a_node_whose_port_is_closed_is_a_row_and_the_scan_prints_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = make_demo(tmp_path / "demo", TWO_RACKS + CLOSED_PORT)

    assert run(["scan", "-c", str(demo.cluster)]) == 3

    said = capsys.readouterr()
    assert any(line.startswith("n5") and "unreachable" in line for line in said.out.splitlines())
    assert any(line.startswith("n[1-4]") for line in said.out.splitlines())
    assert "scan: n5 failed" in said.err


def test_a_scan_of_nodes_none_of_which_answers_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = TWO_RACKS.replace("connection: local\n", "connection: local\npython: /nowhere/python3\n")
    demo = make_demo(tmp_path / "demo", cluster)

    assert run(["scan", "-c", str(demo.cluster)]) == 3
    assert "no node answered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("etc/nccl.conf", "NCCL_DEBUG=WARN\n{name}=7\n"),
        (f"{Path.home()}/.nccl.conf".lstrip("/"), "{name}=7\n"),
    ],
)
def test_what_somebody_else_sets_is_refused_with_who_and_where(
    sound: Demo, path: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = sound.body("50-recommendation.json", Recommendation).env.names()[0]
    file = sound.node("n4") / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content.format(name=name))
    before = sound.picture()

    assert sound("apply", *GO) == 2

    said = capsys.readouterr().err
    assert f"n4: `{name}`" in said
    assert Path(path).name in said
    assert sound.picture() == before


def test_a_search_on_top_of_an_earlier_rollout_is_refused(
    sound: Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sound("apply", *GO) == 0

    assert run(["init", "-c", str(sound.cluster), "-o", str(tmp_path / "again"), *QUICK]) == 2
    assert "an earlier rollout of topo-tune is in place" in capsys.readouterr().err


def test_records_on_standard_output_decode_as_what_they_are(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = str(sound.cluster)

    def said(code: int) -> str:
        assert code == 0
        return capsys.readouterr().out

    advice = decoded(said(sound.init(*QUICK, "--json")), Recommendation)
    again = decoded(said(sound("recommend", "--json")), Recommendation)
    scan = decoded(said(run(["scan", "-c", cluster, "--json"])), Scan)
    launches = decoded(said(run(["bench", "-c", cluster, "-n", "2", "--json"])), tuple[Launch, ...])
    none_yet = decoded(said(sound("status", "--json")), dict[str, Any])
    plan = decoded(said(sound("apply", "--dry-run", "--confined", "--json")), RolloutPlan)
    result = decoded(said(sound("apply", *GO, "--json")), RolloutResult)
    status = decoded(said(sound("status", "--json")), dict[str, Any])
    undone = decoded(said(sound("rollback", "--json")), RolloutResult)

    assert advice == again == sound.body("50-recommendation.json", Recommendation)
    assert [node.node for node in scan.nodes] == ["n1", "n2", "n3", "n4"]
    assert [launch.is_usable for launch in launches] == [True, True]
    assert none_yet == {"state": None, "files": {}, "missing": []}
    assert plan.env == advice.env
    assert result.kept == ("rack1", "rack2")
    assert status["files"] == dict.fromkeys(("n1", "n2", "n3", "n4"), "new")
    assert undone.rolled_back == ("rack1", "rack2")


def test_nothing_to_write_is_a_record_as_well(sound: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    assert sound("recommend", "--minimum-gain", "50", "--save") == 0
    capsys.readouterr()

    assert sound("apply", *GO, "--json") == 0

    result = decoded(capsys.readouterr().out, RolloutResult)
    assert (result.kept, result.exit_code) == ((), 0)
    assert "change nothing" in result.reason


def test_a_recommendation_is_made_again_without_the_nodes(searched: Demo, tmp_path: Path) -> None:
    demo = copied(searched, tmp_path / "elsewhere")
    before = demo.body("50-recommendation.json", Recommendation)
    for path in sorted((demo.home / "nodes").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (demo.run_dir / "50-recommendation.json").unlink()

    assert demo("recommend", "--save") == 0

    assert demo.body("50-recommendation.json", Recommendation) == before


def test_the_fragment_alone_can_be_had_on_standard_output(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sound("recommend", "--fragment") == 0

    assert capsys.readouterr().out == (sound.run_dir / "50-topo-tune.conf").read_text()


def test_a_run_folder_of_another_inventory_is_refused(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    sound.cluster.write_text(TWO_RACKS.replace("nodes: n[3-4]", "nodes: n3"))
    before = sound.picture()

    assert sound.init(*QUICK) == 2

    assert "another inventory" in capsys.readouterr().err
    assert sound.picture() == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = make_demo(tmp_path / "demo", TWO_RACKS)
    demo.run_dir.mkdir()
    (demo.run_dir / "thesis.tex").write_text("dear to somebody")

    assert demo.init(*QUICK) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_an_unknown_strategy_is_told_before_any_node_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = make_demo(tmp_path / "demo", TWO_RACKS)

    assert demo.init("--strategy", "modle") == 2

    assert "did you mean `model`?" in capsys.readouterr().err
    assert not demo.run_dir.exists()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("00-inventory.json", "recommend"),
        ("20-topology.json", "recommend"),
        ("25-bench-plan.json", "recommend"),
        ("30-bench.jsonl", "recommend"),
        ("40-search.json", "recommend"),
        ("50-recommendation.json", "apply"),
        ("00-inventory.json", "apply"),
        ("00-inventory.json", "rollback"),
        ("60-journal.jsonl", "status"),
        ("60-journal.jsonl", "rollback"),
    ],
)
@pytest.mark.parametrize("garbage", [b"", b"{}", b'{"head": 1}\n', b"\xff\x00 not JSON\n"])
def test_garbage_in_a_run_folder_is_told_with_its_file(
    sound: Demo, name: str, command: str, garbage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (sound.run_dir / name).write_bytes(garbage)

    assert sound(command) == 3
    assert str(sound.run_dir / name) in capsys.readouterr().err


def test_a_wrong_value_is_told_with_its_place(sound: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    path = sound.run_dir / "50-recommendation.json"
    path.write_text(path.read_text().replace('"backend": "replay"', '"backend": "abacus"'))

    assert sound("apply", *GO) == 3
    assert "$.backend" in capsys.readouterr().err


def test_a_run_that_lost_the_topology_makes_it_again(sound: Demo) -> None:
    (sound.run_dir / "20-topology.json").unlink()

    assert sound.init(*QUICK) == 0
    assert (sound.run_dir / "20-topology.json").exists()


def test_a_bench_goes_on_where_its_file_stops(
    sound: Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "launches.jsonl"
    bench = ["bench", "-c", str(sound.cluster), "--set", "NCCL_SOCKET_NTHREADS=2", "-o", str(file)]
    assert run([*bench, "-n", "2"]) == 0
    first = file.read_bytes()
    capsys.readouterr()

    assert run([*bench, "-n", "3"]) == 0

    assert file.read_bytes().startswith(first)
    assert len(file.read_bytes().splitlines()) == 1 + 3 * 2
    said = capsys.readouterr().out
    assert said.count("3 of 3 launches usable") == 2
    assert "# NCCL_SOCKET_NTHREADS=2" in said


def test_a_bench_never_takes_recorded_launches_for_those_of_other_nodes(
    sound: Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "launches.jsonl"
    bench = ["bench", "-c", str(sound.cluster), "-o", str(file), "-n", "1"]
    assert run([*bench, "--limit", "n[1-2]"]) == 0

    assert run([*bench, "--limit", "n[3-4]"]) == 2
    assert "launches of another measurement" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "arguments", "field"),
    [
        ("env: {NCCL_CROSS_NIC: 1}\n", (), "env"),
        ("as_nodes: 2\nranks_per_node: 2\n", (), "as_nodes"),
        ("ranks_per_node: 2\n", (), "ranks_per_node"),
        ("", ("--repeats", "7"), "repeats"),
        ("", ("--sizes", "8K"), "sizes_bytes"),
        ("", ("--limit", "n[3-4]"), "nodes"),
    ],
)
def test_a_bench_never_takes_recorded_launches_for_those_under_other_conditions(
    sound: Demo,
    tmp_path: Path,
    line: str,
    arguments: tuple[str, ...],
    field: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "launches.jsonl"
    bench = ["bench", "-c", str(sound.cluster), "-o", str(file), "-n", "1"]
    assert run(bench) == 0
    before = file.read_bytes()
    sound.cluster.write_text(line + TWO_RACKS)

    assert run([*bench, *arguments]) == 2

    said = capsys.readouterr().err
    assert "launches of another measurement" in said
    assert f"`{field}`" in said
    assert file.read_bytes() == before


def test_a_bench_says_how_much_of_it_comes_from_its_file(
    sound: Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "launches.jsonl"
    bench = ["bench", "-c", str(sound.cluster), "-o", str(file), "-n"]
    assert run([*bench, "2"]) == 0
    assert "come from" not in capsys.readouterr().err

    assert run([*bench, "3", "--deadline", "30"]) == 0

    assert f"2 of 3 launches come from {file}" in capsys.readouterr().err


def test_a_bench_does_not_go_on_with_the_launches_of_a_search(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = sound.run_dir / "30-bench.jsonl"
    before = launches.read_bytes()

    assert run(["bench", "-c", str(sound.cluster), "-o", str(launches), "-n", "1"]) == 2

    assert "does not say under which conditions" in capsys.readouterr().err
    assert launches.read_bytes() == before


def test_a_search_does_not_go_on_with_launches_that_were_measured_otherwise(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sound.run_dir / "25-bench-plan.json"
    path.write_text(path.read_text().replace('"repeats": 5', '"repeats": 4'))

    assert sound.init(*QUICK) == 2
    assert "`repeats`: 4 then, 5 now" in capsys.readouterr().err


def test_a_search_goes_on_with_another_deadline(sound: Demo) -> None:
    assert sound.init(*QUICK, "--deadline", "30") == 0


def test_a_search_does_not_go_on_where_the_nodes_set_something_else_by_now(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    (sound.node("n2") / "etc/nccl.conf").write_text("NCCL_ALGO=Tree\n")
    launches = (sound.run_dir / "30-bench.jsonl").read_bytes()

    assert sound.init(*QUICK) == 2

    assert "NCCL_ALGO: nothing then, `Tree` now" in capsys.readouterr().err
    assert (sound.run_dir / "30-bench.jsonl").read_bytes() == launches


def test_a_search_does_not_go_on_without_a_node_that_it_had(
    sound: Demo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan_without_n2(cluster: Any, **options: Any) -> Any:
        found, topology = scan(cluster, **options)
        left = tuple(node for node in found.nodes if node.node != "n2")
        return msgspec.structs.replace(found, nodes=left), topology

    scan = journey.scan
    monkeypatch.setattr(journey, "scan", scan_without_n2)

    assert sound.init(*QUICK) == 2
    assert "n2 did not answer" in capsys.readouterr().err


def test_a_bench_in_which_nothing_could_be_measured_fails(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    (sound.node("n1") / "etc/nccl.conf").write_text("NCCL_ALGO=Tree\n")

    assert run(["bench", "-c", str(sound.cluster), "-n", "1", "--despite-findings"]) == 3
    told = capsys.readouterr().out
    assert "nodes differ in their settings" in told
    assert "# note: measured in spite of an error finding (drift-nccl-conf on n" in told


def test_nothing_is_measured_over_an_error_unless_that_is_said(
    sound: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks that differ in their algorithm would hang, or measure the default by chance."""
    (sound.node("n1") / "etc/nccl.conf").write_text("NCCL_ALGO=allreduce:tree\n")

    assert run(["bench", "-c", str(sound.cluster), "-n", "1"]) == 2
    assert sound.init(*QUICK, "--output", str(sound.run_dir.with_name("other"))) == 2

    told = capsys.readouterr().err
    assert "will not measure: the scan has an error finding" in told
    assert "drift-nccl-conf on n" in told
    assert "--despite-findings goes on" in told


def test_a_bench_leaves_nothing_behind(sound: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = {path.name for path in tmp_path.iterdir()}

    assert run(["bench", "-c", str(sound.cluster), "-n", "1"]) == 0

    assert {path.name for path in tmp_path.iterdir()} == before


DUMPS = Path(__file__).parents[1] / "golden" / "facts" / "smi-topo"


def test_saved_dumps_are_scanned_without_any_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("l40s-4gpu-2nic", "rtx6000ada-4gpu-4port"):
        (tmp_path / f"{name}.txt").write_bytes((DUMPS / f"{name}.txt").read_bytes())

    assert run(["scan", "--from", str(tmp_path), "-o", str(tmp_path / "scan.json")]) == 0

    parts = capsys.readouterr().out.split("\n\n")
    table = next(part for part in parts if part.startswith("nodes ")).splitlines()
    assert [(line.split()[0], line.split()[1]) for line in table[1:]] == [
        ("l40s-4gpu-2nic", "4"),
        ("rtx6000ada-4gpu-4port", "4"),
    ]
    assert len(load(tmp_path / "scan.json", Scan).nodes) == 2


def test_a_file_that_is_no_dump_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.txt").write_bytes((DUMPS / "l40s-4gpu-2nic.txt").read_bytes())
    (tmp_path / "bad.txt").write_text("dear diary\n")

    assert run(["scan", "--from", str(tmp_path)]) == 0

    rows = capsys.readouterr().out.splitlines()
    assert "  bad.txt  not read: its content is of no known kind" in rows
    assert any(line.startswith("good") for line in rows)


def test_an_undone_rollout_is_kept_aside_and_another_can_begin(sound: Demo) -> None:
    assert sound("apply", *GO) == 0
    assert sound("rollback") == 0
    before = (sound.run_dir / "60-journal.jsonl").read_bytes()

    assert sound("apply", *GO, "--dry-run") == 0
    assert (sound.run_dir / "60-journal.jsonl").read_bytes() == before
    assert sound("apply", *GO) == 0

    assert (sound.run_dir / "60-journal.1.jsonl").read_bytes() == before
    assert (sound.run_dir / "61-guard.1.jsonl").exists()
    assert sound("status") == 0
    assert sound("rollback") == 0


@pytest.mark.parametrize("command", ["status", "rollback", "apply"])
def test_a_lost_journal_is_never_taken_for_a_rollout_that_was_not(
    sound: Demo, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sound("apply", *GO) == 0
    (sound.run_dir / "60-journal.jsonl").unlink()
    capsys.readouterr()

    assert sound(command) == 3

    said = capsys.readouterr()
    assert "a rollout took place" in said.err
    assert "nothing was written" not in said.out + said.err
