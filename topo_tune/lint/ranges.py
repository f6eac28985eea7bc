"""Numbers with bounds: what NCCL takes, and what it does with the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from topo_tune.lint.message import Message
from topo_tune.lint.setting import Setting, Target
from topo_tune.records.finding import Severity

CHANNELS_64_SINCE = (2, 25)
"""At most 64 channels from this version on; 32 before."""

SMALLEST_BUFFER = 65536
"""Bytes. A buffer is cut into 8 steps; below this a step holds less than a page of the smallest chunks."""


class _Range(msgspec.Struct, frozen=True):
    """Bounds, both taken; -1 is the automatic value where `auto` says so."""

    low: int
    high: int | None
    otherwise: str
    """what NCCL does outside"""
    severity: Severity | None = None
    auto: tuple[int, ...] = ()


_CUT = "NCCL cuts it"
_PORT_ERROR = "the device refuses it and connections fail"
_RANGES: Mapping[str, _Range] = {
    "NCCL_IB_TIMEOUT": _Range(1, 31, "a lost peer is waited for without end", Severity.ERROR),
    "NCCL_IB_RETRY_CNT": _Range(0, 7, _PORT_ERROR, Severity.ERROR),
    "NCCL_IB_SL": _Range(0, 15, "a service level has four bits", auto=(-1,)),
    "NCCL_IB_TC": _Range(0, 255, "a traffic class has eight bits", auto=(-1,)),
    "NCCL_IB_FIFO_TC": _Range(0, 255, "a traffic class has eight bits", auto=(-1,)),
    "NCCL_IB_GID_INDEX": _Range(0, 255, "no device has so many GIDs", auto=(-1,)),
    "NCCL_IB_QPS_PER_CONNECTION": _Range(
        1, 128, "a connection has room for 128 queue pairs and NCCL does not check", Severity.ERROR
    ),
    "NCCL_CGA_CLUSTER_SIZE": _Range(0, 8, _CUT),
    "NCCL_SOCKET_NTHREADS": _Range(0, 16, _CUT, auto=(-2,)),
    "NCCL_NSOCKS_PERTHREAD": _Range(1, 64, _CUT, auto=(-2,)),
    "NCCL_NCHANNELS_PER_NET_PEER": _Range(1, None, "NCCL ignores it"),
    "NCCL_NVLS_NCHANNELS": _Range(1, None, "NCCL ignores it"),
    "NCCL_P2P_NET_CHUNKSIZE": _Range(1, None, "there is no such size", Severity.ERROR),
    "NCCL_SOCKET_RETRY_CNT": _Range(0, None, "there is no such count"),
}
_CHANNELS = {
    "NCCL_MIN_CTAS": 1,
    "NCCL_MAX_CTAS": 1,
    "NCCL_MIN_NCHANNELS": 0,
    "NCCL_MAX_NCHANNELS": 1,
    "NCCL_MIN_P2P_NCHANNELS": 1,
    "NCCL_MAX_P2P_NCHANNELS": 1,
    "NCCL_MIN_NRINGS": 0,
    "NCCL_MAX_NRINGS": 1,
}
_THREADS = {"NCCL_NTHREADS": (64, 512), "NCCL_LL128_NTHREADS": (160, 640)}
_WARP = 32
_POWERS_OF_TWO = {"NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_WORK_FIFO_BYTES"}
_LARGEST_FIFO = 1 << 30


def out_of_range(setting: Setting, value: int, target: Target) -> Iterator[Message]:
    """What is odd about a number that NCCL can read."""
    bounds = _RANGES.get(setting.name)
    if setting.name in _CHANNELS:
        high = 64 if target.version >= CHANNELS_64_SINCE else 32
        bounds = _Range(_CHANNELS[setting.name], high, f"{target.nccl} cuts or ignores it")
    if bounds is not None and value not in bounds.auto:
        yield from _outside(setting, value, bounds)
    if setting.name in _THREADS:
        yield from _threads(setting, value)
    if setting.name in _POWERS_OF_TWO:
        yield from _size(setting, value)


def _outside(setting: Setting, value: int, bounds: _Range) -> Iterator[Message]:
    if bounds.low <= value and (bounds.high is None or value <= bounds.high):
        return
    taken = f"{bounds.low} to {bounds.high}" if bounds.high is not None else f"{bounds.low} or more"
    text = f"{value} is outside of {taken}: {bounds.otherwise}"
    yield setting.about("out-of-range", text, severity=bounds.severity)


def _threads(setting: Setting, value: int) -> Iterator[Message]:
    low, high = _THREADS[setting.name]
    if value % _WARP == 0 and low <= value <= high:
        return
    becomes = low if value % _WARP == 0 and value < low else high
    text = f"{value} is no multiple of {_WARP} from {low} to {high}: NCCL takes {becomes} and warns"
    yield setting.about("odd-threads", text)


def _size(setting: Setting, value: int) -> Iterator[Message]:
    if setting.name == "NCCL_WORK_FIFO_BYTES":
        if value <= 0 or value & (value - 1) or value > _LARGEST_FIFO:
            text = f"{value} is no power of two up to {_LARGEST_FIFO}: NCCL takes its default and warns"
            yield setting.about("odd-size", text)
    elif value < SMALLEST_BUFFER:
        text = f"{value} bytes are no buffer: NCCL checks no lower bound, and cuts it into 8 steps"
        yield setting.about("odd-size", text, "the default is 4194304", severity=Severity.ERROR)
    elif value & (value - 1):
        text = f"{value} is no power of two, which NVIDIA's guide asks for"
        yield setting.about("odd-size", text)
