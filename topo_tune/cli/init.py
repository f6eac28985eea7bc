"""`topo-tune init`: from the cluster file to the recommendation."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_DONE

_HELP = "Cluster file to recommendation: scan, measure, search, confirm."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init", help=_HELP, short_help=_HELP)(init)


def init(
    cluster_config: options.ClusterConfig,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Run folder; an interrupted run in it goes on."),
    ] = None,
    candidates: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Settings of the first round; more where the single changes are more."
        ),
    ] = 48,
    blocks: Annotated[
        int,
        typer.Option(metavar="N", min=3, help="Launches of each finalist and of the default that decide."),
    ] = 6,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="How candidates are chosen: model, halving or random.")
    ] = "model",
    tolerance: options.Tolerance = 0.03,
    minimum_gain: options.MinimumGain = 0.03,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the choice of candidates; the same seed asks the same.")
    ] = 1,
    deadline: options.Deadline = 60.0,
    ignore: options.Ignore = None,
    despite_findings: options.DespiteFindings = False,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Walk from a cluster file to a recommendation and write both into a run folder."""
    from topo_tune.cli.console import print_json, show, warn
    from topo_tune.cli.progress import Reporter
    from topo_tune.inventory.read import read_inventory
    from topo_tune.pipeline.cluster import narrowed
    from topo_tune.pipeline.journey import SearchOptions
    from topo_tune.pipeline.journey import init as run_init
    from topo_tune.report.recommendation import recommendation_report

    inventory = narrowed(read_inventory(cluster_config), limit, exclude, for_search=True)
    folder = output or default_folder(inventory.name)
    search_options = SearchOptions(
        strategy=strategy,
        candidates=candidates,
        blocks=blocks,
        seed=seed,
        deadline_seconds=deadline,
        tolerance=tolerance,
        minimum_gain=minimum_gain,
        despite_findings=despite_findings,
        ignored_rules=tuple(ignore or ()),
    )
    with Reporter(quiet=quiet, backend=inventory.backend) as reporter:
        reporter.say(
            f"{inventory.name}: {inventory.describe()}, back end {inventory.backend.value}, run folder {folder}"
        )
        try:
            recommendation = run_init(inventory, folder, search_options, reporter)
        except KeyboardInterrupt:
            reporter.pause()
            reporter.say(
                f"what was measured is kept: the same command with --output {folder} goes on from there"
            )
            raise
    show(recommendation_report(recommendation), to_stderr=json)
    if json:
        print_json(recommendation)
    if not quiet:
        warn(f"\n{next_step(folder, bool(recommendation.env.settings))}")
    return EXIT_DONE


def default_folder(name: str) -> Path:
    """`runs/NAME-20261129-201500`."""
    return Path("runs") / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def next_step(folder: Path, is_change: bool) -> str:
    """What the reader may do now."""
    if is_change:
        return f"next: `topo-tune apply {folder} --dry-run` shows the plan and changes nothing"
    return f"the evidence is in {folder}; nothing was changed and there is nothing to apply"
