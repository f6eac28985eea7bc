"""GPUs that are none: $DOUBLE_GPUS of them, with graphs that record calls and a clock that only calls move."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import distributed


def device_count() -> int:
    count = os.environ.get("DOUBLE_GPUS", "0")
    if not count.isdigit():
        raise RuntimeError(count)
    return int(count)


def set_device(device: str) -> None:
    pass


def synchronize() -> None:
    pass


class CUDAGraph:
    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


@contextmanager
def graph(into: CUDAGraph, capture_error_mode: str) -> Iterator[None]:
    distributed.capture = into.calls
    yield
    distributed.capture = None


class Event:
    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = distributed.clock()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3
