"""`topo-tune scan`: what the nodes are, what is wrong with them, and what NCCL will see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_ANSWER_IS_NO, EXIT_DONE, EXIT_ENVIRONMENT, InputError

if TYPE_CHECKING:
    from topo_tune.records.scan import Scan
    from topo_tune.records.topology import Topology

_HELP = "What is on the nodes, what is wrong there, and how to mend it."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scan", help=_HELP, short_help=_HELP)(scan)


def scan(
    cluster_config: Annotated[
        Path | None, typer.Option("--cluster-config", "-c", metavar="FILE", help="Cluster file or host file.")
    ] = None,
    from_paths: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Read saved files or a folder of them; no node is reached. May be repeated.",
        ),
    ] = None,
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--diff", metavar="OLD NEW", help="What changed between two records, or run folders."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--node", metavar="NODE", help="Show one node from near: its tree, its matrix, its settings."
        ),
    ] = None,
    kinds: Annotated[
        bool,
        typer.Option("--kinds", help="List the kinds of saved files that are read, and do nothing else."),
    ] = False,
    fail_on: options.FailOn = options.Threshold.ERROR,
    ignore: options.Ignore = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Markdown on standard output, for a ticket.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the record to this file as well."),
    ] = None,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Scan nodes, or saved dumps of nodes; or compare two scans."""
    from topo_tune.cli.console import print_json, print_lines, show
    from topo_tune.pipeline.judged import fails_on
    from topo_tune.records.envelope import save
    from topo_tune.report.scan import node_or_refusal, scan_report

    if kinds:
        from topo_tune.scan.from_files import kinds_read

        print_lines(kinds_read())
        return EXIT_DONE
    if sum(given is not None for given in (cluster_config, from_paths or None, diff)) != 1:
        raise InputError(
            "give one of --cluster-config, --from and --diff",
            hint="`topo-tune scan --cluster-config cluster.yaml`",
        )
    if diff is not None:
        return _show_difference(*diff, json=json)
    if output is not None:
        _refuse_to_overwrite(output)
    found, topology = _scanned(cluster_config, from_paths or [], limit, exclude, ignore or [], quiet=quiet)
    if output is not None:
        save(output, found)
    if markdown:
        from topo_tune.report.scan_markdown import scan_markdown

        print_lines([scan_markdown(found)], to_stderr=json)
    else:
        parts = scan_report(found, topology) if node is None else node_or_refusal(found, node)
        show(parts, to_stderr=json)
    if json:
        print_json(found)
    if found.missing:
        return EXIT_ENVIRONMENT
    return EXIT_ANSWER_IS_NO if fails_on(found, fail_on.severity) else EXIT_DONE


def _scanned(
    cluster_config: Path | None,
    from_paths: list[Path],
    limit: str | None,
    exclude: str | None,
    ignored: list[str],
    *,
    quiet: bool,
) -> tuple[Scan, Topology | None]:
    """The scan of nodes or of files, with its findings."""
    from topo_tune.cli.progress import Reporter
    from topo_tune.inventory.read import read_inventory
    from topo_tune.pipeline import journey
    from topo_tune.pipeline.cluster import narrowed, reach
    from topo_tune.pipeline.judged import judged

    if cluster_config is None:
        from topo_tune.scan.from_files import scan_from
        from topo_tune.scan.narrowed import narrowed as narrowed_scan

        found = narrowed_scan(scan_from(*from_paths), limit, exclude)
        return judged(found, ignored=ignored), None
    inventory = narrowed(read_inventory(cluster_config), limit, exclude)
    with (
        Reporter(quiet=quiet, backend=inventory.backend) as reporter,
        reach(inventory, reporter) as cluster,
    ):
        return journey.scan(cluster, ignored=ignored)


def _show_difference(old: Path, new: Path, *, json: bool) -> int:
    """Exit code 1 where something differs, as `diff` does."""
    from topo_tune.cli.console import print_json, show
    from topo_tune.records.run_folder import scan_record
    from topo_tune.report.scan_difference import difference_report
    from topo_tune.scan.difference import difference

    found = difference(scan_record(old), scan_record(new))
    show(difference_report(found, old=str(old), new=str(new)), to_stderr=json)
    if json:
        print_json(found)
    return EXIT_DONE if found.is_empty else EXIT_ANSWER_IS_NO


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
