"""GPUs that are none: $DOUBLE_GPUS of them. What is asked of them is done at once, but for calls that are captured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import nccl_double

from torch import state

FREE_BYTES, WHOLE_BYTES = 1 << 30, 2 << 30


class OutOfMemoryError(RuntimeError):
    pass


def device_count() -> int:
    count = os.environ.get("DOUBLE_GPUS", "0")
    if not count.isdigit():
        raise RuntimeError(count)
    return int(count)


def set_device(device: str) -> None:
    # one agent has all the GPUs, so that ranks are numbered as they are
    state.rank = int(device.rpartition(":")[2])


def synchronize() -> None:
    pass


def mem_get_info() -> tuple[int, int]:
    return FREE_BYTES, WHOLE_BYTES


class Stream:
    cuda_stream = 7

    def wait_event(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        pass


def set_stream(chosen: Stream) -> None:
    pass


@contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    yield


class CUDAGraph:
    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.exists = False

    def capture_begin(self, capture_error_mode: str) -> None:
        nccl_double.capture = self
        self.exists = True

    def capture_end(self) -> None:
        nccl_double.capture = None

    def replay(self) -> None:
        for call in self.calls:
            call()

    def reset(self) -> None:
        self.exists = False


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = state.clock()

    def query(self) -> bool:
        return not nccl_double.is_stuck

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


nccl_double.install()
