"""Messages about files of settings as lines, in the way of compilers: place, severity, text, rule, hint."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from topo_tune.lint.message import LintedFile, LintReport, Message
from topo_tune.records.catalogue import catalogue_version, version_tuple
from topo_tune.records.finding import Severity

_INDENT = "    "


def lint_lines(report: LintReport, width: int | None = None) -> Iterator[str]:
    """Every message, then one line for all; wrapped to `width` columns, or not at all."""
    for file in report.files:
        for message in file.messages:
            yield from _wrapped(_message(file, message), width)
            if message.hint:
                yield from _wrapped(f"{_INDENT}hint: {message.hint}", width)
        if file.left_out:
            yield f"{_visible(file.path)}: and {file.left_out} more"
    yield from _wrapped(_summary(report), width)


def _message(file: LintedFile, message: Message) -> str:
    place = ":".join(
        str(part) for part in (_visible(file.path), message.line or None, message.column) if part is not None
    )
    # A sentence about a value does not repeat the name.
    said = message.text
    if message.name and message.name not in said:
        said = f"{_visible(message.name[:80])}: {said}"
    return f"{place}: {message.severity.value}: {said} [{message.rule}]"


def _summary(report: LintReport) -> str:
    settings = sum(file.settings for file in report.files)
    counts = [_counted(report.count(severity), severity.value) for severity in Severity]
    found = ", ".join(count for count in counts if count) or "nothing wrong"
    where = f" in {len(report.files)} files" if len(report.files) > 1 else ""
    return f"{_counted(settings, 'setting') or 'no settings'}{where}: {found}; {_against(report)}"


def _against(report: LintReport) -> str:
    text = f"checked against NCCL {report.nccl} ({report.nccl_from})"
    if version_tuple(report.nccl) > version_tuple(catalogue_version()):
        text += f"; what came after {catalogue_version()} is not known"
    return text


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}" if number else ""


def _wrapped(line: str, width: int | None) -> list[str]:
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(
        line,
        max(width, 40),
        subsequent_indent=_INDENT + ("  " if line.startswith(_INDENT) else ""),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
