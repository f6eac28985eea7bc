"""Node names as operators write them: `gpu[001-064]`. A thin face on ClusterShell's NodeSet."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable

from topo_tune.errors import InputError

# Host names and IPv4/IPv6 addresses. Names reach ssh, file names and logs, so nothing else is let in.
_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")
_NODE_NAME_MAX_LENGTH = 253
"""RFC 1035 section 2.3.4: 255 octets on the wire, which is 253 characters of text."""

_MAX_NODES = 1 << 16
"""A pattern for more nodes than this is a typing error: `gpu[1-1000000000]` must not fill the memory."""

_RANGE = re.compile(r"(\d+)-(\d+)")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


def is_node_name(text: str) -> bool:
    """Whether the text is a host name or an IP address that topo-tune lets in."""
    return len(text) <= _NODE_NAME_MAX_LENGTH and _NODE_NAME.fullmatch(text) is not None


def expand(pattern: str) -> tuple[str, ...]:
    """The different node names of a pattern, in numerical order within each prefix.

    Raises InputError for a bad range, a bad name or an empty set.
    """
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
    from ClusterShell.RangeSet import RangeSetException

    text = pattern.strip()
    if "@" in text:
        raise InputError(f"node groups (`@`) are not resolved here: `{pattern}`", hint="write the nodes out")
    _refuse_too_many(text)
    try:
        # Without a resolver: a cluster file must mean the same on every machine that reads it.
        # (`resolver=None` takes the machine's own groups: `*` is then every node of /etc/clustershell.)
        names = tuple(str(name) for name in NodeSet(text, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, RangeSetException, ValueError, IndexError) as exc:
        raise InputError(
            f"bad node set `{pattern}`: {exc}", hint="write ranges as `gpu[001-016]` or `gpu[1,3-5]`"
        ) from exc
    if not names:
        raise InputError(f"the node set `{pattern}` is empty")
    for name in names:
        if not is_node_name(name):
            where = "" if name == pattern else f" (in `{pattern}`)"
            raise InputError(f"`{name}` is not a node name{where}", hint=_why_no_name(name))
    return names


def repeated(pattern: str) -> tuple[str, ...]:
    """The nodes that a pattern names more than once, which `expand` cannot tell: `n[1-3],n2` gives n2.

    Set operators (`!`, `&`, `^`) say "some nodes out of others", so a pattern with one repeats nothing.
    """
    if any(operator in pattern for operator in "!&^"):
        return ()
    pieces = [piece for part in _split_outside_brackets(pattern) for piece in _single_ranges(part)]
    if len(pieces) == 1:
        return ()
    counted = Counter(name for piece in pieces for name in ((piece,) if "[" not in piece else expand(piece)))
    return tuple(name for name, count in counted.items() if count > 1)


def fold(names: Iterable[str]) -> str:
    """The shortest spelling of a set of nodes; an empty set is `-`."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP)) or "-"


def _refuse_too_many(text: str) -> None:
    total = 0
    for part in _split_outside_brackets(text):
        count = 1
        for bracket in _BRACKET.findall(part):
            count *= sum(_range_length(item) for item in bracket.split(","))
        total += count
    if total > _MAX_NODES:
        raise InputError(f"the node set `{text}` names more than {_MAX_NODES} nodes")


def _range_length(item: str) -> int:
    match = _RANGE.match(item.strip())
    if match is None:
        return 1
    first, last = (number.lstrip("0") or "0" for number in match.groups())
    if max(len(first), len(last)) > 9:
        return _MAX_NODES + 1
    return max(int(last) - int(first) + 1, 1)


def _split_outside_brackets(text: str) -> list[str]:
    return [part.strip() for part in _PART.findall(text)]


def _single_ranges(part: str) -> list[str]:
    """`n[1-3,5]m[1,2]` as `n[1-3]m[1]`, `n[1-3]m[2]`, `n[5]m[1]`, `n[5]m[2]`."""
    # Odd positions are what stands in brackets.
    texts = _BRACKET.split(part)
    choices = [[f"[{item}]" for item in t.split(",")] if i % 2 else [t] for i, t in enumerate(texts)]
    return ["".join(combination) for combination in itertools.product(*choices)]


def _why_no_name(name: str) -> str:
    if re.search(r"\s", name):
        return "put a comma between two nodes"
    if re.search(r"\{\d+\.\.\d+\}", name):
        return "write a range as `gpu[001-016]`"
    return "a node name is a host name or an IP address: letters, digits, `.`, `-`, `_`, `:`"
