"""`topo-tune apply`: roll a recommendation out, wave by wave, behind a guard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_ANSWER_IS_NO, EXIT_DONE, InputError, Refused

if TYPE_CHECKING:
    from topo_tune.records.rollout import JournalEntry, RolloutPlan


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("apply", help="Roll a recommendation out: plan, diff, consent, waves, guard, rollback.")(
        apply
    )


def apply(
    run_dir: options.RunDirectory,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and the diff; change nothing.")
    ] = False,
    yes: options.Yes = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a rollout that was broken off.")
    ] = False,
    drained: Annotated[
        bool, typer.Option("--drained", help="No job runs on these nodes until the rollout has ended.")
    ] = False,
    confined: Annotated[
        bool, typer.Option("--confined", help="No job spans racks; each rack changes as a whole.")
    ] = False,
    canary: Annotated[int, typer.Option(min=0, help="Nodes of the first rack that change first.")] = 2,
    edge: Annotated[
        float, typer.Option(max=0.0, min=-1.0, help="Lowest change of throughput that passes: -0.03 is -3 %.")
    ] = -0.03,
    launches: Annotated[int, typer.Option(min=3, help="Launches before and after each wave's write.")] = 5,
    most_launches: Annotated[
        int, typer.Option(min=3, help="Launches after the write at which doubt ends it.")
    ] = 20,
    accept_unproved: Annotated[
        bool,
        typer.Option("--accept-unproved", help="Keep a wave though its back end cannot show the setting."),
    ] = False,
    ignore_fingerprint: Annotated[
        bool, typer.Option("--ignore-fingerprint", help="Apply although NCCL, driver or nodes changed since.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Plan, show, ask, and roll out; exit code 1 when the guard put a wave back."""
    from topo_tune.cli.console import print_json, show
    from topo_tune.cli.progress import Reporter
    from topo_tune.pipeline import rolling
    from topo_tune.pipeline.cluster import reach
    from topo_tune.records.envelope import load
    from topo_tune.records.inventory import Inventory
    from topo_tune.records.run_folder import RunFolder
    from topo_tune.report.rollout import result_report
    from topo_tune.rollout.execute import Policy

    folder = RunFolder.open(run_dir)
    try:
        recommendation = rolling.load_recommendation(folder)
    except rolling.NothingToApply as answer:
        print(f"nothing to apply: the recommendation is to change nothing ({answer})", file=sys.stderr)
        return EXIT_DONE
    chosen = rolling.ApplyOptions(
        canary=canary,
        drained=drained,
        confined=confined,
        edge=edge,
        policy=Policy(launches=launches, most=most_launches, accept_unproved=accept_unproved),
        ignore_fingerprint=ignore_fingerprint,
    )
    recorded = rolling.recorded_state(folder)
    if recorded is not None and not resume:
        raise Refused(
            f"{run_dir} holds a rollout already",
            hint="`--resume` goes on with it, `topo-tune status` shows it, `topo-tune rollback` undoes it",
        )
    if recorded is None and resume:
        raise InputError(f"{run_dir} holds no rollout to resume", hint="leave --resume away to begin one")
    inventory = load(folder.inventory, Inventory)
    with Reporter(quiet=quiet) as reporter, reach(inventory, reporter) as cluster:
        plan = (
            recorded.plan
            if recorded is not None
            else rolling.plan_apply(folder, cluster, recommendation, chosen)
        )
        reporter.pause()
        _show_plan(plan, to_stderr=json)
        if dry_run:
            if json:
                print_json(plan)
            reporter.say("dry run: nothing was changed")
            return EXIT_DONE
        if not plan.waves:
            reporter.say("every node has the setting already; nothing to write")
            return EXIT_DONE
        if not yes and not _agreed(plan):
            reporter.say("not agreed to; nothing was changed")
            return EXIT_ANSWER_IS_NO
        reporter.resume()
        result = rolling.apply(
            folder,
            cluster,
            plan,
            chosen,
            consent=lambda state: True,
            on_entry=lambda entry: say_entry(entry, reporter.say),
            watch=reporter,
        )
    show(result_report(result), to_stderr=json)
    if json:
        print_json(result)
    return result.exit_code


def say_entry(entry: JournalEntry, say: Callable[[str], None]) -> None:
    """Tell somebody watching what a journal line means, where it means something to them."""
    from topo_tune.report.rollout import entry_line

    line = entry_line(entry)
    if line is not None:
        say(line)


def _show_plan(plan: RolloutPlan, *, to_stderr: bool) -> None:
    from topo_tune.cli.console import show
    from topo_tune.report.rollout import plan_report
    from topo_tune.rollout.diff import folded_diffs

    show(plan_report(plan, folded_diffs(plan.nodes)), to_stderr=to_stderr)


def _agreed(plan: RolloutPlan) -> bool:
    """Ask. Where nobody can be asked, nothing is changed."""
    if not sys.stdin.isatty():
        raise InputError("there is no terminal to ask on", hint="give --yes to roll out without being asked")
    print(f"\nwrite to {len(plan.nodes)} nodes, wave by wave? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
