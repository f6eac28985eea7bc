"""How NCCL reads its configuration files and its environment, rule for rule.

Source: NVIDIA/nccl src/misc/param.cc and src/os/linux.cc at 2.30.7 (commit 5067397c), as described in
docs/explanation/how-nccl-reads-settings.md. Runs on nodes and in tests; standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import re
from typing import Mapping

SYSTEM_FILE = "/etc/nccl.conf"
DROP_IN_DIRECTORY = "/etc/nccl/conf.d"
"""NCCL knows nothing of it; topo-tune merges its fragments into SYSTEM_FILE."""

COMMENTS_SINCE = (2, 26, 2)
"""`#` in column 0 is a comment from this version on; older ones set a variable whose name begins with `#`."""

SECRETS = ("NCCL_PSK",)
"""The key of NCCL's encryption, in versions after 2.30.7: its value is nobody's business and leaves no node."""
NOT_KEPT = "(not kept)"
"""Stands in for a value that nobody may see."""

_SECRET = re.compile(r"\b(%s)([=\t ]+)[^\n]+" % "|".join(SECRETS))


def without_secrets(text: str) -> str:
    """The text with the values of secret variables left out, to the end of their lines."""
    return _SECRET.sub(r"\1\2" + NOT_KEPT, text)


def parse(text: str) -> list[tuple[int, str, str]]:
    """The settings of one file as NCCL takes them: (line number, name, value), duplicates included.

    A line is cut at its first `=`; nothing is trimmed; a line without `=` is skipped, as is one that begins
    with `#`. A carriage return at the end is dropped, as NCCL does from 2.30.3.
    """
    settings = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.endswith("\r"):
            line = line[:-1]
        if line.startswith("#") or "=" not in line:
            continue
        name, value = line.split("=", 1)
        settings.append((number, name[:1023], value[:1023]))
    return settings


def problems(text: str) -> list[tuple[int, str]]:
    """Lines that NCCL would read otherwise than their author meant: a list of (line number, explanation)."""
    found = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.endswith("\r"):
            found.append((number, "ends with a carriage return, which NCCL before 2.30.3 keeps in the value"))
            line = line[:-1]
        if not line.strip():
            continue
        if line.startswith("#"):
            if "=" in line:
                found.append(
                    (
                        number,
                        "is a comment only from NCCL 2.26.2 on; older ones set a variable with this name",
                    )
                )
            continue
        if "=" not in line:
            found.append((number, "has no `=` and is skipped"))
            continue
        name, value = line.split("=", 1)
        if line.startswith(("export ", "set ")):
            found.append(
                (number, "begins with `%s`, which NCCL makes a part of the name" % line.split(" ", 1)[0])
            )
        elif name != name.strip():
            found.append((number, "has a space around the name, which NCCL keeps"))
        elif not name:
            found.append((number, "has an empty name"))
        if value != value.strip():
            found.append((number, "has a space around the value, which NCCL keeps"))
        if value[:1] in ("'", '"'):
            found.append((number, "has quotes, which NCCL keeps in the value"))
        if " #" in value:
            found.append((number, "has a comment behind the value, which NCCL keeps in it"))
        if len(line) > 4095 or len(name) > 1023 or len(value) > 1023:
            found.append((number, "is too long and is cut silently"))
        if name in seen:
            found.append((number, "sets `%s` again; NCCL keeps the first, line %d" % (name, seen[name])))
        else:
            seen[name] = number
    return found


def files_in_order(environment: Mapping[str, str], root: str = "/", home: str | None = None) -> list[str]:
    """The paths that NCCL opens, first wins: $NCCL_CONF_FILE or else ~/.nccl.conf, then /etc/nccl.conf.

    `root` is a prefix for a node whose files live below a folder; `home` overrides $HOME.
    """
    named = environment.get("NCCL_CONF_FILE", "")
    if named:
        first = named
    else:
        home = home or environment.get("HOME") or ""
        first = os.path.join(home, ".nccl.conf") if home else ""
    return [under(root, path) for path in (first, SYSTEM_FILE) if path]


def under(root: str, path: str) -> str:
    """A path of the node below its root prefix."""
    if root in ("", "/"):
        return path
    return os.path.join(root, path.lstrip("/"))


def resolve(
    environment: Mapping[str, str], root: str = "/", home: str | None = None
) -> dict[str, tuple[str, str]]:
    """The NCCL variables a process would have: {name: (value, where it came from)}.

    The process environment wins over files, an earlier file over a later one, an earlier line over a later
    one. A variable that exists in the environment but is empty blocks the files' value and counts as unset.
    """
    found = {}
    for name, value in environment.items():
        if name.startswith("NCCL_"):
            found[name] = (value, "environment")
    for path in files_in_order(environment, root, home):
        # A pipe in place of a file would hold up whoever opens it.
        if os.path.exists(path) and not os.path.isfile(path):
            continue
        try:
            with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
                text = file.read()
        except OSError:
            continue
        for number, name, value in parse(text):
            if name.startswith("NCCL_") and name not in found:
                found[name] = (value, "%s:%d" % (path, number))
    return {name: pair for name, pair in found.items() if pair[0] != ""}
