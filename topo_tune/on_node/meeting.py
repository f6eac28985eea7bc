"""Where the ranks of a trial meet: a torch store that rank 0 serves, and what they agree on through it.

Runs on the node, Python 3.8 and newer; standard library, and torch's TCPStore.
"""

from __future__ import annotations

import datetime
import socket
from typing import Any, Optional


class Meeting:
    """One rank's part. Every method but `put` and `take` is called by all ranks of the trial, in the same order."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world
        self._agreements = 0
        self._barriers = 0

    @classmethod
    def join(cls, distributed: Any, host: str, port: int, rank: int, world: int, seconds: float) -> "Meeting":
        """Meet the other ranks at an address of rank 0. `seconds`: the longest wait for anything in it."""
        # The store keeps the time-out it was made with; a hang beyond it is ended by the agent.
        timeout = datetime.timedelta(seconds=seconds)
        return cls(distributed.TCPStore(host, port, world, rank == 0, timeout), rank, world)

    def put(self, key: str, value: bytes) -> None:
        """Leave something for other ranks. Travels as text: stores take that in every version of torch."""
        self.store.set(key, value.hex())

    def take(self, key: str) -> bytes:
        """What another rank left; waits for it."""
        return bytes.fromhex(self.store.get(key).decode())

    def largest(self, value: float) -> float:
        """The largest of all ranks' values, for all of them: what they decide by it, they decide alike."""
        self._agreements += 1
        prefix = "agree/%d/" % self._agreements
        if self.rank != 0:
            self.store.set(prefix + str(self.rank), repr(value))
            return float(self.store.get(prefix + "all"))
        # Rank 0 alone looks at every value: each rank asking for each would be too much for a thousand ranks.
        found = max([value] + [float(self.store.get(prefix + str(rank))) for rank in range(1, self.world)])
        self.store.set(prefix + "all", repr(found))
        return found

    def wait_for_all(self) -> None:
        """Go on when every rank is here."""
        self._barriers += 1
        prefix = "barrier/%d/" % self._barriers
        if int(self.store.add(prefix + "here", 1)) == self.world:
            self.store.set(prefix + "open", "1")
        self.store.wait([prefix + "open"])

    def leave_together(self) -> None:
        """Stay until every rank has all of its results, and rank 0, which holds the store, until the others have left.

        A rank whose own part of a collective is done may still have data of it to send: NCCL's network thread goes on
        after the kernel has ended. A rank that left then would leave its peer waiting for ever.
        """
        self.wait_for_all()
        if self.rank == 0:
            self.store.wait(["left/%d" % rank for rank in range(1, self.world)])
        else:
            self.store.set("left/%d" % self.rank, "1")


def interface_towards(host: str, port: int) -> Optional[str]:
    """Name of the interface whose address this node would use to reach `host`; None when it cannot be told."""
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                # A datagram socket that is connected sends nothing; it only makes the kernel choose a route.
                probe.connect(address)
                own = str(probe.getsockname()[0])
            name = interface_of(own)
        except OSError:
            continue
        if name is not None:
            return name
    return None


def interface_of(address: str) -> Optional[str]:
    """Name of the interface that has an address of this node; None when none says so. Raises OSError."""
    import fcntl
    import struct

    if ":" in address:
        wanted = socket.inet_pton(socket.AF_INET6, address.split("%")[0]).hex()
        with open("/proc/net/if_inet6") as file:
            return next((line.split()[-1] for line in file if line.split()[0] == wanted), None)
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                # SIOCGIFADDR, linux/sockios.h
                found = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
