"""A scan as Markdown, for a ticket: findings first, then the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from topo_tune.records.finding import Finding
from topo_tune.records.scan import Scan
from topo_tune.report.documents import summary
from topo_tune.report.findings import where
from topo_tune.report.scan import nodes_told, summary_line
from topo_tune.report.text import folded, visible

_EVIDENCE_LINES = 5
# A backslash inside an address would be a part of it. What could end the link or begin markup is no part of one here.
_ADDRESS = re.compile(r"(https?://[A-Za-z0-9._~:/?#@!$&'+,;=%-]*[A-Za-z0-9/=_-])")


def scan_markdown(scan: Scan) -> str:
    """GitHub's and GitLab's Markdown; nothing a node says is taken as markup."""
    nodes = [node.node for node in scan.nodes]
    lines = [f"## topo-tune scan of {_plain(scan.cluster)}", "", _plain(summary_line(scan)), ""]
    for finding in scan.findings:
        lines += _finding(finding, nodes)
    if scan.nodes:
        lines += ["### Nodes", "", *_table(scan), ""]
    if scan.documents:
        lines += ["### Files about a job or the cluster", ""]
        lines += [f"- {_plain(d.file)}: {d.kind}: {_plain(summary(d.body))}" for d in scan.documents]
        lines.append("")
    if scan.unread:
        lines += ["### Files not read", ""]
        lines += [f"- {_plain(file.what)}: {_plain(file.reason)}" for file in scan.unread]
        lines.append("")
    if scan.missing:
        lines += ["### Missing", ""]
        lines += [f"- {_plain(m.node)}: {_plain(m.kind)}: {_plain(m.reason)}" for m in scan.missing]
        lines.append("")
    return "\n".join(lines)


def _finding(finding: Finding, nodes: Sequence[str]) -> list[str]:
    lines = [f"### {finding.severity.value}: {_with_code(finding.what)}", ""]
    lines += [f"- **on** {_plain(where(finding, nodes))}", f"- **why** {_with_code(finding.why)}"]
    lines += _fix(finding.fix)
    lines += [f"- **rule** `{finding.rule}`" + (f" ({_plain(finding.source)})" if finding.source else ""), ""]
    shown = finding.evidence[:_EVIDENCE_LINES]
    if shown:
        more = len(finding.evidence) - len(shown)
        lines += [_fence(shown), *(_one_line(line) for line in shown)]
        lines += [f"and {more} more"] if more else []
        lines += [_fence(shown), ""]
    return lines


def _fix(steps: Sequence[str]) -> list[str]:
    if len(steps) == 1:
        return [f"- **fix** {_with_code(steps[0])}"]
    return ["- **fix**", *(f"  - {_with_code(step)}" for step in steps)] if steps else []


def _table(scan: Scan) -> Iterable[str]:
    titles, rows = nodes_told(scan)
    yield "| " + " | ".join(("nodes", *titles)) + " |"
    yield "|" + " --- |" * (1 + len(titles))
    for row, nodes in rows.items():
        yield "| " + " | ".join(_cell(text) for text in (nodes, *row)) + " |"
    if scan.missing:
        rest = [" missing |", *[" |"] * (len(titles) - 1)][: len(titles)]
        yield f"| {_cell(folded(missing.node for missing in scan.missing))} |" + "".join(rest)


def _cell(text: str) -> str:
    return _plain(text.replace("\n", ", ")).replace("|", "\\|")


def _one_line(text: str) -> str:
    return visible(text).replace("\n", " ")


def _plain(text: str) -> str:
    """The text with every character that Markdown or HTML could obey put out of action; addresses stay whole."""
    parts = _ADDRESS.split(_one_line(text))
    return "".join(part if i % 2 else _escaped(part) for i, part in enumerate(parts))


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\*_{}[]<>#" else c for c in text)


def _with_code(text: str) -> str:
    """Code spans stay; what is outside of them is plain."""
    parts = _one_line(text).split("`")
    # Longer runs of backticks pair up by their length; nobody writes them on purpose here.
    if len(parts) % 2 == 0 or "``" in text:
        return _plain(text)
    return "".join(f"`{part}`" if i % 2 else _plain(part) for i, part in enumerate(parts))


def _fence(lines: Iterable[str]) -> str:
    """A fence longer than any run of backticks inside."""
    runs = re.findall("`+", "\n".join(lines))
    return "`" * max(3, 1 + max(map(len, runs), default=0))
