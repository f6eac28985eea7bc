"""Recorded surfaces: for each NCCL setting the launches that were measured with it.

Two kinds of file are read: a surface (a head line, then one row a communicator; some ship with topo-tune as
`bench/surfaces/NAME.jsonl`) and the `30-bench.jsonl` of any run folder (one launch a line).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from topo_tune.bench.surface_rows import MICROSECOND, VERSION, SurfaceHead, SurfaceRow, row_of
from topo_tune.errors import BrokenRecord, InputError, Refused, did_you_mean
from topo_tune.records.bench import Launch, Layout
from topo_tune.records.envelope import append_line, load, load_lines, write_whole
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.topology import Topology

Line = TypeVar("Line")


class Measured(NamedTuple):
    """What was measured: times of two of these are not comparable."""

    collective: str = "all_reduce"
    dtype: str = ""
    layout: Layout = Layout.WORLD
    in_place: bool = True

    def __str__(self) -> str:
        words = [self.collective, *([self.dtype] if self.dtype else []), f"layout {self.layout.value}"]
        return ", ".join([*words, "in place" if self.in_place else "out of place"])


class Recording(msgspec.Struct, frozen=True):
    """One recorded communicator of one setting."""

    env: NcclEnv
    samples: dict[int, tuple[float, ...]]
    """size in bytes to samples in seconds"""
    error: str | None
    launch: int = 0
    """number of the set of processes; recordings that share one are not independent of each other"""
    communicator: int = 0
    measured: Measured = Measured()
    slower_than: dict[int, float] = {}
    """size in bytes to the seconds after which it was cut off"""
    ranks: int | None = None
    """None: as the facts of its surface say"""
    communicator_ranks: int | None = None
    """None: all of them"""


class Surface(msgspec.Struct, frozen=True):
    """Recordings by canonical setting, and the facts of the machine they came from."""

    name: str
    facts: dict[str, str]
    """nccl, driver, gpu, cpu_vendor, inter_fabric, intra_fabric, ranks, node_count, ranks_per_host, dtype, recorded_at,
    source"""
    recordings: dict[NcclEnv, tuple[Recording, ...]]
    """of what `measured` says"""
    variables: frozenset[str]
    """canonical names that some of these recordings set"""
    measured: Measured = Measured()
    rest: tuple[Recording, ...] = ()
    """of everything else that was measured"""

    def sizes_bytes(self) -> tuple[int, ...]:
        """The message sizes of the default's recordings."""
        default = self.recordings.get(NcclEnv(), ())
        return tuple(sorted({size for recording in default for size in recording.samples}))

    def contents(self) -> tuple[Measured, ...]:
        """Everything that was measured, what `recordings` holds first."""
        return tuple(dict.fromkeys((self.measured, *(recording.measured for recording in self.rest))))

    def measuring(
        self,
        collective: str,
        dtype: str = "",
        layout: Layout = Layout.WORLD,
        in_place: bool | None = None,
    ) -> Surface:
        """The same surface with the recordings of one collective; empty or None leaves a choice open.

        Raises InputError when nothing of the kind was recorded, BrokenRecord when its default was not.
        """
        for measured in self.contents():
            if (
                (measured.collective, measured.layout) == (collective, layout)
                and dtype in ("", measured.dtype)
                and in_place in (None, measured.in_place)
            ):
                every = [recording for found in self.recordings.values() for recording in found]
                return _surface(self.name, self.facts, [*every, *self.rest], measured)
        wanted = ", ".join([collective, *([dtype] if dtype else []), f"layout {layout.value}"])
        raise InputError(
            f"the surface `{self.name}` holds no {wanted}",
            hint=f"recorded: {'; '.join(str(measured) for measured in self.contents())}",
        )


def bundled_surfaces() -> tuple[str, ...]:
    """Names of the surfaces that ship with topo-tune."""
    folder = resources.files("topo_tune.bench") / "surfaces"
    return tuple(
        sorted(entry.name[: -len(".jsonl")] for entry in folder.iterdir() if entry.name.endswith(".jsonl"))
    )


