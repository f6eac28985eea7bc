"""`ibv_devinfo` and `ibv_devinfo -v`: devices as the verbs library opens them; `ibv_devices`: their names.

It alone tells the active MTU of a port. GID rows come with `-v`; their types since rdma-core 26.
"""

from __future__ import annotations

import re

import msgspec

from topo_tune.records.network import Gid, RdmaDevice, RdmaPort
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.network import rdma_devices as rdma
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, said, whole_number

KEEP = r"hca_id|fw_ver|_guid|board_id|vendor_|port:|state|_mtu|lid:|link_layer|active_|GID\["
"""Lines of `ibv_devinfo -v` that are read here; the rest is capabilities."""

_MELLANOX, _AMAZON = "0x02c9", "0x1d0f"
_HEAD = re.compile(rf"\s*hca_id:\s*({rdma.DEVICE_NAME})\s*$")
_PORT = re.compile(r"\s*port:\s*(\d{1,3})\s*$")
_GID = re.compile(r"\s*GID\[\s*(\d{1,5})\]:\s*([0-9a-fA-F:.]{2,45})(?:\s*,\s*(\S[\S ]{0,20}))?\s*$")
_FIELD = re.compile(r"\s*([a-z][a-z_0-9]{2,40}):\s*(\S.*)?$")


def parse(text: str, *, file: str | None = None) -> rdma.Devices:
    """The devices of an `ibv_devinfo`. Raises InputError where no line begins one."""
    task = lines_of_one_task(text)
    problems = list(task.problems)
    devices: dict[str, _Device] = {}
    current: _Device | None = None
    port: _Port | None = None
    for number, line in task.lines:
        if head := _HEAD.match(line):
            port = None
            if head.group(1) in devices:
                problems.append(
                    f"line {number}: a second block for `{clipped(head.group(1), 30)}` is left out"
                )
                current = _Device({}, {})
            else:
                current = devices[head.group(1)] = _Device({}, {})
        elif current is None:
            continue
        elif begin := _PORT.match(line):
            port = current.ports.setdefault(int(begin.group(1)), _Port({}, {}))
        elif port is not None and (row := _GID.match(line)):
            port.gids[int(row.group(1))] = (row.group(2), row.group(3))
        elif field := _FIELD.match(line):
            (current.fields if port is None else port.fields).setdefault(field.group(1), field.group(2) or "")
    if not devices:
        raise rdma.no_devices("lines like `hca_id: mlx5_0`", task.lines, file, "`ibv_devinfo -v` writes them")
    problems += [
        f"the block of `{clipped(name, 30)}` is incomplete: no state of a port"
        for name, device in devices.items()
        if not device.ports or any("state" not in port.fields for port in device.ports.values())
    ]
    return rdma.Devices(rdma.joined(_device(name, d) for name, d in devices.items()), tuple(problems))


def parse_names(text: str, *, file: str | None = None) -> rdma.Devices:
    """The names of an `ibv_devices` with their node GUIDs. Raises InputError where there is none."""
    task = lines_of_one_task(text)
    rows = [re.match(rf"\s*({rdma.DEVICE_NAME})\s+([0-9a-f]{{16}})\s*$", line) for _, line in task.lines]
    devices = [RdmaDevice(row.group(1), (), node_guid=rdma.guid(row.group(2))) for row in rows if row]
    if not devices:
        what = "lines of a device's name and its node GUID"
        raise rdma.no_devices(what, task.lines, file, "`ibv_devices` writes them")
    return rdma.Devices(rdma.joined(devices), task.problems)


class _Port(msgspec.Struct):
    fields: dict[str, str]
    gids: dict[int, tuple[str, str | None]]


class _Device(msgspec.Struct):
    fields: dict[str, str]
    ports: dict[int, _Port]


def _device(name: str, device: _Device) -> RdmaDevice:
    fields = device.fields
    return RdmaDevice(
        name=name,
        ports=tuple(_port(number, device.ports[number]) for number in sorted(device.ports)),
        type=_type(fields),
        firmware=_short(fields.get("fw_ver")),
        board=_short(fields.get("board_id")),
        node_guid=rdma.guid(fields.get("node_guid")),
        system_guid=rdma.guid(fields.get("sys_image_guid")),
        driver="efa" if _vendor(fields) == _AMAZON else None,
    )


def _type(fields: dict[str, str]) -> str | None:
    """`MT4129` as the other tools say it: of Mellanox cards the part number is the name."""
    part = whole_number(fields.get("vendor_part_id"))
    return f"MT{part}" if part is not None and _vendor(fields) == _MELLANOX else None


def _vendor(fields: dict[str, str]) -> str:
    return fields.get("vendor_id", "").strip().casefold()


def _port(number: int, port: _Port) -> RdmaPort:
    fields = port.fields
    rows = (rdma.gid_row(index, gid, kind) for index, (gid, kind) in port.gids.items())
    gids: tuple[Gid, ...] = tuple(row for row in rows if row is not None)
    return RdmaPort(
        port=number,
        state=rdma.state(fields.get("state")),
        physical_state=rdma.physical_state(fields.get("phys_state")),
        rate_gbit_per_s=_rate(fields),
        link_layer=rdma.link_layer(fields.get("link_layer")),
        active_mtu_bytes=_mtu(fields.get("active_mtu")),
        max_mtu_bytes=_mtu(fields.get("max_mtu")),
        lid=rdma.lid(fields.get("port_lid")),
        sm_lid=rdma.lid(fields.get("sm_lid")),
        gids=gids[: rdma.GID_LIMIT],
    )


def _rate(fields: dict[str, str]) -> float | None:
    """Lanes times speed of a lane: `4X (2)` and `100.0 Gbps (128)`."""
    lanes = re.match(r"\s*(\d{1,2})X\b", fields.get("active_width", ""))
    speed = rdma.gbit_per_s(fields.get("active_speed"))
    return int(lanes.group(1)) * speed if lanes and speed else None


def _mtu(text: str | None) -> int | None:
    number = whole_number(text)
    return number if number in {256, 512, 1024, 2048, 4096} else None


def _short(text: str | None) -> str | None:
    value = said(text)
    return clipped(value, 60) if value else None


KINDS: tuple[SavedKind, ...] = (
    SavedKind("`ibv_devinfo` output", matches(r"^.{0,30}\bhca_id:[ \t]*[A-Za-z]"), tell=rdma.telling(parse)),
    SavedKind(
        "`ibv_devices` output",
        matches(r"^[ \t]*device[ \t]+node GUID[ \t]*$"),
        tell=rdma.telling(parse_names),
    ),
)
