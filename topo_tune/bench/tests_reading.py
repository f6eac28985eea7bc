"""What a run of nccl-tests says, as results: samples of each size, or why there are none. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from topo_tune.bench.answers import settings_in_log
from topo_tune.errors import InputError
from topo_tune.job_output.log_lines import LogLine, log_lines
from topo_tune.job_output.per_iteration import calls_us
from topo_tune.job_output.tests_json import parse_json
from topo_tune.job_output.tests_output import cause_in, runs_in
from topo_tune.job_output.tests_ranks import Rank, rank_of
from topo_tune.job_output.tests_row import begun
from topo_tune.job_output.tests_trust import wrong_rows
from topo_tune.records.bench import SettingInForce, SizeResult, TimingMode
from topo_tune.records.nccl_documents import MeasuredRow, MeasuredRun
from topo_tune.records.units import format_bytes
from topo_tune.words import clipped

_MICROSECOND = 1e-6
_SAME_SIZE = 0.02
"""Sizes are rounded down to what the ranks can share evenly; more than this share off, another size was measured."""


class Expected(NamedTuple):
    """What a run was asked for."""

    sizes_bytes: tuple[int, ...]
    ranks: int
    nodes: int
    communicators: int
    in_place: bool
    calls_per_sample: int


class Reading(NamedTuple):
    """A run that has ended, as far as it can be read."""

    run: MeasuredRun | None
    """from the table that it printed"""
    rows: tuple[MeasuredRow, ...]
    """from its JSON file where there is one, which has more digits"""
    ranks: tuple[Rank, ...]
    lines: tuple[LogLine, ...]
    cause: str | None
    report: Mapping[str, Any]


def read(output: str, report: Mapping[str, Any] | None) -> Reading:
    """Everything that a command wrote to its terminal, and its JSON file."""
    lines = log_lines(output)
    plain = [line for line in lines if not line.level]
    runs = runs_in(plain)
    run = runs[0] if runs else None
    ranks = tuple(rank for line in plain if "Rank" in line.text and (rank := rank_of(line.text)) is not None)
    rows = run.rows if run is not None else ()
    exact = _rows_of(report)
    # Half a file, or that of another run, is no better than the table.
    same = len(exact) == len(rows) and all(
        a.size_bytes == b.size_bytes for a, b in zip(exact, rows, strict=True)
    )
    return Reading(run, exact if same else rows, ranks, tuple(lines), cause_in(plain), report or {})


def failure(reading: Reading, status: int | None, expected: Expected) -> str | None:
    """Why the numbers of a run are of no use; None where they are."""
    run = reading.run
    if run is None or not run.rows:
        return _gave_up(reading, status)
    if run.repeated_ranks:
        return "its processes did not form one job: a binary built without MPI, or a launcher that does not know it"
    if run.ranks is not None and run.ranks != expected.ranks:
        alone = ", so nothing was communicated" if run.ranks == 1 else ""
        return f"it ran with {_count(run.ranks, 'rank')} where {expected.ranks} were asked for{alone}"
    if run.ranks is not None and run.devices is not None and run.devices < run.ranks:
        return f"{run.ranks} ranks shared {_count(run.devices, 'GPU')}"
    if run.hosts and len(run.hosts) != expected.nodes:
        return f"it ran on {_count(len(run.hosts), 'node')} where {expected.nodes} were asked for"
    groups = {rank.group for rank in reading.ranks}
    if groups and expected.communicators > 1 and len(groups) != expected.communicators:
        return (
            f"it made {_count(len(groups), 'communicator')} where {expected.communicators} were asked for: "
            "this binary does not know NCCL_TESTS_SPLIT"
        )
    wrong = wrong_rows(run.rows, run.out_of_bounds)
    if wrong:
        return "; ".join(wrong)
    if status != 0:
        return _gave_up(reading, status)
    return _other_sizes(reading, expected)


def results(reading: Reading, expected: Expected) -> tuple[SizeResult, ...]:
    """Samples of each size: of a run that `failure` finds nothing wrong with, or whose results were wrong."""
    count = len(expected.sizes_bytes)
    return tuple(
        _result(size, reading.rows[position::count], reading.run, expected)
        for position, size in enumerate(expected.sizes_bytes)
        if reading.rows[position::count]
    )


def single_seconds(reading: Reading, expected: Expected) -> tuple[tuple[float, ...], ...]:
    """Per size the calls that were timed one by one; nothing where the file has none."""
    times = calls_us(reading.report, in_place=expected.in_place)
    if len(times) != len(expected.sizes_bytes):
        return ()
    return tuple(tuple(one * _MICROSECOND for one in calls) for calls in times)


def settings_in_force(
    reading: Reading, nodes: Sequence[str], ranks_per_node: int
) -> tuple[SettingInForce, ...]:
    """The variables that NCCL said it took, for each rank: a process says so once, for all of its ranks."""
    said: dict[str, list[str]] = {}
    for line in reading.lines:
        if line.level:
            said.setdefault(f"{_short(line.host)}:{line.process}", []).append(line.text)
    return tuple(
        setting
        for rank in sorted(reading.ranks)
        for setting in settings_in_log(
            rank.rank,
            nodes[min(rank.rank // ranks_per_node, len(nodes) - 1)],
            said.get(f"{_short(rank.host)}:{rank.process}", []),
        )
    )


def log_of_rank_0(reading: Reading) -> tuple[str, ...]:
    """NCCL's own lines of the process that holds rank 0."""
    first = next((rank for rank in sorted(reading.ranks) if rank.rank == 0), None)
    if first is None:
        return ()
    return tuple(line.text for line in reading.lines if line.level and line.process == str(first.process))


