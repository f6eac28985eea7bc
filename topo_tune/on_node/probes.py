"""Asking a node without being held up by it: commands with deadlines, and probes that cost only themselves.

A probe is a forked child with a deadline; all are started at once. A driver that hangs, a dead network file
system, a crash inside a library: each costs its own probe and no more, and the reason is part of the answer.
Standard library only, Python 3.8: it travels with the collector.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Mapping, Optional, Set, Tuple

PROBE_OUTPUT_LIMIT_BYTES = 16 << 20
COMMAND_OUTPUT_LIMIT_BYTES = 1 << 20
ERROR_OUTPUT_LIMIT_BYTES = 64 << 10

# Login sessions often have a shorter PATH than jobs: these are looked at after it.
_MORE_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ":/usr/local/nvidia/bin:/usr/local/cuda/bin:/run/nvidia/driver/usr/bin"
)

Json = Dict[str, Any]


def absence(what: str, reason: str) -> Json:
    """Something that was looked for and not got, and why."""
    return {"what": what, "reason": reason}


def clean(text: str) -> str:
    """Text that JSON and every terminal take: bytes that are no UTF-8 become a replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Commands:
    """Runs commands, each with its deadline and a bounded output; a tool that hung is not asked again."""

    def __init__(self, environment: Mapping[str, str], seconds: float, until: float) -> None:
        path = environment.get("PATH", "")
        self._environment = {**environment, "LC_ALL": "C"}
        self._path = path + ":" + _MORE_PATH if path else _MORE_PATH
        self._seconds = seconds
        self._until = until
        self._hung = set()  # type: Set[str]

    def run(self, argv: Tuple[str, ...], limit_bytes: int = COMMAND_OUTPUT_LIMIT_BYTES) -> Json:
        """Status, stdout and stderr; `absent` says why there is no status."""
        started = time.monotonic()
        answer = {"argv": list(argv), "status": None, "stdout": "", "stderr": "", "absent": None}  # type: Json
        program = shutil.which(argv[0], path=self._path)
        if program is None:
            return {**answer, "absent": "`%s` is not installed here" % argv[0]}
        if argv[0] in self._hung:
            return {**answer, "absent": "not asked: `%s` hung just before" % argv[0]}
        seconds = min(self._seconds, self._until - started)
        if seconds <= 0:
            return {**answer, "absent": "not asked: the time for this node was used up"}
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            return {**answer, "absent": "cannot start %s: %s" % (clean(program), error.strerror)}
        assert process.stdout is not None
        assert process.stderr is not None
        pipes = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        stdout, stderr = pipes.values()
        until = dict.fromkeys(pipes, started + seconds)
        complete = len(_read_all(pipes, until, limit_bytes, together=True)) == len(pipes)
        ended = complete and _wait(process.pid, started + seconds, process)
        if not ended:
            self._hung.add(argv[0])
            _end_group(process.pid, process)
            flooded = max(len(stdout), len(stderr)) > limit_bytes
            why = "wrote more than %d bytes" % limit_bytes if flooded else ""
            why = why or "gave no answer in %.1f s" % seconds
            answer["absent"] = "`%s` %s" % (" ".join(argv), why)
        process.stdout.close()
        process.stderr.close()
        answer["status"] = process.returncode if ended else None
        answer["stdout"] = bytes(stdout[:limit_bytes]).decode("utf-8", "replace")
        answer["stderr"] = bytes(stderr[:ERROR_OUTPUT_LIMIT_BYTES]).decode("utf-8", "replace")
        answer["seconds"] = round(time.monotonic() - started, 3)
        return answer


def run_probes(probes: Mapping[str, Tuple[Callable[[], Json], float]]) -> Dict[str, Json]:
    """Run every probe in a child of its own, all at once; each gives its object or an `absent` list.

    A probe is a function and the `time.monotonic()` at which it is ended.
    """
    children = {name: _fork(name, function, until) for name, (function, until) in probes.items()}
    buffers = {reading: bytearray() for _, reading in children.values()}
    deadlines = {children[name][1]: probes[name][1] for name in probes}
    complete = _read_all(buffers, deadlines, PROBE_OUTPUT_LIMIT_BYTES)
    results = {}  # type: Dict[str, Json]
    for name, (pid, reading) in children.items():
        os.close(reading)
        if reading not in complete:
            _end_group(pid, None)
            results[name] = {"absent": [absence(name, "gave no answer in its time and was ended")]}
            continue
        _wait(pid, time.monotonic() + 1.0, None)
        try:
            results[name] = dict(json.loads(bytes(buffers[reading]).decode("utf-8")))
        except (ValueError, TypeError):
            results[name] = {"absent": [absence(name, "the probe crashed before it could answer")]}
    return results


def reap(pid: int, seconds: float) -> bool:
    """Whether a child that was ended is gone by then; one that is stuck inside the kernel is left to init."""
    return _wait(pid, time.monotonic() + seconds, None)


def _fork(name: str, function: Callable[[], Json], until: float) -> Tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    # The child never comes back from here, whatever happens in the probe.
    answer = b""
    try:
        os.setsid()
        # Should the parent be ended before it can end this child: the kernel does it.
        signal.alarm(int(until - time.monotonic()) + 2)
        os.close(reading)
        # A child that cannot be killed must not hold the session's streams open.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        answer = json.dumps(function()).encode("ascii")
    finally:
        failure = sys.exc_info()[1]
        if failure is not None:
            reason = "the probe failed: %s: %s" % (type(failure).__name__, clean(str(failure)))
            answer = json.dumps({"absent": [absence(name, reason)]}).encode("ascii")
        _write_all(writing, answer)
        os._exit(0)


def _write_all(writing: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(writing, view) :]
        except OSError:
            # the parent has gone; there is nobody left to tell
            return


def _read_all(
    buffers: Dict[int, bytearray], until: Mapping[int, float], limit: int, together: bool = False
) -> Set[int]:
    """Fill each pipe's buffer up to its end; the pipes that got there within their time and `limit` bytes.

    Of pipes that belong `together`, one that goes over the limit ends the reading of all.
    """
    reading, complete = set(buffers), set()  # type: Tuple[Set[int], Set[int]]
    while reading:
        left = min(until[pipe] for pipe in reading) - time.monotonic()
        for pipe in select.select(list(reading), [], [], max(left, 0.0))[0]:
            chunk = os.read(pipe, 65536)
            buffers[pipe] += chunk
            if not chunk:
                complete.add(pipe)
            is_flooded = len(buffers[pipe]) > limit
            if is_flooded and together:
                return complete
            if not chunk or is_flooded:
                reading.discard(pipe)
        now = time.monotonic()
        reading = {pipe for pipe in reading if until[pipe] > now}
    return complete


def _wait(pid: int, until: float, process: Optional[subprocess.Popen[bytes]]) -> bool:
    """Whether the child has ended by then, and reap it."""
    while True:
        if process is not None:
            if process.poll() is not None:
                return True
        else:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return True
            except OSError as error:
                return error.errno == errno.ECHILD
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)


def _end_group(pid: int, process: Optional[subprocess.Popen[bytes]]) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass  # it ended by itself in this moment
    # A process stuck inside the kernel cannot be reaped; it is left to init rather than waited for.
    if not _wait(pid, time.monotonic() + 0.5, process) and process is not None:
        process.returncode = -signal.SIGKILL
