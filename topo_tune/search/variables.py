"""Which NCCL variables are worth trying on this cluster, with which values, and why the others are not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from topo_tune.records.catalogue import Variable, catalogue, version_tuple
from topo_tune.records.nccl_env import NcclEnv, nccl_env
from topo_tune.records.search import LeftOut, SearchVariable
from topo_tune.records.topology import Fabric, Topology

Version = tuple[int, ...]

SCOPED_SINCE: Version = (2, 24)
"""NCCL that reads `allreduce:ring`. Older ones drop the unknown word, which switches everything off."""

LL128_MAY_BE_ON = frozenset({Fabric.NVLINK, Fabric.INFINIBAND, Fabric.ROCE, Fabric.NONE})
"""Networks across which NCCL may choose LL128 by itself, so that leaving it out is a setting of its own."""

NO_NCCL_VERSION: Version = (2, 27)
"""What is assumed where there is no NCCL at all (gloo on CPUs): the variables exist, nobody reads them."""

SENSIBLE_ELSEWHERE = {
    "nvls": "needs an NVSwitch with multicast and compute capability 9.0: not searched in this version",
    "collnet": "needs a CollNet (SHARP) plugin: not searched in this version",
}
NOT_YET = "not searched in this version"


class Searched(NamedTuple):
    """The dimensions of the space, and what is not among them."""

    variables: tuple[SearchVariable, ...]
    left_out: tuple[LeftOut, ...]


def searched_variables(
    topology: Topology, pinned: NcclEnv, extra_values: Mapping[str, tuple[str, ...]] | None = None
) -> Searched:
    """The dimensions for this NCCL version and these fabrics, from the catalogue, less what `pinned` fixes.

    `extra_values`: name to values that are tried besides the catalogue's. No value that can corrupt data is
    ever among the catalogue's choices here: LL128 is never named in NCCL_PROTO, nor is `^LL`, which also
    forces it.
    """
    place = _Place.of(topology)
    variables, left_out = [], []
    for dimension in _DIMENSIONS:
        names, why_not = _names_here(dimension, place, pinned)
        values = () if why_not else _values(names[0], place, extra_values or {})
        if values:
            variables.append(SearchVariable(names, values, dimension.reason + place.assumption))
        else:
            left_out += [
                LeftOut(name, why_not or "every value of the catalogue is the default here") for name in names
            ]
    return Searched(tuple(variables), (*left_out, *_LEFT_OUT_VALUES, *_other_variables(place.version)))


class _Dimension(NamedTuple):
    names: tuple[str, ...]
    """move together; or, where the first does not exist in this version, `older` does"""
    where: str
    """anywhere, one-node, socket or rdma"""
    reason: str
    tied_to: tuple[str, ...] = ()
    """variables of which one being pinned fixes what this one may be"""
    older: tuple[str, ...] = ()


_DIMENSIONS = (
    _Dimension(("NCCL_ALGO",), "anywhere", "ring and tree trade bandwidth against latency"),
    _Dimension(("NCCL_PROTO",), "anywhere", "LL trades bandwidth against latency"),
    _Dimension(
        ("NCCL_MAX_CTAS", "NCCL_MIN_CTAS"),
        "anywhere",
        "channels: parallel rings or trees; both ends move together so that the number is what it says",
        tied_to=("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        older=("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"),
    ),
    _Dimension(
        ("NCCL_BUFFSIZE",), "anywhere", "the Simple protocol's buffer, and with it the slice on the wire"
    ),
    _Dimension(("NCCL_NTHREADS",), "one-node", "threads per block of ring and LL kernels"),
    _Dimension(
        ("NCCL_SOCKET_NTHREADS",),
        "socket",
        "helper threads per connection share the copying between sockets and buffers",
        tied_to=("NCCL_NSOCKS_PERTHREAD",),
    ),
    _Dimension(
        ("NCCL_NSOCKS_PERTHREAD",),
        "socket",
        "several TCP streams per helper thread",
        tied_to=("NCCL_SOCKET_NTHREADS",),
    ),
    _Dimension(("NCCL_SOCKET_MIN_TASKSIZE",), "socket", "the smallest slice that one socket is given"),
    _Dimension(("NCCL_SOCKET_INLINE",), "socket", "payload that travels with the control word"),
    _Dimension(
        ("NCCL_IB_QPS_PER_CONNECTION",),
        "rdma",
        "more flows for the fabric's hashing to spread",
        tied_to=("NCCL_IB_SPLIT_DATA_ON_QPS",),
    ),
    _Dimension(
        ("NCCL_IB_SPLIT_DATA_ON_QPS",),
        "rdma",
        "each message over all queue pairs instead of one after the other",
        tied_to=("NCCL_IB_QPS_PER_CONNECTION",),
    ),
    _Dimension(("NCCL_IB_AR_THRESHOLD",), "rdma", "from which size adaptive routing may reorder"),
    _Dimension(("NCCL_IB_ADAPTIVE_ROUTING",), "rdma", "adaptive routing on the sender's side"),
    _Dimension(("NCCL_IB_PCI_RELAXED_ORDERING",), "rdma", "order of writes on PCIe"),
    _Dimension(("NCCL_IB_USE_INLINE",), "rdma", "control messages inside the work request"),
    _Dimension(("NCCL_NET_GDR_LEVEL",), "rdma", "how far a NIC may be from a GPU for GPUDirect"),
    _Dimension(("NCCL_NET_GDR_READ",), "rdma", "GPUDirect on the sender's side"),
    _Dimension(("NCCL_CROSS_NIC",), "rdma", "whether a ring may change the rail"),
    _Dimension(("NCCL_PXN_DISABLE",), "rdma", "relaying through the GPU next to the wanted NIC"),
)

_LEFT_OUT_VALUES = (
    LeftOut(
        "NCCL_PROTO=LL128",
        "forced on hardware that does not qualify it can corrupt data; `^LL` forces it too",
    ),
    LeftOut("NCCL_ALGO=NVLS, NVLSTree", SENSIBLE_ELSEWHERE["nvls"]),
    LeftOut("NCCL_ALGO=CollNetDirect, CollNetChain", SENSIBLE_ELSEWHERE["collnet"]),
)


class _Place(NamedTuple):
    """What decides about variables here."""

    version: Version | None
    """None: GPUs, but no version that every node agrees on"""
    kinds: frozenset[str]
    network: Fabric
    nvlink_inside: bool
    gpu_is_ampere_or_later: bool
    assumption: str

    @staticmethod
    def of(topology: Topology) -> _Place:
        has_no_gpu = topology.gpu_model is None and topology.nccl_version is None
        many = topology.node_count > 1
        network = topology.inter_fabric if many else Fabric.NONE
        kinds = {"anywhere"} if many or has_no_gpu else {"anywhere", "one-node"}
        if network is Fabric.SOCKET or has_no_gpu:
            kinds.add("socket")
        if network in (Fabric.INFINIBAND, Fabric.ROCE) and not has_no_gpu:
            kinds.add("rdma")
        version = version_tuple(topology.nccl_version) if topology.nccl_version else None
        return _Place(
            version=NO_NCCL_VERSION if has_no_gpu else version or None,
            kinds=frozenset(kinds),
            network=network,
            nvlink_inside=topology.intra_fabric is Fabric.NVLINK,
            gpu_is_ampere_or_later=_at_least(topology.compute_capability, (8, 0)),
            assumption=" (there is no NCCL here: listed as for NCCL 2.27 over sockets)" if has_no_gpu else "",
        )

    def has(self, variable: Variable) -> bool:
        # A variable with a long history is safe without a version; a recent one would be silently ignored.
        return variable.exists_in(self.version or (2, 10))


def _names_here(dimension: _Dimension, place: _Place, pinned: NcclEnv) -> tuple[tuple[str, ...], str | None]:
    """The names to set, and why they are not searched (None: they are)."""
    names = dimension.names
    if dimension.where not in place.kinds:
        return names, _elsewhere(dimension.where, place)
    if dimension.older and not place.has(catalogue()[names[0]]):
        names = dimension.older
    fixed = [
        name for name in (*dimension.names, *dimension.older, *dimension.tied_to) if name in pinned.names()
    ]
    if fixed:
        mine = "" if fixed[0] in names else f"`{fixed[0]}`, which it depends on, is "
        return (
            names,
            f"{mine}set by the cluster file for every job: `{fixed[0]}={pinned.as_dict()[fixed[0]]}`",
        )
    if place.version is None and names[0] in ("NCCL_ALGO", "NCCL_PROTO"):
        return names, "its grammar changed with NCCL 2.24, and the nodes agree on no NCCL version"
    if not place.has(catalogue()[names[0]]):
        return names, _not_in_version(catalogue()[names[0]], place.version)
    return names, None


def _elsewhere(where: str, place: _Place) -> str:
    if where == "one-node":
        return "matters inside one node; between nodes the network is the limit"
    return {
        "socket": "acts on NCCL's socket transport only",
        "rdma": "acts on InfiniBand and RoCE only",
    }[where] + f"; here messages between nodes cross: {place.network.value}"


def _not_in_version(variable: Variable, version: Version | None) -> str:
    have = "the nodes agree on no NCCL version" if version is None else f"here it is {_dotted(version)}"
    return f"NCCL reads it from {variable.since or variable.first_tag} on; {have}"


def _values(name: str, place: _Place, extra: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    special = {"NCCL_ALGO": _algorithms, "NCCL_PROTO": _protocols}.get(name)
    known = special(place) if special else _from_catalogue(name, place)
    values = dict.fromkeys((*known, *extra.get(name, ())))
    defaults = _defaults(name, place)
    return tuple(value for value in values if value not in defaults and nccl_env({name: value}))


def _algorithms(place: _Place) -> tuple[str, ...]:
    return ("allreduce:ring", "allreduce:tree") if _is_scoped(place) else ("Ring", "Tree")


def _protocols(place: _Place) -> tuple[str, ...]:
    words = ["LL", "Simple"]
    if place.network in LL128_MAY_BE_ON and place.nvlink_inside:
        words.append("LL,Simple")
    return tuple(f"allreduce:{word.lower()}" if _is_scoped(place) else word for word in words)


def _is_scoped(place: _Place) -> bool:
    return place.version is not None and place.version >= SCOPED_SINCE


CHANNEL_LIMITS = (((2, 25), 64), ((0,), 32))
"""Most channels of a communicator, by the version from which it holds."""


def _from_catalogue(name: str, place: _Place) -> tuple[str, ...]:
    source = {"NCCL_MAX_NCHANNELS": "NCCL_MAX_CTAS"}.get(name, name)
    values = catalogue()[source].search_values or ()
    if source == "NCCL_MAX_CTAS":
        version = place.version or (0,)
        limit = next(limit for since, limit in CHANNEL_LIMITS if version >= since)
        values = tuple(value for value in values if int(value) <= limit)
    return tuple(str(value) for value in values)


def _defaults(name: str, place: _Place) -> frozenset[str]:
    """Values that change nothing here, as far as the catalogue says."""
    by_hardware = {
        "NCCL_IB_ADAPTIVE_ROUTING": {"0"} if place.network is Fabric.ROCE else {"1"},
        "NCCL_NET_GDR_READ": {"1"} if place.gpu_is_ampere_or_later else set[str](),
        "NCCL_NET_GDR_LEVEL": {"PXB"},
        "NCCL_IB_SPLIT_DATA_ON_QPS": {"1"} if (2, 18) <= (place.version or (2, 20)) < (2, 20) else {"0"},
    }
    if name in by_hardware:
        return frozenset(by_hardware[name])
    # `512 (256 for ring/Simple when ...)`, `1; 8 on AWS`, 4194304: the number in front is the usual default.
    leading = re.match(r"-?\d+", str(catalogue()[name].default))
    return frozenset({leading.group()} if leading else ())


def _other_variables(version: Version | None) -> tuple[LeftOut, ...]:
    """Every other variable that the catalogue calls tunable, so that none is missing without a word."""
    searched = {name for dimension in _DIMENSIONS for name in dimension.names}
    return tuple(
        LeftOut(name, _why_other(variable, version))
        for name, variable in sorted(catalogue().items())
        if variable.tunable and name not in searched
    )


def _why_other(variable: Variable, version: Version | None) -> str:
    if version is not None and not variable.exists_in(version):
        return _not_in_version(variable, version)
    return SENSIBLE_ELSEWHERE.get(variable.group, NOT_YET)


def _at_least(compute_capability: str | None, wanted: Version) -> bool:
    return compute_capability is not None and version_tuple(compute_capability) >= wanted


def _dotted(version: Version) -> str:
    return ".".join(str(number) for number in version)
