"""Options that several commands share."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from topo_tune.records.finding import Severity


class Threshold(enum.Enum):
    """From which severity on a finding makes the answer a no."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"
    NEVER = "never"

    @property
    def severity(self) -> Severity | None:
        """None: no finding does."""
        from topo_tune.records.finding import Severity

        return None if self is Threshold.NEVER else Severity(self.value)


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
FailOn = Annotated[
    Threshold, typer.Option("--fail-on", help="Exit code 1 where a finding is as bad as this, or worse.")
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="RULE", help="Do not ask this rule; may be repeated.")
]
DespiteFindings = Annotated[
    bool,
    typer.Option("--despite-findings", help="Go on over error findings of the scan; the result says so."),
]
