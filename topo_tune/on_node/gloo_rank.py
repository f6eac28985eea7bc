"""The `gloo` back end in one rank: torch's process group on CPUs, and the host's clock.

It reads no NCCL variable, so that all variants are the same; it is there to prove everything around the measurement.
gloo sums and broadcasts in place only. Runs on the node, Python 3.8 and newer.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, List, Mapping

from topo_tune.on_node.collectives import ROOT, Collective, Counts, Group
from topo_tune.on_node.data_types import DataType
from topo_tune.on_node.meeting import Meeting, interface_towards

Call = Callable[[], object]

IN_PLACE_ONLY = ("all_reduce", "broadcast", "reduce")


class GlooRank:
    """One rank's process groups."""

    has_graphs = False

    def __init__(
        self, torch: Any, meeting: Meeting, kind: DataType, groups: List[Group], timeout: Any
    ) -> None:
        self._dist, self._meeting = torch.distributed, meeting
        self.torch = torch
        self.device = torch.device("cpu")
        self._dtype = getattr(torch, kind.name)
        # Ranks share the node's cores; a thread pool in each would fight over them.
        torch.set_num_threads(1)
        self._dist.init_process_group(
            "gloo", store=meeting.store, rank=meeting.rank, world_size=meeting.world, timeout=timeout
        )
        self._groups: List[Any] = [None]
        if len(groups) > 1:
            # Every rank makes every group, also those it is not in.
            self._groups = [self._dist.new_group(list(group.ranks)) for group in groups]
        self._group = groups[0]

    @staticmethod
    def choose_interface(host: str, port: int) -> None:
        """Let gloo use the interface towards rank 0, unless its variable says otherwise."""
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            name = interface_towards(host, port)
            if name:
                os.environ["GLOO_SOCKET_IFNAME"] = name

    def connect(self, index: int, group: Group, config: Mapping[str, int], needs_bytes: int) -> None:
        """The process group is there already; a variant changes nothing about it."""
        self._group = group

    def disconnect(self) -> None:
        """Nothing to let go of."""

    def bind(self, collective: Collective, counts: Counts, send: Any, receive: Any) -> Call:
        """The call of a collective with these buffers. Raises ValueError for what gloo cannot do."""
        dist, members = self._dist, self._group.ranks
        group = self._groups[self._group.number]
        if collective.name in IN_PLACE_ONLY and send.data_ptr() != receive.data_ptr():
            raise ValueError("gloo has %s in place only" % collective.name)
        source, target = send.view(self._dtype), receive.view(self._dtype)
        if collective.name == "all_reduce":
            return lambda: dist.all_reduce(target, group=group)
        if collective.name == "broadcast":
            return lambda: dist.broadcast(target, members[ROOT], group=group)
        if collective.name == "reduce":
            return lambda: dist.reduce(target, members[ROOT], group=group)
        if collective.name == "all_gather":
            parts = [target[peer * counts.call : (peer + 1) * counts.call] for peer in range(len(members))]
            return lambda: dist.all_gather(parts, source, group=group)
        if collective.name == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(target, source, group=group)
        if collective.name == "alltoall":
            return lambda: dist.all_to_all_single(target, source, group=group)
        own = members.index(self._meeting.rank)
        after, before = members[(own + 1) % len(members)], members[own - 1]

        def exchange() -> None:
            sent, received = dist.isend(source, after, group=group), dist.irecv(target, before, group=group)
            sent.wait()
            received.wait()

        return exchange

    def wait(self) -> None:
        """Calls return when they are done."""

    def seconds_of(self, work: Call, before: Call) -> float:
        """Seconds of what `work` does, all ranks beginning together."""
        self._dist.barrier()
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def seconds_of_each(self, call: Call, calls: int, before: Call) -> List[float]:
        """Seconds of each of so many calls."""
        self._dist.barrier()
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        return times
