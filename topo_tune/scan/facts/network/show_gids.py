"""`show_gids` of NVIDIA's driver package: the GID tables of all ports, one row a line.

Columns are DEV, PORT, INDEX, GID, IPv4 (may be empty), VER and DEV, where the second DEV is the interface.
"""

from __future__ import annotations

import re
from collections import defaultdict

from topo_tune.records.network import Gid, RdmaDevice, RdmaPort
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.network import rdma_devices as rdma
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped

_ROW = re.compile(rf"\s*({rdma.DEVICE_NAME})\s+(\d{{1,3}})\s+(\d{{1,5}})\s+([0-9a-fA-F:]{{2,39}})(\s.*)?$")


_NO_ROWS = "n_gids_found=0"


def parse(text: str, *, file: str | None = None) -> rdma.Devices:
    """The GID rows of a `show_gids`, by device and port. Raises InputError where no line is one."""
    task = lines_of_one_task(text)
    problems = list(task.problems)
    tables: dict[str, dict[int, dict[int, Gid]]] = defaultdict(lambda: defaultdict(dict))
    for number, line in task.lines:
        row = _ROW.match(line)
        if row is None:
            continue
        device, port, index, gid, behind = row.groups()
        kind, netdev = _behind(behind or "")
        entry = rdma.gid_row(int(index), gid, kind, netdev)
        if entry is None:
            problems.append(f"line {number}: `{clipped(gid, 45)}` is no GID")
        elif len(tables) < rdma.DEVICE_LIMIT or device in tables:
            tables[device][int(port)].setdefault(int(index), entry)
    if not tables and any(line.strip() == _NO_ROWS for _, line in task.lines):
        return rdma.Devices((), (*problems, "no port of any device has a GID"))
    if not any(ports for ports in tables.values()):
        raise rdma.no_devices(
            "rows of DEV PORT INDEX GID IPv4 VER DEV", task.lines, file, "`show_gids` writes them"
        )
    devices = (
        RdmaDevice(name, tuple(_port(n, ports[n]) for n in sorted(ports))) for name, ports in tables.items()
    )
    return rdma.Devices(rdma.joined(devices), tuple(problems))


def _behind(text: str) -> tuple[str | None, str | None]:
    """Version and interface of a row: the IPv4 column in front of them is empty for link-local rows."""
    words = text.split()
    place = next((i for i, word in enumerate(words) if word.casefold() in {"v1", "v2", "ib"}), None)
    if place is None:
        return None, None
    netdev = words[place + 1] if place + 1 < len(words) else None
    return words[place], netdev if netdev and re.fullmatch(r"[\w.@:-]{1,32}", netdev) else None


def _port(number: int, rows: dict[int, Gid]) -> RdmaPort:
    gids = tuple(rows[index] for index in sorted(rows)[: rdma.GID_LIMIT])
    return RdmaPort(
        port=number,
        link_layer=rdma.link_layer_by_gids(gids),
        netdev=next((gid.netdev for gid in gids if gid.netdev), None),
        gids=gids,
    )


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`show_gids` output", matches(r"^.{0,30}DEV[ \t]+PORT[ \t]+INDEX[ \t]+GID"), tell=rdma.telling(parse)
    ),
)
