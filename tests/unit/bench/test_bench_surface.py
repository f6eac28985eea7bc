from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topo_tune.bench.surface import Measured, append_to_surface, bundled_surfaces, canonical, load_surface
from topo_tune.bench.surface_rows import RowOverlap, RowSample, SurfaceHead, SurfaceRow
from topo_tune.errors import BrokenRecord, InputError, Refused
from topo_tune.records.bench import Launch, Layout, Overlap, SizeResult, TimingMode
from topo_tune.records.envelope import append_line, save_lines_head
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

TUNED = nccl_env({"NCCL_SOCKET_NTHREADS": 4})
HEAD = {"surface": "made-up", "version": 1, "collective": "all_reduce", "facts": {"ranks": "2"}}


def row(launch: int = 1, env: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    sample = {"size_bytes": 8192, "median_us": 60.0, "min_us": 50.0, "max_us": 80.0, "timing": "graph"}
    return {"launch": launch, "env": env or {}, "ok": True, "samples": [sample], **changes}


def write(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def launch(index: int, env: NcclEnv, seconds: float, error: str | None = None) -> Launch:
    result = SizeResult(8192, (seconds,), 1, TimingMode.GRAPH, True)
    return Launch(
        index, "bench", ("n1", "n2"), env, BackendName.NCCL, 16, "2026-01-01", 1.0, (result,), error=error
    )


def test_the_surface_that_ships_loads_with_the_facts_of_its_machine() -> None:
    surface = load_surface("h200x2-two-node-tcp")

    assert surface.name == "h200x2-two-node-tcp"
    assert (surface.facts["ranks"], surface.facts["inter_fabric"]) == ("2", "socket")
    assert {8 << 10, 128 << 10, 2 << 20, 32 << 20} <= set(surface.sizes_bytes())
    assert len(surface.recordings[DEFAULTS]) >= 20


def test_every_bundled_surface_loads() -> None:
    assert [load_surface(name).name for name in bundled_surfaces()] == list(bundled_surfaces())


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({"NCCL_MIN_NCHANNELS": "4"}, {"NCCL_MIN_CTAS": "4"}),
        ({"NCCL_MAX_NCHANNELS": "4"}, {"NCCL_MAX_CTAS": "4"}),
        ({"NCCL_MIN_CTAS": "8", "NCCL_MIN_NCHANNELS": "4"}, {"NCCL_MIN_CTAS": "8"}),
        ({"NCCL_MAX_CTAS": "8", "NCCL_MAX_NCHANNELS": "16"}, {"NCCL_MAX_CTAS": "8"}),
        ({"NCCL_ALGO": "allreduce:ring"}, {"NCCL_ALGO": "ring"}),
        ({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}, {"NCCL_ALGO": "ring", "NCCL_PROTO": "ll128"}),
        ({"NCCL_SOCKET_IFNAME": "Eth0"}, {"NCCL_SOCKET_IFNAME": "Eth0"}),
    ],
)
def test_two_spellings_of_one_setting_are_one(written: dict[str, str], found: dict[str, str]) -> None:
    assert canonical(NcclEnv(tuple(sorted(written.items())))).as_dict() == found


def test_a_row_has_its_minimum_median_and_maximum_as_samples(tmp_path: Path) -> None:
    surface = load_surface(write(tmp_path / "s.jsonl", HEAD, row()))

    samples = surface.recordings[DEFAULTS][0].samples[8192]
    assert samples == pytest.approx((50e-6, 55e-6, 60e-6, 70e-6, 80e-6))


def test_a_failed_row_keeps_its_reason(tmp_path: Path) -> None:
    failed = row(2, {"NCCL_PROTO": "LL"}, ok=False, error="hung", samples=[])

    surface = load_surface(write(tmp_path / "s.jsonl", HEAD, row(), failed))

    (recording,) = surface.recordings[nccl_env({"NCCL_PROTO": "ll"})]
    assert recording.error == "recorded as failed: hung"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no surface `h200x2-tow-node-tcp`[\s\S]*`h200x2-two-node-tcp`"):
        load_surface("h200x2-tow-node-tcp")


def test_a_damaged_row_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BrokenRecord, match=r"s\.jsonl, line 3: "):
        load_surface(write(tmp_path / "s.jsonl", HEAD, row(), '{"launch": 2, "env"'))


