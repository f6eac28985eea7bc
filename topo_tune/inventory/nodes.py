"""The racks of a cluster file -> racks of nodes: each node once, and no two nodes with the same files."""

from __future__ import annotations

import ipaddress
import shlex
import sys
from collections.abc import Iterable

from msgspec import UNSET

from topo_tune.errors import InputError, nearest
from topo_tune.inventory.cluster_file import ClusterFile, RackEntry
from topo_tune.inventory.paths import Start, has_control_character
from topo_tune.inventory.yaml_file import Path, YamlFile, spell
from topo_tune.records.inventory import ConnectionKind, Node, Rack
from topo_tune.records.nodeset import expand, fold, is_node_name, repeated

_LOOPBACK = "127.0.0.1"

_SHELL_WORDS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "source", "export"}
"""Words that mean something to a shell only."""

PathOfNode = dict[str, Path]
"""Node name to the place in the file that names it."""


def racks_of(cluster: ClusterFile, document: YamlFile, start: Start) -> tuple[Rack, ...]:
    """Every rack with its nodes, in the file's order.

    Raises InputError for a node or rack that is written twice, for a bad node set, address, root or Python
    command, and for nodes that would be the same files.
    """
    _refuse_equal_rack_names(cluster, document)
    written_at: PathOfNode = {}
    names = [_names(entry, position, document, written_at) for position, entry in enumerate(cluster.racks)]
    _check_addresses(cluster, document, written_at)
    racks = tuple(
        _rack(cluster, position, names[position], document, start) for position in range(len(names))
    )
    _refuse_shared_files(racks, cluster, document)
    return racks


def node_hint(name: str, known: Iterable[str]) -> str:
    """The nearest node name, or all of them, folded: there may be thousands."""
    known = list(known)
    close = nearest(name, known)
    return f"did you mean `{close}`?" if close else f"the nodes are {fold(known)}"


def _refuse_equal_rack_names(cluster: ClusterFile, document: YamlFile) -> None:
    seen: dict[str, int] = {}
    for position, entry in enumerate(cluster.racks):
        path: Path = ("racks", position, "name")
        if entry.name in seen:
            first = document.line_of(("racks", seen[entry.name], "name"))
            raise document.error(
                path,
                f"the rack `{entry.name}` is written twice, on lines {first} and {document.line_of(path)}",
                hint="put its nodes into one entry, or rename one",
            )
        seen[entry.name] = position


def _names(entry: RackEntry, position: int, document: YamlFile, written_at: PathOfNode) -> tuple[str, ...]:
    """The rack's node names, each entered into `written_at`."""
    at: Path = ("racks", position, "nodes")
    if isinstance(entry.nodes, str):
        patterns: list[tuple[str, Path]] = [(entry.nodes, at)]
    else:
        patterns = [(pattern, (*at, index)) for index, pattern in enumerate(entry.nodes)]
    if not patterns:
        raise document.error(
            at, f"the rack `{entry.name}` has no nodes", hint="remove the rack, or name its nodes"
        )
    return tuple(
        name for pattern, path in patterns for name in _expanded(pattern, path, document, written_at)
    )


def _expanded(pattern: str, path: Path, document: YamlFile, written_at: PathOfNode) -> tuple[str, ...]:
    try:
        names = expand(pattern)
    except InputError as exc:
        raise document.error(path, exc.message, hint=exc.hint) from exc
    if twice := repeated(pattern):
        raise document.error(path, f"`{pattern}` names {fold(twice)} twice", hint="name every node once")
    for name in names:
        if name in written_at:
            other = written_at[name]
            there = f"`{spell(other)}` (line {document.line_of(other)})"
            raise document.error(
                path,
                f"the node `{name}` is written twice, at {there} and here",
                hint="a node stands in one rack, once",
            )
        written_at[name] = path
    return names


