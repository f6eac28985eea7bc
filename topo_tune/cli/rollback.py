"""`topo-tune rollback`: the exact old bytes again, at any later time."""

from __future__ import annotations

from typing import Annotated

import typer

from topo_tune.cli import options

_HELP = "Put the old bytes back: of everything, of a rack, or of a wave."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rollback", help=_HELP, short_help=_HELP)(rollback)


def rollback(
    run_dir: options.RunDirectory,
    wave: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this wave; may be repeated.")
    ] = None,
    rack: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this rack; may be repeated.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that somebody edited since the rollout.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Undo a rollout; refused for a file that somebody edited since, unless forced."""
    from topo_tune.cli.apply import say_entry
    from topo_tune.cli.console import print_json, show, warn
    from topo_tune.cli.progress import Reporter
    from topo_tune.pipeline import rolling
    from topo_tune.records.envelope import load
    from topo_tune.records.inventory import Inventory
    from topo_tune.records.run_folder import RunFolder
    from topo_tune.report.rollout import result_report

    folder = RunFolder.open(run_dir)
    backend = load(folder.inventory, Inventory).backend
    with Reporter(quiet=quiet, backend=backend) as reporter:
        result = rolling.rollback(
            folder,
            waves=wave or (),
            racks=rack or (),
            force=force,
            on_entry=lambda entry: say_entry(entry, backend, reporter.say),
            watch=reporter,
        )
    show(result_report(result, backend), to_stderr=json)
    if json:
        print_json(result)
    if result.unsettled and not quiet:
        warn(
            "\na node that did not answer is put back by the same command once it does; a file that somebody edited "
            "since is put back with --force, which takes the edit away (the old text stays in 60-journal.jsonl)"
        )
    return result.exit_code
