"""Launches for people: the columns of nccl-tests, then how samples and launches differ from each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from topo_tune.records.bench import Collective, Launch, Layout, SizeResult
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.units import DATA_TYPES, algbw_gb_per_s, busbw_factor
from topo_tune.report.text import visible
from topo_tune.stats.summaries import coefficient_of_variation, median, p99

# The columns up to `#wrong` are those of NVIDIA/nccl-tests (src/util.cu), so that what reads its tables reads these.
# It measures out of place and in place; where one of the two was measured, the other half is left out.
_HEAD = "#       size         count      type   redop    root"
_HEAD_UNITS = "#        (B)    (elements)                          "
_HALF = "     time   algbw   busbw #wrong"
_HALF_UNITS = "     (us)  (GB/s)  (GB/s)       "
_PLACES = f"{'#':<{len(_HEAD)}}{'out-of-place':^{len(_HALF)}}{'in-place':^{len(_HALF)}}"
_SPREAD = "      min      P50      P99  over    launches  within between  mode"
_SPREAD_UNITS = "     (us)     (us)     (us)                       (%)     (%)"
_WIDTH = len(_HEAD + _HALF + _SPREAD + "  ")
"""columns of a row with everything in it: `graph` and `eager` are longer than their title"""
_OVERLAP = "#       size  collective     beside    slower   product     beside    slower  SM price"
_OVERLAP_UNITS = "#        (B)        (us)       (us)       (%)      (us)       (us)       (%)       (%)"

_PER_RANK = {Collective.ALL_GATHER.value, Collective.REDUCE_SCATTER.value, Collective.ALL_TO_ALL.value}
"""collectives whose `count` is that of one rank's part"""
_WITHOUT_REDUCTION = {Collective.ALL_GATHER.value, Collective.BROADCAST.value, Collective.ALL_TO_ALL.value}
"""`none` in the column redop; nccl-tests names its sum beside a send and receive too"""
_WITH_ROOT = {Collective.BROADCAST.value, Collective.REDUCE.value}


class _Group(NamedTuple):
    """Launches that one table shows."""

    env: NcclEnv
    collective: str
    dtype: str
    layout: Layout


def launches_report(
    launches: Sequence[Launch], collective: str, dtype: str, columns: int | None = None
) -> list[str]:
    """One table for each setting and collective, in the order of first appearance; failed launches have their reason.

    `collective`, `dtype`: of launches that do not say. time is the median over launches of each launch's median; min,
    P50 and P99 are over all calls that were timed one by one (`call`), or else over all samples (`sample`), the
    slowest rank's each; within is the median over launches of the coefficient of variation of a launch's samples,
    between that of the launches' medians. `columns`: of the terminal; where a row would not fit, its spread stands in
    comments below the table. Plain text, no markup.
    """
    is_narrow = columns is not None and columns < _WIDTH
    groups: dict[_Group, list[Launch]] = defaultdict(list)
    for launch in launches:
        # A launch that failed early says `all_reduce` by itself only where the caller says so too.
        own = launch.collective if launch.dtype else collective
        groups[_Group(launch.env, own, launch.dtype or dtype, launch.layout)].append(launch)
    lines: list[str] = []
    for group, found in groups.items():
        lines += ["", *_tables(group, found, is_narrow=is_narrow)]
    return [visible(line).rstrip() for line in lines[1:]]


def shown_results(launches: Sequence[Launch], size_bytes: int) -> list[SizeResult]:
    """Results of one size that may be shown as times: measured, and not wrong."""
    return [
        result
        for launch in launches
        if is_shown(launch)
        for result in launch.results
        if result.size_bytes == size_bytes and result.samples_seconds
    ]


def is_shown(launch: Launch) -> bool:
    """Whether a launch's times are shown. One that was cut off at some size is; one with a wrong result is not."""
    return launch.error is None and bool(launch.results) and not _is_wrong(launch)


