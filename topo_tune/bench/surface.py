"""Recorded surfaces: for each NCCL setting the launches that were measured with it.

Two kinds of file are read: a surface that ships with topo-tune (`bench/surfaces/NAME.jsonl`: a head line, then one row
a communicator) and the `30-bench.jsonl` of any run folder (one launch a line).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TypeVar

import msgspec

from topo_tune.errors import BrokenRecord, InputError, did_you_mean
from topo_tune.records.bench import Launch
from topo_tune.records.envelope import load, load_lines
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.topology import Topology

Line = TypeVar("Line")

VERSION = 1
"""of the files that ship with topo-tune"""


class Recording(msgspec.Struct, frozen=True):
    """One recorded launch of one setting."""

    env: NcclEnv
    samples: dict[int, tuple[float, ...]]
    """size in bytes to samples in seconds"""
    error: str | None


class Surface(msgspec.Struct, frozen=True):
    """Recordings by canonical setting, and the facts of the machine they came from."""

    name: str
    facts: dict[str, str]
    """nccl, driver, gpu, cpu_vendor, inter_fabric, intra_fabric, ranks, node_count, ranks_per_host, dtype, recorded_at,
    source"""
    recordings: dict[NcclEnv, tuple[Recording, ...]]
    variables: frozenset[str]
    """canonical names that some recording sets"""

    def sizes_bytes(self) -> tuple[int, ...]:
        """The message sizes of the default's recordings."""
        default = self.recordings.get(NcclEnv(), ())
        return tuple(sorted({size for recording in default for size in recording.samples}))


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    surface: str
    version: int
    collective: str
    facts: dict[str, str]


class _Sample(msgspec.Struct, forbid_unknown_fields=True):
    size_bytes: int
    median_us: float
    min_us: float
    max_us: float
    timing: str


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    launch: int
    env: dict[str, str]
    ok: bool
    error: str | None = None
    samples: tuple[_Sample, ...] = ()


def bundled_surfaces() -> tuple[str, ...]:
    """Names of the surfaces that ship with topo-tune."""
    folder = resources.files("topo_tune.bench") / "surfaces"
    return tuple(
        sorted(entry.name[: -len(".jsonl")] for entry in folder.iterdir() if entry.name.endswith(".jsonl"))
    )


def load_surface(name_or_path: str) -> Surface:
    """A surface by its name or from a file. Raises InputError for an unknown name, BrokenRecord for a damaged file."""
    if name_or_path in bundled_surfaces():
        text = (resources.files("topo_tune.bench") / "surfaces" / f"{name_or_path}.jsonl").read_text("utf-8")
        return _from_rows(text, name_or_path)
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise InputError(
            f"no surface `{name_or_path}`: neither a file nor one that ships with topo-tune",
            hint=did_you_mean(name_or_path, bundled_surfaces()),
        )
    try:
        raw = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot read the surface {path}: {exc.strerror}") from exc
    if b'"surface"' in raw[:40]:
        return _from_rows(raw.decode("utf-8", "replace"), str(path))
    return _from_launches(path)


def canonical(env: NcclEnv) -> NcclEnv:
    """The setting under the names and spellings that recordings are compared by.

    NCCL_MIN_CTAS and NCCL_MIN_NCHANNELS limit the same channel count (the higher minimum and the lower maximum win,
    src/init.cc), and for an all-reduce `allreduce:ring` says what `Ring` says (src/graph/tuning.cc).
    """
    settings: dict[str, str] = {}
    for name, value in env.settings:
        if name in ("NCCL_ALGO", "NCCL_PROTO"):
            value = value.lower()
            value = value[len("allreduce:") :] if value.startswith("allreduce:") else value
        name, wins = _CHANNEL_LIMITS.get(name, (name, None))
        if wins is not None and name in settings:
            value = wins(settings[name], value, key=_number)
        settings[name] = value
    return NcclEnv(tuple(sorted(settings.items())))


