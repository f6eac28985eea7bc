"""Interrupts while a rollout is at work: the first one ends it, the others wait until the undo is done.

A terminal that closes sends its hang-up twice, and people press Ctrl-C again when nothing seems to happen.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context manager in which one interrupt at most is raised before the block has ended.

    It passes the first signal on to the handler that was there, and holds back every later one; after `hold`
    all of them. What was held back is delivered when the block ends, unless an error ends it anyway. Signals
    that are ignored, or that nothing in Python handles, stay as they are, and so does everything outside the
    main thread, where Python runs no handler.
    """

    def __init__(self) -> None:
        self._is_holding = False
        self._waiting: int | None = None
        self._met: BaseException | None = None
        self._before: dict[int, Any] = {}

    def hold(self) -> None:
        """From here to `release`, or to the end of the block, nothing interrupts."""
        self._is_holding = True

    def release(self) -> None:
        """Raise what came meanwhile; else the next interrupt is raised at once again."""
        waiting, self._waiting = self._waiting, None
        met, self._met = self._met, None
        if waiting is not None:
            self._before[waiting](waiting, None)
        if met is not None:
            raise met
        self._is_holding = False

    def remember(self, interrupt: BaseException) -> None:
        """Raise this when nothing is held any more: somebody below raised it by himself."""
        self._met = interrupt

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                before = signal.getsignal(number)
                if callable(before):
                    self._before[number] = before
                    signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if value is None:
            self.release()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._is_holding:
            self._waiting = number
            return
        # Set before the handler raises, so that no later signal finds a gap on the way to the undo.
        self._is_holding = True
        self._before[number](number, frame)
