"""A trial on one node: its ranks are forked, watched, and killed together.

Runs under Python 3.8 and newer; standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

from topo_tune.on_node.bench_rank import run_rank
from topo_tune.on_node.marks import AT

Json = Dict[str, Any]

LOG_TAIL_BYTES = 4096
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:reset|closed|refused)|broken pipe|remote|peer", re.IGNORECASE
)
"""what a rank tells when another has gone"""
PEER_SECONDS = 1.0
"""how long a rank that lost its peer is asked to wait for the news of that peer's end"""
KILL_SECONDS = 10.0
"""how long the kernel may take to end a killed rank: tearing a CUDA context down takes up to some seconds"""

# Loaded before any fork: a rank must not take the dynamic loader's lock, which another thread may have held.
_LIBC = ctypes.CDLL(None)


class Trial:
    """The local ranks of one trial. Each answers once a variant; what all of them have answered is told at once."""

    def __init__(self, request: Json, backend: str) -> None:
        self.request, self.backend = request, backend
        self.seconds = float(request["plan"]["deadline_seconds"])
        self.deadline = time.monotonic() + self.seconds
        self.error: Optional[str] = None
        self.ranks: List[Rank] = []
        self.group = 0
        self.folder: Optional[str] = None
        self.is_over = False
        self.variants = len(request.get("variants") or [{}])
        self.variants_done = 0

    def start(self) -> None:
        """Fork the ranks. When that is refused, the trial has failed."""
        try:
            if self.request.get("probe"):
                self.folder = tempfile.mkdtemp(prefix="topo-tune-nccl-")
            for local_rank in range(int(self.request["local_ranks"])):
                self._fork(local_rank)
        except OSError as exc:
            self.fail("cannot start rank %d: %s" % (self._number(len(self.ranks)), exc))

    def open_pipes(self) -> List[int]:
        """Descriptors on which ranks still may say something."""
        answers = [rank.pipe for rank in self.ranks if rank.is_open]
        return answers + [rank.log.descriptor for rank in self.ranks if rank.log.is_open]

    def seconds_left(self) -> float:
        """Time until the variant of the moment must end: none when the trial has failed."""
        return max(0.0, self.deadline - time.monotonic()) if self.error is None else 0.0

    def fail(self, error: str) -> None:
        """End the trial with an error; the first one counts."""
        self.error = self.error or error

    def read(self, readable: List[int]) -> None:
        """Take what the ranks wrote; a rank that ends before it said so, or tells an error, fails the trial."""
        for rank in self.ranks:
            if rank.log.is_open and rank.log.descriptor in readable:
                rank.log.read()
            if rank.is_open and rank.pipe in readable and not rank.read() and rank.is_cut_off:
                # The cause comes before what it did to the peers, whose errors may be here already.
                self.fail(self._how_rank_ended(rank))
        for rank in self.ranks:
            # At once: the others may wait for this rank until the deadline.
            if rank.error is not None and self.error is None:
                dead = self._dead_rank() if _LOST_PEER.search(rank.error) else None
                self.fail(rank.error if dead is None else self._how_rank_ended(dead))

    def events(self) -> List[Json]:
        """What there is to tell: each variant once all ranks have answered it; at the end the result, once."""
        found = self._finished_variants()
        if not self._must_end():
            return found
        stuck = self.kill()
        self.is_over = True
        # What the ranks had said before they were killed is kept.
        found += self._finished_variants()
        if stuck:
            left = ", ".join("rank %d (process %d)" % (rank.number, rank.pid) for rank in stuck)
            self.error = "%s%s cannot be killed, stuck in the kernel" % (
                self.error + "; " if self.error else "",
                left,
            )
        last = min(self.variants_done, self.variants - 1)
        result = {
            "event": "result",
            "id": self.request["id"],
            "ok": self.error is None,
            "error": self.error,
            "ranks": [rank.answers[last] for rank in self.ranks if len(rank.answers) > last],
            "variants_done": self.variants_done,
        }
        return [*found, result]

    def kill(self) -> List[Rank]:
        """Kill and reap the whole process group, and close everything; the ranks that the kernel does not end."""
        if self.group:
            try:
                os.killpg(self.group, signal.SIGKILL)
            except ProcessLookupError:
                pass
        until = time.monotonic() + KILL_SECONDS
        stuck = [rank for rank in self.ranks if not poll(rank.is_reaped, until)]
        for rank in self.ranks:
            rank.drain()
            rank.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        return stuck

    def _number(self, local_rank: int) -> int:
        return int(self.request["first_rank"]) + local_rank

    def _fork(self, local_rank: int) -> None:
        agent = os.getpid()
        answer_read, answer_write = os.pipe()
        log_read, log_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError:
            for descriptor in (answer_read, answer_write, log_read, log_write):
                os.close(descriptor)
            raise
        if pid == 0:
            # In the rank. Nothing below may return into the agent's loop.
            status = 1
            try:
                become_rank(self.group, agent, log_write)
                for descriptor in (answer_read, log_read):
                    os.close(descriptor)
                for earlier in self.ranks:
                    earlier.close()
                run_rank(
                    self.request,
                    self.backend,
                    local_rank,
                    self.folder,
                    lambda answer: write_line(answer_write, answer),
                )
                write_line(answer_write, {"end": True})
                status = 0
            except BaseException:  # noqa: BLE001 - the agent tells it, with the status
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                # No interpreter clean-up: it could wait for a peer that is gone.
                os._exit(status)
        self.ranks.append(Rank(self._number(local_rank), pid, answer_read, RankLog(log_read)))
        os.close(answer_write)
        os.close(log_write)
        # The first rank leads the group; setting it on both sides leaves no moment without it.
        self.group = self.group or pid
        try:
            os.setpgid(pid, self.group)
        except OSError:
            pass

    def _must_end(self) -> bool:
        """Whether every rank has ended or the trial has failed, by its deadline for one."""
        is_running = any(rank.is_open for rank in self.ranks)
        if self.error is None and is_running and self.seconds_left() == 0:
            self.fail(
                "still running at its deadline of %g s, killed; %s" % (self.seconds, self._where_ranks_were())
            )
        return self.error is not None or not is_running

    def _finished_variants(self) -> List[Json]:
        """Variants that all ranks have answered since the last look; the deadline is that of the next one."""
        found: List[Json] = []
        while self._is_answered(self.variants_done):
            found.append(
                {
                    "event": "variant",
                    "id": self.request["id"],
                    "index": self.variants_done,
                    "ranks": [rank.answers[self.variants_done] for rank in self.ranks],
                }
            )
            self.variants_done += 1
            self.deadline = time.monotonic() + self.seconds
        # A request that knows of no variants has the answers of its only one in the result.
        return found if "variants" in self.request else []

    def _is_answered(self, variant: int) -> bool:
        return len(self.ranks) == int(self.request["local_ranks"]) and all(
            len(rank.answers) > variant and not rank.answers[variant].get("error") for rank in self.ranks
        )

    def _where_ranks_were(self) -> str:
        """What each rank that had not ended was doing, from the last mark in its log."""
        found = []
        for rank in self.ranks:
            if rank.is_open:
                rank.log.drain()
                found.append("rank %d: %s" % (rank.number, rank.log.mark))
        return ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")

    def _dead_rank(self) -> Optional[Rank]:
        """A rank that a signal has ended, waited for a moment; None where all are well.

        The kernel closes a killed rank's connections before its pipes: a peer may tell of the lost connection first.
        """

        def look() -> Optional[Rank]:
            for rank in self.ranks:
                try:
                    end = os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                except ChildProcessError:
                    continue
                if end is not None and end.si_code != os.CLD_EXITED:
                    return rank
            return None

        found = poll(look, time.monotonic() + PEER_SECONDS)
        return found if isinstance(found, Rank) else None

    def _how_rank_ended(self, rank: Rank) -> str:
        def look() -> Any:
            # The dead rank is left to `kill`: while it is not reaped, its process group cannot be another's.
            return os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)

        end = poll(look, time.monotonic() + KILL_SECONDS)
        if not end:
            how = "closed its answer but did not end"
        elif end.si_code == os.CLD_EXITED:
            how = "ended with status %d" % end.si_status
        else:
            how = "was killed by signal %d (%s)" % (end.si_status, signal.Signals(end.si_status).name)
        rank.log.drain()
        tail = rank.log.tail()
        return "rank %d %s%s" % (rank.number, how, ": " + tail if tail else "")


