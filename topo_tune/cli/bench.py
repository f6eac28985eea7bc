"""`topo-tune bench`: measure collectives, with NCCL's default or with given settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_ANSWER_IS_NO, EXIT_DONE, EXIT_ENVIRONMENT, InputError, did_you_mean

if TYPE_CHECKING:
    from topo_tune.records.bench import Collective, Launch, Layout

_HELP = "Measure collectives; a table with the columns of nccl-tests."


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
        int | None,
        typer.Option(
            "--launches",
            "-n",
            metavar="N",
            min=1,
            help="Launches of each setting: 3; with --until or --budget, 12 at most.",
        ),
    ] = None,
    collective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="nccl-tests' names, as `all_gather,alltoall`, or `all`; may be repeated. Else all_reduce.",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="bfloat16 (gloo: float32), float16, int8, float8_e4m3fn, ..."),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Ranks of a communicator: world, node (each by itself), rails or pairs."
        ),
    ] = "world",
    in_place: Annotated[
        bool | None,
        typer.Option("--in-place/--out-of-place", help="Where the result goes; else in place if it can."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="SIZES", help="As `8K,128K`, `8K..32M` (doubling) or `8K..32M x4`."),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Samples of each size in a launch.")] = 5,
    single_calls: Annotated[
        int, typer.Option(metavar="N", min=0, help="Calls of each size timed one by one as well, for P99.")
    ] = 0,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Measure beside a matrix product as well: what each costs.")
    ] = False,
    share_processes: Annotated[
        bool,
        typer.Option(
            "--share-processes",
            help="Settings that NCCL reads for each communicator share a set of processes: cheaper.",
        ),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Stop when each setting differs visibly, or is known this well: `3%`."
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1.0, help="Begin no launches that end later.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Keep raw launches here; an interrupted one goes on."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Add the launches to this surface, to be replayed."),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Bus bandwidth over size as a picture of text.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="The same as one page that loads nothing.")
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

    from topo_tune.bench.answers import was_wrong
    from topo_tune.bench.plan import plan_bench
    from topo_tune.cli.console import columns, print_json, print_lines
    from topo_tune.cli.progress import Reporter
    from topo_tune.inventory.read import read_inventory
    from topo_tune.pipeline import benching, journey
    from topo_tune.pipeline.cluster import narrowed, reach
    from topo_tune.records.envelope import write_whole
    from topo_tune.records.inventory import BackendName
    from topo_tune.records.nccl_env import parse_assignments
    from topo_tune.records.units import parse_dtype, parse_share, parse_sizes
    from topo_tune.report.comparisons import comparisons_report
    from topo_tune.report.curves import busbw_plot
    from topo_tune.report.curves_html import busbw_page
    from topo_tune.report.launches import launches_report

    inventory = narrowed(read_inventory(cluster_config), limit, exclude)
    if record is not None and inventory.backend is BackendName.REPLAY:
        raise InputError("a replay measures nothing that could be recorded", hint="record on real nodes")
    if sizes is not None:
        inventory = msgspec.structs.replace(inventory, sizes_bytes=parse_sizes(sizes), weights=())
    settings = tuple(parse_assignments(tuple(words.split())) for words in setting or ())
    plans = tuple(
        plan_bench(
            inventory,
            collective=one,
            dtype=None if dtype is None else parse_dtype(dtype),
            layout=_layout(layout),
            in_place=in_place,
            repeats=repeats,
            single_calls=single_calls,
            overlap=overlap,
            deadline_seconds=deadline,
        )
        for one in _collectives(collective or ["all_reduce"])
    )
    ends_early = until is not None or budget is not None
    chosen = benching.BenchOptions(
        launches=launches or (benching.MOST_LAUNCHES if ends_early else benching.BenchOptions().launches),
        share_processes=share_processes,
        until=None if until is None else parse_share(until),
        budget_seconds=budget,
    )
    with Reporter(quiet=quiet, backend=inventory.backend) as reporter, reach(inventory, reporter) as cluster:
        topology, spoken_of = journey.examine(
            cluster, ignored=ignore or (), despite_findings=despite_findings
        )
        try:
            made, notes = benching.bench(cluster, settings, plans, output, chosen, reporter)
        except KeyboardInterrupt:
            reporter.pause()
            if output is not None:
                reporter.say("what was measured is kept: the same command goes on from there")
            raise
    notes = (*notes, *spoken_of)
    usual = (plans[0].collective, plans[0].dtype)
    lines = [*launches_report(made, *usual, columns(to_stderr=json)), ""]
    if compared := comparisons_report(made):
        lines += [*compared, ""]
    lines += [f"# note: {note}" for note in (*notes, *_notes_of(made))]
    if plot:
        lines += ["", *busbw_plot(made, *usual), ""]
    told = _told(limit, exclude, ignore, despite_findings)
    lines += _again(made, str(cluster_config), plans[0].sizes_bytes, told)
    print_lines(lines, to_stderr=json)
    if json:
        print_json(made)
    # Behind the tables: where one of these files cannot be written, what was measured has been seen.
    if record is not None:
        added = benching.record_surface(record, made, inventory, topology, plans[0].dtype)
        reporter.say(f"{added} of {len(made)} launches were added to {record}")
    if html is not None:
        write_whole(html, busbw_page(made, *usual, title=inventory.name, notes=notes).encode())
    if any(was_wrong(launch) for launch in made):
        return EXIT_ANSWER_IS_NO
    return EXIT_DONE if any(launch.is_usable for launch in made) else EXIT_ENVIRONMENT


def _collectives(words: list[str]) -> tuple[Collective, ...]:
    """From `--collective`, in the order of first appearance. Raises InputError for a name nobody has."""
    from topo_tune.records.bench import Collective

    known = {one.value: one for one in Collective}
    found: dict[Collective, None] = {}
    for name in (name.strip() for word in words for name in word.split(",")):
        if name != "all" and name not in known:
            raise InputError(f"`{name}` is not a collective", hint=did_you_mean(name, (*known, "all")))
        found |= dict.fromkeys(known.values() if name == "all" else (known[name],))
    return tuple(found)


def _layout(name: str) -> Layout:
    from topo_tune.records.bench import Layout

    known = {one.value: one for one in Layout}
    if name not in known:
        raise InputError(f"`{name}` is not a layout", hint=did_you_mean(name, known))
    return known[name]


def _notes_of(launches: tuple[Launch, ...]) -> list[str]:
    """What launches say of themselves; of a replay, which says it of each, the tables tell."""
    from topo_tune.records.inventory import BackendName

    measured = (launch for launch in launches if launch.backend is not BackendName.REPLAY)
    return list(dict.fromkeys(note for launch in measured for note in launch.notes))


def _told(
    limit: str | None, exclude: str | None, ignore: list[str] | None, despite_findings: bool
) -> list[str]:
    """Options of this run that one which measures a failure again needs too."""
    words = ["--limit", limit] if limit else []
    words += ["--exclude", exclude] if exclude else []
    words += [word for rule in ignore or () for word in ("--ignore", rule)]
    return words + (["--despite-findings"] if despite_findings else [])


def _again(
    launches: tuple[Launch, ...], cluster_config: str, sizes_bytes: tuple[int, ...], further: list[str]
) -> list[str]:
    """For each kind of failed launch, the command that measures it again."""
    from topo_tune.report.again import again

    failed = [launch for launch in launches if not launch.is_usable]
    commands = dict.fromkeys(again(launch, cluster_config, sizes_bytes, further) for launch in failed)
    return [f"# to see it fail again: {command}" for command in commands]
