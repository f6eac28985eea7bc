"""One node from near: its devices as a tree, how each pair is joined as a matrix, and where settings come from."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from topo_tune.records.provenance import Reach, SettingOrigin
from topo_tune.records.scan import NodeScan
from topo_tune.report.node_matrix import MatrixView
from topo_tune.report.node_tree import node_tree
from topo_tune.report.text import told

_REACH_STYLES = {Reach.WINS: "green", Reach.HIDDEN: "yellow", Reach.NEVER: "red", Reach.DEPENDS: "yellow"}


def node_report(node: NodeScan) -> list[RenderableType]:
    """Tree, matrix, and where each NCCL variable is set; what is not known is left out or said."""
    parts: list[RenderableType] = [node_tree(node)]
    if node.matrix is not None:
        title = f"[bold]{told(node.node)}: how devices are joined[/bold]"
        parts.append(Group(title, MatrixView(node.matrix)))
    if node.settings:
        parts.append(Group(f"[bold]{told(node.node)}: NCCL variables[/bold]", settings_table(node.settings)))
    return parts


def settings_table(settings: Sequence[SettingOrigin]) -> Table:
    """Every place that sets a variable, strongest first, and whether it takes effect."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("variable", "value", "set by", "effect"):
        made.add_column(title, overflow="fold")
    for origin in settings:
        place = origin.layer.value
        if origin.path is not None:
            line = "" if origin.line is None else f":{origin.line}"
            place = f"{origin.path}{line}" if origin.path in place else f"{place} {origin.path}{line}"
        effect = origin.reach.value + (f": {origin.reason}" if origin.reason else "")
        style = _REACH_STYLES[origin.reach]
        made.add_row(told(origin.name), told(origin.value), told(place), f"[{style}]{told(effect)}[/{style}]")
    return made
