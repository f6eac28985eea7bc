"""`topo-tune status`: where a rollout stands, by its journal and by the nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_ANSWER_IS_NO, EXIT_DONE, EXIT_ENVIRONMENT

_HELP = "Where a rollout stands: the journal beside what the nodes say."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status", help=_HELP, short_help=_HELP)(status)


def status(
    run_dir: options.RunDirectory,
    offline: Annotated[bool, typer.Option("--offline", help="Read the journal alone; ask no node.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Exit code 1 when a wave is not settled or a node's files are not what the journal says; 3 without an answer."""
    from topo_tune.cli.console import print_json, show, warn
    from topo_tune.cli.progress import Reporter
    from topo_tune.pipeline import rolling
    from topo_tune.pipeline.cluster import reach
    from topo_tune.records.envelope import load
    from topo_tune.records.inventory import Inventory, Missing
    from topo_tune.records.run_folder import RunFolder
    from topo_tune.report.rollout import as_journal_says, status_report

    folder = RunFolder.open(run_dir)
    state = rolling.recorded_state(folder)
    if state is None:
        warn(f"{run_dir} holds no rollout yet; `topo-tune apply {run_dir}` begins one")
        if json:
            print_json({"state": None, "files": {}, "missing": ()})
        return EXIT_DONE
    found: dict[str, str] = {}
    missing: tuple[Missing, ...] = ()
    if not offline:
        with Reporter(quiet=quiet) as reporter, reach(load(folder.inventory, Inventory), reporter) as cluster:
            found, missing = rolling.standings(cluster, state.plan)
    show(status_report(state, found, missing, asked=not offline), to_stderr=json)
    if json:
        print_json({"state": state, "files": found, "missing": missing})
    if missing:
        return EXIT_ENVIRONMENT
    is_as_told = all(as_journal_says(state.node(name), said) for name, said in found.items())
    return EXIT_DONE if is_as_told and not state.unsettled() else EXIT_ANSWER_IS_NO
