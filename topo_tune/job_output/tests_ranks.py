"""The list of ranks in front of a table: `#  Rank  0 Group  0 Pid  4242 on node01 device  0 [0000:02:00] ...`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from topo_tune.words import clipped

_RANK = re.compile(
    r"\s*#?\s*Rank +(\d{1,7})(?: +Group +(\d{1,7}))? +Pid +(\d{1,10}) +on +(\S{1,128}) +device +(\d{1,4})"
    r" +\[([0-9a-fA-Fx:.]{1,20})\] ?(.{0,128})"
)


class Rank(NamedTuple):
    """One rank and its GPU."""

    rank: int
    group: int
    process: int
    host: str
    device: int
    bus: str
    """`0x1b` in older versions, `0000:1b:00` in newer ones; zeros where a virtual machine hides it"""
    gpu: str


def rank_of(line: str) -> Rank | None:
    """The rank of such a line, or None for any other."""
    found = _RANK.match(line)
    if found is None:
        return None
    rank, group, process, host, device, bus, gpu = found.groups()
    return Rank(int(rank), int(group or 0), int(process), host, int(device), bus, clipped(gpu, 64))


def distinct_devices(ranks: Iterable[Rank]) -> int | None:
    """How many GPUs these ranks have together; None for no ranks.

    A bus number alone (`[0x01]`) leaves out the PCI domain, and a process may see its own GPU only, as device 0. So
    where a bus number is all there is and all ranks of a host have the same, processes count as GPUs of their own.
    """
    ranks = list(ranks)
    buses: dict[str, set[str]] = {}
    for rank in ranks:
        buses.setdefault(rank.host, set()).add(rank.bus)
    tells = {host for host, seen in buses.items() if len(seen) > 1 or _is_whole(next(iter(seen)))}
    devices = {
        (rank.host, rank.device, rank.bus if rank.host in tells else str(rank.process)) for rank in ranks
    }
    return len(devices) or None


def _is_whole(bus: str) -> bool:
    return ":" in bus and bus.strip("0:.") != ""