class RankLog:
    """What one rank writes to its standard output and error. Only its end is kept: a rank may write without end."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.is_open = True
        self.mark = "starting"
        self._lines: List[str] = []
        self._rest = b""

    def read(self) -> bool:
        """Take some of what is there; False when nothing is."""
        try:
            data = os.read(self.descriptor, 1 << 16) if self.is_open else b""
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LOG_TAIL_BYTES:]
        for raw in lines:
            self._take(raw)
        return True

    def drain(self) -> None:
        """Take what is there, but no more than a pipe holds: the rank may go on writing."""
        for _ in range(64):
            if not self.read():
                return

    def tail(self) -> str:
        """The last lines, in one line, without the marks."""
        last = self._rest.decode("utf-8", "replace").strip()
        return " | ".join([*self._lines, *([last] if last else [])][-3:])

    def close(self) -> None:
        """Let go of the pipe; the rank gets an error when it writes again."""
        if self.is_open:
            os.close(self.descriptor)
            self.is_open = False

    def _take(self, raw: bytes) -> None:
        line = raw[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        if line.startswith(AT):
            self.mark = line[len(AT) :]
        elif line:
            self._lines = [*self._lines, line][-3:]


class Rank:
    """One forked rank, as the agent sees it: an answer a variant, and a last word when it has ended well."""

    def __init__(self, number: int, pid: int, pipe: int, log: RankLog) -> None:
        self.number, self.pid, self.pipe, self.log = number, pid, pipe, log
        self.is_open = True
        self.answers: List[Json] = []
        self._has_ended = False
        self._rest = b""

    @property
    def error(self) -> Optional[str]:
        """The error it told, which was the last it had to tell."""
        return (self.answers[-1].get("error") or None) if self.answers else None

    @property
    def is_cut_off(self) -> bool:
        """Whether there are words missing behind those it said."""
        return not self._has_ended and self.error is None

    def read(self) -> bool:
        """Take some of what it wrote; False when it writes no more."""
        data = os.read(self.pipe, 1 << 16)
        if not data:
            self._close_pipe()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line.decode())
            if "end" in message:
                self._has_ended = True
            else:
                self.answers.append(message)
        return True

    def drain(self) -> None:
        """Take what it had written before it was killed."""
        if self.is_open:
            os.set_blocking(self.pipe, False)
            try:
                while self.read():
                    pass
            except BlockingIOError:
                pass

    def is_reaped(self) -> bool:
        """Whether it has ended and is no zombie any more."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return True

    def close(self) -> None:
        """Let go of its pipes."""
        self._close_pipe()
        self.log.close()

    def _close_pipe(self) -> None:
        if self.is_open:
            os.close(self.pipe)
            self.is_open = False


