"""The bench agent: one process a node that starts ranks, times collectives, and never leaves one behind.

It reads JSON lines from standard input and answers in marked JSON lines. It imports torch once, never touches a GPU
itself, and forks the local ranks of each trial with that trial's environment, so that a trial costs a fork and not an
interpreter. When its input closes, when a deadline passes or when a rank dies, it kills the trial's whole process
group and says so; the next trial starts clean.

    -> {"op": "start", "backend": "nccl" | "gloo" | "replay", "root": "/"}
    <- {"event": "ready", "backend", "python", "torch", "nccl", "gpus", "hostname", "environment"}
    -> {"op": "port"}                       <- {"event": "port", "port"}
    -> {"op": "trial", "id", "env", "master", "world_size", "first_rank", "local_ranks", "as_nodes", "plan", "probe"}
    <- {"event": "result", "id", "ok", "error", "ranks": [{"rank", "results", "setup", "log"}]}
    -> {"op": "abort", "id"}                <- the result, with an error
    -> {"op": "resolve", "env"}             <- {"event": "resolved", "settings": {name: [value, where]}}

Runs under Python 3.8 and newer; standard library, and torch inside the ranks.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from topo_tune.on_node import nccl_conf

MARKER = "@topo-tune@ "
Json = Dict[str, Any]

GRAPH_CALLS = 20
"""calls captured in one CUDA graph, as nccl-tests' `-G 20`"""
GRAPH_BELOW_SECONDS = 2e-3
"""calls slower than this gain nothing from a graph: the host's launch cost is below 1 % of them"""
EAGER_SAMPLE_SECONDS = 20e-3
GRAPH_SAMPLE_SECONDS = 6e-3
"""how long one sample should last, so that the jitter of clocks and launches is small beside it"""
LOG_TAIL_BYTES = 4096
PROBE_LOG_LINES = 400
LARGEST_EXACT_SUM = 192
"""bfloat16, the coarsest type measured here, holds every integer up to 256; this leaves room for a remainder"""
KILL_SECONDS = 10.0
"""how long the kernel may take to end a killed rank: tearing a CUDA context down takes up to some seconds"""

# Loaded before any fork: a rank must not take the dynamic loader's lock, which another thread may have held.
_LIBC = ctypes.CDLL(None)

# Lines of NCCL's own log that tell which settings and choices were in force.
_LOG_LINES = re.compile(
    r"set by environment to|NCCL_IB_HCA set to|Algo \w+ proto|NCCL version|threads and \d+ sockets|coll channels"
    r"|Using network|Comm config|Initialized NET plugin|NCCL WARN|MNNVL"
)


def main(stdin: Any) -> int:
    """Serve requests until the input closes. `stdin` is an unbuffered binary file."""
    status = Agent(stdin.fileno()).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    # No interpreter clean-up: torch's takes a second, and nothing is left to clean up.
    os._exit(status)


