"""Outputs of many nodes in one text, each line behind its node's name: what pdsh, clush and parallel-ssh write.

The labels of `srun --label` and `mpirun --tag-output` are numbers of tasks, not names: `facts/task_lines.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict

LABELS_LIMIT = 10_000
"""Different names of nodes in one text."""

_LENGTH_LIMIT = 64 << 20
"""Characters of a text that is taken apart: all lines lie in memory together."""

_BEGINNING = 50
"""Lines by which most texts are known not to be labelled."""

_MOST = 0.95
"""Share of the lines that have a label: a shell's message, or what two nodes wrote at once, has none."""

_LABEL = re.compile(r"([A-Za-z][\w.-]{0,252}):(?: |$)")
_NO_NODE = re.compile(r"NVRM|kernel|nvidia|mlx\d|pcieport|nvme|systemd|sudo|bash|error|warning", re.I)
"""How lines of a log begin whose times were cut off."""


def by_label(text: str) -> dict[str, str]:
    """Name of the node to the text of its lines, in the order in which the names appear; empty for other texts."""
    if len(text) > _LENGTH_LIMIT or not _may_have_labels(text):
        return {}
    nodes: dict[str, list[str]] = defaultdict(list)
    others = count = 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        count += 1
        label = _LABEL.match(line)
        if label is None:
            others += 1
        else:
            nodes[label.group(1)].append(line[label.end() :])
        if len(nodes) > LABELS_LIMIT:
            return {}
    # Of `name: value` lines every name is there once.
    if count - others < _MOST * count or count < 2 * len(nodes):
        return {}
    return {name: "\n".join(lines) + "\n" for name, lines in nodes.items()}


def without_labels(text: str) -> str:
    """The text with its lines in their order, for what is about a job of all the nodes."""
    return "\n".join(
        line[label.end() :] if (label := _LABEL.match(line)) else line for line in text.split("\n")
    )


def _may_have_labels(text: str) -> bool:
    lines = [line for line in text[: 64 << 10].split("\n")[:_BEGINNING] if line.strip()]
    labels = [label.group(1) for label in map(_LABEL.match, lines) if label]
    if len(labels) < 0.8 * len(lines) or not labels:
        return False
    return not any(_NO_NODE.match(label) for label in labels)
