"""Launches for people: the columns of nccl-tests, then how launches differ from each other."""

from __future__ import annotations

import statistics
from collections import defaultdict

from topo_tune.records.bench import Launch
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.units import algbw_gb_per_s, busbw_factor, format_seconds

_HEADER = (
    f"{'size(B)':>12} {'count':>11} {'type':>9} {'redop':>6}   {'time(us)':>9} {'algbw':>8} {'busbw':>8} "
    f"{'#wrong':>7}   {'min(us)':>9} {'P99(us)':>9} {'launch cv':>9}  mode"
)
_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "uint8": 1, "int32": 4, "float64": 8}


def launches_report(launches: tuple[Launch, ...], collective: str, dtype: str) -> list[str]:
    """One table for each setting, in the order of first appearance; failed launches are told with their reason.

    time is the median over launches of each launch's median; min and P99 are over all samples; `launch cv` is the
    coefficient of variation of the launches' medians.
    """
    by_env: dict[NcclEnv, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_env[launch.env].append(launch)
    lines: list[str] = []
    for env, found in by_env.items():
        lines += ["", *_setting(env, found, collective, dtype)]
    return lines[1:]


def _setting(env: NcclEnv, launches: list[Launch], collective: str, dtype: str) -> list[str]:
    usable = [launch for launch in launches if launch.is_usable]
    ranks = usable[0].ranks if usable else 0
    backend = launches[0].backend
    lines = [
        f"# {collective}, {ranks} ranks, back end {_name(backend)}, {len(usable)} of {len(launches)} launches, {env}"
    ]
    if usable:
        lines.append("# " + _HEADER[2:])
        for size in sorted({result.size_bytes for launch in usable for result in launch.results}):
            lines.append(_row(size, usable, ranks, collective, dtype))
    lines += [
        f"# launch {launch.index} failed: {launch.error}" for launch in launches if not launch.is_usable
    ]
    return lines


def _name(backend: BackendName) -> str:
    return f"{backend.value} (recorded times)" if backend is BackendName.REPLAY else backend.value


def _row(size: int, launches: list[Launch], ranks: int, collective: str, dtype: str) -> str:
    results = [r for launch in launches for r in launch.results if r.size_bytes == size]
    medians = [statistics.median(result.samples_seconds) for result in results]
    samples = sorted(sample for result in results for sample in result.samples_seconds)
    middle = statistics.median(medians)
    algbw = algbw_gb_per_s(size, middle)
    spread = (
        f"{statistics.stdev(medians) / statistics.mean(medians):9.1%}" if len(medians) > 1 else f"{'-':>9}"
    )
    p99 = samples[min(len(samples) - 1, round(0.99 * (len(samples) - 1)))]
    wrong = {True: "0", False: "WRONG", None: "N/A"}[results[0].is_correct]
    return (
        f"{size:12d} {size // _ITEM_BYTES.get(dtype, 1):11d} {dtype:>9} {'sum':>6}   {middle * 1e6:9.2f} "
        f"{algbw:8.2f} {algbw * busbw_factor(collective, ranks):8.2f} {wrong:>7}   {samples[0] * 1e6:9.2f} "
        f"{p99 * 1e6:9.2f} {spread}  {results[0].mode.value}"
    )


def launch_line(launch: Launch) -> str:
    """One line about one launch, for progress on a plain terminal."""
    if launch.error is not None:
        return f"launch {launch.index} {launch.purpose} {launch.env}: {launch.error}"
    times = ", ".join(format_seconds(seconds) for seconds in launch.median_seconds().values())
    return f"launch {launch.index} {launch.purpose} {launch.env}: {times}"
