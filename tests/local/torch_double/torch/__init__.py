"""A tiny stand-in for torch: as much of it as the ranks of the bench agent use, with numpy for numbers."""

from __future__ import annotations

from typing import Any

import numpy

from torch import state

__version__ = "0.0.double"
float32 = numpy.dtype("float32")
bfloat16 = numpy.dtype("uint16")
uint8 = numpy.dtype("uint8")

SECONDS_A_PRODUCT = 500e-6


class Tensor:
    def __init__(self, values: Any, device: str = "cpu") -> None:
        self.values, self.device = values, device

    def numel(self) -> int:
        return int(self.values.size)

    def data_ptr(self) -> int:
        return int(self.values.ctypes.data)

    def view(self, dtype: Any) -> Tensor:
        return Tensor(self.values.view(dtype), self.device)

    def to(self, device: str) -> Tensor:
        return Tensor(self.values, device)

    def zero_(self) -> None:
        self.values[...] = 0

    def fill_(self, value: int) -> None:
        self.values[...] = value

    def copy_(self, other: Tensor) -> None:
        assert other.values.shape == self.values.shape
        self.values[...] = other.values

    def __getitem__(self, index: slice) -> Tensor:
        return Tensor(self.values[index], self.device)


def zeros(size: int, dtype: Any, device: str) -> Tensor:
    if state.is_mine("oom"):
        raise cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return Tensor(numpy.zeros(size, dtype), device)


def rand(*size: int, dtype: Any, device: str) -> Tensor:
    return Tensor(numpy.zeros((1, 1), dtype), device)


def matmul(one: Tensor, other: Tensor, out: Tensor) -> None:
    state.pass_time(SECONDS_A_PRODUCT)


def frombuffer(data: bytearray, dtype: Any) -> Tensor:
    return Tensor(numpy.frombuffer(data, dtype))


def equal(one: Tensor, other: Tensor) -> bool:
    return bool(numpy.array_equal(one.values, other.values))


def device(name: str, index: int = 0) -> str:
    return f"{name}:{index}"


def set_num_threads(count: int) -> None:
    pass


from torch import cuda as cuda  # noqa: E402 - it needs what stands above
