"""A scan with its findings, and the refusal to measure over broken ground."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from topo_tune.errors import Refused
from topo_tune.findings import drift, settings
from topo_tune.findings.judge import find, rules_without, worst
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.inventory import BackendName, Inventory
from topo_tune.records.nodeset import fold, is_node_name
from topo_tune.records.scan import Scan

# A replay's nodes are folders on this machine: their files are real, their hardware is this machine's.
_ABOUT_FILES = (*settings.RULES, *(rule for rule in drift.RULES if rule.id == "drift-nccl-conf"))


def judged(scan: Scan, inventory: Inventory | None = None, *, ignored: Collection[str] = ()) -> Scan:
    """The scan with what the rules find in it. Raises InputError for the ID of a rule that does not exist."""
    rules = rules_without(ignored)
    if inventory is not None and inventory.backend is BackendName.REPLAY:
        rules = tuple(rule for rule in rules if rule in _ABOUT_FILES)
    return msgspec.structs.replace(scan, findings=find(scan, rules=rules))


def fails_on(scan: Scan, severity: Severity | None) -> bool:
    """Whether a finding is as bad as `severity`, or worse; None: none counts."""
    return severity is not None and bool(worst(scan.findings, severity))


def in_the_way(scan: Scan, nodes: Collection[str]) -> tuple[Finding, ...]:
    """Error findings about any of these nodes, or about the cluster as a whole."""
    errors = worst(scan.findings, Severity.ERROR)
    return tuple(finding for finding in errors if not finding.nodes or set(finding.nodes) & set(nodes))


def refuse_over_errors(scan: Scan, nodes: Collection[str], *, doing: str) -> None:
    """Raise Refused where something is broken: tuning a broken path makes the break the norm.

    doing: what is refused, as a verb: `measure`.
    """
    errors = in_the_way(scan, nodes)
    if not errors:
        return
    lines = [f"  {finding.rule} on {_named(finding.nodes)}: {finding.what}" for finding in errors[:5]]
    if len(errors) > len(lines):
        lines.append(f"  and {len(errors) - len(lines)} more")
    raise Refused(
        "\n".join([f"will not {doing}: the scan has {_counted(len(errors))}", *lines]),
        hint="`topo-tune scan` says why each matters and how to mend it; --exclude goes on without those nodes; "
        "--ignore RULE where a rule is wrong here; --despite-findings goes on all the same, and the result says so",
    )


def notes_on(scan: Scan, nodes: Collection[str]) -> tuple[str, ...]:
    """What a measurement made in spite of error findings says about itself."""
    return tuple(
        f"measured in spite of an error finding ({finding.rule} on {_named(finding.nodes)}): {finding.what}"
        for finding in in_the_way(scan, nodes)
    )


def _counted(errors: int) -> str:
    return "an error finding" if errors == 1 else f"{errors} error findings"


def _named(nodes: tuple[str, ...]) -> str:
    if not nodes:
        return "the cluster"
    return fold(nodes) if all(is_node_name(node) for node in nodes) else ", ".join(nodes)
