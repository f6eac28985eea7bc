"""`topo-tune scan`: what the nodes are, and what NCCL will see."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_DONE, EXIT_ENVIRONMENT, InputError

_HELP = "What is on the nodes: GPUs, links, NICs, NCCL and its settings."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scan", help=_HELP, short_help=_HELP)(scan)


def scan(
    cluster_config: Annotated[
        Path | None, typer.Option("--cluster-config", "-c", metavar="FILE", help="Cluster file or host file.")
    ] = None,
    from_path: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="Read saved dumps in this file or folder; no node is reached."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the record to this file as well."),
    ] = None,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Scan nodes, or saved dumps of nodes."""
    from topo_tune.cli.console import print_json, show
    from topo_tune.cli.progress import Reporter
    from topo_tune.inventory.read import read_inventory
    from topo_tune.pipeline import journey
    from topo_tune.pipeline.cluster import narrowed, reach
    from topo_tune.records.envelope import save
    from topo_tune.report.scan import scan_report
    from topo_tune.scan.from_files import scan_from

    if (cluster_config is None) == (from_path is None):
        raise InputError(
            "give either --cluster-config or --from", hint="`topo-tune scan --cluster-config cluster.yaml`"
        )
    if output is not None:
        _refuse_to_overwrite(output)
    if from_path is not None:
        found, topology = scan_from(from_path), None
    else:
        assert cluster_config is not None, "checked above"
        inventory = narrowed(read_inventory(cluster_config), limit, exclude)
        with (
            Reporter(quiet=quiet, backend=inventory.backend) as reporter,
            reach(inventory, reporter) as cluster,
        ):
            found, topology = journey.scan(cluster)
    if output is not None:
        save(output, found)
    show(scan_report(found, topology), to_stderr=json)
    if json:
        print_json(found)
    return EXIT_ENVIRONMENT if found.missing else EXIT_DONE


def _refuse_to_overwrite(output: Path) -> None:
    """An earlier scan may be replaced; any other file is somebody's work. Raises Refused."""
    from topo_tune.errors import BrokenRecord, Refused
    from topo_tune.records.envelope import load
    from topo_tune.records.scan import Scan

    if not output.exists():
        return
    try:
        load(output, Scan)
    except BrokenRecord as exc:
        raise Refused(f"{output} exists and is no scan", hint="choose another --output") from exc