def _check_addresses(cluster: ClusterFile, document: YamlFile, written_at: PathOfNode) -> None:
    for name, address in cluster.addresses.items():
        path: Path = ("addresses", name)
        if name not in written_at:
            raise document.error(
                path, f"an address for `{name}`, which is in no rack", hint=node_hint(name, written_at)
            )
        if not (is_node_name(address) or _is_ip_address(address)):
            raise document.error(
                path,
                f"`{address}` is not an address",
                hint="write a host name or an IP address, without a port",
            )


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _rack(
    cluster: ClusterFile, position: int, names: tuple[str, ...], document: YamlFile, start: Start
) -> Rack:
    entry = cluster.racks[position]
    kind = _connection(cluster, entry)
    root = _root(cluster, position, document, start)
    python = _python(cluster, position, document, start)
    # Among remote nodes a local one must be called by what they can reach; alone, its name may be made up.
    is_all_local = all(_connection(cluster, rack) is ConnectionKind.LOCAL for rack in cluster.racks)
    nodes = tuple(
        Node(
            name=name,
            rack=entry.name,
            address=cluster.addresses.get(name, _LOOPBACK if is_all_local else name),
            connection=kind,
            root=root.replace("{node}", name),
            python=python,
        )
        for name in names
    )
    return Rack(name=entry.name, nodes=nodes)


def _connection(cluster: ClusterFile, entry: RackEntry) -> ConnectionKind:
    return cluster.connection if entry.connection is UNSET else entry.connection


def _root_path(cluster: ClusterFile, position: int) -> Path:
    return ("root",) if cluster.racks[position].root is UNSET else ("racks", position, "root")


def _root(cluster: ClusterFile, position: int, document: YamlFile, start: Start) -> str:
    entry = cluster.racks[position]
    written = cluster.root if entry.root is UNSET else entry.root
    path = _root_path(cluster, position)
    rest = written.replace("{node}", "")
    if "{" in rest or "}" in rest:
        raise document.error(path, f"`{written}`: only `{{node}}` is known between braces")
    if has_control_character(written):
        raise document.error(path, "the path holds a control character")
    _refuse_home_of_others(written, _connection(cluster, entry), path, document)
    return start.resolve(written)


def _python(cluster: ClusterFile, position: int, document: YamlFile, start: Start) -> tuple[str, ...]:
    entry = cluster.racks[position]
    written, path = (
        (cluster.python, ("python",))
        if entry.python is UNSET
        else (entry.python, ("racks", position, "python"))
    )
    kind = _connection(cluster, entry)
    if written is UNSET:
        return (sys.executable,) if kind is ConnectionKind.LOCAL else ("python3",)
    words = _words(written, path, document)
    for word in words:
        _refuse_home_of_others(word, kind, path, document)
    return tuple(start.expand_home(word) for word in words)


def _words(written: str, path: Path, document: YamlFile) -> list[str]:
    try:
        words = shlex.split(written)
    except ValueError as exc:
        raise document.error(path, f"cannot split `{written}` into words: {str(exc).lower()}") from exc
    if not words or has_control_character("".join(words)):
        raise document.error(
            path, "expected a command that starts Python", hint="such as /opt/venv/bin/python3"
        )
    for word in words:
        if word in _SHELL_WORDS or word.startswith(("$", "`")) or word.endswith(";"):
            raise document.error(
                path,
                f"`{word}` means something to a shell only, and no shell runs this command",
                hint="name the Python of that environment, such as /opt/venv/bin/python3",
            )
    return words


def _refuse_home_of_others(written: str, kind: ConnectionKind, path: Path, document: YamlFile) -> None:
    """`~` of another machine is not known here, and nothing on the way there expands it."""
    is_own_home = written == "~" or written.startswith("~/")
    if written.startswith("~") and not (is_own_home and kind is ConnectionKind.LOCAL):
        raise document.error(
            path, f"`{written}`: `~` is known for local nodes only", hint="write the path out"
        )


def _refuse_shared_files(racks: tuple[Rack, ...], cluster: ClusterFile, document: YamlFile) -> None:
    """Two names for the same files would be written, judged and rolled back as if they were two nodes."""
    seen: dict[tuple[str, str], Node] = {}
    for position, rack in enumerate(racks):
        for node in rack.nodes:
            is_local = node.connection is ConnectionKind.LOCAL
            machine = "this machine" if is_local else node.address
            other = seen.setdefault((machine, node.root), node)
            if other is node:
                continue
            path = _root_path(cluster, position) if is_local else ("addresses", node.name)
            raise document.error(
                path,
                f"`{other.name}` and `{node.name}` would be the same files: `{node.root}` on {machine}",
                hint="give each its own folder, such as `root: nodes/{node}`"
                if is_local
                else "give each its own address, or put `{node}` into `root`",
            )
