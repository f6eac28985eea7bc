"""A scan for people: identical nodes folded into one row, what was not there listed with its reason."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from topo_tune.records.nodeset import fold
from topo_tune.records.scan import NodeScan, Scan
from topo_tune.records.topology import Topology

if TYPE_CHECKING:
    from rich.console import RenderableType


def scan_report(scan: Scan, topology: Topology | None) -> list[RenderableType]:
    """Tables and lines, in reading order."""
    parts: list[RenderableType] = [_nodes_table(scan)]
    settings = _settings_lines(scan)
    if settings:
        parts.append("\n".join(["NCCL settings found on the nodes:", *settings]))
    if topology is not None:
        parts.append("\n".join(["What NCCL will see:", *(f"  {line}" for line in topology.reasons)]))
        if topology.disagreements:
            parts.append("\n".join(["Nodes differ:", *(f"  {line}" for line in topology.disagreements)]))
    absent = _absent_lines(scan)
    if absent:
        parts.append("\n".join(["Not seen:", *absent]))
    return parts


def _nodes_table(scan: Scan) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("nodes", "GPUs", "driver", "NCCL", "NICs up", "CPU", "kernel"):
        table.add_column(title, overflow="fold")
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in scan.nodes:
        groups[_row(node)].append(node.node)
    for row, names in groups.items():
        table.add_row(fold(names), *row)
    for missing in scan.missing:
        table.add_row(missing.node, f"[red]{missing.kind}[/red]", "", "", "", missing.reason, "")
    return table


def _row(node: NodeScan) -> tuple[str, ...]:
    gpus: dict[str, int] = defaultdict(int)
    for gpu in node.gpus:
        gpus[gpu.name] += 1
    up = [nic.name for nic in node.nics if nic.is_up and nic.kind != "loopback"]
    version = node.torch_nccl or next((lib.version for lib in node.nccl_libraries if lib.version), None)
    return (
        ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "none",
        node.driver or "-",
        version or "-",
        ", ".join(up) or "-",
        f"{node.cpu.threads} threads {node.cpu.vendor or node.cpu.architecture}",
        node.kernel,
    )


def _settings_lines(scan: Scan) -> list[str]:
    found: dict[str, list[str]] = defaultdict(list)
    for node in scan.nodes:
        for name, value in node.nccl_environment:
            found[f"  {name}={value}  (environment)"].append(node.node)
        for file in node.nccl_files:
            for setting in file.settings:
                found[f"  {setting.name}={setting.value}  ({file.path}:{setting.line})"].append(node.node)
            for problem in file.problems:
                found[f"  {file.path}: {problem}"].append(node.node)
    return [f"{line}  on {fold(names)}" for line, names in found.items()]


def _absent_lines(scan: Scan) -> list[str]:
    found: dict[str, list[str]] = defaultdict(list)
    for node in scan.nodes:
        for absent in node.absent:
            found[f"  {absent.what}: {absent.reason}"].append(node.node)
    return [f"{line}  on {fold(names)}" for line, names in found.items()]