def communicator_ranks(launch: Launch) -> int:
    """Ranks of one communicator: what bus bandwidth is counted with."""
    return launch.communicator_ranks or launch.ranks


def _tables(group: _Group, launches: list[Launch], *, is_narrow: bool) -> list[str]:
    shown = [launch for launch in launches if is_shown(launch)]
    lines = [f"# {group.env}", f"# {_what(group, launches, shown)}"]
    if shown:
        lines += _table(group, shown, is_narrow=is_narrow)
        lines += _overlaps(shown)
    return lines + _failures(launches)


def _what(group: _Group, launches: list[Launch], shown: list[Launch]) -> str:
    first = (shown or launches)[0]
    parts = [group.collective, f"{first.ranks} ranks"]
    if group.layout is not Layout.WORLD:
        parts.append(f"layout {group.layout.value} ({communicator_ranks(first)} in a communicator)")
    places = {launch.in_place for launch in launches}
    parts.append("out of place and in place" if len(places) > 1 else _place(first))
    parts += [f"back end {_source(first.backend)}", f"{len(shown)} of {len(launches)} launches usable"]
    return ", ".join(parts)


def _place(launch: Launch) -> str:
    return "in place" if launch.in_place else "out of place"


def _source(backend: BackendName) -> str:
    return f"{backend.value} (recorded times)" if backend is BackendName.REPLAY else backend.value


# --- the table ---


def _table(group: _Group, launches: list[Launch], *, is_narrow: bool) -> list[str]:
    halves = [
        half
        for half in ([x for x in launches if not x.in_place], [x for x in launches if x.in_place])
        if half
    ]
    sizes = sorted({result.size_bytes for launch in launches for result in launch.results})
    has_room = len(halves) == 1 and not is_narrow
    if has_room:
        lines = [_HEAD + _HALF + _SPREAD, _HEAD_UNITS + _HALF_UNITS + _SPREAD_UNITS]
    else:
        lines = [_PLACES] if len(halves) > 1 else []
        lines += [_HEAD + _HALF * len(halves), _HEAD_UNITS + _HALF_UNITS * len(halves)]
    for size in sizes:
        found = [shown_results(half, size) for half in halves]
        if any(found):
            row = _head(group, size, communicator_ranks(launches[0])) + "".join(
                _half(group, size, results, communicator_ranks(launches[0])) for results in found
            )
            lines.append(row + _spread(found[0]) if has_room else row)
    if not has_room:
        lines += _spreads(halves, sizes)
    return lines + [line for half in halves for line in _cut_off(half, sizes, is_alone=len(halves) == 1)]


def _head(group: _Group, size: int, ranks: int) -> str:
    known = DATA_TYPES.get(group.dtype)
    item_bytes, name = (known.item_bytes, known.nccl_tests) if known else (1, group.dtype)
    count = size // item_bytes // (ranks if group.collective in _PER_RANK else 1)
    redop = "none" if group.collective in _WITHOUT_REDUCTION else "sum"
    root = 0 if group.collective in _WITH_ROOT else -1
    return f"{size:12d}  {count:12d}  {name:>8}  {redop:>6}  {root:6d}"


def _half(group: _Group, size: int, results: list[SizeResult], ranks: int) -> str:
    if not results:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
    middle = median([median(result.samples_seconds) for result in results])
    algbw = algbw_gb_per_s(size, middle)
    busbw = algbw * busbw_factor(group.collective, ranks)
    return f"  {_us(middle):>7}  {algbw:6.2f}  {busbw:6.2f}  {_wrong(results):>5}"


def _spread(results: list[SizeResult]) -> str:
    calls = sorted(call for result in results for call in result.single_seconds)
    samples = sorted(sample for result in results for sample in result.samples_seconds)
    times, over = (calls, "call") if calls else (samples, "sample")
    medians = [median(result.samples_seconds) for result in results]
    within = [coefficient_of_variation(r.samples_seconds) for r in results if len(r.samples_seconds) > 1]
    return (
        f"  {_us(times[0]):>7}  {_us(median(times)):>7}  {_us(p99(times)):>7}  {over:<6}{len(results):10d}"
        f"{_percent(median(within) if within else None):>8}"
        f"{_percent(coefficient_of_variation(medians) if len(medians) > 1 else None):>8}"
        f"  {results[0].mode.value}"
    )


