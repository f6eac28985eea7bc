"""Which settings share processes. What NCCL reads for each communicator changes inside one set of processes.

NCCL keeps most variables for the life of a process. Three kinds can change with the next communicator: variables that
it looks up each time, fields of `ncclConfig_t`, and from 2.29.7 integers that `NCCL_NO_CACHE` names. Everything else is
put into the environment of a fresh set of processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from topo_tune.on_node.nccl_api import config_fields
from topo_tune.records.catalogue import catalogue
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv

Version = tuple[int, ...]

NO_CACHE = "NCCL_NO_CACHE"
_FIRST_WITH_NO_CACHE = (2, 29, 7)

# Looked up again, but kept in other statics or used up when devices are built (nccl-facts (a); NVIDIA/nccl 2.30.7
# src/graph/paths.cc, src/transport/net_ib/init.cc, src/misc/socket.cc, src/graph/topo.cc, src/init.cc).
LATCHED = frozenset(
    {
        "NCCL_P2P_LEVEL",
        "NCCL_P2P_DISABLE",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_PXN_DISABLE",
        "NCCL_IB_HCA",
        "NCCL_IB_DISABLE",
        "NCCL_IB_AR_THRESHOLD",
        "NCCL_IB_ADAPTIVE_ROUTING",
        "NCCL_IB_PCI_RELAXED_ORDERING",
        "NCCL_IB_OOO_RQ",
        "NCCL_IB_MERGE_NICS",
        "NCCL_IB_MERGE_VFS",
        "NCCL_SOCKET_IFNAME",
        "NCCL_SOCKET_FAMILY",
        "NCCL_NET_MERGE_LEVEL",
        "NCCL_NET_MERGE_POLICY",
        "NCCL_NET_FORCE_MERGE",
        "NCCL_NETDEVS_POLICY",
        "NCCL_CTA_POLICY",
        "NCCL_GDRCOPY_ENABLE",
        "NCCL_NET_PLUGIN",
        "NCCL_HOSTID",
        "NCCL_SHM_LOCALITY",
        "NCCL_P2P_USE_CUDA_MEMCPY",
        "NCCL_CUMEM_ENABLE",
        "NCCL_CUMEM_HOST_ENABLE",
        "NCCL_PROXY_CPUSET",
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "NCCL_DEBUG_SUBSYS",
        "NCCL_DEBUG_TIMESTAMP_FORMAT",
        "NCCL_DEBUG_TIMESTAMP_LEVELS",
        "NCCL_TUNER_PLUGIN",
    }
)

# Ranks meet through it: a value of a setting's own would keep them from meeting at the second communicator.
_WHERE_RANKS_MEET = "NCCL_COMM_ID"

# Fields that mean what the variable means, with the largest value that ncclConfig_t takes as it stands; None: as many
# as there are channels. `trafficClass` is two variables in one, and the others are words or concern no measurement.
_CONFIG_LIMITS: dict[str, int | None] = {
    "minCTAs": None,
    "maxCTAs": None,
    "cgaClusterSize": 8,
    "nvlsCTAs": None,
    "nChannelsPerNetPeer": None,
}


class Variant(msgspec.Struct, frozen=True):
    """One setting as one communicator has it, beside what its processes have already."""

    position: int
    """of the setting among those that were asked for"""
    setting: NcclEnv
    """all of it"""
    env: NcclEnv = DEFAULTS
    """variables that are put into the environment before this communicator"""
    config: tuple[tuple[str, int], ...] = ()
    """(field of ncclConfig_t, value)"""


class Processes(msgspec.Struct, frozen=True):
    """One set of processes and the communicators that are made in it, one after the other."""

    env: NcclEnv
    """variables that the processes are started with"""
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()
    """what every reader of its numbers must be told"""

    def behind(self, count: int) -> Processes:
        """The same without its first `count` communicators."""
        return msgspec.structs.replace(self, variants=self.variants[count:])


def alone(setting: NcclEnv, position: int = 0) -> Processes:
    """Processes of its own: the whole setting stands in their environment, as in production."""
    return Processes(setting, (Variant(position, setting),))


def order(
    settings: Iterable[NcclEnv], nccl_version: Version | None, *, interleaved: bool = False
) -> tuple[Processes, ...]:
    """As few sets of processes as these settings need; each setting is in one of them, once for each time it is given.

    Sets stand in the order of their first setting, and settings of a set in the order in which they were given. A set
    of one setting has all of it in its environment. `nccl_version`: None where it is not known; then only what every
    version looks up again is shared. `interleaved`: nothing is moved past anything else, so that blocks such as
    default, candidate, candidate, default stay as they are; only neighbours share.
    """
    split = [_split(position, setting, nccl_version) for position, setting in enumerate(settings)]
    return tuple(
        _processes(env, variants) for env, variants in (_neighbours(split) if interleaved else _alike(split))
    )


_Split = tuple[NcclEnv, Variant]
"""what its processes must be started with, and the rest"""


def _alike(split: list[_Split]) -> Iterator[tuple[NcclEnv, list[Variant]]]:
    groups: dict[NcclEnv, list[Variant]] = {}
    for env, variant in split:
        groups.setdefault(env, []).append(variant)
    yield from groups.items()


def _neighbours(split: list[_Split]) -> Iterator[tuple[NcclEnv, list[Variant]]]:
    for env, group in itertools.groupby(split, key=lambda part: part[0]):
        yield env, [variant for _, variant in group]


def _processes(env: NcclEnv, variants: list[Variant]) -> Processes:
    if len(variants) == 1:
        return alone(variants[0].setting, variants[0].position)
    reloaded = sorted({name for v in variants for name in v.env.names() if not _is_looked_up_again(name)})
    if not reloaded:
        return Processes(env, tuple(variants))
    listed = ",".join(reloaded)
    note = f"measured with {NO_CACHE}={listed}, which costs look-ups and is no production setting"
    return Processes(env.merged(NcclEnv(((NO_CACHE, listed),))), tuple(variants), (note,))


def _split(position: int, setting: NcclEnv, version: Version | None) -> _Split:
    config = _config(setting, version)
    names = {name for name, _ in config}
    rest = {name: value for name, value in setting.settings if name not in names}
    # Whoever sets it himself means his own list.
    may_reload = version is not None and version >= _FIRST_WITH_NO_CACHE and NO_CACHE not in rest
    own = {n: v for n, v in rest.items() if _is_looked_up_again(n) or (may_reload and _is_reloadable(n))}
    fixed = {name: value for name, value in rest.items() if name not in own}
    variant = Variant(
        position=position,
        setting=setting,
        env=NcclEnv(tuple(own.items())),
        config=tuple(sorted(_completed(dict(fields for _, fields in config), version).items())),
    )
    return NcclEnv(tuple(fixed.items())), variant


def _is_looked_up_again(name: str) -> bool:
    variable = catalogue().get(name)
    return (
        variable is not None
        and variable.read_when == "comm_init"
        and name not in LATCHED
        and name != _WHERE_RANKS_MEET
    )


def _is_reloadable(name: str) -> bool:
    variable = catalogue().get(name)
    return variable is not None and variable.no_cache_reload is True and name not in LATCHED


def _config(setting: NcclEnv, version: Version | None) -> list[tuple[str, tuple[str, int]]]:
    """(variable, (field, value)) of what `ncclConfig_t` of this version says as well as the variable."""
    if version is None:
        return []
    fields = config_fields(version)
    found: dict[str, tuple[str, int]] = {}
    for name, value in setting.settings:
        variable = catalogue().get(name)
        field = None if variable is None else variable.config_field
        if field not in _CONFIG_LIMITS or field not in fields or not value.isdecimal():
            continue
        if 1 <= int(value) <= (_CONFIG_LIMITS[field] or most_channels(version)):
            found[name] = (field, int(value))
    values = dict(found.values())
    if values.get("minCTAs", 0) > values.get("maxCTAs", most_channels(version)):
        # The variables are cut to each other with a word in the log; as a configuration the pair is refused.
        found = {n: (field, v) for n, (field, v) in found.items() if field not in ("minCTAs", "maxCTAs")}
    return list(found.items())


def _completed(config: dict[str, int], version: Version | None) -> dict[str, int]:
    """With the upper limit beside a lower one.

    parseCommConfig of NVIDIA/nccl src/init.cc compares the two before it fills in defaults, and the mark of a field
    that is not given is less than any number: a lower limit alone is an invalid argument.
    """
    if "minCTAs" in config and "maxCTAs" not in config and version is not None:
        return {**config, "maxCTAs": most_channels(version)}
    return config


def most_channels(version: Version) -> int:
    """MAXCHANNELS, which is also the default of maxCTAs: 32 up to NCCL 2.24, 64 since 2.25."""
    return 64 if version >= (2, 25) else 32
