"""`topo-tune recommend`: the recommendation of a run folder, made again from its files."""

from __future__ import annotations

from typing import Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_DONE

_HELP = "The answer of a run folder, from its files alone: no node."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("recommend", help=_HELP, short_help=_HELP)(recommend)


def recommend(
    run_dir: options.RunDirectory,
    tolerance: options.Tolerance = 0.03,
    minimum_gain: options.MinimumGain = 0.03,
    fragment: Annotated[
        bool, typer.Option("--fragment", help="Only the configuration fragment on standard output.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--save", help="Make this answer the one that `apply` rolls out.")
    ] = False,
    despite_findings: options.DespiteFindings = False,
    json: options.Json = False,
) -> int:
    """Judge the confirmation launches of a run folder again and print the answer; writes only with --save."""
    import sys

    from topo_tune.cli.console import print_json, show
    from topo_tune.pipeline import journey
    from topo_tune.recommend import conf
    from topo_tune.records.run_folder import RunFolder
    from topo_tune.report.recommendation import recommendation_report

    folder = RunFolder.open(run_dir)
    recommendation = journey.recommend(
        folder, tolerance=tolerance, minimum_gain=minimum_gain, despite_findings=despite_findings
    )
    if keep:
        journey.keep(folder, recommendation)
    show(recommendation_report(recommendation), to_stderr=json or fragment)
    if json:
        print_json(recommendation)
    if fragment:
        sys.stdout.write(conf.fragment(recommendation.env))
    return EXIT_DONE
