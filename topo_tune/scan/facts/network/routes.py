"""IPv4 routes: /proc/net/route of a node, and saved `ip route` output, as lines or as JSON."""

from __future__ import annotations

import ipaddress
import itertools
import json
import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.network import Route
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import Fact, Files, Gathered, SavedKind
from topo_tune.scan.facts.network.interfaces import INTERFACE_NAME
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, without_escapes

_KERNEL = Files("/proc/net/route", limit_bytes=256 << 10)
_ROUTE_LIMIT = 2048
_HINT = "`ip route` or `ip -j route` writes them"
_JSON = re.compile(r"\[\s*[{\]]")  # and no `[1,0]<stdout>` of mpirun
_TYPES = r"(?:unicast |blackhole |unreachable |prohibit )?"
_LINE = re.compile(
    rf"\s*{_TYPES}(default|\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?:/\d{{1,2}})?)\s(?:.*\s)?dev\s+({INTERFACE_NAME})(\s.*)?$"
)


def parse_kernel(text: str) -> tuple[Route, ...]:
    """/proc/net/route: addresses are 32-bit numbers in the byte order of the machine, little-endian on all of ours."""
    routes = []
    for line in text.split("\n")[1:_ROUTE_LIMIT]:
        words = line.split()
        if len(words) < 8 or not all(re.fullmatch(r"[0-9A-Fa-f]{8}", words[i]) for i in (1, 2, 7)):
            continue
        destination, gateway, mask = (_address(words[i]) for i in (1, 2, 7))
        network = ipaddress.ip_network(
            f"{destination}/{bin(int(ipaddress.ip_address(mask))).count('1')}", strict=False
        )
        routes.append(
            Route(
                destination="default" if network.prefixlen == 0 else str(network),
                interface=words[0][:32],
                gateway=None if gateway == "0.0.0.0" else gateway,
            )
        )
    return tuple(routes)


def parse(text: str, *, file: str | None = None) -> tuple[Route, ...]:
    """The routes of an `ip route`. Raises InputError where there is none."""
    stripped = without_escapes(text).strip()
    if _JSON.match(stripped):
        routes = _from_json(stripped, file)
    else:
        lines = (_LINE.match(line) for _, line in lines_of_one_task(text).lines)
        routes = [_route(match) for match in lines if match]
    if not routes:
        raise InputError(
            f"no route: expected lines like `default via 10.0.0.1 dev eth0`, found `{clipped(stripped)}`",
            file=file,
            hint=_HINT,
        )
    return tuple(routes[:_ROUTE_LIMIT])


def tell(scan: NodeScan, gathered: Gathered) -> NodeScan:
    """The scan with the routes that the kernel lists."""
    routes = [route for text in gathered.texts(_KERNEL.pattern).values() for route in parse_kernel(text)]
    return msgspec.structs.replace(scan, routes=tuple(dict.fromkeys((*scan.routes, *routes))))


def tell_saved(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The scan with the routes of a saved `ip route`."""
    return msgspec.structs.replace(scan, routes=tuple(dict.fromkeys((*scan.routes, *parse(text, file=file)))))


def _address(digits: str) -> str:
    return str(ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(digits), "little")))


def _route(match: re.Match[str]) -> Route:
    destination, interface, _ = match.groups()
    words = match.group().split()
    said_of = dict(itertools.pairwise(words))
    return Route(
        destination=_network(destination),
        interface=interface,
        source=_ip(said_of.get("src")),
        gateway=_ip(said_of.get("via")),
    )


def _network(text: str) -> str:
    if text == "default":
        return text
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        return text


def _ip(text: str | None) -> str | None:
    try:
        return str(ipaddress.ip_address(text)) if text else None
    except ValueError:
        return None


def _from_json(text: str, file: str | None) -> list[Route]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(
            f"JSON of `ip route` that is damaged: {clipped(str(exc), 100)}", file=file, hint=_HINT
        ) from exc
    return [
        Route(
            destination=_network(entry["dst"][:64]),
            interface=entry["dev"][:32],
            source=_ip(str(entry.get("prefsrc") or "")),
            gateway=_ip(str(entry.get("gateway") or "")),
        )
        for entry in entries[:_ROUTE_LIMIT]
        if isinstance(entry, dict) and isinstance(entry.get("dst"), str) and isinstance(entry.get("dev"), str)
    ]


_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_SHAPES = (
    rf"^.{{0,30}}\bdefault (?:via {_IPV4} )?dev {INTERFACE_NAME}",
    rf"^.{{0,30}}\b{_IPV4}(?:/\d{{1,2}})? (?:via {_IPV4} )?dev {INTERFACE_NAME}[ \t]+(?:proto|scope|src|metric) ",
)
_LINES = re.compile("|".join(_SHAPES), re.M)


def _recognise(text: str) -> bool:
    beginning = text.lstrip()[:4096]
    if _JSON.match(beginning):
        return '"dst"' in beginning and '"dev"' in beginning
    return _LINES.search(text) is not None


FACTS: tuple[Fact, ...] = (Fact("routes", tell, files=(_KERNEL,)),)
KINDS: tuple[SavedKind, ...] = (SavedKind("`ip route` output", _recognise, tell=tell_saved),)
