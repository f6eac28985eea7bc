"""Ranks that meet through files in $DOUBLE_FOLDER, and go wrong as $DOUBLE says: `WHAT@RANK`, at the sum's check."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from torch import Tensor

AT_CALL = 2
"""the agent's first call is a greeting, its second one is checked"""
FLOOD_PIECES = 512

SECONDS_A_CALL = 200e-6

_state: dict[str, Any] = {"calls": 0}
capture: list[Callable[[], None]] | None = None
"""where calls go that are captured in a graph"""


def clock() -> float:
    """Moves with each call, so that what the agent decides by time is always the same."""
    return SECONDS_A_CALL * float(_state["calls"])


def is_gloo_available() -> bool:
    return os.environ.get("DOUBLE_HAS_GLOO", "yes") == "yes"


class TCPStore:
    def __init__(self, host: str, port: int, world: int, is_master: bool, timeout: Any) -> None:
        self.folder = Path(os.environ["DOUBLE_FOLDER"]) / str(port)
        self.folder.mkdir(parents=True, exist_ok=True)
        what, _, _ = os.environ.get("DOUBLE", "").partition("@")
        if what == "port-taken" and is_master and _first_time("port-taken"):
            raise RuntimeError(f"failed to listen on port {port}, code: -98, name: EADDRINUSE")

    def set(self, key: str, value: str | bytes) -> None:
        place = self.folder / key.replace("/", "_")
        temporary = place.with_name(f"{place.name}.{os.getpid()}")
        temporary.write_bytes(value if isinstance(value, bytes) else value.encode())
        temporary.rename(place)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return (self.folder / key.replace("/", "_")).read_bytes()

    def wait(self, keys: list[str]) -> None:
        for key in keys:
            while not (self.folder / key.replace("/", "_")).exists():
                time.sleep(0.001)


def is_nccl_available() -> bool:
    return True


def init_process_group(
    backend: str, *, store: TCPStore, rank: int, world_size: int, timeout: Any, device_id: Any = None
) -> None:
    _state.update(store=store, rank=rank, world=world_size)
    time.perf_counter = clock
    # As NCCL does: its log goes where the variable says.
    if backend == "nccl" and "NCCL_DEBUG_FILE" in os.environ:
        taken = [name for name in ("DOUBLE", "NCCL_HOSTID") if name in os.environ]
        lines = [f"n1:1:1 [0] NCCL INFO {name} set by environment to {os.environ[name]}\n" for name in taken]
        Path(os.environ["NCCL_DEBUG_FILE"]).write_text("".join(lines))


def all_reduce(buffer: Tensor) -> None:
    if capture is not None:
        capture.append(lambda: _sum(buffer, in_graph=True))
    else:
        _sum(buffer)


def _sum(buffer: Tensor, *, in_graph: bool = False) -> None:
    _state["calls"] += 1
    call, store = _state["calls"], _state["store"]
    if call == AT_CALL:
        _go_wrong()
    store.set(f"sum/{call}/{_state['rank']}", buffer.values.tobytes())
    parts = [store.get(f"sum/{call}/{rank}") for rank in range(_state["world"])]
    buffer.values[...] = sum(numpy.frombuffer(part, buffer.values.dtype) for part in parts)
    if (call == AT_CALL and _is_mine("wrong")) or (in_graph and _is_mine("wrong-in-graph")):
        buffer.values[-1] += 1


def barrier() -> None:
    all_reduce(Tensor(numpy.zeros(1)))


def _is_mine(wanted: str) -> bool:
    what, _, rank = os.environ.get("DOUBLE", "").partition("@")
    return what == wanted and int(rank or 0) == _state["rank"]


def _go_wrong() -> None:
    if _is_mine("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if _is_mine("exit"):
        os.write(2, b"my last words\n")
        os._exit(3)
    if _is_mine("raise"):
        raise RuntimeError("no luck today\n\nwith details")
    if _is_mine("flood"):
        for _ in range(FLOOD_PIECES):
            os.write(2, b"x" * 1023 + b"\n" + b"y" * 64512)
    while _is_mine("hang"):
        time.sleep(60)


def _first_time(name: str) -> bool:
    try:
        (Path(os.environ["DOUBLE_FOLDER"]) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
