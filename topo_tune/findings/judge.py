"""Scan -> findings: every rule is asked, sightings that say the same are folded over their nodes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from topo_tune.errors import InputError, did_you_mean
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.findings.rules import RULES
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.scan import Scan

_EVIDENCE_LIMIT = 12
"""Lines of one finding. A thousand nodes with the same trouble need no thousand lines to be believed."""

_LISTED_IN = "docs/reference/findings.md"


def find(scan: Scan, *, rules: Iterable[Rule] = RULES) -> tuple[Finding, ...]:
    """What the rules find, worst first, then in the rules' order."""
    found = [finding for rule in rules for finding in _folded(rule, scan)]
    return tuple(sorted(found, key=lambda finding: finding.severity.rank))


def rules_without(ignored: Collection[str]) -> tuple[Rule, ...]:
    """Every rule but those of these IDs. Raises InputError for an ID that no rule has."""
    known = {rule.id for rule in RULES}
    for name in ignored:
        if name not in known:
            raise InputError(
                f"no rule is called `{name}`", hint=did_you_mean(name, known, listed_in=_LISTED_IN)
            )
    return tuple(rule for rule in RULES if rule.id not in ignored)


def worst(findings: Iterable[Finding], at_least: Severity) -> tuple[Finding, ...]:
    """The findings that are as bad as `at_least`, or worse."""
    return tuple(finding for finding in findings if finding.severity.rank <= at_least.rank)


def _folded(rule: Rule, scan: Scan) -> list[Finding]:
    groups: dict[tuple[str, str, tuple[str, ...], Severity], list[Sighting]] = {}
    for sighting in rule.look(scan):
        fix = rule.fix if sighting.fix is None else sighting.fix
        same = (sighting.what, sighting.why or rule.why, fix, sighting.severity or rule.severity)
        groups.setdefault(same, []).append(sighting)
    return [
        Finding(
            rule=rule.id,
            severity=severity,
            nodes=tuple(dict.fromkeys(s.node for s in sightings if s.node is not None)),
            what=what,
            why=why,
            evidence=_evidence(sightings),
            fix=fix,
            source=rule.source,
        )
        for (what, why, fix, severity), sightings in groups.items()
    ]


def _evidence(sightings: list[Sighting]) -> tuple[str, ...]:
    """Lines in order, each with its node where several nodes have lines of their own."""
    nodes: dict[str, dict[str, None]] = {}
    for sighting in sightings:
        for line in sighting.evidence:
            seen = nodes.setdefault(line, {})
            if sighting.node is not None:
                seen[sighting.node] = None
    everybody = len({sighting.node for sighting in sightings} - {None})
    told = _EVIDENCE_LIMIT if len(nodes) <= _EVIDENCE_LIMIT else _EVIDENCE_LIMIT - 1
    # Only what is told is put into words: spelling sets of nodes takes time.
    lines = [
        line if everybody < 2 or len(on) == everybody else f"{_named(list(on))}: {line}"
        for line, on in itertools.islice(nodes.items(), told)
    ]
    if len(nodes) > told:
        lines.append(f"and {len(nodes) - told} more like these")
    return tuple(lines)


def _named(nodes: list[str]) -> str:
    from topo_tune.records.nodeset import fold

    return fold(nodes) if nodes else "cluster"
