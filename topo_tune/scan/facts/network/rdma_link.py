"""`rdma link` and `rdma dev` of iproute2, as lines and as JSON; `ibdev2netdev`: which interface each port has.

An interface that lives in another network namespace is not named: then nothing is said of it, and nothing is wrong.
"""

from __future__ import annotations

import json
import re
from typing import Any

from topo_tune.errors import InputError
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.gpus.nvidia_gpus import pci_bus_id
from topo_tune.scan.facts.network import rdma_devices as rdma
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, without_escapes

_HINT = "`rdma link` writes them"
_JSON = re.compile(r"\[\s*[{\]]")  # and no `[1,0]<stdout>` of mpirun
# `link mlx5_0/1 state ...`; before iproute2 5.0 `1/1: mlx5_0/1: state ...`
_LINK = re.compile(rf"\s*(?:link\s+|\d{{1,4}}/\d{{1,3}}:\s+)({rdma.DEVICE_NAME})/(\d{{1,3}}):?\s(.*)$")
_DEVICE = re.compile(rf"\s*\d{{1,4}}:\s+({rdma.DEVICE_NAME}):\s+node_type\s(.*)$")
_PAIR = re.compile(
    rf"\s*(?:([0-9a-fA-F:.]{{7,16}})\s+)?({rdma.DEVICE_NAME})\s(?:(.*)\s)?port\s+(\d{{1,3}})\s+(?:\(\s*(\w+)\s*\)\s*)?==>\s*"
    r"([\w.-]{0,32})\s*(?:\((\w+)\))?"
)


def parse(text: str, *, file: str | None = None) -> rdma.Devices:
    """The ports of `rdma link`, or the devices of `rdma dev`, as lines or as JSON.

    Raises InputError where there are none.
    """
    stripped = without_escapes(text).strip()
    if _JSON.match(stripped):
        return _parse_json(stripped, file)
    task = lines_of_one_task(text, is_numbered=": node_type " in text)
    devices = []
    for _, line in task.lines:
        if link := _LINK.match(line):
            devices.append(RdmaDevice(link.group(1), (_port(int(link.group(2)), _words(link.group(3))),)))
        elif device := _DEVICE.match(line):
            devices.append(_device(device.group(1), _words("node_type " + device.group(2))))
    if not devices:
        raise rdma.no_devices("lines like `link mlx5_0/1 state ACTIVE`", task.lines, file, _HINT)
    return rdma.Devices(rdma.joined(devices), task.problems)


def parse_pairs(text: str, *, file: str | None = None) -> rdma.Devices:
    """The lines of `ibdev2netdev`, with or without `-v`. Raises InputError where there are none."""
    task = lines_of_one_task(text)
    pairs = [pair for pair in (_PAIR.match(line) for _, line in task.lines) if pair]
    if not pairs:
        raise rdma.no_devices(
            "lines like `mlx5_0 port 1 ==> ib0 (Up)`", task.lines, file, "`ibdev2netdev` writes them"
        )
    return rdma.Devices(rdma.joined(_pair(pair) for pair in pairs), task.problems)


def _words(text: str) -> dict[str, str]:
    """`state ACTIVE physical_state LINK_UP`: names and values in turn."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=False))


def _port(number: int, said_of: dict[str, str]) -> RdmaPort:
    return RdmaPort(
        port=number,
        state=rdma.state(said_of.get("state")),
        physical_state=rdma.physical_state(said_of.get("physical_state")),
        lid=rdma.lid(said_of.get("lid")),
        sm_lid=rdma.lid(said_of.get("sm_lid")),
        # A subnet prefix and a LID are things of InfiniBand.
        link_layer="InfiniBand" if rdma.lid(said_of.get("sm_lid")) else None,
        netdev=said_of.get("netdev", "")[:32] or None,
    )


def _device(name: str, said_of: dict[str, str]) -> RdmaDevice:
    return RdmaDevice(
        name=name,
        ports=(),
        firmware=clipped(said_of["fw"], 60) if "fw" in said_of else None,
        node_guid=rdma.guid(said_of.get("node_guid")),
        system_guid=rdma.guid(said_of.get("sys_image_guid")),
    )


def _parse_json(text: str, file: str | None) -> rdma.Devices:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(
            f"JSON of `rdma` that is damaged: {clipped(str(exc), 100)}", file=file, hint=_HINT
        ) from exc
    devices = [_json_device(entry) for entry in entries[: 4 * rdma.DEVICE_LIMIT] if isinstance(entry, dict)]
    found = [device for device in devices if device is not None]
    if not found:
        raise rdma.no_devices("objects with `ifname` and `port`", [(1, text[:80])], file, _HINT)
    return rdma.Devices(rdma.joined(found))


def _json_device(entry: dict[str, Any]) -> RdmaDevice | None:
    said_of = {str(name): str(value)[:80] for name, value in entry.items() if isinstance(value, (str, int))}
    name = said_of.get("ifname", "")
    if not re.fullmatch(rdma.DEVICE_NAME, name):
        return None
    if "port" not in said_of:
        return _device(name, said_of)
    number = rdma.lid(said_of["port"])
    return RdmaDevice(name, (_port(number, said_of),)) if number is not None else None


def _pair(pair: re.Match[str]) -> RdmaDevice:
    address, name, between, port, state, netdev, _ = pair.groups()
    kind = re.search(r"\((MT\d{3,6})\b", between or "")
    firmware = re.search(r"\bfw\s+(\d[\w.]{2,30})", between or "")
    return RdmaDevice(
        name=name,
        ports=(RdmaPort(int(port), state=rdma.state(state), netdev=netdev or None),),
        type=kind.group(1) if kind else None,
        firmware=firmware.group(1) if firmware else None,
        pci_bus_id=pci_bus_id(address),
    )


def _is_json(text: str) -> bool:
    beginning = text.lstrip()[:4096]
    return _JSON.match(beginning) is not None and bool(
        re.search(r'"physical_state"\s*:', beginning)
        or (re.search(r'"node_guid"\s*:', beginning) and re.search(r'"node_type"\s*:', beginning))
    )


_is_link = matches(
    r"^.{0,30}\blink [A-Za-z][\w.-]{0,63}/\d{1,3} .{0,300}\bstate [A-Z]|^[ \t]*\d+/\d+: [\w.-]{1,64}/\d+: "
)
_is_dev = matches(r"^[ \t]*\d+: [\w.-]{1,64}: node_type [a-z]")

KINDS: tuple[SavedKind, ...] = (
    SavedKind("`rdma link` output", lambda text: _is_json(text) or _is_link(text), tell=rdma.telling(parse)),
    SavedKind("`rdma dev` output", _is_dev, tell=rdma.telling(parse)),
    SavedKind(
        "`ibdev2netdev` output",
        # `-v` writes some 200 characters about the card in front, blanks within `(DOWN  )`; `column -t` adds more.
        matches(
            r"\bport[ \t]{1,20}\d{1,3}[ \t]{1,20}(?:\([ \t]{0,8}\w{1,20}[ \t]{0,8}\)[ \t]{1,20})?==>[ \t]"
        ),
        tell=rdma.telling(parse_pairs),
    ),
)
