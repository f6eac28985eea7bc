"""Launches for people: the columns of nccl-tests, then how launches differ from each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from topo_tune.records.bench import Launch, SizeResult
from topo_tune.records.inventory import BackendName
from topo_tune.records.nccl_env import NcclEnv
from topo_tune.records.units import algbw_gb_per_s, busbw_factor
from topo_tune.report.text import visible
from topo_tune.stats.summaries import coefficient_of_variation, median, p99

# The first nine columns are those of NVIDIA/nccl-tests (src/common.cu), so that what reads its tables reads these.
# It measures out of place and in place; here one of the two is measured, so its second half is left out.
_TITLES = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "      min      P99  launches      cv  mode"
)
_UNITS = (
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "     (us)     (us)               (%)"
)
_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "uint8": 1, "int32": 4, "float64": 8}
_NAMES = {"float16": "half", "float32": "float", "float64": "double"}
"""nccl-tests' names of types where they differ from torch's"""


def launches_report(launches: Sequence[Launch], collective: str, dtype: str) -> list[str]:
    """One table for each setting, in the order of first appearance; failed launches are told with their reason.

    time is the median over launches of each launch's median; min and P99 are over all samples, where the samples
    are the slowest rank's; cv is the coefficient of variation of the launches' medians. Plain text, no markup.
    """
    by_env: dict[NcclEnv, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_env[launch.env].append(launch)
    lines: list[str] = []
    for env, found in by_env.items():
        lines += ["", *_setting(env, found, collective, dtype)]
    return [visible(line) for line in lines[1:]]


def _setting(env: NcclEnv, launches: list[Launch], collective: str, dtype: str) -> list[str]:
    usable = [launch for launch in launches if launch.is_usable]
    ranks = launches[0].ranks
    lines = [
        f"# {env}",
        f"# {collective}, {ranks} ranks, back end {_source(launches[0].backend)}, "
        f"{len(usable)} of {len(launches)} launches usable",
    ]
    if usable:
        ranks = usable[0].ranks
        lines += [_TITLES, _UNITS]
        for size in sorted({result.size_bytes for launch in usable for result in launch.results}):
            lines.append(_row(size, usable, ranks, collective, dtype))
    return lines + _failures(launches)


def _failures(launches: list[Launch]) -> list[str]:
    failed: dict[str, list[str]] = defaultdict(list)
    for launch in launches:
        if not launch.is_usable:
            failed[_why(launch)].append(str(launch.index))
    return [
        f"# launch{'' if len(numbers) == 1 else 'es'} {', '.join(numbers)} failed: {reason}"
        for reason, numbers in failed.items()
    ]


def _source(backend: BackendName) -> str:
    return f"{backend.value} (recorded times)" if backend is BackendName.REPLAY else backend.value


def _why(launch: Launch) -> str:
    return launch.error or ("wrong sums" if launch.results else "it measured nothing")


def _row(size: int, launches: list[Launch], ranks: int, collective: str, dtype: str) -> str:
    results = [r for launch in launches for r in launch.results if r.size_bytes == size]
    medians = [median(result.samples_seconds) for result in results]
    samples = sorted(sample for result in results for sample in result.samples_seconds)
    middle = median(medians)
    algbw = algbw_gb_per_s(size, middle)
    busbw = algbw * busbw_factor(collective, ranks)
    spread = f"{coefficient_of_variation(medians) * 100:.1f}" if len(medians) > 1 else "-"
    count = size // _ITEM_BYTES.get(dtype, 1)
    return (
        f"{size:12d}  {count:12d}  {_NAMES.get(dtype, dtype):>8}  {'sum':>6}  {-1:6d}  {_us(middle):>7}"
        f"  {algbw:6.2f}  {busbw:6.2f}  {_wrong(results):>5}  {_us(samples[0]):>7}  {_us(p99(samples)):>7}"
        f"  {len(results):8d}  {spread:>6}  {results[0].mode.value}"
    )


def _wrong(results: list[SizeResult]) -> str:
    """As nccl-tests: 0 where every sum was checked and right, N/A where one was not checked."""
    return "0" if all(result.is_correct is True for result in results) else "N/A"


def _us(seconds: float) -> str:
    """Microseconds in at most seven characters, as nccl-tests: `14196`, `180.6`, `35.20`."""
    value = round(seconds * 1e6, 2)
    if value >= 10_000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"
