"""nccl.conf, line by line as NCCL reads it, and where that is not what the line seems to say.

Rules and sources: docs/explanation/how-nccl-reads-settings.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from topo_tune.lint.message import Format, Message, message, quoted
from topo_tune.lint.setting import LONGEST_PART, Listing, Setting, Target
from topo_tune.on_node.nccl_conf import COMMENTS_SINCE
from topo_tune.records.finding import Severity

CARRIAGE_RETURN_DROPPED_SINCE = (2, 30, 3)
LONGEST_LINE = 4095
"""Characters read at once, from the same version on; before, a line could have any length."""

_BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
_WORD_IN_FRONT = re.compile(r"\s*(export|set|setenv|declare(?:\s+-\w+)*|-x|-e|--env|env|ENV)\s+(?=\S)")
_LINE = re.compile(r"[^\n]+")


def read_conf(text: str, target: Target) -> Listing:
    """The settings of an nccl.conf, each under the name its author meant, and what is wrong with its lines."""
    settings: list[Setting] = []
    messages: list[Message] = list(_of_the_whole(text, target))
    without_equals: list[int] = []
    line = start = 0
    for match in _LINE.finditer(text):
        line += text.count("\n", start, match.start())
        start = match.start()
        content = match.group().removesuffix("\r")
        number = line + 1
        if not content.strip() or content == _BYTE_ORDER_MARK:
            continue
        if content.startswith("#"):
            if "=" in content and target.version < COMMENTS_SINCE:
                messages.append(_comment(number, content, target))
        elif "=" not in content:
            without_equals.append(number)
        else:
            setting, said = _setting(number, content, target)
            settings.append(setting)
            messages += said
    if without_equals:
        messages.append(_no_equals(without_equals))
    return Listing(Format.CONF, tuple(settings), tuple(messages))


def _setting(line: int, content: str, target: Target) -> tuple[Setting, list[Message]]:
    raw_name, value = content.split("=", 1)
    name, said = raw_name, []
    if line == 1 and name.startswith(_BYTE_ORDER_MARK):
        name = name[1:]
    in_front = _WORD_IN_FRONT.match(name)
    column = 1
    if in_front is not None:
        name, column = name[in_front.end() :], in_front.end() + 1
    bare = name.strip().lstrip("\"'").strip()
    setting = Setting(bare, value.split("\0")[0], line, column, len(raw_name) + 2)
    if in_front is not None:
        word = in_front.group(1).split()[0]
        text = f"NCCL makes `{word}` a part of the name, so the line has no effect"
        said.append(setting.about_name("export-in-conf", text, f"begin the line with {quoted(bare)}"))
    elif name.lstrip()[:1] in ("'", '"'):
        text = "NCCL keeps the quote as a part of the name, so the line has no effect"
        said.append(setting.about_name("quoted-name", text, f"begin the line with {quoted(bare)}"))
    if name.strip() != name and (in_front is None or name.rstrip() != name):
        text = f"NCCL keeps the space around the name {quoted(bare)}, so the line has no effect"
        said.append(setting.about_name("space-around-name", text, "remove the space"))
    setting = msgspec.structs.replace(setting, is_read=not said)
    said += _limits(setting, content, raw_name, target)
    return setting, said


def _limits(setting: Setting, content: str, raw_name: str, target: Target) -> Iterator[Message]:
    """What is cut at a buffer's end or at a NUL."""
    if "\0" in content:
        text = "the line holds a NUL, at which NCCL stops reading it"
        yield setting.about_name("nul-byte", text, "remove it, or save the file as plain UTF-8 text")
    if len(content) > LONGEST_LINE and target.version >= CARRIAGE_RETURN_DROPPED_SINCE:
        text = f"the line has {len(content)} characters; NCCL reads {LONGEST_LINE} and takes the rest for a new line"
        yield setting.about_name("too-long", text)
    elif len(raw_name) > LONGEST_PART or len(setting.value) > LONGEST_PART:
        part = "name" if len(raw_name) > LONGEST_PART else "value"
        yield setting.about_name("too-long", f"NCCL cuts the {part} after {LONGEST_PART} characters silently")


def _of_the_whole(text: str, target: Target) -> Iterator[Message]:
    if text.startswith(_BYTE_ORDER_MARK):
        yield message(
            "byte-order-mark",
            "the file begins with a byte order mark, which becomes a part of the first name",
            line=1,
            column=1,
            hint="save it as UTF-8 without a byte order mark",
        )
    returns = text.count("\r\n") + text.endswith("\r")
    if returns:
        keeps = target.version < CARRIAGE_RETURN_DROPPED_SINCE
        since = ".".join(str(part) for part in CARRIAGE_RETURN_DROPPED_SINCE)
        does = f"{target.nccl} keeps the CR in the value" if keeps else f"NCCL before {since} keeps the CR"
        yield message(
            "carriage-return",
            f"{'a line ends' if returns == 1 else f'{returns} lines end'} in CR LF: {does}",
            line=text.count("\n", 0, text.index("\r")) + 1,
            hint="convert the file, as with `sed -i 's/\\r$//'`",
            severity=None if keeps else Severity.NOTICE,
        )


def _comment(line: int, content: str, target: Target) -> Message:
    since = ".".join(str(part) for part in COMMENTS_SINCE)
    return message(
        "comment-too-new",
        f"{target.nccl} knows no comments (since {since}): it sets a variable named "
        f"{quoted(content.split('=', 1)[0])}",
        line=line,
        column=1,
        hint="harmless, but remove the line or its `=`",
    )


def _no_equals(lines: list[int]) -> Message:
    more = f" (and {len(lines) - 1} more {'line' if len(lines) == 2 else 'lines'})" if len(lines) > 1 else ""
    return message(
        "no-equals-sign",
        f"the line has no `=` and is skipped{more}",
        line=lines[0],
        column=1,
        hint="write `NAME=VALUE`; a comment begins with `#` in the first column",
    )