def test_a_row_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenRecord, match=r"line 2: .*`mood`"):
        load_surface(write(tmp_path / "s.jsonl", HEAD, row(mood="good")))


def test_a_damaged_head_is_told(tmp_path: Path) -> None:
    with pytest.raises(BrokenRecord, match=r"s\.jsonl, line 1: "):
        load_surface(write(tmp_path / "s.jsonl", '{"surface": 3}'))


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenRecord, match="version 3; this topo-tune reads up to 2"):
        load_surface(write(tmp_path / "s.jsonl", {**HEAD, "version": 3}, row()))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff\xfe\x00 no text", b'{"surface": "\xff"}\n', b"not json\n"]
)
def test_a_file_that_is_no_surface_is_a_broken_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.jsonl").write_bytes(content)

    with pytest.raises(BrokenRecord, match=r"s\.jsonl"):
        load_surface(str(tmp_path / "s.jsonl"))


def test_a_folder_is_no_surface(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a file nor one that ships"):
        load_surface(str(tmp_path))


def test_a_surface_without_a_default_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenRecord, match="NCCL's default was never recorded"):
        load_surface(write(tmp_path / "s.jsonl", HEAD, row(env={"NCCL_PROTO": "LL"})))


def test_a_surface_whose_every_default_failed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenRecord, match="NCCL's default was never recorded"):
        load_surface(write(tmp_path / "s.jsonl", HEAD, row(ok=False, error="hung")))


def test_the_launches_of_a_run_folder_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "30-bench.jsonl"
    save_lines_head(path, Launch)
    append_line(path, launch(0, DEFAULTS, 60e-6))
    append_line(path, launch(1, TUNED, 50e-6))
    append_line(path, launch(2, TUNED, 50e-6, error="hung"))

    surface = load_surface(str(path))

    assert (surface.name, surface.facts["ranks"]) == ("run", "16")
    assert surface.sizes_bytes() == (8192,)
    assert [recording.error for recording in surface.recordings[TUNED]] == [None, "hung"]
    assert surface.variables == {"NCCL_SOCKET_NTHREADS"}


def test_a_run_folder_without_launches_cannot_be_replayed(tmp_path: Path) -> None:
    save_lines_head(tmp_path / "30-bench.jsonl", Launch)

    with pytest.raises(BrokenRecord, match="no launches to replay"):
        load_surface(str(tmp_path / "30-bench.jsonl"))


FACTS = {
    "nccl": "2.28.9",
    "gpu": "NVIDIA H200",
    "ranks": "2",
    "recorded_at": "2026-12-01",
    "source": "a test",
}


def measured(index: int, env: NcclEnv = DEFAULTS, us: float = 60.0, **changes: Any) -> Launch:
    """A launch with everything that a launch can tell."""
    result = SizeResult(
        8192,
        (us * 1e-6, 61e-6, 62.5e-6),
        20,
        TimingMode.GRAPH,
        True,
        warmup_seconds=(1e-3,),
        single_seconds=(70e-6, 80e-6),
        overlap=Overlap(1e-3, 1.2e-3, 90e-6),
    )
    fields: dict[str, Any] = {
        "purpose": "baseline" if env == DEFAULTS else "candidate",
        "nodes": ("n1",),
        "backend": BackendName.NCCL,
        "ranks": 2,
        "started_at": "2026-12-01T10:00:00.000+00:00",
        "wall_seconds": 1.5,
        "results": (result,),
        "setup_seconds": (("first", 0.2), ("init", 0.4)),
        "dtype": "bfloat16",
        "in_force": (("NCCL_HOSTID", "a"),),
    }
    return Launch(index=index, env=env, **(fields | changes))


def rows_of(path: Path) -> list[SurfaceRow]:
    return [msgspec.json.decode(line, type=SurfaceRow) for line in path.read_text().splitlines()[1:]]


