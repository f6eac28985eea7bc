"""Node health check lists of LBNL NHC: one `mask || check arguments` a line.

The form: https://github.com/mej/nhc (README, "Configuration File")
"""

from __future__ import annotations

import re

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import HealthChecks
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped, without_escapes

_CHECKS_LIMIT = 4096
_PROBLEMS_LIMIT = 20

_MASK = r"(?:\{[^{}\n]{1,200}\}|/[^/\n]{1,200}/|[^\s#|{/][^\s|]{0,200})"
_FIRST_LINE = re.compile(rf"[ \t]*{_MASK}[ \t]*\|\|[ \t]*\S")
_CHECK_LINE = re.compile(rf"^[ \t]*{_MASK}[ \t]*\|\|[ \t]*(?:check_|nhc_)\w", re.M)


def recognise(text: str) -> bool:
    """Whether a text is such a list: a shell script has lines like these, but does not begin with one."""
    first = next((line for line in text.split("\n") if line.strip() and line.strip()[0] != "#"), "")
    return _FIRST_LINE.match(first) is not None and _CHECK_LINE.search(text) is not None


def parse(text: str, file: str | None = None) -> tuple[HealthChecks, tuple[str, ...]]:
    """The checks with the nodes they are for. Raises InputError where there is none."""
    checks: list[tuple[str, str]] = []
    problems: list[str] = []
    for number, line in enumerate(without_escapes(text).split("\n"), start=1):
        written = line[:4096].strip()
        if not written or written.startswith("#"):
            continue
        mask, separator, check = written.partition("||")
        if not separator or not check.strip():
            if len(problems) < _PROBLEMS_LIMIT:
                problems.append(f"line {number}: `{clipped(written)}` is not `mask || check`")
            continue
        if len(checks) == _CHECKS_LIMIT:
            problems.append(f"line {number}: checks beyond the first {_CHECKS_LIMIT} are left out")
            break
        checks.append((clipped(mask.strip(), 256), clipped(" ".join(check.split()), 1024)))
    if not checks:
        raise InputError(
            "no check in it: expected lines of `* || check_...`",
            file=file,
            hint="`cat /etc/nhc/nhc.conf` prints one",
        )
    return HealthChecks(tuple(checks)), tuple(problems)


KINDS: tuple[SavedKind, ...] = (SavedKind("node health check list (NHC)", recognise, document=parse),)
