"""Rules about tables of NCCL's example tuner plugin: what holds for which message, and what never does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.saved_documents import listed, of_kind
from topo_tune.records.finding import Severity
from topo_tune.records.nccl_documents import ANY_SIZE, TUNER_DEFAULTS, TUNER_WORDS, TunerRule, TunerTable
from topo_tune.records.scan import Scan
from topo_tune.records.units import format_bytes

_PLUGIN = "NVIDIA/nccl: plugins/tuner/example/plugin.c"
_ONE_CHANNEL = "https://github.com/ROCm/rccl/pull/1985"
_LARGEST_BYTES = (1 << 32) - 1
"""Tables end at 4 GiB: that larger messages have no rule is no gap."""
_COMPARED_LIMIT = 400
"""Rules of one table that are compared pair by pair."""
_CONTEXTS_LIMIT = 100

# NVIDIA/nccl: src/graph/tuning.cc; the same table is in the user guide under NCCL_ALGO.
_ALGORITHMS = {
    "broadcast": {"ring"},
    "reduce": {"ring"},
    "allgather": {"ring", "pat", "nvls", "collnet_direct"},
    "reducescatter": {"ring", "pat", "nvls", "collnet_direct"},
    "allreduce": {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"},
}
_ALL_PROTOCOLS = {"tree", "ring"}


def _gaps(scan: Scan) -> Iterator[Sighting]:
    for document, table in of_kind(scan, TunerTable):
        found = []
        contexts = dict.fromkeys((rule.taken["collective"], rule.nodes, rule.ranks) for rule in table.rules)
        for collective, nodes, ranks in list(contexts)[:_CONTEXTS_LIMIT]:
            rules = [rule for rule in table.rules if rule.taken["collective"] == collective]
            missing = _uncovered(rule for rule in rules if _holds_for(rule, nodes, ranks))
            if missing:
                found.append(f"{document.file}: {collective}, {_where(nodes, ranks)}: {listed(missing, 3)}")
        if found:
            yield Sighting("sizes have no rule in a tuner table", document.node, tuple(found))


def _collectives_left_out(scan: Scan) -> Iterator[Sighting]:
    for document, table in of_kind(scan, TunerTable):
        told = {rule.taken["collective"] for rule in table.rules}
        missing = [word for word in TUNER_WORDS["collective"] if word not in told]
        if missing:
            evidence = (f"{document.file}: {', '.join(missing)}",)
            yield Sighting("collectives have no rule in a tuner table", document.node, evidence)


def _default_channels(scan: Scan) -> Iterator[Sighting]:
    for document, table in of_kind(scan, TunerTable):
        rules = [rule for rule in table.rules if rule.channels == -1]
        if rules:
            yield Sighting(
                "rules of a tuner table leave the number of channels at -1",
                document.node,
                (f"{document.file}: {_lines(rules)}",),
            )


def _unknown_words(scan: Scan) -> Iterator[Sighting]:
    for document, table in of_kind(scan, TunerTable):
        lines: dict[tuple[str, str], list[TunerRule]] = {}
        for rule in table.rules:
            for field, word in rule.words.items():
                if word not in TUNER_WORDS[field]:
                    lines.setdefault((field, word), []).append(rule)
        for (field, word), rules in lines.items():
            is_luck = _plain(word) == TUNER_DEFAULTS[field]
            yield Sighting(
                f"the tuner plugin knows no {field} `{word}` and takes {TUNER_DEFAULTS[field]} for it"
                + (", by luck the one that is meant" if is_luck else ""),
                document.node,
                (f"{document.file}: {_lines(rules)}",),
                severity=Severity.NOTICE if is_luck else None,
            )


def _impossible(scan: Scan) -> Iterator[Sighting]:
    for document, table in of_kind(scan, TunerTable):
        found: dict[str, list[TunerRule]] = {}
        for rule in table.rules:
            reason = _why_impossible(rule)
            if reason is not None:
                found.setdefault(reason, []).append(rule)
        for reason, rules in found.items():
            yield Sighting(
                f"a tuner table asks for what NCCL does not have: {reason}",
                document.node,
                (f"{document.file}: {_lines(rules)}",),
            )


def _hidden(scan: Scan) -> Iterator[Sighting]:
    for document, table in of_kind(scan, TunerTable):
        rules = [rule for rule in table.rules[:_COMPARED_LIMIT] if _why_impossible(rule) is None]
        found = []
        for index, rule in enumerate(rules):
            first = next((earlier for earlier in rules[:index] if _covers(earlier, rule)), None)
            if first is not None:
                found.append(f"{document.file}: line {rule.line} is hidden by line {first.line}")
        if found:
            yield Sighting("rules of a tuner table are hidden by earlier ones", document.node, tuple(found))


def _holds_for(rule: TunerRule, nodes: int, ranks: int) -> bool:
    return rule.nodes in {-1, nodes} and rule.ranks in {-1, ranks}


def _uncovered(rules: Iterable[TunerRule]) -> list[str]:
    """Ranges of sizes up to 4 GiB that no rule holds for, whatever else the rules ask for."""
    missing, reached = [], 0
    for rule in sorted(rules, key=lambda rule: rule.min_bytes):
        if rule.min_bytes > reached:
            missing.append(_range(reached, rule.min_bytes - 1))
        if rule.max_bytes >= rule.min_bytes:
            reached = max(reached, rule.max_bytes + 1)
    if reached < _LARGEST_BYTES:
        missing.append(_range(reached, ANY_SIZE))
    return missing


def _range(least: int, most: int) -> str:
    if least == 0:
        return f"none up to {format_bytes(most + 1)}"
    if most == ANY_SIZE:
        return f"none from {format_bytes(least)} on"
    return f"none from {format_bytes(least)} to {format_bytes(most + 1)}"


def _where(nodes: int, ranks: int) -> str:
    return f"{'any' if nodes == -1 else nodes} nodes, {'any' if ranks == -1 else ranks} ranks"


def _covers(earlier: TunerRule, later: TunerRule) -> bool:
    """Whether the earlier rule holds wherever the later one would; the plugin takes the first."""
    if earlier.taken["collective"] != later.taken["collective"]:
        return False
    if earlier.min_bytes > later.min_bytes or earlier.max_bytes < later.max_bytes:
        return False
    pairs = (
        (earlier.nodes, later.nodes),
        (earlier.ranks, later.ranks),
        (earlier.pipe_ops, later.pipe_ops),
        (earlier.registered, later.registered),
    )
    return all(one in {-1, None} or one == other for one, other in pairs)


def _why_impossible(rule: TunerRule) -> str | None:
    taken = rule.taken
    collective, algorithm, protocol = taken["collective"], taken["algorithm"], taken["protocol"]
    if algorithm not in _ALGORITHMS[collective]:
        return f"{algorithm} for {collective}"
    if algorithm not in _ALL_PROTOCOLS and protocol != "simple":
        return f"{protocol} with {algorithm}"
    return None


def _plain(word: str) -> str:
    return word.casefold().replace("_", "").replace("-", "")


def _lines(rules: list[TunerRule]) -> str:
    word = "line" if len(rules) == 1 else "lines"
    return f"{word} {listed([str(rule.line) for rule in rules])}"


RULES: tuple[Rule, ...] = (
    Rule(
        id="tuner-default-channels",
        title="a tuner table leaves the number of channels open",
        severity=Severity.WARNING,
        why="the example plugin starts from one channel and only a number in the table changes that (up to "
        "NCCL 2.30), so messages under these rules run on a single channel",
        fix=(
            "write a number of channels into every rule: those that `NCCL_DEBUG=INFO` shows as coll channels",
            "or patch the plugin: `*nChannels = 0` at the beginning of getCollInfo keeps NCCL's own choice",
        ),
        source=_ONE_CHANNEL,
        look=_default_channels,
    ),
    Rule(
        id="tuner-gaps",
        title="a tuner table has no rule for some sizes",
        severity=Severity.WARNING,
        why="where no rule holds, the example plugin leaves algorithm and protocol to NCCL and sets one "
        "channel (up to NCCL 2.30), which is slow for all but the smallest messages",
        fix=("let the rules of each number of nodes reach from 0 to 4294967295 without a hole",),
        source=_PLUGIN,
        look=_gaps,
    ),
    Rule(
        id="tuner-unknown-word",
        title="a tuner table has words that the plugin does not know",
        severity=Severity.WARNING,
        why="the plugin knows its words in one spelling and says nothing when it takes another one for "
        "allreduce, ring or simple: the rule then acts on other messages, or asks for something else",
        fix=(
            "spell them as the plugin does: " + ", ".join(TUNER_WORDS["collective"]),
            ", ".join(TUNER_WORDS["algorithm"]) + "; " + ", ".join(TUNER_WORDS["protocol"]),
        ),
        source=_PLUGIN,
        look=_unknown_words,
    ),
    Rule(
        id="tuner-impossible",
        title="a tuner table asks for an algorithm that the collective does not have",
        severity=Severity.WARNING,
        why="the plugin passes over such a rule, and without another that holds the message runs on one "
        "channel",
        fix=(
            "broadcast and reduce have ring only; allgather and reducescatter ring, pat, nvls, collnet_direct",
            "ll and ll128 go with tree and ring only",
        ),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo",
        look=_impossible,
    ),
    Rule(
        id="tuner-hidden-rule",
        title="a rule of a tuner table never holds, because an earlier one does",
        severity=Severity.WARNING,
        why="the plugin takes the first rule that holds; what was measured for the later one has no effect",
        fix=("put the narrower rule first, or take it out",),
        source=_PLUGIN,
        look=_hidden,
    ),
    Rule(
        id="tuner-collectives",
        title="a tuner table leaves collectives out",
        severity=Severity.NOTICE,
        why="collectives without any rule run on one channel under the example plugin (up to NCCL 2.30)",
        fix=(
            "give each of them a rule with ring, simple and NCCL's own number of channels, or patch the plugin",
        ),
        source=_ONE_CHANNEL,
        look=_collectives_left_out,
    ),
)
