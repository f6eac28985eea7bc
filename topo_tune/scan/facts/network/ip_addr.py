"""`ip addr` and `ip link` of iproute2, in each of their shapes: blocks, `-br`, `-o`, and `-j` (JSON)."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.scan import Nic, NodeScan
from topo_tune.scan.facts.fact import SavedKind, with_absent
from topo_tune.scan.facts.network import interfaces
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, without_escapes

_NAME = interfaces.INTERFACE_NAME
_HEAD = re.compile(rf"\s*\d{{1,7}}:\s+({_NAME})(?:@({_NAME}))?:\s+<([A-Z_,0-9-]*)>\s*(.*)$")
_BRIEF = re.compile(
    rf"\s*({_NAME})(?:@({_NAME}))?\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT)(\s.*)?$"
)
_ONE_LINE = re.compile(rf"\s*\d{{1,7}}:\s+({_NAME})\s+inet6?\s+(\S+)")
_INET = re.compile(r"\s*inet6?\s+(\S+)")
_LINK = re.compile(r"\s*link/(\w{1,16})")
_IS_UP = {"UP": True, "DOWN": False, "LOWERLAYERDOWN": False, "DORMANT": False}
_HINT = "`ip addr` or `ip -j addr` writes them"
_JSON = re.compile(r"\[\s*[{\]]")  # and no `[1,0]<stdout>` of mpirun


class _Told(msgspec.Struct):
    """What the lines of one interface told so far."""

    flags: str = ""
    state: str | None = None
    link: str | None = None
    mtu: int | None = None
    master: str | None = None
    peer: str | None = None
    """behind the `@`: what a VLAN lies on; `if7` where it is in another network namespace"""
    info: str | None = None
    """`bond`, `bridge`, `veth`, ... of `ip -d`"""
    addresses: tuple[str, ...] = ()

    def add_address(self, text: str) -> None:
        found = interfaces.address(text)
        if found is not None and found not in self.addresses and len(self.addresses) < 64:
            self.addresses += (found,)


def parse(text: str, *, file: str | None = None) -> tuple[Nic, ...]:
    """The interfaces of an `ip addr` or `ip link`, in their order. Raises InputError where there is none."""
    stripped = without_escapes(text).strip()
    if _JSON.match(stripped):
        told = _from_json(stripped, file)
    else:
        told = _from_lines(text)
    if not told:
        first = next((line for line in stripped.split("\n") if line.strip()), "")
        raise InputError(
            f"no interface: expected lines like `2: eth0: <BROADCAST,UP> mtu 1500`, found `{clipped(first)}`",
            file=file,
            hint=_HINT,
        )
    return tuple(_nic(name, one) for name, one in told.items())


def tell(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The scan with the interfaces of a saved `ip addr`."""
    for problem in lines_of_one_task(text, is_numbered=True).problems:
        scan = with_absent(scan, f"part of {file}", problem)
    return interfaces.with_interfaces(scan, parse(text, file=file))


def _from_lines(text: str) -> dict[str, _Told]:
    told: dict[str, _Told] = {}
    current: _Told | None = None
    for _, line in lines_of_one_task(text, is_numbered=True).lines:
        if head := _HEAD.match(line):
            current = _entry(told, head.group(1))
            current.peer = head.group(2)
            _read_head(current, head.group(3), head.group(4))
        elif one_line := _ONE_LINE.match(line):
            current = None
            _entry(told, one_line.group(1)).add_address(one_line.group(2))
        elif brief := _BRIEF.match(line):
            current = None
            entry = _entry(told, brief.group(1))
            entry.peer, entry.state = brief.group(2), brief.group(3)
            for word in (brief.group(4) or "").split():
                entry.add_address(word)
        elif current is not None and (inet := _INET.match(line)):
            current.add_address(inet.group(1))
        elif current is not None and (link := _LINK.match(line)):
            current.link = link.group(1)
        elif current is not None and (
            info := re.match(r"\s+(bond|bridge|veth|vlan|vxlan|macvlan|tun|ipvlan|dummy)\b", line)
        ):
            current.info = current.info or info.group(1)
    return told


