"""Env-files of Docker, Podman and `kubectl create configmap --from-env-file`.

Source: https://docs.docker.com/reference/cli/docker/container/run/#env - lines are `NAME=VALUE`, `#` begins a comment
line, nothing is expanded and quotes are kept; a name alone takes its value from the caller's environment.
"""

from __future__ import annotations

import re

from topo_tune.lint.message import Format, Message
from topo_tune.lint.setting import Listing, Setting
from topo_tune.lint.shell import MENTIONS_NCCL

_LINE = re.compile(r"[^\n]+")
_EXPORT = re.compile(r"export\s+")


def read_env_file(text: str) -> Listing:
    """The settings of an env-file, in its order."""
    settings: list[Setting] = []
    messages: list[Message] = []
    line = start = 0
    for match in _LINE.finditer(text):
        line += text.count("\n", start, match.start())
        start = match.start()
        content = match.group().removesuffix("\r")
        indent = len(content) - len(content.lstrip())
        content = content.lstrip().lstrip("\N{ZERO WIDTH NO-BREAK SPACE}")
        name, separator, value = content.partition("=")
        if content.startswith("#") or not separator or not MENTIONS_NCCL.search(name):
            continue
        export = _EXPORT.match(name)
        bare = name[export.end() :] if export else name
        setting = Setting(bare.strip(), value, line + 1, indent + 1, indent + len(name) + 2)
        settings.append(setting)
        if export:
            text_ = "an env-file knows no `export`: Docker refuses the line"
            messages.append(setting.about_name("export-in-conf", text_, "remove the word"))
        elif name != name.strip():
            text_ = "Docker refuses a name with a space in it"
            messages.append(setting.about_name("space-around-name", text_, "remove the space"))
    return Listing(Format.ENV_FILE, tuple(settings), tuple(messages))
