"""One writer at a time: a lock beside a file or in a folder, held while a command works there."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from topo_tune.errors import InputError, Refused


@contextlib.contextmanager
def held_alone(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, which is made where there is none and stays; its holder's end frees it.

    Raises Refused when another process holds it, InputError when it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = take_lock(path, busy=f"another topo-tune works in {path.parent}")
    except OSError as exc:
        raise InputError(f"cannot write {path}: {exc.strerror}") from exc
    try:
        yield
    finally:
        os.close(descriptor)


def take_lock(path: Path, *, busy: str) -> int:
    """A descriptor that holds the lock file at `path` until it is closed.

    Raises Refused, saying `busy`, when another process holds it, OSError when it cannot be made or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        if isinstance(exc, BlockingIOError):
            raise Refused(busy, hint="wait for it to end, or stop it, then try again") from exc
        raise
    return descriptor