def _spreads(halves: list[list[Launch]], sizes: list[int]) -> list[str]:
    """The columns for which a row has no room, as comments below the table."""
    is_alone = len(halves) == 1
    title, units = ("", "") if is_alone else ("         place", "              ")
    lines = [f"#       size{title}{_SPREAD}", f"#        (B){units}{_SPREAD_UNITS}"]
    for size in sizes:
        for half in halves:
            results = shown_results(half, size)
            if results:
                place = "" if is_alone else f"{_place(half[0]):>14}"
                lines.append(f"#{size:11d}{place}" + _spread(results))
    return lines


def _cut_off(launches: list[Launch], sizes: list[int], *, is_alone: bool) -> list[str]:
    lines = []
    for size in sizes:
        results = [r for launch in launches for r in launch.results if r.size_bytes == size]
        limits = [r.slower_than_seconds for r in results if r.slower_than_seconds is not None]
        if limits:
            where = "" if is_alone else f" {_place(launches[0])}"
            lines.append(
                f"#{size:11d}{where}  slower than {_us(min(limits))} us and cut off there "
                f"in {len(limits)} of {len(results)} launches"
            )
    return lines


def _overlaps(launches: list[Launch]) -> list[str]:
    """What a collective and a matrix product beside it cost each other.

    SM price: the share of the product's rate that is gone while collectives run, which is the share of the GPU's
    multiprocessors that they take where nothing else is scarce.
    """
    lines = []
    for size in sorted({result.size_bytes for launch in launches for result in launch.results}):
        results = shown_results(launches, size)
        pairs = [(r, r.overlap) for r in results if r.overlap is not None]
        if not pairs:
            continue
        alone = median([median(result.samples_seconds) for result, _ in pairs])
        beside = median([overlap.collective_beside_seconds for _, overlap in pairs])
        product = median([overlap.compute_alone_seconds for _, overlap in pairs])
        slowed = median([overlap.compute_beside_seconds for _, overlap in pairs])
        lines.append(
            f"#{size:11d}{_us(alone):>12}{_us(beside):>11}{_percent(beside / alone - 1):>10}"
            f"{_us(product):>10}{_us(slowed):>11}{_percent(slowed / product - 1):>10}"
            f"{_percent(1 - product / slowed):>10}"
        )
    if not lines:
        return []
    return [
        "# a call beside a matrix product, and the product beside calls:",
        _OVERLAP,
        _OVERLAP_UNITS,
        *lines,
    ]


# --- what failed ---


def _failures(launches: list[Launch]) -> list[str]:
    failed: dict[str, list[str]] = defaultdict(list)
    for launch in launches:
        if not is_shown(launch):
            failed[_why(launch)].append(str(launch.index))
    return [
        f"# launch{'' if len(numbers) == 1 else 'es'} {', '.join(numbers)} failed: {reason}"
        for reason, numbers in failed.items()
    ]


def _why(launch: Launch) -> str:
    if launch.error:
        return launch.error
    if not _is_wrong(launch):
        return "it measured nothing"
    return "wrong sums" if launch.collective not in _WITHOUT_REDUCTION else "wrong results"


def _is_wrong(launch: Launch) -> bool:
    return any(result.is_correct is False for result in launch.results)


# --- numbers ---


def _wrong(results: list[SizeResult]) -> str:
    """As nccl-tests: 0 where every result was checked and right, N/A where one was not checked."""
    return "0" if all(result.is_correct is True for result in results) else "N/A"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}"


def _us(seconds: float) -> str:
    """Microseconds in at most seven characters, as nccl-tests: `14196`, `180.6`, `35.20`."""
    value = round(seconds * 1e6, 2)
    if value >= 10_000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"
