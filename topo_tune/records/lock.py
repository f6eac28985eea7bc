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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        raise InputError(f"cannot write {path}: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        raise Refused(
            f"another topo-tune works in {path.parent}",
            hint="wait for it to end, or stop it, then try again",
        ) from exc
    except OSError as exc:
        os.close(descriptor)
        raise InputError(f"cannot lock {path}: {exc.strerror}") from exc
    try:
        yield
    finally:
        os.close(descriptor)
