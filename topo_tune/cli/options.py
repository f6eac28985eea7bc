"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ClusterConfig = Annotated[
    Path,
    typer.Option(
        "--cluster-config",
        "-c",
        metavar="FILE",
        help="Cluster file (YAML), or a host file with one node a line.",
    ),
]
RunDirectory = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="Run folder that `topo-tune init` made.")
]
Json = Annotated[bool, typer.Option("--json", help="The record as JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Tolerance = Annotated[
    float,
    typer.Option(
        metavar="SHARE", min=0.0, max=1.0, help="How much slower a weighted size may look: 0.03 is 3 %."
    ),
]
MinimumGain = Annotated[
    float, typer.Option(metavar="SHARE", min=0.0, help="Smallest mean gain worth a change: 0.03 is 3 %.")
]
Deadline = Annotated[
    float,
    typer.Option("--deadline", metavar="SECONDS", min=1.0, help="A launch still running then is killed."),
]
Limit = Annotated[
    str | None, typer.Option("--limit", metavar="NODES", help="Only these nodes, as `gpu[001-004]`.")
]
Exclude = Annotated[str | None, typer.Option("--exclude", metavar="NODES", help="Without these nodes.")]