# --- rows ---


def _rows_of(report: Mapping[str, Any] | None) -> tuple[MeasuredRow, ...]:
    if report is None:
        return ()
    try:
        return parse_json(json.dumps(report)).runs[0].rows
    except InputError:
        return ()


def _result(
    size: int, rows: Sequence[MeasuredRow], run: MeasuredRun | None, expected: Expected
) -> SizeResult:
    halves = [row.in_place if expected.in_place else row.out_of_place for row in rows]
    times = [half.time_us for half in halves if half is not None and half.time_us]
    checked = run is not None and run.validation is not False
    checked = checked and all(half is not None and half.wrong is not None for half in halves)
    return SizeResult(
        size_bytes=size,
        samples_seconds=tuple(time * _MICROSECOND for time in times),
        calls_per_sample=expected.calls_per_sample,
        mode=TimingMode.NCCL_TESTS,
        is_correct=False if wrong_rows(rows, None) else True if checked else None,
    )


def _other_sizes(reading: Reading, expected: Expected) -> str | None:
    rows, wanted = reading.rows, expected.sizes_bytes
    told = "; ".join(reading.run.problems) if reading.run is not None else ""
    if not rows or len(rows) % len(wanted):
        return f"it measured {len(rows)} sizes, and not {len(wanted)}" + (f": {told}" if told else "")
    for position, row in enumerate(rows):
        size = wanted[position % len(wanted)]
        if abs(row.size_bytes - size) > _SAME_SIZE * size:
            return f"it measured {row.size_bytes} bytes in place of {format_bytes(size)}" + (
                f": {told}" if told else ""
            )
    halves = [row.in_place if expected.in_place else row.out_of_place for row in rows]
    if not all(half is not None and half.time_us for half in halves):
        return f"it has no times {'in place' if expected.in_place else 'out of place'}"
    return None


def _gave_up(reading: Reading, status: int | None) -> str:
    """The reason that the output names, or the last line that is neither the table's nor a comment."""
    if reading.cause is not None:
        return reading.cause
    warning = next((line.text for line in reading.lines if line.level == "WARN"), None)
    own = [line.text for line in reading.lines if not line.text.startswith("#") and begun(line.text) is None]
    last = warning or (own[-1] if own else "")
    return f"it ended with status {status}" + (f": {clipped(last, 200)}" if last else " and without a word")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(host: str) -> str:
    """NCCL and nccl-tests write a host's name up to its first dot, but not in every version."""
    return host.split(".", 1)[0]
