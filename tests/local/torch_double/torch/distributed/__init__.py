"""Ranks that meet through files in $DOUBLE_FOLDER, and go wrong as $DOUBLE says."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import numpy

from torch import Tensor, state

_state: dict[str, Any] = {"calls": 0}


def is_gloo_available() -> bool:
    return os.environ.get("DOUBLE_HAS_GLOO", "yes") == "yes"


def is_nccl_available() -> bool:
    return True


class TCPStore:
    def __init__(self, host: str, port: int, world: int, is_master: bool, timeout: Any) -> None:
        self.folder = Path(os.environ["DOUBLE_FOLDER"]) / str(port)
        self.folder.mkdir(parents=True, exist_ok=True)
        if state.trouble() == "port-taken" and is_master and state.first_time("port-taken"):
            raise RuntimeError(f"failed to listen on port {port}, code: -98, name: EADDRINUSE")

    def set(self, key: str, value: str | bytes) -> None:
        state.write_whole(self._place(key), value if isinstance(value, bytes) else value.encode())

    def get(self, key: str) -> bytes:
        return state.read_when_there(self._place(key))

    def add(self, key: str, amount: int) -> int:
        with open(self._place(key), "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            count = int(file.read() or b"0") + amount
            file.truncate(0)
            file.write(b"%d" % count)
        return count

    def wait(self, keys: list[str]) -> None:
        for key in keys:
            self.get(key)

    def _place(self, key: str) -> Path:
        return self.folder / key.replace("/", "_")


def init_process_group(
    backend: str,
    *,
    store: TCPStore | None = None,
    rank: int = 0,
    world_size: int = 0,
    timeout: Any = None,
    device_id: Any = None,
) -> None:
    if store is None:
        # as a launcher says it, see run.py
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, rank == 0, timeout)
    _state.update(store=store, world=world_size)
    state.rank = rank
    time.perf_counter = state.clock


def destroy_process_group() -> None:
    _state.clear()


def all_reduce(buffer: Tensor, group: Any = None) -> None:
    _state["calls"] += 1
    state.pass_time(state.SECONDS_A_CALL)
    call, store = _state["calls"], _state["store"]
    if call == state.AT_CALL:
        state.go_wrong()
    store.set(f"sum/{call}/{state.rank}", buffer.values.tobytes())
    parts = [store.get(f"sum/{call}/{rank}") for rank in range(_state["world"])]
    buffer.values[...] = sum(numpy.frombuffer(part, buffer.values.dtype) for part in parts)
    if state.spoils(call, in_graph=False):
        buffer.values[-1] += 1


def barrier() -> None:
    all_reduce(Tensor(numpy.zeros(1)))
