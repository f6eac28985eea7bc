"""The grammar of NCCL_ALGO and NCCL_PROTO, and what a value leaves for each collective.

Source: NVIDIA/nccl src/graph/tuning.cc and docs/userguide/source/env.rst; which algorithm serves which collective:
src/graph/tuning.cc. The table of versions is the guide's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from topo_tune.errors import nearest
from topo_tune.lint.message import Message, quoted
from topo_tune.lint.setting import Setting, Target

SCOPES_SINCE = (2, 24)
"""`function:list;...` from this version on; unknown words are an error then, and were dropped before."""

FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS: Mapping[str, tuple[int, ...]] = {
    "tree": (2, 5),
    "ring": (2, 5),
    "collnetdirect": (2, 14),
    "collnetchain": (2, 14),
    "nvls": (2, 17),
    "nvlstree": (2, 18),
    "pat": (2, 23),
}
"""Words of NCCL_ALGO with the version that brought them."""

COLLNET_UNTIL = (2, 14)
"""Before this version the one word was `collnet`."""

PROTOCOLS: Mapping[str, tuple[int, ...]] = {"ll": (2, 5), "ll128": (2, 5), "simple": (2, 5)}
SERVED_BY: Mapping[str, frozenset[str]] = {
    "broadcast": frozenset({"ring"}),
    "reduce": frozenset({"ring"}),
    "allgather": frozenset({"ring", "pat", "nvls", "collnetdirect"}),
    "reducescatter": frozenset({"ring", "pat", "nvls", "collnetdirect"}),
    "allreduce": frozenset({"tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree"}),
}
SIMPLE_ONLY = frozenset({"nvls", "nvlstree", "collnetdirect", "collnetchain", "pat"})


class Group(msgspec.Struct, frozen=True):
    """One part of the value: `allreduce:^tree`."""

    function: str | None
    """None: all functions that no other group names"""
    inverted: bool
    words: tuple[str, ...]
    """in lower case"""


def parsed(value: str) -> tuple[Group, ...]:
    """The groups of a value, whether right or wrong."""
    groups = []
    for part in value.split(";"):
        function, separator, words = part.rpartition(":")
        inverted = words.startswith("^")
        listed = tuple(word.strip().lower() for word in words.removeprefix("^").split(","))
        groups.append(Group(function.strip().lower() if separator else None, inverted, listed))
    return tuple(groups)


def left(groups: tuple[Group, ...], known: frozenset[str]) -> dict[str, frozenset[str]]:
    """What each function may still use."""
    allowed = dict.fromkeys(FUNCTIONS, known)
    # A named function beats the group for all.
    for group in sorted(groups, key=lambda g: g.function is not None):
        words = known - set(group.words) if group.inverted else known & set(group.words)
        for function in FUNCTIONS if group.function is None else (group.function,):
            if function in allowed:
                allowed[function] = words
    return allowed


def check_algorithms(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    """Everything about one value of NCCL_ALGO."""
    groups = parsed(value)
    said = list(_grammar(setting, value, groups, ALGORITHMS, target))
    yield from said
    if not said and target.version >= SCOPES_SINCE:
        yield from _without_algorithm(setting, groups)


def check_protocols(setting: Setting, value: str, target: Target) -> Iterator[Message]:
    """Everything about one value of NCCL_PROTO."""
    groups = parsed(value)
    said = list(_grammar(setting, value, groups, PROTOCOLS, target))
    yield from said
    if said:
        return
    empty = [f for f, protocols in left(groups, frozenset(PROTOCOLS)).items() if not protocols]
    if empty:
        yield setting.about("nothing-left", f"no protocol is left for {_and(empty)}: the call fails")


def _without_algorithm(setting: Setting, groups: tuple[Group, ...]) -> Iterator[Message]:
    allowed = left(groups, frozenset(ALGORITHMS))
    empty = [f for f in FUNCTIONS if not allowed[f] & SERVED_BY[f]]
    if not empty:
        return
    only_allreduce = "allreduce" not in empty and any(g.function is None for g in groups)
    hint = quoted(f"{setting.name}=allreduce:{setting.value.strip()}") if only_allreduce else None
    if len(groups) > 1:
        hint = None
    text = f"no algorithm is left for {_and(empty)}: these calls fail with `invalid usage`"
    yield setting.about("nothing-left", text, hint)


def _grammar(
    setting: Setting,
    value: str,
    groups: tuple[Group, ...],
    known: Mapping[str, tuple[int, ...]],
    target: Target,
) -> Iterator[Message]:
    if any(c in value for c in ":;") and target.version < SCOPES_SINCE:
        text = f"{target.nccl} knows no `function:list`; it drops the words and allows nothing"
        yield setting.about("scope-too-new", text, "write the list alone")
        return
    for position, group in enumerate(groups):
        if group.function is None and position > 0:
            text = "only the first list may do without a function in front"
            yield setting.about("scope-missing", text, "write `function:list`")
        elif group.function is not None and group.function not in FUNCTIONS:
            text = f"NCCL knows no function {quoted(group.function)}: communicators fail to start"
            yield setting.about("scope-unknown", text, f"known: {', '.join(FUNCTIONS)}")
        for word in group.words:
            yield from _word(setting, word, known, target)


def _word(
    setting: Setting, word: str, known: Mapping[str, tuple[int, ...]], target: Target
) -> Iterator[Message]:
    if word.startswith("^") or "^" in word:
        text = f"`^` counts only in front of the whole list; {quoted(word)} is no word"
        yield setting.about("misplaced-mark", text, "one `^` holds for every word behind it")
        return
    if word in known:
        if target.version < known[word]:
            first = ".".join(str(part) for part in known[word])
            yield setting.about(
                "token-too-new", f"{target.nccl} does not know {quoted(word)} (since {first})"
            )
        return
    if word == "collnet" and known is ALGORITHMS and target.version < COLLNET_UNTIL:
        return
    strict = target.version >= SCOPES_SINCE
    does = "communicators fail to start" if strict else "it is dropped without a message"
    near = "collnetdirect,collnetchain" if word == "collnet" else nearest(word, known)
    hint = f"did you mean `{near}`?" if near else f"known: {', '.join(known)}"
    yield setting.about("unknown-token", f"{quoted(word)} is no word of `{setting.name}`: {does}", hint)


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
