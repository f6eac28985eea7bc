"""`topo-tune explain`: what a variable of NCCL does, and what a value may be."""

from __future__ import annotations

from typing import Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_ANSWER_IS_NO, EXIT_DONE, InputError

_HELP = "What a variable of NCCL does, when it is read, and what it takes."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain", help=_HELP, short_help=_HELP)(explain)


def explain(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...", help="Names in any case, `NCCL_` may be left out; groups with --list."
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="All names of the groups that are given, or of all groups.")
    ] = False,
    json: options.Json = False,
) -> int:
    """Explain names, or list them."""
    from topo_tune.cli.console import print_json, show
    from topo_tune.lint.explanation import Kind
    from topo_tune.lint.explanation import explain as look_up
    from topo_tune.report.explain import explained

    if listed:
        return _list(names or [], json)
    if not names:
        raise InputError("no name is given", hint="`topo-tune explain NCCL_ALGO`, or `--list` for all names")
    found = [look_up(name) for name in names]
    if json:
        print_json(found)
    else:
        show(explained(found))
    return EXIT_ANSWER_IS_NO if any(f.kind is Kind.UNKNOWN for f in found) else EXIT_DONE


def _list(wanted: list[str], json: bool) -> int:
    from topo_tune.cli.console import print_json, show
    from topo_tune.errors import did_you_mean
    from topo_tune.lint.explanation import groups, in_group
    from topo_tune.report.explain import variables_list

    for group in wanted:
        if group.lower() not in groups():
            raise InputError(f"there is no group `{group}`", hint=did_you_mean(group, groups()))
    chosen = [group.lower() for group in wanted] or list(groups())
    if json:
        print_json({group: in_group(group) for group in chosen})
    else:
        show([variables_list(group, in_group(group)) for group in chosen])
    return EXIT_DONE
