"""The `nccl` back end in one rank: a GPU, communicators made one after the other, calls, graphs and the GPU's clock.

torch gives memory, streams, events and graphs; the collectives are NCCL's own functions, called directly (`nccl_api`).
Runs on the node, Python 3.8 and newer.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Any, Callable, List, Mapping, Optional, Tuple

from topo_tune.on_node.collectives import ROOT, Collective, Counts, Group
from topo_tune.on_node.data_types import DataType
from topo_tune.on_node.meeting import Meeting
from topo_tune.on_node.nccl_api import DATA_TYPES, FIRST_WITH_FP8, Communicator, Nccl, version_text

Call = Callable[[], object]

RELEASES = ("keep", "destroy", "abort")
"""How a communicator is let go behind its variant.

`keep`: not before the process ends, which frees everything at no cost; until too many are kept.
`destroy`: at once, as a program should; 0.3 to 0.5 s each on two H200s.
`abort`: at once, without waiting for what all ranks know to be over.
"""
KEPT_AT_MOST = 32
"""each keeps its buffers, its connections and some sleeping threads"""
KEPT_SHARE_OF_FILES = 0.5
"""of the files a process may open; each connection over TCP is some of them"""
SHORTEST_PAUSE_SECONDS = 20e-6
LONGEST_PAUSE_SECONDS = 1e-3


class OutOfGpuMemory(Exception):
    """A communicator was not made, because it needs more than is free."""


class Graph:
    """Calls captured in a CUDA graph. Must be deleted before its communicator is let go."""

    def __init__(self, torch: Any, call: Call, calls: int) -> None:
        self.calls = calls
        self._graph = torch.cuda.CUDAGraph()
        # Directly and not through torch.cuda.graph(), which collects Python's garbage each time. Thread-local: other
        # threads may ask the driver something meanwhile, which a global capture would forbid.
        self._graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(calls):
                call()
        except BaseException:
            try:
                self._graph.capture_end()
            except RuntimeError:
                pass  # the capture is spoiled; what spoiled it is told
            raise
        self._graph.capture_end()

    def replay(self) -> None:
        """Issue all of the calls once."""
        self._graph.replay()

    def delete(self) -> None:
        """Let go of the communicator."""
        self._graph.reset()


class NcclRank:
    """One rank's GPU and its communicator of the moment."""

    has_graphs = True

    def __init__(self, torch: Any, meeting: Meeting, local_rank: int, kind: DataType, release: str) -> None:
        if release not in RELEASES:
            raise ValueError("no way `%s` to release; there are %s" % (release, ", ".join(RELEASES)))
        self.torch, self._meeting, self._kind, self._release = torch, meeting, kind, release
        self._nccl = Nccl.of_torch()
        if kind.name.startswith("float8") and self._nccl.version[:2] < FIRST_WITH_FP8:
            raise ValueError(
                "NCCL %s has no %s; it came with %s"
                % (version_text(self._nccl.version), kind.name, version_text(FIRST_WITH_FP8))
            )
        self.device = torch.device("cuda", local_rank)
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        self._communicator: Optional[Communicator] = None
        self._kept: List[Communicator] = []

    # -- communicators

    def connect(self, index: int, group: Group, config: Mapping[str, int], needs_bytes: int) -> None:
        """Make the communicator of a variant. Raises OutOfGpuMemory, NcclError, and ValueError for a wrong config."""
        self._make_room(needs_bytes)
        free, _ = self.torch.cuda.mem_get_info()
        if needs_bytes > free:
            raise OutOfGpuMemory(
                "the communicator needs about %d MiB, %d MiB are free" % (needs_bytes >> 20, free >> 20)
            )
        key = "unique/%d/%d" % (index, group.number)
        rank = group.ranks.index(self._meeting.rank)
        if rank == 0:
            self._meeting.put(key, self._nccl.unique_id())
        self._communicator = self._nccl.communicator(
            len(group.ranks), rank, self._meeting.take(key), config or None
        )

    def disconnect(self) -> None:
        """Let go of the communicator, on all ranks. Everything is over, and every graph deleted."""
        communicator, self._communicator = self._communicator, None
        if communicator is None:
            return
        if self._release == "keep":
            self._kept.append(communicator)
        elif self._release == "abort":
            self._meeting.wait_for_all()
            communicator.abort()
        else:
            communicator.destroy()

    def _make_room(self, needs_bytes: int) -> None:
        """Destroy what was kept when it is too much for one of the ranks. All ranks do it, or none."""
        if not self._kept:
            return
        if self._meeting.largest(float(self._has_kept_too_much(needs_bytes))) > 0:
            for communicator in self._kept:
                communicator.destroy()
            self._kept = []

    def _has_kept_too_much(self, needs_bytes: int) -> bool:
        free, whole = self.torch.cuda.mem_get_info()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return bool(
            len(self._kept) >= KEPT_AT_MOST
            or free < max(2 * needs_bytes, whole // 10)
            or len(os.listdir("/proc/self/fd")) > KEPT_SHARE_OF_FILES * files
        )

    # -- calls

    def bind(self, collective: Collective, counts: Counts, send: Any, receive: Any) -> Call:
        """The call of a collective with these buffers, ready to be made on this rank's stream."""
        communicator = self._connected()
        source, target = send.data_ptr(), receive.data_ptr()
        count, kind, stream = counts.call, DATA_TYPES[self._kind.name][0], self._stream.cuda_stream
        if collective.name == "alltoall":
            step = count * self._kind.item_bytes
            peers = range(communicator.world)
            pairs = [(peer, source + peer * step, peer, target + peer * step) for peer in peers]
            return self._exchange(pairs, count, kind, stream)
        if collective.name == "sendrecv":
            world, rank = communicator.world, communicator.rank
            return self._exchange(
                [((rank + 1) % world, source, (rank - 1) % world, target)], count, kind, stream
            )
        if collective.name in ("broadcast", "reduce"):
            rooted = getattr(communicator, collective.name)
            return lambda: rooted(source, target, count, kind, ROOT, stream)
        plain = getattr(communicator, collective.name)
        return lambda: plain(source, target, count, kind, stream)

    def _exchange(self, pairs: List[Tuple[int, int, int, int]], count: int, kind: int, stream: int) -> Call:
        """Sends and receives in one group, each pair as (to, from where, from, into where)."""
        communicator = self._connected()

        def calls() -> None:
            for to_rank, source, from_rank, target in pairs:
                communicator.send(source, count, kind, to_rank, stream)
                communicator.receive(target, count, kind, from_rank, stream)

        return lambda: self._nccl.group(calls)

    def capture(self, call: Call, calls: int) -> Graph:
        """A graph of so many calls; nothing is run."""
        return Graph(self.torch, call, calls)

    # -- the clock

    def wait(self) -> None:
        """Until all that was asked is done. Raises NcclError when NCCL fails behind the calls meanwhile."""
        communicator = self._connected()
        event = self.torch.cuda.Event()
        event.record()
        pause = SHORTEST_PAUSE_SECONDS
        while not event.query():
            # A peer that died leaves this rank's kernel waiting for ever: no plain synchronisation here.
            communicator.check()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        communicator.check()

    def seconds_of(self, work: Call, before: Call) -> float:
        """Seconds between two events around what `work` asks for, behind what `before` asks for.

        While it runs nothing is asked of the GPU or of NCCL.
        """
        begin, end = self._event(), self._event()
        before()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def seconds_of_each(self, call: Call, calls: int, before: Call) -> List[float]:
        """Seconds of each of so many calls, from the end of the one before to its own.

        The host issues them one by one, so that a call shorter than its launch takes as long as that.
        """
        events = [self._event() for _ in range(calls + 1)]
        before()
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        events[-1].synchronize()
        times = [events[i].elapsed_time(events[i + 1]) for i in range(calls)]
        return [float(milliseconds) / 1e3 for milliseconds in times]

    def _event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)

    def _connected(self) -> Communicator:
        if self._communicator is None:
            raise RuntimeError("there is no communicator")
        return self._communicator