_CHANNEL_LIMITS: dict[str, tuple[str, Callable[..., str]]] = {
    "NCCL_MIN_CTAS": ("NCCL_MIN_CTAS", max),
    "NCCL_MIN_NCHANNELS": ("NCCL_MIN_CTAS", max),
    "NCCL_MAX_CTAS": ("NCCL_MAX_CTAS", min),
    "NCCL_MAX_NCHANNELS": ("NCCL_MAX_CTAS", min),
}


def _number(value: str) -> int:
    """How NCCL reads an integer, near enough to compare two: what is none counts as 0."""
    return int(value) if value.lstrip("+-").isdecimal() else 0


def _from_rows(text: str, where: str) -> Surface:
    lines = text.splitlines()
    head = _line(lines[0], _Head, f"surface {where}, line 1")
    if head.version > VERSION:
        raise BrokenRecord(
            f"surface {where}: version {head.version}; this topo-tune reads up to {VERSION}",
            hint="use a newer topo-tune",
        )
    rows = [
        _line(line, _Row, f"surface {where}, line {number}") for number, line in enumerate(lines[1:], start=2)
    ]
    recordings = [
        Recording(
            env=canonical(NcclEnv(tuple(sorted(row.env.items())))),
            samples={sample.size_bytes: _five(sample) for sample in row.samples},
            error=None if row.ok else f"recorded as failed: {row.error}",
        )
        for row in rows
    ]
    return _surface(head.surface, head.facts, recordings)


def _line(line: str, kind: type[Line], where: str) -> Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise BrokenRecord(f"{where}: {exc}", hint="the file is damaged or was edited by hand") from exc


def _five(sample: _Sample) -> tuple[float, ...]:
    """Five samples with the recorded minimum, median and maximum; only those three were kept."""
    low, middle, high = sample.min_us * 1e-6, sample.median_us * 1e-6, sample.max_us * 1e-6
    return (low, (low + middle) / 2, middle, (middle + high) / 2, high)


def _from_launches(path: Path) -> Surface:
    launches = load_lines(path, Launch)
    if not launches:
        raise BrokenRecord(f"{path}: no launches to replay")
    recordings = [
        Recording(
            env=canonical(launch.env),
            samples={result.size_bytes: result.samples_seconds for result in launch.results},
            error=launch.error,
        )
        for launch in launches
    ]
    facts = {
        "ranks": str(next((launch.ranks for launch in launches if launch.ranks), 0)),
        "source": f"launches of {path.name} by back end {launches[0].backend.value}, from {launches[0].started_at}",
    }
    topology = path.with_name("20-topology.json")
    if topology.exists():
        facts |= _facts_of(load(topology, Topology))
    return _surface(path.parent.name or path.stem, facts, recordings)


def _facts_of(topology: Topology) -> dict[str, str]:
    known = {
        "nccl": topology.nccl_version,
        "driver": topology.driver,
        "gpu": topology.gpu_model,
        "cpu_vendor": topology.cpu_vendor,
        "inter_fabric": topology.inter_fabric.value,
        "intra_fabric": topology.intra_fabric.value,
        "node_count": str(topology.node_count),
        "ranks_per_host": str(topology.ranks_per_host),
    }
    return {name: value for name, value in known.items() if value is not None}


def _surface(name: str, facts: dict[str, str], recordings: list[Recording]) -> Surface:
    by_env: dict[NcclEnv, list[Recording]] = {}
    for recording in recordings:
        by_env.setdefault(recording.env, []).append(recording)
    if not any(r.error is None for r in by_env.get(NcclEnv(), ())):
        raise BrokenRecord(
            f"surface {name}: NCCL's default was never recorded, so nothing can be compared with it"
        )
    return Surface(
        name=name,
        facts=facts,
        recordings={env: tuple(found) for env, found in by_env.items()},
        variables=frozenset(n for env in by_env for n in env.names()),
    )