def load_surface(name_or_path: str) -> Surface:
    """A surface by its name or from a file. Raises InputError for an unknown name, BrokenRecord for a damaged file.

    Its recordings are of the file's first collective whose default was recorded; `Surface.measuring` chooses another.
    """
    if name_or_path in bundled_surfaces():
        text = (resources.files("topo_tune.bench") / "surfaces" / f"{name_or_path}.jsonl").read_text("utf-8")
        return _from_rows(text, name_or_path)
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise InputError(
            f"no surface `{name_or_path}`: neither a file nor one that ships with topo-tune",
            hint=did_you_mean(name_or_path, bundled_surfaces()),
        )
    raw = _read(path)
    if b'"surface"' in raw[:40]:
        return _from_rows(raw.decode("utf-8", "replace"), str(path))
    return _from_launches(path)


def append_to_surface(path: Path, launches: Sequence[Launch], facts: Mapping[str, str]) -> int:
    """Add launches to a surface, and make the file where there is none. How many rows were written.

    `facts`: of the machine; see `Surface.facts`. Launches that share `processes` share a number in the file. Raises
    Refused when the file was recorded on another machine or with other versions, InputError when the file cannot be
    made, BrokenRecord when it is damaged or cannot be written on.
    """
    last = 0
    if path.exists():
        head, rows = _parsed(_read(path).decode("utf-8", "replace"), str(path))
        _check_same_machine(path, head.facts, facts)
        last = max((row.launch for row in rows), default=0)
    else:
        made = SurfaceHead(surface=path.stem, version=VERSION, facts=dict(facts))
        write_whole(path, msgspec.json.encode(made) + b"\n")
    rows = list(_numbered(sorted(launches, key=lambda launch: launch.index), last))
    for row in rows:
        append_line(path, row)
    return len(rows)


def facts_of(topology: Topology) -> dict[str, str]:
    """The facts of a surface that is measured on this topology."""
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


def canonical(env: NcclEnv, collective: str = "all_reduce") -> NcclEnv:
    """The setting under the names and spellings that recordings of a collective are compared by.

    NCCL_MIN_CTAS and NCCL_MIN_NCHANNELS limit the same channel count (the higher minimum and the lower maximum win,
    src/init.cc), and for an all-reduce `allreduce:ring` says what `Ring` says (src/graph/tuning.cc).
    """
    settings: dict[str, str] = {}
    scope = collective.replace("_", "") + ":"
    for name, value in env.settings:
        if name in ("NCCL_ALGO", "NCCL_PROTO"):
            value = value.lower().removeprefix(scope)
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


# --- reading ---


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot read the surface {path}: {exc.strerror}") from exc


def _from_rows(text: str, where: str) -> Surface:
    head, rows = _parsed(text, where)
    return _surface(head.surface, head.facts, [_recording(row, head) for row in rows])


def _parsed(text: str, where: str) -> tuple[SurfaceHead, list[SurfaceRow]]:
    # Behind the last newline stands nothing, or what a crash left of a line.
    lines = text.split("\n")[:-1]
    if not lines:
        raise BrokenRecord(
            f"surface {where}: it has no head", hint="the file is damaged or was edited by hand"
        )
    head = _line(lines[0], SurfaceHead, f"surface {where}, line 1")
    if head.version > VERSION:
        raise BrokenRecord(
            f"surface {where}: version {head.version}; this topo-tune reads up to {VERSION}",
            hint="use a newer topo-tune",
        )
    rows = [
        _line(line, SurfaceRow, f"surface {where}, line {number}")
        for number, line in enumerate(lines[1:], start=2)
    ]
    return head, rows


def _line(line: str, kind: type[Line], where: str) -> Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise BrokenRecord(f"{where}: {exc}", hint="the file is damaged or was edited by hand") from exc


