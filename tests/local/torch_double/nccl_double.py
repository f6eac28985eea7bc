"""An NCCL that is none: Python functions with the C signatures, on real memory, that meet through files.

It is found as the real one is, by its name among the mapped files of the process and through `ctypes.CDLL`. As with
the real one, destroying a communicator waits for its graphs, and lines of $NCCL_CONF_FILE go into the C environment.
"""

# ruff: noqa: N802 - these are C's names
from __future__ import annotations

import ctypes
import functools
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import number_types
from torch import state

VERSION = 22809
SUCCESS, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, REMOTE_ERROR = 0, 2, 3, 4, 6

capture: Any = None
"""the CUDA graph that takes calls now"""
is_stuck = False
"""whether what was asked of the GPU never ends"""

_libc = ctypes.CDLL(None)
_real_cdll = ctypes.CDLL


def install() -> None:
    """Map a file by the name that is looked for, and answer when it is opened."""
    path = Path(os.environ["DOUBLE_FOLDER"]) / "libnccl.so.2"
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    with open(path, "rb") as file:
        install.mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)  # type: ignore[attr-defined]
    library = Library()
    ctypes.CDLL = lambda name, *a, **k: library if name == str(path) else _real_cdll(name, *a, **k)


class Comm:
    """One communicator of this process."""

    def __init__(self, identity: bytes, world: int, rank: int) -> None:
        self.folder = Path(os.environ["DOUBLE_FOLDER"]) / f"comm-{identity[:8].hex()}"
        self.folder.mkdir(exist_ok=True)
        self.world, self.rank, self.calls = world, rank, 0
        self.graphs: list[Any] = []

    def give(self, call: int, name: str, data: bytes) -> None:
        state.write_whole(self.folder / f"{call}-{name}", data)

    def take(self, call: int, name: str) -> bytes:
        return state.read_when_there(self.folder / f"{call}-{name}")