def test_launches_are_recorded_with_everything_they_tell(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"

    written = append_to_surface(path, [measured(0)], FACTS)

    (row,) = rows_of(path)
    assert written == 1
    assert (row.launch, row.communicator, row.at, row.purpose) == (
        1,
        0,
        "2026-12-01T10:00:00.000+00:00",
        "baseline",
    )
    assert (row.collective, row.dtype, row.ranks) == ("all_reduce", "bfloat16", 2)
    assert (row.in_force, row.setup_seconds) == ({"NCCL_HOSTID": "a"}, {"first": 0.2, "init": 0.4})
    assert row.samples == (
        RowSample(
            8192,
            "graph",
            times_us=(60.0, 61.0, 62.5),
            calls=20,
            warmup_us=(1000.0,),
            single_us=(70.0, 80.0),
            correct=True,
            overlap=RowOverlap(1000.0, 1200.0, 90.0),
        ),
    )


def test_what_was_recorded_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    append_to_surface(path, [measured(0), measured(1, TUNED, 50.0)], FACTS)

    surface = load_surface(str(path))

    assert (surface.name, surface.facts) == ("own", FACTS)
    assert surface.recordings[TUNED][0].samples == {8192: pytest.approx((50e-6, 61e-6, 62.5e-6))}
    assert surface.measured == Measured("all_reduce", "bfloat16", Layout.WORLD, True)


def test_launches_that_share_processes_are_communicators_of_one_launch(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    together = [measured(0, processes=4), measured(1, TUNED, processes=4), measured(2, processes=5)]

    append_to_surface(path, together, FACTS)
    append_to_surface(path, [measured(3, processes=4), measured(4)], FACTS)

    assert [(row.launch, row.communicator) for row in rows_of(path)] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (3, 0),
        (4, 0),
    ]
    assert [recording.launch for recording in load_surface(str(path)).recordings[DEFAULTS]] == [1, 2, 3, 4]


def test_a_failed_launch_and_a_size_that_was_cut_off_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    cut = SizeResult(1 << 20, (), 0, TimingMode.GRAPH, None, slower_than_seconds=0.004)
    launches = [
        measured(0),
        measured(1, TUNED, results=(), error="rank 1 was killed by signal 9"),
        measured(2, TUNED, results=(*measured(0).results, cut)),
    ]

    append_to_surface(path, launches, FACTS)

    failed, slow = load_surface(str(path)).recordings[TUNED]
    assert failed.error == "recorded as failed: rank 1 was killed by signal 9"
    assert (slow.error, slow.slower_than, list(slow.samples)) == (None, {1 << 20: 0.004}, [8192])


@pytest.mark.parametrize(("name", "value"), [("nccl", "2.30.7"), ("gpu", "NVIDIA B200")])
def test_times_of_another_machine_are_refused_and_leave_the_file_alone(
    tmp_path: Path, name: str, value: str
) -> None:
    path = tmp_path / "own.jsonl"
    append_to_surface(path, [measured(0)], FACTS)
    before = path.read_bytes()

    with pytest.raises(Refused, match=f"{name}: {FACTS[name]} there, {value} here"):
        append_to_surface(path, [measured(1)], FACTS | {name: value})

    assert path.read_bytes() == before


def test_another_day_is_no_other_machine(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    append_to_surface(path, [measured(0)], FACTS)

    append_to_surface(path, [measured(1)], FACTS | {"recorded_at": "2027-01-01", "source": "again"})

    assert len(rows_of(path)) == 2


def test_half_a_line_that_a_crash_left_is_dropped_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    append_to_surface(path, [measured(0)], FACTS)
    with path.open("a") as file:
        file.write('{"launch":2,"env":{"NCCL_')

    assert len(load_surface(str(path)).recordings[DEFAULTS]) == 1
    append_to_surface(path, [measured(1)], FACTS)

    assert [row.launch for row in rows_of(path)] == [1, 2]


def test_one_file_holds_several_collectives_and_each_is_replayed_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    gather = nccl_env({"NCCL_PROTO": "allgather:ll"})
    launches = [
        measured(0, us=60.0),
        measured(1, us=30.0, collective="all_gather"),
        measured(2, gather, us=20.0, collective="all_gather"),
        measured(3, us=90.0, in_place=False),
    ]
    append_to_surface(path, launches, FACTS)

    surface = load_surface(str(path))
    other = surface.measuring("all_gather")

    assert [r.samples[8192][0] for r in surface.recordings[DEFAULTS]] == pytest.approx([60e-6])
    assert other.measured == Measured("all_gather", "bfloat16", Layout.WORLD, True)
    assert other.recordings[DEFAULTS][0].samples[8192][0] == pytest.approx(30e-6)
    # `allgather:ll` says of an all-gather what `LL` says.
    assert other.recordings[nccl_env({"NCCL_PROTO": "ll"})][0].samples[8192][0] == pytest.approx(20e-6)
    assert other.variables == {"NCCL_PROTO"}
    (elsewhere,) = surface.measuring("all_reduce", in_place=False).recordings[DEFAULTS]
    assert elsewhere.samples[8192][0] == pytest.approx(90e-6)
    assert other.measuring("all_reduce", in_place=True).recordings == surface.recordings


def test_what_was_not_recorded_is_refused_with_what_was(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    append_to_surface(path, [measured(0), measured(1, collective="all_gather")], FACTS)

    with pytest.raises(
        InputError,
        match=r"holds no broadcast, layout world[\s\S]*all_reduce, bfloat16, layout world, in place; all_gather",
    ):
        load_surface(str(path)).measuring("broadcast")
    with pytest.raises(InputError, match="holds no all_gather, float32, layout world"):
        load_surface(str(path)).measuring("all_gather", "float32")
    with pytest.raises(InputError, match="holds no all_gather, layout node"):
        load_surface(str(path)).measuring("all_gather", layout=Layout.WITHIN_NODE)


def test_a_collective_without_a_default_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    append_to_surface(path, [measured(0, TUNED, collective="all_gather"), measured(1)], FACTS)

    surface = load_surface(str(path))

    assert surface.measured.collective == "all_reduce"
    with pytest.raises(BrokenRecord, match="NCCL's default was never recorded for all_gather"):
        surface.measuring("all_gather")


def test_a_surface_cannot_be_recorded_into_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "30-bench.jsonl"
    save_lines_head(path, Launch)

    with pytest.raises(BrokenRecord, match=r"30-bench\.jsonl, line 1: "):
        append_to_surface(path, [measured(0)], FACTS)


def test_the_surfaces_that_ship_keep_the_communicators_of_each_launch() -> None:
    surface = load_surface("h200x2-nvlink")

    every = [recording for found in surface.recordings.values() for recording in found]
    assert (surface.facts["intra_fabric"], surface.facts["inter_fabric"]) == ("nvlink", "none")
    assert len({recording.launch for recording in every}) == 35
    assert max(recording.communicator for recording in every) == 11
    assert len(surface.recordings[DEFAULTS]) >= 7


@pytest.mark.parametrize("name", bundled_surfaces())
def test_the_surfaces_that_ship_say_what_a_topology_needs(name: str) -> None:
    facts = load_surface(name).facts

    needed = {
        "nccl",
        "driver",
        "gpu",
        "inter_fabric",
        "intra_fabric",
        "ranks",
        "node_count",
        "ranks_per_host",
    }
    assert needed | {"dtype", "recorded_at", "source"} <= set(facts)


def test_the_example_of_the_format_page_is_a_surface(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "surface-format.md").read_text()
    (tmp_path / "page.jsonl").write_text(page.split("```json\n")[1].split("```")[0])

    surface = load_surface(str(tmp_path / "page.jsonl"))

    assert surface.contents() == (
        Measured("all_reduce", "bfloat16", Layout.WORLD, True),
        Measured("all_gather", "bfloat16", Layout.WORLD, True),
    )


@pytest.mark.parametrize("kind", [SurfaceHead, SurfaceRow, RowSample, RowOverlap])
def test_every_field_of_the_format_stands_on_its_page(kind: type[Any]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "surface-format.md").read_text()

    assert [field for field in kind.__struct_fields__ if f"`{field}`" not in page] == []


def test_ranks_of_a_communicator_are_read_back(tmp_path: Path) -> None:
    made = msgspec.structs.replace(launch(0, DEFAULTS, 1e-3), communicator_ranks=8)
    append_to_surface(tmp_path / "own.jsonl", [made], FACTS)

    (found,) = load_surface(str(tmp_path / "own.jsonl")).recordings[DEFAULTS]

    assert (found.ranks, found.communicator_ranks) == (16, 8)
