"""The variables whose values have a grammar of their own, each with the function that checks it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from topo_tune.errors import nearest
from topo_tune.lint.algorithms import check_algorithms, check_protocols
from topo_tune.lint.devices import check_devices
from topo_tune.lint.message import Message, quoted
from topo_tune.lint.setting import Setting, Target

SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY"),
    *("NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"),
)
LEVELS = ("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE", "ALL")
POLICY_WORDS_SINCE = (2, 29)
_POLICIES = ("DEFAULT", "EFFICIENCY", "ZERO")
_NO_NETWORKS = {"tcp": "Socket", "sockets": "Socket", "ethernet": "Socket", "eth": "Socket"}
_NO_NETWORKS |= dict.fromkeys(("infiniband", "roce", "verbs", "rdma", "ibverbs"), "IB")
"""What people write for NCCL's own two networks; a plugin's name can be anything else."""

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]+):([0-9]{1,5})")
_THRESHOLDS = 6


def _debug_subsystems(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    yield from _listed(setting, value, SUBSYSTEMS)


def _debug_levels(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    yield from _listed(setting, value, LEVELS)


def _listed(setting: Setting, value: str, known: Iterable[str]) -> Iterator[Message]:
    known = tuple(known)
    for word in value.removeprefix("^").split(","):
        if word.strip().upper().removeprefix("^") not in known:
            near = nearest(word, known)
            hint = f"did you mean `{near}`?" if near else f"known: {', '.join(known)}"
            yield setting.about("value-not-allowed", f"NCCL does not know {quoted(word)} here", hint)


def _thresholds(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    words = value.split()
    if len(words) > _THRESHOLDS or not all(re.fullmatch(r"-?[0-9]{1,18}", word) for word in words):
        text = f"{quoted(value)} is not up to six whole numbers with spaces between them"
        yield setting.about("not-a-number", text, "tree LL, LL128, Simple, then ring LL, LL128, Simple")


def _policy(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    if value in ("0", "1", "2"):
        return
    if target.version < POLICY_WORDS_SINCE:
        text = f"{target.nccl} reads a number here; words came with 2.29"
        yield setting.about("value-not-allowed", text, "0 default, 1 efficiency, 2 zero")
        return
    for word in value.split("|"):
        if word not in _POLICIES:
            text = f"NCCL does not know {quoted(word)} here"
            yield setting.about("value-not-allowed", text, f"known: {', '.join(_POLICIES)}, joined by `|`")


def _network_devices(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    if value not in ("AUTO", "ALL") and not re.fullmatch(r"MAX:[0-9]{1,3}", value):
        text = f"NCCL does not know {quoted(value)} here and takes `AUTO`"
        yield setting.about("value-not-allowed", text, "known: AUTO, ALL, MAX:n")


def _network(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    meant = _NO_NETWORKS.get(value.lower())
    if meant is not None:
        text = f"no network is named {quoted(value)}: communicators fail to start"
        yield setting.about("value-not-allowed", text, f"did you mean `{meant}`?")


def _address_range(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        text = f"{quoted(value)} is no range of addresses; NCCL ignores it"
        yield setting.about("value-not-allowed", text, "write `10.0.0.0/16` or `fd00::/64`")


def _address(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match.group(1)) > 65535:
        text = f"{quoted(value)} is no `host:port`"
        yield setting.about("value-not-allowed", text, "an IPv6 address stands in brackets: `[::1]:28028`")


GRAMMARS: Mapping[str, Callable[[Setting, str, Target], Iterator[Message]]] = {
    "NCCL_ALGO": check_algorithms,
    "NCCL_PROTO": check_protocols,
    "NCCL_IB_HCA": check_devices,
    "NCCL_SOCKET_IFNAME": check_devices,
    "NCCL_DEBUG_SUBSYS": _debug_subsystems,
    "NCCL_DEBUG_TIMESTAMP_LEVELS": _debug_levels,
    "NCCL_THREAD_THRESHOLDS": _thresholds,
    "NCCL_CTA_POLICY": _policy,
    "NCCL_NETDEVS_POLICY": _network_devices,
    "NCCL_NET": _network,
    "NCCL_IB_ADDR_RANGE": _address_range,
    "NCCL_RAS_ADDR": _address,
    "NCCL_COMM_ID": _address,
}
