"""A tiny stand-in for torch: as much of it as the bench agent uses, with numpy for numbers."""

from __future__ import annotations

from typing import Any

import numpy

__version__ = "0.0.double"
float32 = bfloat16 = numpy.dtype("float32")
int64 = numpy.dtype("int64")


class Tensor:
    def __init__(self, values: Any) -> None:
        self.values = values

    def element_size(self) -> int:
        return int(self.values.itemsize)

    def numel(self) -> int:
        return int(self.values.size)

    def zero_(self) -> None:
        self.values[...] = 0

    def copy_(self, other: Tensor) -> None:
        self.values[...] = other.values

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.values[index.values if isinstance(index, Tensor) else index])

    def __mod__(self, number: int) -> Tensor:
        return Tensor(self.values % number)


def empty(shape: Any, dtype: Any) -> Tensor:
    return Tensor(numpy.empty(shape, dtype))


def zeros(size: int, dtype: Any = float32, device: Any = None) -> Tensor:
    return Tensor(numpy.zeros(size, dtype))


def arange(size: int, device: Any, dtype: Any) -> Tensor:
    return Tensor(numpy.arange(size, dtype=dtype))


def tensor(values: list[float], dtype: Any, device: Any) -> Tensor:
    return Tensor(numpy.array(values, dtype))


def equal(one: Tensor, other: Tensor) -> bool:
    return bool(numpy.array_equal(one.values, other.values))


def device(name: str, index: int = 0) -> str:
    return f"{name}:{index}"


def set_num_threads(count: int) -> None:
    pass


from torch import cuda as cuda  # noqa: E402 - it needs what stands above
