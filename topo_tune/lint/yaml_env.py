"""Settings in YAML and JSON: `env` lists of Kubernetes, maps of Compose, code in block scalars.

Read line by line and not by a YAML parser: templates are read too, and every value keeps its line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from msgspec.structs import replace

from topo_tune.lint.message import Format, Message, quoted
from topo_tune.lint.setting import Listing, Setting
from topo_tune.lint.shell import MENTIONS_NCCL, read_args

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_QUOTED_NAME = rf"[\"']?(?P<name>{_NAME})[\"']?"
_LIST_NAME = re.compile(rf"[ \t]*(?:-[ \t]*)?[\"']?name[\"']?:[ \t]+{_QUOTED_NAME}[ \t]*,?(?:#.*)?\r?$")
_LIST_VALUE = re.compile(r"[ \t]*[\"']?value[\"']?:(?P<value>[ \t].*)?\r?$")
_VALUE_FROM = re.compile(r"[ \t]*[\"']?valueFrom[\"']?:")
_SCOPE = re.compile(
    r"(?:---|[ \t]*(?:-[ \t]+)?[\"']?(?:env|environment|args|command|data|containers)[\"']?:)"
)
"""Where another container's environment may begin."""

_FLOW = re.compile(
    rf"[ \t]*(?:-[ \t]*)?\{{[ \t]*[\"']?name[\"']?:[ \t]*{_QUOTED_NAME}[ \t]*,[ \t]*[\"']?value[\"']?:"
    r"(?P<value>[^}]*)\}"
)
_MAPPING = re.compile(rf"[ \t]*(?:-[ \t]+)?{_QUOTED_NAME}[ \t]*:(?P<value>[ \t]+\S.*|[ \t]*)\r?$")
_NOT_TEXT = re.compile(
    r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|0x[0-9a-fA-F]+|0o[0-7]+)|(?i:true|false|yes|no|on|off|null|~)"
)
_VARIABLE = re.compile(r"\{\{|\$\w|\$\(|\$\{")
_LINES_TO_A_VALUE = 3
"""How far below its name the value of a list entry may stand: behind a comment, at most."""


def read_yaml(text: str) -> Listing:
    """Settings of a YAML or JSON text; lines of another form are read as arguments or shell code."""
    lines = text.split("\n")
    scopes = list(itertools.accumulate(bool(_SCOPE.match(line)) for line in lines))
    settings: list[Setting] = []
    messages: list[Message] = []
    for at, line in enumerate(lines):
        if not MENTIONS_NCCL.search(line):
            continue
        found = _setting(lines, at)
        if found is None:
            continue
        setting, is_list_entry = found
        settings.append(setting)
        if is_list_entry:
            messages += _not_text(setting, lines[setting.line - 1])
        lines[at] = ""
    rest = read_args("\n".join(lines))
    everything = sorted([*settings, *rest.settings], key=lambda s: (s.line, s.column))
    plain = tuple(
        replace(s, is_plain=s.is_plain and not _VARIABLE.search(s.value), scope=scopes[s.line - 1])
        for s in everything
    )
    return Listing(Format.YAML, plain, (*messages, *rest.messages))


def _setting(lines: list[str], at: int) -> tuple[Setting, bool] | None:
    """The setting that begins on this line, and whether it is an entry of a `name`/`value` list."""
    line = lines[at]
    if match := _FLOW.match(line):
        return _made(match, at, at, match), True
    if match := _LIST_NAME.match(line):
        for below in range(at + 1, min(at + 1 + _LINES_TO_A_VALUE, len(lines))):
            if value := _LIST_VALUE.match(lines[below]):
                return _made(match, below, at, value), True
            if _VALUE_FROM.match(lines[below]):
                return _setting_without_value(match, at), True
            if lines[below].lstrip()[:1] != "#":
                break
        return None
    match = _MAPPING.match(line)
    # In lower case it is some program's own key.
    is_name = (
        match is not None and MENTIONS_NCCL.search(match.group("name")) and match.group("name").isupper()
    )
    return (_made(match, at, at, match), False) if match is not None and is_name else None


def _made(name: re.Match[str], line: int, name_line: int, value: re.Match[str]) -> Setting:
    raw = value.group("value") or ""
    begin = len(raw) - len(raw.lstrip())
    column = value.start("value") + begin + 1 if value.group("value") is not None else 1
    return Setting(
        name.group("name"),
        _scalar(raw.strip()),
        line + 1,
        name.start("name") + 1 if line == name_line else column,
        column,
    )


def _setting_without_value(name: re.Match[str], at: int) -> Setting:
    column = name.start("name") + 1
    return Setting(name.group("name"), "", at + 1, column, column, is_plain=False)


def _scalar(raw: str) -> str:
    """The text of a scalar: without its quotes, or without the comment behind it."""
    if raw[:1] in ("'", '"'):
        end = raw.find(raw[0], 1)
        return raw[1:end] if end > 0 else raw[1:]
    return raw.split(" #", 1)[0].rstrip().rstrip(",")


def _not_text(setting: Setting, line: str) -> Iterator[Message]:
    raw = line[setting.value_column - 1 :].split(" #", 1)[0].split("}")[0].strip()
    if setting.is_plain and raw and _NOT_TEXT.fullmatch(raw):
        yield setting.about(
            "yaml-value-not-text",
            f"Kubernetes takes only text for the value of a variable; {quoted(raw)} without quotes is none",
            f'`value: "{setting.value[:40]}"`',
        )
