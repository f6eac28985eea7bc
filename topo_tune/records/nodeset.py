"""Node names as operators write them: `gpu[001-064]`. A thin face on ClusterShell's NodeSet."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topo_tune.errors import InputError

# Host names and IPv4/IPv6 addresses. Names reach ssh, file names and logs, so nothing else is let in.
_NODE_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$")


def expand(pattern: str) -> tuple[str, ...]:
    """The node names of a pattern, in its order. Raises InputError for a bad range, a bad name or an empty set."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException
    from ClusterShell.RangeSet import RangeSetException

    text = pattern.strip()
    if "@" in text:
        raise InputError(f"node groups (`@`) are not resolved here: `{pattern}`", hint="write the nodes out")
    try:
        # No resolver: a cluster file must mean the same on every machine that reads it.
        names = tuple(str(name) for name in NodeSet(text, resolver=None))
    except (NodeSetException, RangeSetException, ValueError, IndexError) as exc:
        raise InputError(
            f"bad node set `{pattern}`: {exc}", hint="write ranges as `gpu[001-016]` or `gpu[1,3-5]`"
        ) from exc
    if not names:
        raise InputError(f"the node set `{pattern}` is empty")
    for name in names:
        if not _NODE_NAME.match(name):
            raise InputError(f"`{name}` is not a node name (in `{pattern}`)", hint="letters, digits, `.`, `-`, `_`")
    return names


def fold(names: Iterable[str]) -> str:
    """The shortest spelling of a set of nodes; an empty set is `-`."""
    from ClusterShell.NodeSet import NodeSet

    folded = NodeSet(resolver=None)
    count = 0
    for name in names:
        folded.add(name)
        count += 1
    return str(folded) if count else "-"
