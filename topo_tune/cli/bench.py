"""`topo-tune bench`: measure collectives, with NCCL's default or with given settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_DONE, EXIT_ENVIRONMENT

_HELP = "Measure all-reduce; a table with the columns of nccl-tests."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", help=_HELP, short_help=_HELP)(bench)


def bench(
    cluster_config: options.ClusterConfig,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="'NAME=VALUE ...'",
            help="One more setting, interleaved with the default; may be repeated.",
        ),
    ] = None,
    launches: Annotated[
        int, typer.Option("--launches", "-n", metavar="N", min=1, help="Launches of each setting.")
    ] = 3,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="SIZES", help="As `8K,128K`, `8K..32M` (doubling) or `8K..32M x4`."),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Samples of each size in a launch.")] = 5,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Keep raw launches here; an interrupted one goes on."
        ),
    ] = None,
    deadline: options.Deadline = 60.0,
    ignore: options.Ignore = None,
    despite_findings: options.DespiteFindings = False,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Measure the default and any given settings, block by block."""
    import msgspec

    from topo_tune.bench.plan import plan_bench
    from topo_tune.cli.console import print_json, print_lines
    from topo_tune.cli.progress import Reporter
    from topo_tune.inventory.read import read_inventory
    from topo_tune.pipeline import journey
    from topo_tune.pipeline.cluster import narrowed, reach
    from topo_tune.records.nccl_env import parse_assignments
    from topo_tune.records.units import parse_sizes
    from topo_tune.report.launches import launches_report

    inventory = narrowed(read_inventory(cluster_config), limit, exclude)
    if sizes is not None:
        inventory = msgspec.structs.replace(inventory, sizes_bytes=parse_sizes(sizes), weights=())
    settings = tuple(parse_assignments(tuple(words.split())) for words in setting or ())
    plan = plan_bench(inventory, repeats=repeats, deadline_seconds=deadline)
    with Reporter(quiet=quiet, backend=plan.backend) as reporter, reach(inventory, reporter) as cluster:
        if not despite_findings:
            journey.refuse_broken_nodes(cluster, ignored=ignore or ())
        try:
            made, notes = journey.bench(cluster, settings, launches, plan, output, reporter)
        except KeyboardInterrupt:
            reporter.pause()
            if output is not None:
                reporter.say("what was measured is kept: the same command goes on from there")
            raise
    lines = [*launches_report(made, plan.collective, plan.dtype), "", *(f"# note: {note}" for note in notes)]
    print_lines(lines, to_stderr=json)
    if json:
        print_json(made)
    return EXIT_DONE if any(launch.is_usable for launch in made) else EXIT_ENVIRONMENT