def _recording(row: SurfaceRow, head: SurfaceHead) -> Recording:
    measured = Measured(
        row.collective or head.collective,
        row.dtype or head.facts.get("dtype", ""),
        row.layout,
        row.in_place,
    )
    return Recording(
        env=canonical(NcclEnv(tuple(sorted(row.env.items()))), measured.collective),
        samples={s.size_bytes: s.seconds() for s in row.samples if s.seconds()},
        error=None if row.ok else f"recorded as failed: {row.error}",
        launch=row.launch,
        communicator=row.communicator,
        measured=measured,
        slower_than={
            s.size_bytes: s.slower_than_us * MICROSECOND for s in row.samples if s.slower_than_us is not None
        },
        ranks=row.ranks,
        communicator_ranks=row.communicator_ranks,
    )


def _from_launches(path: Path) -> Surface:
    launches = load_lines(path, Launch)
    if not launches:
        raise BrokenRecord(f"{path}: no launches to replay")
    recordings = [
        _recording_of(launch, row) for launch, row in zip(launches, _numbered(launches, 0), strict=True)
    ]
    facts = {
        "ranks": str(next((launch.ranks for launch in launches if launch.ranks), 0)),
        "source": f"launches of {path.name} by back end {launches[0].backend.value}, from {launches[0].started_at}",
    }
    topology = path.with_name("20-topology.json")
    if topology.exists():
        facts |= facts_of(load(topology, Topology))
    return _surface(path.parent.name or path.stem, facts, recordings)


def _recording_of(launch: Launch, row: SurfaceRow) -> Recording:
    return Recording(
        env=canonical(launch.env, launch.collective),
        samples={r.size_bytes: r.samples_seconds for r in launch.results if r.samples_seconds},
        error=launch.error,
        launch=row.launch,
        communicator=row.communicator,
        measured=Measured(launch.collective, launch.dtype, launch.layout, launch.in_place),
        slower_than={
            r.size_bytes: r.slower_than_seconds for r in launch.results if r.slower_than_seconds is not None
        },
        ranks=launch.ranks or None,
        communicator_ranks=launch.communicator_ranks,
    )


def _surface(
    name: str, facts: dict[str, str], recordings: list[Recording], wanted: Measured | None = None
) -> Surface:
    measured = wanted or next((r.measured for r in recordings if _is_default(r)), None)
    if measured is None or not any(r.measured == measured and _is_default(r) for r in recordings):
        of = f" for {measured}" if measured else ""
        raise BrokenRecord(
            f"surface {name}: NCCL's default was never recorded{of}, so nothing can be compared with it"
        )
    by_env: dict[NcclEnv, list[Recording]] = {}
    for recording in recordings:
        if recording.measured == measured:
            by_env.setdefault(recording.env, []).append(recording)
    return Surface(
        name=name,
        facts=facts,
        recordings={env: tuple(found) for env, found in by_env.items()},
        variables=frozenset(n for env in by_env for n in env.names()),
        measured=measured,
        rest=tuple(recording for recording in recordings if recording.measured != measured),
    )


def _is_default(recording: Recording) -> bool:
    return recording.error is None and recording.env == NcclEnv()


# --- writing ---

_TOLD_EACH_TIME = frozenset({"recorded_at", "source", "ranks", "dtype"})
"""facts that may differ between launches of one file: rows have their own, or they say nothing of the machine"""


def _check_same_machine(path: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    changed = [
        f"{name}: {then[name]} there, {now[name]} here"
        for name in sorted(then.keys() & now.keys() - _TOLD_EACH_TIME)
        if then[name] != now[name]
    ]
    if changed:
        raise Refused(
            f"{path} was recorded elsewhere: {'; '.join(changed)}",
            hint="times of different machines do not belong in one surface; record into another file",
        )


def _numbered(launches: Iterable[Launch], last: int) -> Iterator[SurfaceRow]:
    """A row of each launch: sets of processes count up behind `last`, communicators within each."""
    sets: dict[tuple[str, int], int] = {}
    made: Counter[int] = Counter()
    for launch in launches:
        own = ("launch", launch.index)
        key = own if launch.processes is None else ("processes", launch.processes)
        number = sets.setdefault(key, last + len(sets) + 1)
        yield row_of(launch, number, made[number])
        made[number] += 1