def say(event: Json) -> None:
    """One marked line on standard output, written whole."""
    data = (MARKER + json.dumps(event) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


class Agent:
    """The request loop. Holds at most one running trial."""

    def __init__(self, input_fd: int) -> None:
        self.input_fd = input_fd
        self.pending = b""
        self.trial: Optional[Trial] = None
        self.root = "/"
        self.backend = ""

    def serve(self) -> int:
        """Handle requests and watch the running trial until the input closes."""
        # A dropped connection must end this process through its closed input, where it can clean up.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            while self._step():
                pass
            return 0
        except BrokenPipeError:
            # Nobody listens any more, which is as good as a closed input.
            return 0
        finally:
            if self.trial is not None:
                self.trial.kill()

    def _step(self) -> bool:
        watched = [self.input_fd] + (self.trial.open_pipes() if self.trial else [])
        # A trial that has failed by now, by an abort for one, is ended in this very step.
        timeout = self.trial.seconds_left() if self.trial else None
        readable, _, _ = select.select(watched, [], [], timeout)
        if self.trial is not None:
            self.trial.read(readable)
            answer = self.trial.answer_if_over()
            if answer is not None:
                self.trial = None
                say(answer)
        if self.input_fd in readable:
            data = os.read(self.input_fd, 1 << 16)
            if not data:
                return False
            self.pending += data
            while b"\n" in self.pending:
                line, self.pending = self.pending.split(b"\n", 1)
                if line.strip():
                    self._handle(json.loads(line.decode()))
        return True

    def _handle(self, request: Json) -> None:
        operation = request.get("op")
        if operation == "start":
            self._start(request)
        elif operation == "port":
            say({"event": "port", "port": free_port()})
        elif operation == "resolve":
            say({"event": "resolved", "settings": self._resolve(request["env"])})
        elif operation == "trial":
            if self.trial is not None:
                say(
                    {"event": "result", "id": request["id"], "ok": False, "error": "another trial is running"}
                )
                return
            # Known here before its first rank exists, so that an interrupt in between finds it and kills it.
            self.trial = Trial(request, self.backend)
            self.trial.start()
        elif operation == "abort":
            if self.trial is not None and self.trial.request["id"] == request["id"]:
                self.trial.fail("aborted: " + str(request.get("reason", "another node failed")))
        else:
            say({"event": "error", "error": "unknown operation: %r" % (operation,)})

    def _start(self, request: Json) -> None:
        self.root = request.get("root", "/")
        self.backend = request["backend"]
        ready: Json = {
            "event": "ready",
            "backend": self.backend,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "hostname": socket.gethostname(),
            "torch": None,
            "nccl": None,
            "gpus": None,
            "environment": {n: v for n, v in sorted(os.environ.items()) if n.startswith("NCCL_")},
        }
        if self.backend != "replay":
            problem = import_torch(self.backend, ready)
            if problem is not None:
                say({"event": "error", "error": problem})
                return
        say(ready)

    def _resolve(self, env: Dict[str, str]) -> Dict[str, List[str]]:
        environment = dict(os.environ)
        environment.update(env)
        settings = nccl_conf.resolve(environment, self.root)
        return {name: [value, where] for name, (value, where) in settings.items()}


def import_torch(backend: str, ready: Json) -> Optional[str]:
    """Import torch without touching a GPU and fill in versions; a problem as text, or None."""
    try:
        import torch
        import torch.distributed
    except Exception as exc:  # noqa: BLE001 - whatever a broken torch raises: it is reported, not hidden
        return "cannot import torch: %s: %s" % (type(exc).__name__, exc)
    ready["torch"] = str(torch.__version__)
    if backend == "nccl":
        if not torch.distributed.is_nccl_available():
            return "torch %s has no NCCL (a CPU build?)" % torch.__version__
        try:
            ready["gpus"] = count_gpus()
        except RuntimeError as exc:
            return "cannot count the GPUs: %s" % exc
        ready["nccl"] = nccl_version()
        if not ready["gpus"]:
            return "no GPU is visible to torch on this node"
    elif not torch.distributed.is_gloo_available():
        return "torch %s has no gloo" % torch.__version__
    return None


def count_gpus() -> int:
    """GPUs that torch would see, counted in a process of its own.

    Where torch cannot ask NVML it asks the driver, and ranks forked from a process that did so cannot use CUDA.
    Raises RuntimeError.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            import torch

            os.write(write_end, b"%d" % torch.cuda.device_count())
        except Exception as exc:  # noqa: BLE001 - whatever a broken driver raises: it is reported, not hidden
            os.write(write_end, ("%s: %s" % (type(exc).__name__, exc)).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        count = answer.read().decode("utf-8", "replace")
    os.waitpid(pid, 0)
    if not count.isdecimal():
        raise RuntimeError(count or "the process that counts them died")
    return int(count)


def nccl_version() -> Optional[str]:
    """`2.28.9`: the version of the NCCL that this torch was linked with."""
    import torch.cuda.nccl

    version: Any = torch.cuda.nccl.version()
    return ".".join(str(part) for part in version[:3]) if isinstance(version, tuple) else str(version)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


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
    """One forked rank, as the agent sees it."""

    def __init__(self, number: int, pid: int, pipe: int, log: RankLog) -> None:
        self.number, self.pid, self.pipe, self.log = number, pid, pipe, log
        self.is_open = True
        self.payload = b""
        self.answer: Optional[Json] = None

    def is_reaped(self) -> bool:
        """Whether it has ended and is no zombie any more."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return True

    def close(self) -> None:
        """Let go of its pipes."""
        if self.is_open:
            os.close(self.pipe)
            self.is_open = False
        self.log.close()


class Trial:
    """The local ranks of one trial: forked, watched, and killed together."""

    def __init__(self, request: Json, backend: str) -> None:
        self.request, self.backend = request, backend
        self.deadline = time.monotonic() + float(request["plan"]["deadline_seconds"])
        self.error: Optional[str] = None
        self.ranks: List[Rank] = []
        self.group = 0
        self.folder: Optional[str] = None

    def start(self) -> None:
        """Fork the ranks. When that is refused, the trial has failed."""
        try:
            if self.request.get("probe"):
                self.folder = tempfile.mkdtemp(prefix="topo-tune-nccl-")
            for local_rank in range(int(self.request["local_ranks"])):
                self._fork(local_rank)
        except OSError as exc:
            self.fail("cannot start rank %d: %s" % (self._number(len(self.ranks)), exc))

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
                answer = run_rank(self.request, self.backend, local_rank, self.folder)
                payload = json.dumps(answer).encode()
                while payload:
                    payload = payload[os.write(answer_write, payload) :]
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

    def open_pipes(self) -> List[int]:
        """Descriptors on which ranks still may say something."""
        answers = [rank.pipe for rank in self.ranks if rank.is_open]
        return answers + [rank.log.descriptor for rank in self.ranks if rank.log.is_open]

    def seconds_left(self) -> float:
        """Time until the trial must end: none when it has failed."""
        return max(0.0, self.deadline - time.monotonic()) if self.error is None else 0.0

    def fail(self, error: str) -> None:
        """End the trial with an error; the first one counts."""
        self.error = self.error or error

    def read(self, readable: List[int]) -> None:
        """Take what the ranks wrote; a rank that ends without an answer, or with an error, fails the trial."""
        ended = []
        for rank in self.ranks:
            if rank.log.is_open and rank.log.descriptor in readable:
                rank.log.read()
            if not rank.is_open or rank.pipe not in readable:
                continue
            data = os.read(rank.pipe, 1 << 16)
            if data:
                rank.payload += data
                continue
            os.close(rank.pipe)
            rank.is_open = False
            ended.append(rank)
            try:
                rank.answer = json.loads(rank.payload.decode())
            except ValueError:
                # The cause comes before what it did to the peers, whose errors may be here already.
                self.fail(self._how_rank_ended(rank))
        for rank in ended:
            # At once: the others may wait for this rank until the deadline.
            if rank.answer is not None and rank.answer.get("error"):
                self.fail(rank.answer["error"])

    def answer_if_over(self) -> Optional[Json]:
        """The answer when every rank has answered or the trial has failed; None while it runs."""
        is_running = any(rank.is_open for rank in self.ranks)
        if self.error is None and is_running and self.seconds_left() == 0:
            seconds = float(self.request["plan"]["deadline_seconds"])
            self.fail(
                "still running at its deadline of %g s, killed; %s" % (seconds, self._where_ranks_were())
            )
        if self.error is None and is_running:
            return None
        stuck = self.kill()
        if stuck:
            left = ", ".join("rank %d (process %d)" % (rank.number, rank.pid) for rank in stuck)
            self.error = "%s%s cannot be killed, stuck in the kernel" % (
                self.error + "; " if self.error else "",
                left,
            )
        return {
            "event": "result",
            "id": self.request["id"],
            "ok": self.error is None,
            "error": self.error,
            "ranks": [rank.answer for rank in self.ranks if rank.answer is not None],
        }

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
            rank.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        return stuck

    def _where_ranks_were(self) -> str:
        """What each rank that had not answered was doing, from the last mark in its log."""
        found = []
        for rank in self.ranks:
            if rank.is_open:
                rank.log.drain()
                found.append("rank %d: %s" % (rank.number, rank.log.mark))
        return ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")

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


def poll(look: Callable[[], Any], until: float) -> Any:
    """What `look` finds, asked again until it finds something or the clock passes `until`."""
    pause = 0.001
    while True:
        found = look()
        if found or time.monotonic() >= until:
            return found
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


AT = "topo-tune is at: "
"""Begins a mark that a rank leaves in its log, so that a rank which hangs can be told from one that is slow."""


def mark(text: str) -> None:
    """Leave a mark of what this rank does next; its standard error is its log."""
    os.write(2, (AT + text + "\n").encode())


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


def run_rank(request: Json, backend: str, local_rank: int, folder: Optional[str]) -> Json:
    """Everything one rank does in one trial; errors become text, so that the agent can name the rank.

    `folder`: where a probe's NCCL log goes; the agent removes it, whatever becomes of the rank.
    """
    rank = int(request["first_rank"]) + local_rank
    os.environ.update(request["env"])
    parts = int(request.get("as_nodes", 1))
    if parts > 1:
        # NCCL takes ranks with different host ids for different nodes and uses the network between them.
        part = local_rank * parts // int(request["local_ranks"])
        os.environ["NCCL_HOSTID"] = "%s-part%d" % (request["node"], part)
    log_path = None
    if folder is not None:
        log_path = os.path.join(folder, "rank%d.log" % local_rank)
        os.environ.update(
            {
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,TUNING,GRAPH",
                "NCCL_DEBUG_FILE": log_path,
            }
        )
    answer: Json = {"rank": rank, "results": [], "setup": {}, "log": [], "error": None}
    try:
        Measurement(request, backend, rank, local_rank, answer).run()
    except Exception as exc:  # noqa: BLE001 - any failure of a setting is a result of the trial
        answer["error"] = "rank %d: %s: %s" % (rank, type(exc).__name__, first_line(str(exc)))
    finally:
        if log_path is not None and os.path.exists(log_path):
            answer["log"] = read_log(log_path)
    return answer


def first_line(text: str) -> str:
    """The first non-empty lines of a long message, short enough for a report."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[:3])[:600]


def read_log(path: str) -> List[str]:
    """The lines of NCCL's log that prove settings and choices, without their prefix."""
    found: List[str] = []
    with open(path, errors="replace") as file:
        for line in file:
            if _LOG_LINES.search(line):
                found.append(line.rstrip("\n").split("NCCL INFO ", 1)[-1])
                if len(found) >= PROBE_LOG_LINES:
                    break
    return found


class Measurement:
    """One rank's part: meet the others, check sums, time every size."""

    def __init__(self, request: Json, backend: str, rank: int, local_rank: int, answer: Json) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.request, self.backend, self.rank, self.answer = request, backend, rank, answer
        self.plan = request["plan"]
        self.world = int(request["world_size"])
        self.local_rank = local_rank
        self.dtype = getattr(torch, self.plan["dtype"])
        self.item = torch.empty((), dtype=self.dtype).element_size()
        self.device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
        self.agreements = 0

    def run(self) -> None:
        """Set up, measure each size, and leave together."""
        self._set_up()
        for size_bytes in self.plan["sizes_bytes"]:
            if self.request.get("probe"):
                self._check(self._buffer(size_bytes))
            else:
                self.answer["results"].append(self._measure(size_bytes))
        self._leave_together()

    def _set_up(self) -> None:
        started = time.monotonic()
        mark("set-up")
        torch, dist = self.torch, self.dist
        if self.backend == "gloo":
            # Ranks share the node's cores; a thread pool in each would fight over them.
            torch.set_num_threads(1)
        if self.backend == "nccl":
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)
        largest = max(self.plan["sizes_bytes"])
        self.memory = torch.zeros(largest // self.item, dtype=self.dtype, device=self.device)
        context = time.monotonic()
        host, port = self.request["master"]
        if self.backend == "gloo" and "GLOO_SOCKET_IFNAME" not in os.environ:
            name = interface_towards(host, port)
            if name:
                os.environ["GLOO_SOCKET_IFNAME"] = name
        import datetime

        mark("meeting the other ranks")
        timeout = datetime.timedelta(seconds=float(self.plan["deadline_seconds"]))
        # The store keeps the time-out it was made with; a hang beyond it is ended by the agent.
        self.store = dist.TCPStore(host, int(port), self.world, self.rank == 0, timeout)
        dist.init_process_group(
            self.backend,
            store=self.store,
            rank=self.rank,
            world_size=self.world,
            timeout=timeout,
            **({"device_id": self.device} if self.backend == "nccl" else {}),
        )
        ready = time.monotonic()
        mark("first call")
        first = self.memory[: max(1, 1024 // self.item)]
        dist.all_reduce(first)
        self._synchronize()
        self.answer["setup"] = {
            "context": context - started,
            "communicator": ready - context,
            "first_call": time.monotonic() - ready,
        }

    def _buffer(self, size_bytes: int) -> Any:
        return self.memory[: size_bytes // self.item]

    def _measure(self, size_bytes: int) -> Json:
        buffer = self._buffer(size_bytes)
        mark("checking the sum of %d bytes" % size_bytes)
        is_correct = self._check(buffer)
        mark("timing %d bytes" % size_bytes)
        warmup = [self._timed_calls(buffer, 1) for _ in range(2)]
        one_call = self._agree(min(warmup))
        use_graph = self.backend == "nccl" and one_call < GRAPH_BELOW_SECONDS
        if use_graph:
            samples, calls, graph_is_correct = self._graph_samples(buffer, one_call)
            is_correct = is_correct and graph_is_correct
        else:
            samples, calls = self._eager_samples(buffer, one_call)
        return {
            "size_bytes": size_bytes,
            "samples_seconds": samples,
            "calls_per_sample": calls,
            "mode": "graph" if use_graph else "eager",
            "is_correct": is_correct,
            "warmup_seconds": warmup,
        }

    def _repeated(self, pattern: Sequence[float], buffer: Any) -> Any:
        torch = self.torch
        index = torch.arange(buffer.numel(), device=self.device, dtype=torch.int64) % len(pattern)
        return torch.tensor(pattern, dtype=self.dtype, device=self.device)[index]

    def _check(self, buffer: Any) -> bool:
        buffer.copy_(self._repeated(pattern_of(self.rank, self.world), buffer))
        self.dist.all_reduce(buffer)
        self._synchronize()
        return bool(self.torch.equal(buffer, self._repeated(sum_of_patterns(self.world), buffer)))

    def _timed_calls(self, buffer: Any, calls: int) -> float:
        """Mean seconds of a call, all ranks entering together; the host's clock around device work it waits for."""
        self.dist.barrier()
        self._synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            self.dist.all_reduce(buffer)
        self._synchronize()
        return (time.perf_counter() - started) / calls

    def _eager_samples(self, buffer: Any, one_call: float) -> Tuple[List[float], int]:
        calls = max(1, min(200, round(EAGER_SAMPLE_SECONDS / one_call)))
        buffer.zero_()
        return [self._timed_calls(buffer, calls) for _ in range(int(self.plan["repeats"]))], calls

    def _graph_samples(self, buffer: Any, one_call: float) -> Tuple[List[float], int, bool]:
        torch, dist = self.torch, self.dist
        mark("capturing a graph of %d bytes" % (buffer.numel() * self.item))
        graph = torch.cuda.CUDAGraph()
        # Thread-local: torch's watchdog thread queries events meanwhile, which a global capture would forbid.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(GRAPH_CALLS):
                dist.all_reduce(buffer)
        mark("replaying a graph of %d bytes" % (buffer.numel() * self.item))
        is_correct = self._check_graph(graph, buffer)
        graph.replay()
        self._synchronize()
        started = time.perf_counter()
        graph.replay()
        self._synchronize()
        in_graph = self._agree((time.perf_counter() - started) / GRAPH_CALLS)
        replays = max(1, min(50, round(GRAPH_SAMPLE_SECONDS / (GRAPH_CALLS * in_graph))))
        buffer.zero_()
        samples = []
        for _ in range(int(self.plan["repeats"])):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # One replay outside the clock brings the ranks together: a collective cannot end before all entered.
            graph.replay()
            begin.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) / 1e3 / (replays * GRAPH_CALLS))
        return samples, replays * GRAPH_CALLS, is_correct

    def _check_graph(self, graph: Any, buffer: Any) -> bool:
        """Whether the captured calls sum right; where that cannot be exact, the eager check stands alone."""
        expected = sum_of_graph_patterns(self.world)
        if expected is None:
            return True
        buffer.copy_(self._repeated(graph_pattern_of(self.rank, self.world), buffer))
        self._synchronize()
        graph.replay()
        self._synchronize()
        return bool(self.torch.equal(buffer, self._repeated(expected, buffer)))

    def _agree(self, seconds: float) -> float:
        """The slowest rank's value, so that all ranks choose the same number of calls."""
        self.agreements += 1
        prefix = "agree/%d/" % self.agreements
        self.store.set(prefix + str(self.rank), repr(seconds))
        return max(float(self.store.get(prefix + str(rank))) for rank in range(self.world))

    def _synchronize(self) -> None:
        if self.backend == "nccl":
            self.torch.cuda.synchronize()

    def _leave_together(self) -> None:
        """Stay until every rank has all of its results, and rank 0, which holds the store, until the others have left.

        A rank whose own part of a collective is done may still have data of it to send: NCCL's network thread goes on
        after the kernel has ended. A rank that left then would leave its peer waiting for ever.
        """
        mark("leaving")
        self.store.set("done/%d" % self.rank, b"1")
        self.store.wait(["done/%d" % rank for rank in range(self.world)])
        if self.rank == 0:
            self.store.wait(["left/%d" % rank for rank in range(1, self.world)])
        else:
            self.store.set("left/%d" % self.rank, b"1")


def pattern_of(rank: int, world: int) -> List[int]:
    """What a rank's buffer is filled with, again and again: 0, 1 and 2 in turn, shifted by rank.

    In large worlds zeros follow, so that the sum of all ranks, and every part of it, is exact in every data type.
    """
    period = max(3, -(-3 * world // LARGEST_EXACT_SUM))
    values = [(element + rank) % period for element in range(period)]
    return [value if value < 3 else 0 for value in values]


def sum_of_patterns(world: int) -> List[int]:
    """The sum of all ranks' patterns."""
    patterns = [pattern_of(rank, world) for rank in range(world)]
    return [sum(column) for column in zip(*patterns)]  # noqa: B905 - Python 3.8 has no `strict`


def graph_pattern_of(rank: int, world: int) -> List[int]:
    """A rank's pattern for calls captured in a graph: each element comes from one rank, as 1, 2 or 4."""
    return [2 ** (element % 3) if element % world == rank else 0 for element in range(3 * world)]


def sum_of_graph_patterns(world: int) -> Optional[List[float]]:
    """What a whole graph leaves of these patterns; None where that is not exact or too large for bfloat16.

    Its first call gives the sum, and each further one multiplies that by the number of ranks: exact for a power of
    two, because its parts are then multiples of a power of two by no more than the number of ranks.
    """
    if world & (world - 1) or world > 64:
        return None
    return [2.0 ** (element % 3) * float(world) ** (GRAPH_CALLS - 1) for element in range(3 * world)]


def interface_towards(host: str, port: int) -> Optional[str]:
    """Name of the interface whose address this node would use to reach `host`; None when it cannot be told."""
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                # A datagram socket that is connected sends nothing; it only makes the kernel choose a route.
                probe.connect(address)
                own = str(probe.getsockname()[0])
            name = interface_of(own)
        except OSError:
            continue
        if name is not None:
            return name
    return None


def interface_of(address: str) -> Optional[str]:
    """Name of the interface that has an address of this node; None when none says so. Raises OSError."""
    import fcntl
    import struct

    if ":" in address:
        wanted = socket.inet_pton(socket.AF_INET6, address.split("%")[0]).hex()
        with open("/proc/net/if_inet6") as file:
            return next((line.split()[-1] for line in file if line.split()[0] == wanted), None)
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                # SIOCGIFADDR, linux/sockios.h
                found = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
