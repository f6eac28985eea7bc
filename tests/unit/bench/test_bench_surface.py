from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from topo_tune.bench.surface import bundled_surfaces, canonical, load_surface
from topo_tune.errors import BrokenRecord, InputError
from topo_tune.records.bench import Launch, SizeResult, TimingMode
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
    with pytest.raises(BrokenRecord, match="version 2; this topo-tune reads up to 1"):
        load_surface(write(tmp_path / "s.jsonl", {**HEAD, "version": 2}, row()))


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
