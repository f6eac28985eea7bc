"""The command line's outer edge: commands in the order of the journey, errors as words, bugs as a saved traceback."""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Annotated

import typer

from topo_tune import __version__
from topo_tune.cli.console import print_lines, warn, write
from topo_tune.errors import EXIT_BUG, EXIT_DONE, EXIT_INTERRUPTED, TopoTuneError

app = typer.Typer(
    name="topo-tune",
    help="Tune NCCL on a GPU cluster: measure, prove, roll out rack by rack, and put the old bytes back when it is "
    "not better.",
    epilog="Exit codes: 0 done; 1 it worked and the answer is no; 2 usage or input; 3 a host, a GPU or a tool; "
    "4 not enough evidence; 70 a bug; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help takes half the time of rich's, and leaves more of 80 columns to the words.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_NEEDED = {"torch": " (only nodes that run the nccl or gloo back end need it)"}


def _print_versions(wanted: bool) -> None:
    if wanted:
        print_lines(version_lines())
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
    for package in ("typer", "msgspec", "paramiko", "networkx", "scipy", "numpy", "torch"):
        try:
            lines.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{package} not installed here{_NEEDED.get(package, '')}")
    lines.append(f"NCCL catalogue read at {catalogue_version()}")
    return lines


def _register() -> None:
    # The order here is the order in --help.
    for name in ("init", "scan", "bench", "recommend", "apply", "rollback", "status", "lint", "explain"):
        importlib.import_module(f"topo_tune.cli.{name}").register(app)


_register()


def main() -> None:
    """Run the command line and exit with a documented code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under `nohup` a hang-up stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    code = run()
    write("", sys.stdout)
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code. Every deliberate error becomes its message and its code."""
    try:
        result = app(args=arguments, prog_name="topo-tune", standalone_mode=False)
    except TopoTuneError as exc:
        warn(f"error: {exc}")
        return exc.exit_code
    except KeyboardInterrupt:
        result = EXIT_INTERRUPTED
    except SystemExit as exc:
        # rich ends so when the reader of a help page has gone.
        return exc.code if isinstance(exc.code, int) else EXIT_DONE
    except Exception as exc:  # noqa: BLE001 - the one place where a bug is caught
        return _usage_error(exc) or _bug(exc)
    if result == EXIT_INTERRUPTED:
        # No command returns this by itself: the option parser has caught the interrupt.
        warn("interrupted")
    return result if isinstance(result, int) else EXIT_DONE


def _interrupt(number: int, frame: object) -> None:
    """A lost terminal or a `kill` ends a command as Ctrl-C does: a wave at work is put back first."""
    raise KeyboardInterrupt


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

    text = "".join(traceback.format_exception(exc))
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="topo-tune-bug-", suffix=".txt", delete=False
        ) as file:
            file.write(f"topo-tune {__version__}, python {sys.version}\n\n{text}")
        hint = f"the traceback is in {file.name}; please report it"
    except OSError:
        hint = f"please report it with this traceback:\n{text}"
    warn(f"error: this is a bug in topo-tune: {type(exc).__name__}: {exc}\nhint: {hint}")
    return EXIT_BUG
