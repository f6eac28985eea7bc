"""Looking at a node's kernel events: those that say the same, of several devices, become one sighting."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from topo_tune.findings.rule import Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import KernelEvent, KernelEventKind
from topo_tune.records.scan import NodeScan, Scan


class Verdict(msgspec.Struct, frozen=True):
    """What an event means."""

    what: str
    severity: Severity | None = None
    fix: tuple[str, ...] | None = None


def on_each_event(
    kind: KernelEventKind, told: Callable[[NodeScan, KernelEvent], Verdict | None]
) -> Callable[[Scan], Iterator[Sighting]]:
    """A rule's `look`: every node's events of one kind of which `told` has something to say."""

    def look(scan: Scan) -> Iterator[Sighting]:
        for node in scan.nodes:
            groups: dict[Verdict, list[str]] = {}
            for event in node.kernel_events:
                verdict = told(node, event) if event.kind is kind else None
                if verdict is not None:
                    groups.setdefault(verdict, []).append(line_of(event))
            for verdict, lines in groups.items():
                yield Sighting(
                    verdict.what,
                    node.node,
                    evidence=tuple(lines),
                    fix=verdict.fix,
                    severity=verdict.severity,
                )

    return look


def line_of(event: KernelEvent) -> str:
    """Count, last time and words of an event."""
    times = f"{event.count} times, last " if event.count > 1 else ""
    at = f"at {event.last_at}: " if event.last_at else ""
    return f"{times}{at}{event.text}"
