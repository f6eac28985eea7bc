"""The command line's outer edge: commands in the order of the journey, errors as words, bugs as a saved traceback."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from topo_tune import __version__
from topo_tune.errors import EXIT_BUG, EXIT_INTERRUPTED, TopoTuneError

app = typer.Typer(
    name="topo-tune",
    help="Tune NCCL on a GPU cluster: measure, prove, roll out rack by rack, and put the old bytes back when it is "
    "not better.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_versions(wanted: bool) -> None:
    if wanted:
        print("\n".join(version_lines()))
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_versions, is_eager=True, help="Versions that matter.")
    ] = False,
) -> None:
    pass


def version_lines() -> list[str]:
    """topo-tune's own version and those its results depend on; nothing heavy is imported to tell them."""
    import importlib.metadata
    import platform

    from topo_tune.records.catalogue import catalogue_version

    lines = [f"topo-tune {__version__}", f"python {platform.python_version()}"]
    for package in ("paramiko", "torch"):
        try:
            lines.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(
                f"{package} not installed here (only nodes that run the nccl or gloo back end need it)"
            )
    lines.append(f"NCCL catalogue read at {catalogue_version()}")
    return lines


def _register() -> None:
    # The order here is the order in --help.
    for name in ("init", "scan", "bench", "recommend", "apply", "rollback", "status"):
        importlib.import_module(f"topo_tune.cli.{name}").register(app)


_register()


def main() -> None:
    """Run the command line and exit with a documented code."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code. Every deliberate error becomes its message and its code."""
    try:
        result = app(args=arguments, standalone_mode=False)
    except TopoTuneError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return exc.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        sys.stderr.close()
        return 0
    except Exception as exc:
        return _usage_error(exc) or _bug(exc)
    return result if isinstance(result, int) else 0


def _usage_error(exc: Exception) -> int | None:
    """Exit code of an error that the option parser raised and has words for; None for anything else."""
    show = getattr(exc, "show", None)
    code = getattr(exc, "exit_code", None)
    if type(exc).__name__ in ("Exit", "Abort"):
        return code if isinstance(code, int) else EXIT_INTERRUPTED
    if show is None or not isinstance(code, int):
        return None
    show()
    return code


def _bug(exc: Exception) -> int:
    """Save the traceback of a bug and say where."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="topo-tune-bug-", suffix=".txt", delete=False) as file:
        file.write("\n".join(version_lines()) + "\n\n" + traceback.format_exc())
    print(
        f"error: this is a bug in topo-tune: {type(exc).__name__}: {exc}\n"
        f"hint: the traceback is in {file.name}; please report it",
        file=sys.stderr,
    )
    return EXIT_BUG
