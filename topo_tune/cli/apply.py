"""`topo-tune apply`: roll a recommendation out, wave by wave, behind a guard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_ANSWER_IS_NO, EXIT_DONE, EXIT_ENVIRONMENT, InputError, Refused

if TYPE_CHECKING:
    from topo_tune.records.inventory import BackendName
    from topo_tune.records.rollout import JournalEntry, RolloutPlan, RolloutResult, RolloutState

_HELP = "Roll it out: plan, diff, consent, waves, guard, rollback."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("apply", help=_HELP, short_help=_HELP)(apply)


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
    canary: Annotated[
        int, typer.Option(metavar="N", min=0, help="Nodes of the first rack that change first.")
    ] = 2,
    edge: Annotated[
        float,
        typer.Option(
            metavar="CHANGE",
            min=-1.0,
            max=0.0,
            help="Lowest change of throughput that passes: -0.03 is -3 %.",
        ),
    ] = -0.03,
    launches: Annotated[
        int, typer.Option(metavar="N", min=3, help="Launches before and after each wave's write.")
    ] = 5,
    most_launches: Annotated[
        int, typer.Option(metavar="N", min=3, help="Launches after the write at which doubt ends it.")
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
    from topo_tune.cli.console import print_json, show, warn
    from topo_tune.cli.progress import Reporter
    from topo_tune.pipeline import rolling
    from topo_tune.pipeline.cluster import reach
    from topo_tune.records.envelope import load
    from topo_tune.records.inventory import Inventory
    from topo_tune.records.run_folder import RunFolder
    from topo_tune.report.rollout import result_report
    from topo_tune.rollout.execute import Policy

    folder = RunFolder.open(run_dir)
    state = rolling.recorded_state(folder)
    # An undone rollout stands in nobody's way: its files are kept under a number when the next one begins.
    is_another = state is not None and not resume and rolling.is_undone(state)
    recorded = _recorded_plan(None if is_another else state, run_dir, resume)
    chosen = rolling.ApplyOptions(
        canary=canary,
        drained=drained,
        confined=confined,
        edge=edge,
        policy=Policy(launches=launches, most=most_launches, accept_unproved=accept_unproved),
        ignore_fingerprint=ignore_fingerprint,
    )
    inventory = load(folder.inventory, Inventory)
    backend = inventory.backend
    with Reporter(quiet=quiet, backend=backend) as reporter, reach(inventory, reporter) as cluster:
        try:
            # A rollout that was begun is settled by its own plan, whatever is recommended by now.
            plan = recorded or rolling.plan_apply(
                folder, cluster, rolling.load_recommendation(folder), chosen
            )
        except rolling.NothingToApply as answer:
            return _nothing_written(f"the recommendation is to change nothing: {answer}", json)
        reporter.pause()
        _show_plan(plan, to_stderr=json)
        if dry_run:
            if json:
                print_json(plan)
            reporter.say("dry run: nothing was changed")
            return EXIT_DONE
        if not plan.waves:
            return _nothing_written("every node has the setting already; nothing to write", json)
        if not yes and not _agreed(plan):
            return _nothing_written("not agreed to; nothing was changed", json, plan, EXIT_ANSWER_IS_NO)
        if is_another:
            rolling.put_aside(folder)
        reporter.resume()
        try:
            result = rolling.apply(
                folder,
                cluster,
                plan,
                chosen,
                consent=lambda state: True,
                on_entry=lambda entry: say_entry(entry, backend, reporter.say),
                watch=reporter,
            )
        except KeyboardInterrupt:
            reporter.pause()
            warn(
                f"broken off: `topo-tune status {run_dir}` shows where it stands, `--resume` goes on with it"
            )
            raise
    show(result_report(result, backend, plan.missing), to_stderr=json)
    if json:
        print_json(result)
    if not quiet:
        warn(f"\n{next_step(result, run_dir)}")
    # A node that was left out keeps what it has: the rollout did not do all that was asked for.
    return result.exit_code or (EXIT_ENVIRONMENT if plan.missing else EXIT_DONE)


def say_entry(entry: JournalEntry, backend: BackendName, say: Callable[[str], None]) -> None:
    """Tell somebody watching what a journal line means, where it means something to them."""
    from topo_tune.report.rollout import entry_line

    line = entry_line(entry, backend)
    if line is not None:
        say(line)


def next_step(result: RolloutResult, run_dir: Path) -> str:
    """What the reader may do now."""
    if result.unsettled:
        return f"next: `topo-tune rollback {run_dir}` once those nodes answer again"
    if result.kept and not (result.rolled_back or result.untouched):
        return f"`topo-tune rollback {run_dir}` puts the old bytes back, at any later time"
    if result.kept:
        return f"what was kept stays; `topo-tune rollback {run_dir}` puts its old bytes back, too"
    if result.rolled_back:
        guard = run_dir / "61-guard.jsonl"
        return f"every node that this rollout wrote to has its old bytes; the launches that decided are in {guard}"
    return f"nothing was changed; `topo-tune apply {run_dir} --resume` tries again"


def _recorded_plan(recorded: RolloutState | None, run_dir: Path, resume: bool) -> RolloutPlan | None:
    """The plan to go on with; None to begin a rollout. Refused where the folder says otherwise than the option."""
    if recorded is None:
        if resume:
            raise InputError(f"{run_dir} holds no rollout to resume", hint="leave --resume away to begin one")
        return None
    if not resume:
        shows = f"`topo-tune status {run_dir}` shows it, `topo-tune rollback {run_dir}` undoes it"
        other = "undo it to begin another" if recorded.is_over else "`--resume` goes on with it"
        raise Refused(f"{run_dir} holds a rollout already", hint=f"{shows}; {other}")
    return recorded.plan


def _nothing_written(
    reason: str, json: bool, plan: RolloutPlan | None = None, exit_code: int = EXIT_DONE
) -> int:
    """Tell why no node was touched; with --json as the record that a rollout would have given."""
    from topo_tune.cli.console import print_json, warn
    from topo_tune.records.rollout import RolloutResult

    waves = tuple(wave.name for wave in plan.waves) if plan is not None else ()
    warn(reason)
    if json:
        print_json(RolloutResult((), (), waves, (), reason, exit_code))
    return exit_code


def _show_plan(plan: RolloutPlan, *, to_stderr: bool) -> None:
    from topo_tune.cli.console import show
    from topo_tune.report.rollout import plan_report
    from topo_tune.rollout.diff import folded_diffs

    show(plan_report(plan, folded_diffs(plan.nodes)), to_stderr=to_stderr)


def _agreed(plan: RolloutPlan) -> bool:
    """Ask. Where nobody can be asked, nothing is changed."""
    if not sys.stdin.isatty():
        raise InputError(
            "there is no terminal to ask on; nothing was changed",
            hint="give --yes to roll out without being asked",
        )
    count = sum(len(wave.nodes) for wave in plan.waves)
    nodes = "1 node" if count == 1 else f"{count} nodes"
    print(f"\nwrite to {nodes}, wave by wave? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
