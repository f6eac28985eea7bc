"""The value of an NCCL variable on a node, as far as the scan tells, and the lists of names that some hold."""

from __future__ import annotations

import re

import msgspec

from topo_tune.records.provenance import Reach
from topo_tune.records.scan import NodeScan

DROP_INS = "/etc/nccl/conf.d/"
"""Read by no NCCL."""


class Setting(msgspec.Struct, frozen=True):
    """A variable that is set, and where."""

    name: str
    value: str
    where: str

    def __str__(self) -> str:
        return f"{self.name}={self.value} ({self.where})"


def in_force(node: NodeScan, name: str) -> Setting | None:
    """The setting of a variable that NCCL would take on this node; None where it is unset, empty or not told.

    Environment, then files in NCCL's order, the first line of a name (NCCL: src/misc/param.cc).
    """
    found = (
        _from_origins(node, name)
        if any(origin.name == name for origin in node.settings)
        else _found(node, name)
    )
    return found if found is not None and found.value else None


def number(setting: Setting | None) -> int | None:
    """A whole number as NCCL reads it, decimal or `0x`; None for anything else."""
    match = re.match(r"\s*([-+]?)(0[xX][0-9a-fA-F]{1,8}|\d{1,9})", setting.value if setting else "")
    if match is None:
        return None
    sign, digits = match.groups()
    value = int(digits, 16) if digits[:2].casefold() == "0x" else int(digits)
    return -value if sign == "-" else value


class NameList(msgspec.Struct, frozen=True):
    """`[^][=]name[:port],...` of NCCL_SOCKET_IFNAME and NCCL_IB_HCA (NCCL: src/misc/utils.cc)."""

    names: tuple[tuple[str, int | None], ...]
    """(prefix or name, port; None: any)"""
    is_exact: bool
    is_excluding: bool

    def takes(self, name: str, port: int | None = None) -> bool:
        """Whether NCCL takes the interface, or the device's port. An empty list names everything."""
        is_named = not self.names or any(self._is(item, name, port) for item in self.names)
        return is_named != self.is_excluding

    def _is(self, item: tuple[str, int | None], name: str, port: int | None) -> bool:
        wanted, wanted_port = item
        if wanted_port is not None and port is not None and wanted_port != port:
            return False
        return name == wanted if self.is_exact else name.startswith(wanted)


def name_list(value: str) -> NameList:
    """The names in a variable's value. The marks stand first and hold for the whole list."""
    is_excluding = value.startswith("^")
    rest = value.removeprefix("^")
    is_exact = rest.startswith("=")
    items = [item.split(":") for item in rest.removeprefix("=").split(",")]
    names = tuple((parts[0], _port(parts)) for parts in items if parts[0])
    return NameList(names, is_exact, is_excluding)


def _port(parts: list[str]) -> int | None:
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() and len(parts[1]) < 4 else None


def _from_origins(node: NodeScan, name: str) -> Setting | None:
    winner = next((o for o in node.settings if o.name == name and o.reach is Reach.WINS), None)
    if winner is None:
        return None
    line = "" if winner.line is None else f":{winner.line}"
    where = winner.layer.value if winner.path is None else f"{winner.path}{line}"
    return Setting(name, winner.value, where)


def _found(node: NodeScan, name: str) -> Setting | None:
    environment = dict(node.nccl_environment)
    if name in environment:
        return Setting(name, environment[name], "environment of the scan's session")
    files = (file for file in node.nccl_files if not file.path.startswith(DROP_INS))
    lines = ((file.path, setting) for file in files for setting in file.settings if setting.name == name)
    path, setting = next(lines, (None, None))
    return Setting(name, setting.value, f"{path}:{setting.line}") if setting is not None else None