class Library:
    """What `ctypes.CDLL` gives; every function takes what the C one takes."""

    def __init__(self) -> None:
        self.comms: dict[int, Comm] = {}
        self.words = b""
        self.group: list[tuple[Comm, str, int, int]] | None = None
        self.has_read_files = False
        # an attribute can be set on it, as on a foreign function
        self.ncclGetLastError = lambda handle: self.words

    # -- communicators

    def ncclGetVersion(self, code: Any) -> int:
        code._obj.value = int(os.environ.get("DOUBLE_NCCL", VERSION))
        return SUCCESS

    def ncclGetUniqueId(self, identity: Any) -> int:
        self._read_files()
        ctypes.memmove(ctypes.addressof(identity._obj), os.urandom(128), 128)
        return SUCCESS

    def ncclCommInitRankConfig(self, handle: Any, world: Any, identity: Any, rank: Any, config: Any) -> int:
        self._read_files()
        if state.is_mine("init-error"):
            return self._fail(INVALID_ARGUMENT, b"init.cc:42 -> Invalid config\n")
        # The identity is bytes with zeros among them.
        number = len(self.comms) + 1
        comm = Comm(ctypes.string_at(ctypes.addressof(identity), 128), world.value, rank.value)
        self.comms[number] = comm
        handle._obj.value = number
        fields = [n for n, *_ in config._obj._fields_[3:] if getattr(config._obj, n) not in (None, -(2**31))]
        settings = " ".join(f"{n}={getattr(config._obj, n)}" for n in fields)
        state.trace(f"init {comm.rank} of {comm.world} {settings} ALGO={os.environ.get('NCCL_ALGO', '')}")
        self._log()
        # all ranks meet here
        comm.give(0, str(comm.rank), b"")
        for peer in range(comm.world):
            comm.take(0, str(peer))
        return SUCCESS

    def ncclCommFinalize(self, handle: Any) -> int:
        state.trace("finalize")
        self._wait_for_graphs(self._comm(handle))
        return SUCCESS

    def ncclCommDestroy(self, handle: Any) -> int:
        state.trace("destroy")
        self._wait_for_graphs(self._comm(handle))
        return SUCCESS

    def ncclCommAbort(self, handle: Any) -> int:
        state.trace("abort")
        self._wait_for_graphs(self._comm(handle))
        return SUCCESS

    def ncclCommGetAsyncError(self, handle: Any, result: Any) -> int:
        result._obj.value = SUCCESS
        if is_stuck and state.is_mine("async"):
            self.words = b"socket.cc:99 Connection closed by remote peer\n"
            result._obj.value = REMOTE_ERROR
        return SUCCESS

    # -- collectives

    def ncclAllReduce(
        self, send: Any, receive: Any, count: Any, kind: Any, op: Any, comm: Any, stream: Any
    ) -> int:
        def run(one: Comm, call: int) -> bytes:
            return _sum(one, call, _bytes(send, count, kind), kind.value)

        return self._ask(comm, receive, run)

    def ncclAllGather(self, send: Any, receive: Any, count: Any, kind: Any, comm: Any, stream: Any) -> int:
        def run(one: Comm, call: int) -> bytes:
            one.give(call, str(one.rank), _bytes(send, count, kind))
            return b"".join(one.take(call, str(peer)) for peer in range(one.world))

        return self._ask(comm, receive, run)

    def ncclReduceScatter(
        self, send: Any, receive: Any, count: Any, kind: Any, op: Any, comm: Any, stream: Any
    ) -> int:
        def run(one: Comm, call: int) -> bytes:
            part = count.value * number_types.ITEM_BYTES[kind.value]
            whole = ctypes.string_at(send.value, part * one.world)
            return _sum(one, call, whole, kind.value)[one.rank * part : (one.rank + 1) * part]

        return self._ask(comm, receive, run)

    def ncclBroadcast(
        self, send: Any, receive: Any, count: Any, kind: Any, root: Any, comm: Any, stream: Any
    ) -> int:
        def run(one: Comm, call: int) -> bytes:
            if one.rank == root.value:
                one.give(call, "root", _bytes(send, count, kind))
            return one.take(call, "root")

        return self._ask(comm, receive, run)

    def ncclReduce(
        self, send: Any, receive: Any, count: Any, kind: Any, op: Any, root: Any, comm: Any, stream: Any
    ) -> int:
        def run(one: Comm, call: int) -> bytes:
            total = _sum(one, call, _bytes(send, count, kind), kind.value)
            return total if one.rank == root.value else b""

        return self._ask(comm, receive, run)

    # -- sends and receives, in groups

    def ncclGroupStart(self) -> int:
        self.group = []
        return SUCCESS

    def ncclSend(self, buffer: Any, count: Any, kind: Any, peer: Any, comm: Any, stream: Any) -> int:
        return self._in_group(comm, "send", buffer, count, kind, peer)

    def ncclRecv(self, buffer: Any, count: Any, kind: Any, peer: Any, comm: Any, stream: Any) -> int:
        return self._in_group(comm, "receive", buffer, count, kind, peer)

    def ncclGroupEnd(self) -> int:
        assert self.group
        parts, self.group = self.group, None

        def run(one: Comm, call: int) -> bytes:
            for _, what, address, length, peer in parts:
                if what == "send":
                    one.give(call, f"{one.rank}-{peer}", ctypes.string_at(address, length))
            for _, what, address, length, peer in parts:
                if what == "receive":
                    data = one.take(call, f"{peer}-{one.rank}")
                    assert len(data) == length
                    ctypes.memmove(address, data, length)
            return b""

        last = next(address + length - 1 for _, what, address, length, _ in parts if what == "receive")
        return self._ask(parts[0][0], ctypes.c_void_p(last), run)

    def _in_group(self, comm: Any, what: str, buffer: Any, count: Any, kind: Any, peer: Any) -> int:
        assert self.group is not None, "a send or receive outside of a group would wait for ever"
        length = count.value * number_types.ITEM_BYTES[kind.value]
        self.group.append((comm, what, buffer.value, length, peer.value))
        return SUCCESS

    # -- what all of them share

    def _ask(self, handle: Any, receive: Any, run: Callable[[Comm, int], bytes]) -> int:
        comm = self._comm(handle)
        if capture is not None:
            comm.graphs.append(capture)
            capture.calls.append(functools.partial(self._run, comm, receive.value, run, in_graph=True))
            return SUCCESS
        return self._run(comm, receive.value, run)

    def _run(
        self, comm: Comm, receive: int, run: Callable[[Comm, int], bytes], in_graph: bool = False
    ) -> int:
        global is_stuck
        comm.calls += 1
        state.pass_time(state.seconds_of_call(comm.calls))
        if comm.calls == state.AT_CALL:
            if state.is_mine("nccl-error"):
                return self._fail(INTERNAL_ERROR, b"\nproxy.cc:7 NCCL WARN\n  no luck today\n")
            if state.is_mine("async"):
                is_stuck = True
                return SUCCESS
            state.go_wrong()
        data = run(comm, comm.calls)
        ctypes.memmove(receive, data, len(data))
        if state.spoils(comm.calls, in_graph=in_graph):
            last = ctypes.c_ubyte.from_address(receive + max(0, len(data) - 1))
            last.value ^= 1
        return SUCCESS

    def _fail(self, result: int, words: bytes) -> int:
        self.words = words
        return result

    def _comm(self, handle: Any) -> Comm:
        return self.comms[handle.value]

    def _wait_for_graphs(self, comm: Comm) -> None:
        while any(graph.exists for graph in comm.graphs):
            time.sleep(1)

    def _read_files(self) -> None:
        """Once, as NCCL does: a variable that is there already stays."""
        if self.has_read_files or "NCCL_CONF_FILE" not in os.environ:
            return
        self.has_read_files = True
        for line in Path(os.environ["NCCL_CONF_FILE"]).read_text().splitlines():
            name, _, value = line.partition("=")
            _libc.setenv(name.encode(), value.encode(), 0)

    def _log(self) -> None:
        if "NCCL_DEBUG_FILE" not in os.environ:
            return
        taken = [name for name in ("DOUBLE", "NCCL_HOSTID", "NCCL_ALGO") if name in os.environ]
        with open(os.environ["NCCL_DEBUG_FILE"], "a") as file:
            for name in taken:
                file.write(f"n1:1:1 [0] NCCL INFO {name} set by environment to {os.environ[name]}\n")


def _bytes(address: Any, count: Any, kind: Any) -> bytes:
    return ctypes.string_at(address.value, count.value * number_types.ITEM_BYTES[kind.value])


def _sum(comm: Comm, call: int, own: bytes, kind: int) -> bytes:
    """In the order of ranks, rounded each time: exact or not, as the type is."""
    comm.give(call, str(comm.rank), own)
    parts = [comm.take(call, str(peer)) for peer in range(comm.world)]
    return functools.reduce(lambda one, other: number_types.add(one, other, kind), parts)
