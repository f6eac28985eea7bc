"""Progress for people: a live table and bars on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from topo_tune.cli.console import warn
from topo_tune.records.inventory import BackendName
from topo_tune.records.nodeset import fold
from topo_tune.records.progress import NodeProgress, Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_EVERY_SECONDS = 10.0
"""how often a stage speaks where lines scroll, as in a CI log"""


class Reporter:
    """Takes progress events and shows them. A context manager: the terminal is put right again at its end."""

    def __init__(self, *, quiet: bool = False, backend: BackendName | None = None) -> None:
        """`backend`: what makes the numbers; when it is the replay, every line about them says so."""
        self._quiet = quiet
        self._mark = "replay " if backend is BackendName.REPLAY else ""
        self._live: Any = None
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._done: dict[str, int] = {}
        self._nodes: dict[str, NodeProgress] = {}
        self._spoken_at: dict[str, float] = {}
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
            self._live.console.print()
            self._live = None
            # What is on the screen stays there; a later bar begins anew below it.
            self._bars = None
            self._tasks.clear()
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
            from topo_tune.report.text import visible

            self._live.console.print(visible(text), markup=False, highlight=False)
        else:
            warn(text)

    def on_progress(self, event: Progress) -> None:
        """A stage moved on."""
        if self._quiet:
            return
        if self._live is None:
            self._plain(event)
            return
        task = self._task(event)
        is_over = event.total is not None and event.done >= event.total
        text = "" if is_over else event.text
        self._bars.update(task, completed=event.done, total=event.total, text=text)

    def on_node(self, event: NodeProgress) -> None:
        """A node of a fan-out moved on."""
        if self._quiet:
            return
        self._nodes[event.node] = event
        if self._live is not None:
            self._live.update(self._renderable())
        elif event.state in ("failed", "retrying"):
            warn(f"{event.stage}: {event.node} {event.state}: {event.reason}")

    def _start_live(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.table import Column

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            # It alone gives way on a narrow terminal.
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            expand=True,
        )
        console = Console(stderr=True, highlight=False)
        self._live = Live(self._renderable(), console=console, refresh_per_second=8, transient=False)
        self._live.start()

    def _task(self, event: Progress) -> Any:
        """The bar of a stage. A stage that begins again, as the guard does with each wave, has its clock reset."""
        from rich.markup import escape

        task = self._tasks.get(event.stage)
        if task is None:
            task = self._bars.add_task(escape(self._mark + event.stage), total=event.total, text="")
            self._tasks[event.stage] = task
        elif event.done <= self._done[event.stage]:
            self._bars.reset(task, total=event.total)
        self._done[event.stage] = event.done
        return task

    def _renderable(self) -> RenderableType:
        from rich.console import Group

        parts: list[Any] = [self._bars]
        if self._nodes:
            parts.insert(0, self._node_table())
        return Group(*parts)

    def _node_table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        from topo_tune.report.text import visible

        table = Table(box=None, pad_edge=False, show_header=False)
        groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for event in self._nodes.values():
            reason = event.reason if event.state in ("failed", "retrying") else ""
            groups[event.stage, event.state, reason].append(event.node)
        for (stage, state, reason), names in groups.items():
            colour = {"failed": "red", "done": "green", "retrying": "yellow"}.get(state, "default")
            # Texts, not markup: this console takes none, so that no word of a node is ever obeyed.
            words = (Text(stage), Text(state, style=colour), Text(fold(names)), Text(visible(reason)))
            table.add_row(*words)
        return table

    def _plain(self, event: Progress) -> None:
        now = time.monotonic()
        is_new = event.stage not in self._spoken_at or event.done == 1
        is_last = event.total is not None and event.done >= event.total
        if not (is_new or is_last or now - self._spoken_at[event.stage] >= _PLAIN_EVERY_SECONDS):
            return
        self._spoken_at[event.stage] = now
        count = f"{event.done}/{event.total}" if event.total is not None else f"{event.done}"
        text = "" if is_last and not is_new else f": {event.text}"
        warn(f"{self._mark}{event.stage} {count}{text}")
