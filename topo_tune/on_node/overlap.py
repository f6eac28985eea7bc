"""A collective beside a matrix product on the same GPU: what each of the two costs the other.

A setting that is fast alone may be so by holding many of the GPU's multiprocessors, which a training step needs for
itself. Runs on the node, Python 3.8 and newer.
"""

from __future__ import annotations

import statistics
from typing import Any, Callable, Dict

from topo_tune.on_node.meeting import Meeting
from topo_tune.on_node.nccl_rank import NcclRank

DIMENSION = 4096
"""of the square bfloat16 matrices: some waves of blocks on every GPU of today, 0.2 ms on an H200"""
MEMORY_SHARE = 8
"""the three matrices take at most one part in so many of the free GPU memory"""
BUSY_SECONDS = 20e-3
"""how long what is measured should run"""
MARGIN = 4
"""how many times as long the other one is kept running, slowed down as it may be"""
REPEATS = 3


class Product:
    """A matrix product that can be asked for again and again, on a stream of its own."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        free, _ = torch.cuda.mem_get_info()
        dimension = DIMENSION
        while dimension > 256 and 3 * 2 * dimension * dimension * MEMORY_SHARE > free:
            dimension //= 2
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            self._left, self._right, self._result = (
                torch.rand(dimension, dimension, dtype=torch.bfloat16, device=device) for _ in range(3)
            )
            # The first one chooses a kernel and takes its memory.
            self.ask(2)
        self.stream.synchronize()

    def ask(self, times: int) -> None:
        """Ask for so many products on the current stream."""
        for _ in range(times):
            self._torch.matmul(self._left, self._right, out=self._result)


class Overlap:
    """Measures one call beside products. All ranks do the same number of each."""

    def __init__(self, rank: NcclRank, meeting: Meeting) -> None:
        self._torch, self._rank, self._meeting = rank.torch, rank, meeting
        self._product = Product(rank.torch, rank.device)

    def measure(self, ask: Callable[[int], int], one_call: float) -> Dict[str, float]:
        """Seconds of a product alone, of a product beside calls, and of a call beside products; medians of some.

        `ask(n)` asks for at least n calls and says how many; `one_call`: seconds of one alone, the same on all ranks.
        """
        one_product = self._meeting.largest(self._products_alone(3))
        lasting = max(BUSY_SECONDS, 2 * one_call)
        products, calls = _ceil(lasting / one_product), _ceil(lasting / one_call)
        alone = [self._products_alone(products) for _ in range(REPEATS)]
        beside = [self._products_beside(products, ask, MARGIN * calls) for _ in range(REPEATS)]
        # The products that keep the GPU busy are themselves as slow as that.
        of_calls = [self._calls_beside(calls, ask, MARGIN * products) for _ in range(REPEATS)]
        return {
            "compute_alone_seconds": statistics.median(alone),
            "compute_beside_seconds": statistics.median(beside),
            "collective_beside_seconds": statistics.median(of_calls),
        }

    def _products_alone(self, products: int) -> float:
        self._rank.wait()
        return self._timed_products(products)

    def _products_beside(self, products: int, ask: Callable[[int], int], calls: int) -> float:
        self._rank.wait()
        self._meeting.wait_for_all()
        ask(1)
        running = self._event()
        running.record()
        ask(calls)
        self._product.stream.wait_event(running)
        seconds = self._timed_products(products)
        self._rank.wait()
        return seconds

    def _calls_beside(self, calls: int, ask: Callable[[int], int], products: int) -> float:
        self._rank.wait()
        self._meeting.wait_for_all()
        running, begin, end = self._event(), self._event(), self._event()
        with self._torch.cuda.stream(self._product.stream):
            self._product.ask(1)
            running.record()
            self._product.ask(products)
        running.synchronize()
        # The first calls bring the ranks together.
        ask(1)
        begin.record()
        made = ask(calls)
        end.record()
        self._rank.wait()
        self._product.stream.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / made

    def _timed_products(self, products: int) -> float:
        begin, end = self._event(), self._event()
        with self._torch.cuda.stream(self._product.stream):
            begin.record()
            self._product.ask(products)
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / products

    def _event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)


def _ceil(number: float) -> int:
    return max(1, int(-(-number // 1)))
