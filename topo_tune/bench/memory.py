"""How much GPU memory the buffers of a communicator take, before it is made.

An estimate from above for what NVIDIA/nccl allocates: `computeBuffSizes` in src/init.cc (one buffer for each protocol),
src/transport/p2p.cc (all three at the receiver of a connection, Simple at the sender where it is read from there),
src/transport/net.cc (all at both ends; send/recv share a pool).
"""

from __future__ import annotations

from topo_tune.records.bench import Collective
from topo_tune.records.nccl_env import NcclEnv

_DEFAULT_BYTES = {
    # 4 MiB
    "NCCL_BUFFSIZE": 1 << 22,
    # 8 lines a thread x 512 threads x 8 steps x 16 bytes
    "NCCL_LL_BUFFSIZE": 8 * 512 * 8 * 16,
    # 120 elements a thread x 640 threads x 8 steps x 8 bytes
    "NCCL_LL128_BUFFSIZE": 120 * 640 * 8 * 8,
}
_ALIGNMENT_BYTES = 1 << 21
"""CUDA_IPC_MIN: memory that another process maps comes in pieces of 2 MiB"""

_USUAL_CHANNELS = 32
"""what the search for rings and trees ends with at most, before anything raises or lowers it"""
_CHANNELS_A_PEER = 32
"""most channels of send/recv to a peer of the same node: as many as twice its NVLinks, as a power of two"""
_RING_CONNECTIONS = 2
"""from the rank before, to the rank behind"""
_TREE_NEIGHBOURS = 3
"""the parent and two children of a binary tree; a connection each way"""

_SHARED_STEPS = 16
_POOLS = 2
"""one for sending and one for receiving"""
_POOL_CHANNELS = 64


def communicator_bytes(setting: NcclEnv, collective: str, *, ranks: int, nodes: int) -> int:
    """GPU memory of one rank's buffers of a communicator of `ranks` on `nodes`, about and rather too high.

    Message buffers are not in it, nor what CUDA needs for itself.
    """
    if ranks < 2:
        return 0
    connection = sum(_aligned(_number(setting, name, default)) for name, default in _DEFAULT_BYTES.items())
    if collective in (Collective.ALL_TO_ALL.value, Collective.SEND_RECV.value):
        return _of_pairs(setting, collective, connection, ranks, nodes)
    connections = _RING_CONNECTIONS
    if collective == Collective.ALL_REDUCE.value:
        connections += 2 * min(_TREE_NEIGHBOURS, ranks - 1)
    return channels(setting) * connections * connection


def channels(setting: NcclEnv) -> int:
    """Channels that a communicator has at most: the usual number, between what the setting allows."""
    lowest = max(_number(setting, name, 1) for name in ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS"))
    highest = min(_number(setting, name, 64) for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"))
    return max(1, min(max(_USUAL_CHANNELS, lowest), highest))


def _of_pairs(setting: NcclEnv, collective: str, connection: int, ranks: int, nodes: int) -> int:
    """Send/recv: connections of their own within the node, a shared pool over the network."""
    neighbours = 2 if collective == Collective.SEND_RECV.value else ranks
    within = min(neighbours, -(-ranks // nodes)) * 2 * _CHANNELS_A_PEER * connection
    if nodes == 1:
        return within
    chunk = _number(setting, "NCCL_P2P_NET_CHUNKSIZE", 1 << 17)
    return within + _POOLS * _SHARED_STEPS * _POOL_CHANNELS * chunk


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _number(setting: NcclEnv, name: str, default: int) -> int:
    """A positive number that the setting gives; the default where it gives none, or one that NCCL takes for none."""
    value = setting.as_dict().get(name, "")
    return int(value) if value.isdecimal() and int(value) > 0 else default
