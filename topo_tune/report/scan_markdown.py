"""A scan as Markdown, for a ticket: findings first, then the nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from topo_tune.records.finding import Finding, Severity
from topo_tune.records.scan import Scan
from topo_tune.report.findings import where
from topo_tune.report.scan import by_text, node_row
from topo_tune.report.text import folded, visible

_COLUMNS = ("nodes", "GPUs", "driver", "NCCL", "NICs up", "CPU", "kernel")
_EVIDENCE_LINES = 5


def scan_markdown(scan: Scan) -> str:
    """GitHub's and GitLab's Markdown; nothing a node says is taken as markup."""
    nodes = [node.node for node in scan.nodes]
    lines = [f"## topo-tune scan of {_plain(scan.cluster)}", "", _summary(scan), ""]
    for finding in scan.findings:
        lines += _finding(finding, nodes)
    if scan.nodes:
        lines += ["### Nodes", "", *_table(scan), ""]
    if scan.missing:
        lines += ["### Missing", ""]
        lines += [
            f"- {_plain(missing.node)}: {_plain(missing.kind)}: {_plain(missing.reason)}"
            for missing in scan.missing
        ]
        lines.append("")
    return "\n".join(lines)


def _summary(scan: Scan) -> str:
    counts = Counter(finding.severity for finding in scan.findings)
    said = ", ".join(f"{counts[severity]} x {severity.value}" for severity in Severity if counts[severity])
    missing = f", {len(scan.missing)} missing" if scan.missing else ""
    return f"{len(scan.nodes)} nodes{missing}; findings: {said or 'none'}"


def _finding(finding: Finding, nodes: Sequence[str]) -> list[str]:
    lines = [f"### {finding.severity.value}: {_plain(finding.what)}", ""]
    lines += [f"- **on** {_plain(where(finding, nodes))}", f"- **why** {_plain(finding.why)}"]
    lines += [f"- **fix** {_with_code(step)}" for step in finding.fix]
    lines += [f"- **rule** `{finding.rule}`" + (f" ({_plain(finding.source)})" if finding.source else ""), ""]
    shown = finding.evidence[:_EVIDENCE_LINES]
    if shown:
        more = len(finding.evidence) - len(shown)
        lines += [_fence(shown), *(_one_line(line) for line in shown)]
        lines += [f"and {more} more"] if more else []
        lines += [_fence(shown), ""]
    return lines


def _table(scan: Scan) -> Iterable[str]:
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|" + " --- |" * len(_COLUMNS)
    for row, nodes in by_text((node_row(node), node.node) for node in scan.nodes).items():
        yield "| " + " | ".join(_cell(text) for text in (nodes, *row)) + " |"
    if scan.missing:
        yield f"| {_cell(folded(missing.node for missing in scan.missing))} |" + " missing |" + " |" * 5


def _cell(text: str) -> str:
    return _plain(text.replace("\n", ", ")).replace("|", "\\|")


def _one_line(text: str) -> str:
    return visible(text).replace("\n", " ")


def _plain(text: str) -> str:
    """The text with every character that Markdown or HTML could obey put out of action, except in code spans."""
    return "".join(f"\\{c}" if c in "\\*_{}[]<>#" else c for c in _one_line(text))


def _with_code(text: str) -> str:
    """Code spans stay; what is outside of them is plain."""
    parts = _one_line(text).split("`")
    if len(parts) % 2 == 0:
        return _plain(text)
    return "".join(f"`{part}`" if i % 2 else _plain(part) for i, part in enumerate(parts))


def _fence(lines: Iterable[str]) -> str:
    """A fence longer than any run of backticks inside."""
    runs = re.findall("`+", "\n".join(lines))
    return "`" * max(3, 1 + max(map(len, runs), default=0))