def _entry(told: dict[str, _Told], name: str) -> _Told:
    if name not in told and len(told) >= interfaces.INTERFACE_LIMIT:
        return _Told()
    return told.setdefault(name, _Told())


def _read_head(entry: _Told, flags: str, behind: str) -> None:
    words = behind.replace("\\", " ").split()
    said_of = dict(zip(words[::2], words[1::2], strict=False))
    entry.flags, entry.state = flags, said_of.get("state")
    entry.mtu, entry.master = interfaces.mtu(said_of.get("mtu")), said_of.get("master")
    if link := re.search(r"\blink/(\w{1,16})", behind):
        # `-o` puts the whole block on one line.
        entry.link = link.group(1)


def _from_json(text: str, file: str | None) -> dict[str, _Told]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(
            f"JSON of `ip` that is damaged: {clipped(str(exc), 100)}", file=file, hint=_HINT
        ) from exc
    told: dict[str, _Told] = {}
    for entry in entries[: interfaces.INTERFACE_LIMIT]:
        if isinstance(entry, dict) and re.fullmatch(_NAME, str(entry.get("ifname", ""))):
            _read_json(_entry(told, str(entry["ifname"])), entry)
    return told


def _read_json(told: _Told, entry: dict[str, Any]) -> None:
    told.flags = ",".join(str(flag) for flag in _list(entry.get("flags")))
    told.state, told.mtu = _text(entry.get("operstate")), interfaces.mtu(str(entry.get("mtu")))
    told.link, told.master = _text(entry.get("link_type")), _text(entry.get("master"))
    info = entry.get("linkinfo")
    told.info = _text(info.get("info_kind")) if isinstance(info, dict) else None
    for address in _list(entry.get("addr_info")):
        if isinstance(address, dict) and "local" in address:
            told.add_address(f"{address['local']}/{address.get('prefixlen', '')}")


def _list(value: object) -> list[Any]:
    return value[:256] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value[:32] if isinstance(value, str) else None


def _nic(name: str, told: _Told) -> Nic:
    kind, is_virtual = interfaces.kind_by_name(name, told.link)
    if told.info is not None:
        is_virtual = True
        kind = "ethernet" if told.info in {"bond", "team", "vlan"} else "other"
    elif re.fullmatch(r"if\d+", told.peer or ""):
        # One end of a pair, or a macvlan: what a container sees as its `eth0`.
        kind, is_virtual = "other", True
    return Nic(
        name=name,
        kind=kind,
        is_up=_IS_UP.get(told.state or ""),
        speed_gbit_per_s=None,
        numa_node=None,
        driver=None,
        addresses=told.addresses,
        mtu_bytes=told.mtu,
        is_virtual=is_virtual,
        master=told.master[:32] if told.master else None,
    )


_MAC = r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}"
_SHAPES = (
    rf"^.{{0,30}}\b\d{{1,7}}: {_NAME}(?:@{_NAME})?: <[A-Z_,0-9-]*>.{{0,40}}\bmtu \d",
    rf"^[ \t]*\d{{1,7}}: {_NAME} +inet6? [0-9a-fA-F.:]+/\d",
    rf"^[ \t]*{_NAME}(?:@{_NAME})?[ \t]+(?:UP|DOWN|UNKNOWN)[ \t]+(?:{_MAC}|[0-9a-fA-F.:]{{2,40}}/\d)",
)
_LINES = re.compile("|".join(_SHAPES), re.M)


def _recognise(text: str) -> bool:
    beginning = text.lstrip()[:4096]
    if _JSON.match(beginning):
        return '"ifname"' in beginning and ('"addr_info"' in beginning or '"link_type"' in beginning)
    return _LINES.search(text) is not None


KINDS: tuple[SavedKind, ...] = (SavedKind("`ip addr` output", _recognise, tell=tell),)