def become_rank(group: int, agent: int, log_fd: int) -> None:
    """Make the forked process a rank: own group, no input, output to its log, and gone when the agent is gone."""
    os.setpgid(0, group)
    die_with_parent(agent)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(null)
    os.close(log_fd)
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    # A setting may crash a rank that maps a whole GPU: its core would fill the disk and tell nobody anything.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def die_with_parent(agent: int) -> None:
    """Ask the kernel for SIGKILL when the agent dies, so that a killed agent leaves no rank on a GPU.

    The kernel means the thread that forked: the agent forks from its main thread, which lives as long as it does.
    """
    set_pdeathsig = 1  # PR_SET_PDEATHSIG, linux/prctl.h
    _LIBC.prctl(set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != agent:
        # It died before the kernel was asked.
        os._exit(1)


def write_line(descriptor: int, message: Json, marker: str = "") -> None:
    """One JSON line, written whole."""
    payload = (marker + json.dumps(message) + "\n").encode()
    while payload:
        payload = payload[os.write(descriptor, payload) :]


def poll(look: Callable[[], Any], until: float) -> Any:
    """What `look` finds, asked again until it finds something or the clock passes `until`."""
    pause = 0.001
    while True:
        found = look()
        if found or time.monotonic() >= until:
            return found
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
