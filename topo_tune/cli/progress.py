"""Progress for people: a live table and bars on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from topo_tune.records.nodeset import fold
from topo_tune.records.progress import NodeProgress, Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_EVERY_SECONDS = 10.0
"""how often a stage speaks where lines scroll, as in a CI log"""


class Reporter:
    """Takes progress events and shows them. A context manager: the terminal is put right again at its end."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live: Any = None
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._nodes: dict[str, NodeProgress] = {}
        self._last_line: dict[str, float] = {}
        self._is_terminal = sys.stderr.isatty() and not quiet

    def __enter__(self) -> Reporter:
        if self._is_terminal:
            self._start_live()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """Leave the terminal alone, for a question or a report."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._nodes.clear()

    def resume(self) -> None:
        """Show progress again after a pause."""
        if self._is_terminal and self._live is None:
            self._start_live()

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def on_progress(self, event: Progress) -> None:
        """A stage moved on."""
        if self._quiet:
            return
        if self._live is None:
            self._plain(event)
            return
        if event.stage not in self._tasks:
            self._tasks[event.stage] = self._bars.add_task(event.stage, total=event.total, text="")
        self._bars.update(self._tasks[event.stage], completed=event.done, total=event.total, text=event.text)

    def on_node(self, event: NodeProgress) -> None:
        """A node of a fan-out moved on."""
        if self._quiet:
            return
        self._nodes[event.node] = event
        if self._live is not None:
            self._live.update(self._renderable())
        elif event.state in ("failed", "retrying"):
            print(f"{event.stage}: {event.node} {event.state}: {event.reason}", file=sys.stderr, flush=True)

    def _start_live(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        if self._bars is None:
            self._bars = Bars(
                TextColumn("{task.description:<12}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[text]}", markup=False),
            )
        console = Console(stderr=True, highlight=False)
        self._live = Live(self._renderable(), console=console, refresh_per_second=8, transient=False)
        self._live.start()

    def _renderable(self) -> RenderableType:
        from rich.console import Group

        parts: list[Any] = [self._bars]
        if self._nodes:
            parts.insert(0, self._node_table())
        return Group(*parts)

    def _node_table(self) -> RenderableType:
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for event in self._nodes.values():
            reason = event.reason if event.state in ("failed", "retrying") else ""
            groups[event.stage, event.state, reason].append(event.node)
        for (stage, state, reason), names in groups.items():
            colour = {"failed": "red", "done": "green", "retrying": "yellow"}.get(state, "default")
            table.add_row(stage, f"[{colour}]{state}[/]", fold(names), escape(reason))
        return table

    def _plain(self, event: Progress) -> None:
        now = time.monotonic()
        is_new = event.stage not in self._last_line
        is_last = event.total is not None and event.done >= event.total
        if not (is_new or is_last or now - self._last_line[event.stage] >= _PLAIN_EVERY_SECONDS):
            return
        self._last_line[event.stage] = now
        count = f"{event.done}/{event.total}" if event.total is not None else f"{event.done}"
        print(f"{event.stage} {count}: {event.text}", file=sys.stderr, flush=True)
