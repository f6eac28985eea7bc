"""Devices and ways in NCCL's lines: `NET/IB : Using [0]mlx5_0:1/RoCE ...; OOB ...`, `0[0] -> 1[1] via P2P/CUMEM`."""

from __future__ import annotations

import re

from topo_tune.records.nccl_documents import LogNic

_MOST = 128
"""NCCL's own limit is 32 devices a node (`MAX_IB_DEVS`), 16 for sockets; merged ones are listed within braces."""

# Index, name, port, rail and plane where there are any, kind.
_RDMA = re.compile(
    r"\[(\d{1,4})\]\s?\{?([^\s:\[\]{},/]{1,64}):(\d{1,5})(?::[^\s/]{0,32})?/([A-Za-z0-9]{1,16}(?:/SHARP)?)"
)
_SOCKET = re.compile(r"\[(\d{1,4})\]([^\s:\[\]]{1,64}):(\S{0,128}?)<\d{1,5}>")
_OLD_SOCKET = re.compile(r"Using interface ([^\s:]{1,64}):(\S{1,64}?)<\d{1,5}>")

_VIA = re.compile(
    r"(P2P)/(direct pointer|indirect/\S{1,40}|[\w/]{1,40})"
    r"|(SHM)/([\w/]{1,40})"
    r"|(NET|COLLNET)/([^/]{1,40})/\d{1,4}(?:\(\d{1,7}\))?(\S{0,40})"
    r"|(SHM|P2P|NVLS)\b"
)


def nics_of(line: str, *, is_socket: bool) -> tuple[LogNic, ...]:
    """The devices of a listing, in its order; none where it is empty."""
    if is_socket:
        found = _SOCKET.findall(line)[:_MOST]
        return tuple(LogNic(int(index), name, "Socket", address or None) for index, name, address in found)
    listing = line.split("; OOB", 1)[0]
    devices = _RDMA.findall(listing)[:_MOST]
    return tuple(LogNic(int(index), name, kind, port=int(port)) for index, name, port, kind in devices)


def old_interface(line: str) -> LogNic | None:
    """The interface of `NET : Using interface eth0:10.0.0.1<0>`, as versions before 2.3 wrote it."""
    found = _OLD_SOCKET.search(line)
    return LogNic(0, found.group(1), "Socket", found.group(2)) if found else None


def transport(via: str) -> str | None:
    """`NET/IB/GDRDMA` of `NET/IB/3(5)/GDRDMA/Shared`: without the device's number and whom it is shared with."""
    found = _VIA.match(via)
    if found is None:
        return None
    for name, detail in ((found.group(1), found.group(2)), (found.group(3), found.group(4))):
        if name is not None:
            return f"{name}/{detail}"
    if found.group(5) is not None:
        return f"{found.group(5)}/{found.group(6)}" + ("/GDRDMA" if "/GDRDMA" in found.group(7) else "")
    return found.group(8)
