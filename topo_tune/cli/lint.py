"""`topo-tune lint`: what is wrong in a file of NCCL settings."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from topo_tune.cli import options
from topo_tune.errors import EXIT_ANSWER_IS_NO, EXIT_DONE, EXIT_USAGE, InputError

_Choice = TypeVar("_Choice", bound=enum.Enum)

if TYPE_CHECKING:
    from topo_tune.lint.library import Library
    from topo_tune.lint.message import Format, LintedFile
    from topo_tune.lint.setting import Target

_HELP = "What is wrong in files of NCCL settings, in any format."
_FORMATS = "nccl.conf, shell, env-file, args, yaml"
_LIVE = ("/etc/nccl.conf", "~/.nccl.conf")
"""What NCCL reads on this very machine; the paths in any other file may be another machine's."""

_BEGINNING = 4096
"""Characters that tell text from binary data."""
_FEW_ODD = 8
"""Characters that are no text and may still stand in a short file of settings."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lint", help=_HELP, short_help=_HELP)(lint)


def lint(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files to read; `-` is standard input.")
    ],
    nccl: Annotated[
        str | None,
        typer.Option(
            "--nccl", metavar="VERSION", help="NCCL that will read them, as 2.28.9. Default: the catalogue's."
        ),
    ] = None,
    library: Annotated[
        Path | None,
        typer.Option(
            "--library",
            metavar="PATH",
            help="libnccl.so to look names up in; its version is taken unless --nccl is given.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help=f"Read as one of {_FORMATS}. Default: by content."),
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option("--fail-on", metavar="SEVERITY", help="Exit with 1 from error, warning or notice on."),
    ] = "warning",
    check_paths: Annotated[
        bool | None,
        typer.Option(
            "--check-paths/--no-check-paths",
            help="Look whether files named in settings are there. Default: in this machine's own nccl.conf only.",
        ),
    ] = None,
    json: options.Json = False,
) -> int:
    """Check files of settings."""
    from topo_tune.cli.console import print_json, print_lines, warn
    from topo_tune.lint.message import Format, LintReport
    from topo_tune.records.finding import Severity
    from topo_tune.report.lint import lint_lines

    worst = _one_of("--fail-on", fail_on, Severity)
    wanted = _one_of("--format", format, Format) if format is not None else None
    known, target, source = _target(nccl, library)
    linted, refused = _all_linted(files, target, wanted, check_paths)
    if not linted:
        raise InputError("\n".join(error.message for error in refused), hint=refused[0].hint)
    report = LintReport(
        nccl=target.nccl.removeprefix("NCCL "),
        nccl_from=source,
        files=tuple(linted),
        library=known.path if known is not None else None,
    )
    if json:
        print_json(report)
    else:
        print_lines(lint_lines(report, _width()))
    if refused:
        warn("\n".join(f"error: {error.message}" for error in refused))
        return EXIT_USAGE
    failed = any(message.severity.rank <= worst.rank for file in report.files for message in file.messages)
    return EXIT_ANSWER_IS_NO if failed else EXIT_DONE


def _one_of(option: str, value: str, choices: type[_Choice]) -> _Choice:
    from topo_tune.errors import did_you_mean

    known = {str(choice.value): choice for choice in choices}
    if value not in known:
        raise InputError(f"{option} does not know `{value}`", hint=did_you_mean(value, known))
    return known[value]


def _target(nccl: str | None, path: Path | None) -> tuple[Library | None, Target, str]:
    """The library if one is given, what to check against, and who says so."""
    from topo_tune.lint.library import read_library
    from topo_tune.lint.setting import Target
    from topo_tune.records.catalogue import catalogue_version, version_tuple

    library = read_library(path) if path is not None else None
    names = library.names if library is not None else None
    if nccl is not None:
        version = version_tuple(nccl)
        if len(version) < 2:
            raise InputError(f"`{nccl}` is no version of NCCL", hint="write it as `--nccl 2.28.9`")
        return library, Target(version, names), "--nccl"
    if library is not None and library.version is not None:
        return library, Target(library.version, names), "the library's version"
    return (
        library,
        Target(version_tuple(catalogue_version()), names),
        "the catalogue's version; --nccl for another",
    )


def _all_linted(
    names: list[str], target: Target, format: Format | None, check_paths: bool | None
) -> tuple[list[LintedFile], list[InputError]]:
    """What lint says of each file, and why it cannot say anything of the others."""
    linted, refused = [], []
    for name in names:
        try:
            linted.append(_linted(name, target, format, check_paths))
        except InputError as error:
            refused.append(error)
    return linted, refused


def _linted(name: str, target: Target, format: Format | None, check_paths: bool | None) -> LintedFile:
    """Raises InputError for a file that cannot be read, or that is none of settings."""
    from topo_tune.lint.check import lint as check
    from topo_tune.lint.formats import told_by_name

    looks = check_paths
    if looks is None:
        looks = name in {_LIVE[0], str(Path(_LIVE[1]).expanduser())}
    exists = (lambda p: Path(p).exists()) if looks else None
    file = check(_text(name), target, path=name, format=format, exists=exists)
    is_guess = format is None and told_by_name(name) is None
    if is_guess and any(message.rule == "nothing-found" for message in file.messages):
        raise InputError(
            f"{_called(name)} holds no NCCL setting",
            hint=f"`--format` with one of {_FORMATS} says how it is to be read",
        )
    return file


def _text(name: str) -> str:
    """The beginning of a file, as much as is looked at and a little more. Raises InputError."""
    import sys

    from topo_tune.lint.check import LONGEST_TEXT

    most = LONGEST_TEXT * 4 + 1
    try:
        if name == "-":
            data = sys.stdin.buffer.read(most)
        else:
            with open(name, "rb") as file:
                data = file.read(most)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise InputError(f"cannot read {name}: {reason}") from exc
    text = data.decode("utf-8", "replace")
    if _is_binary(text):
        raise InputError(f"{_called(name)} is binary data", hint="lint reads text, in UTF-8")
    return text


def _is_binary(text: str) -> bool:
    """Whether more than a tenth of the beginning is no text: a single NUL in a file of settings is a mistake in it."""
    beginning = text[:_BEGINNING]
    odd = sum(c == "\N{REPLACEMENT CHARACTER}" or (c < " " and c not in "\t\n\r\f\v\x1b") for c in beginning)
    return odd > max(_FEW_ODD, len(beginning) // 10)


def _called(name: str) -> str:
    return "standard input" if name == "-" else name


def _width() -> int | None:
    """Columns of the terminal; nothing is wrapped for a file or a pipe."""
    import shutil
    import sys

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
