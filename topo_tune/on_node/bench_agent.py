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
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import Any, Dict, List, Optional, Tuple

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

# Lines of NCCL's own log that tell which settings and choices were in force.
_LOG_LINES = re.compile(
    r"set by environment to|NCCL_IB_HCA set to|Algo \w+ proto|NCCL version|threads and \d+ sockets|coll channels"
    r"|Using network|Comm config|Initialized NET plugin|NCCL WARN|MNNVL"
)


def main(stdin: Any) -> int:
    """Serve requests until the input closes. `stdin` is an unbuffered binary file."""
    return Agent(stdin.fileno()).serve()


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
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            while True:
                if not self._step():
                    return 0
        finally:
            if self.trial is not None:
                self.trial.kill()

    def _step(self) -> bool:
        watched = [self.input_fd] + (self.trial.open_pipes() if self.trial else [])
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
            self.trial = Trial(request, self.backend)
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
        # Below a root prefix the session's own home belongs to another tree; root's home below the prefix stands in.
        home = "/root" if self.root not in ("", "/") else None
        settings = nccl_conf.resolve(environment, self.root, home)
        return {name: [value, where] for name, (value, where) in settings.items()}


def import_torch(backend: str, ready: Json) -> Optional[str]:
    """Import torch without touching a GPU and fill in versions; a problem as text, or None."""
    try:
        import torch
        import torch.distributed
    except Exception as exc:  # whatever a broken torch raises: it is reported, not hidden
        return "cannot import torch: %s: %s" % (type(exc).__name__, exc)
    ready["torch"] = str(torch.__version__)
    if backend == "nccl":
        if not torch.distributed.is_nccl_available():
            return "torch %s has no NCCL (a CPU build?)" % torch.__version__
        ready["gpus"] = count_gpus()
        ready["nccl"] = nccl_version()
        if not ready["gpus"]:
            return "no GPU is visible to torch on this node"
    elif not torch.distributed.is_gloo_available():
        return "torch %s has no gloo" % torch.__version__
    return None


def count_gpus() -> int:
    """GPUs that torch would see, counted without creating a CUDA context in this process (a forked rank could not
    use CUDA afterwards)."""
    import torch

    # torch asks NVML here where it can, and falls back to the driver's count, which does not create a context either.
    return int(torch.cuda.device_count())


def nccl_version() -> Optional[str]:
    """`2.28.9`: the version of the NCCL that this torch was linked with."""
    import torch.cuda.nccl

    version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(str(part) for part in version[:3]) if isinstance(version, tuple) else str(version)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


class Trial:
    """The local ranks of one trial: forked, watched, and killed together."""

    def __init__(self, request: Json, backend: str) -> None:
        self.request = request
        self.deadline = time.monotonic() + float(request["plan"]["deadline_seconds"])
        self.error: Optional[str] = None
        self.answers: Dict[int, Json] = {}
        self.buffers: Dict[int, bytes] = {}
        self.ranks: Dict[int, int] = {}
        self.pids: Dict[int, int] = {}
        self.logs: Dict[int, Any] = {}
        self.group = 0
        for local_rank in range(int(request["local_ranks"])):
            self._fork(local_rank, backend)

    def _fork(self, local_rank: int, backend: str) -> None:
        read_end, write_end = os.pipe()
        log = tempfile.TemporaryFile()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            # In the rank. Nothing below may return into the agent's loop.
            status = 1
            try:
                os.close(read_end)
                for other in self.buffers:
                    os.close(other)
                become_rank(self.group, log.fileno())
                answer = run_rank(self.request, backend, local_rank)
                payload = json.dumps(answer).encode()
                while payload:
                    payload = payload[os.write(write_end, payload) :]
                status = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                # No interpreter clean-up: it could wait for a peer that is gone.
                os._exit(status)
        os.close(write_end)
        # The first rank leads the group; setting it on both sides leaves no moment without it.
        self.group = self.group or pid
        try:
            os.setpgid(pid, self.group)
        except OSError:
            pass
        self.buffers[read_end] = b""
        self.ranks[read_end] = local_rank
        self.pids[local_rank] = pid
        self.logs[local_rank] = log

    def open_pipes(self) -> List[int]:
        """Descriptors on which ranks still may answer."""
        return list(self.buffers)

    def seconds_left(self) -> float:
        """Time until the deadline, not below zero."""
        return max(0.0, self.deadline - time.monotonic())

    def fail(self, error: str) -> None:
        """End the trial with an error; the first one counts."""
        self.error = self.error or error

    def read(self, readable: List[int]) -> None:
        """Take what the ranks wrote; a rank that ends without an answer fails the trial."""
        for descriptor in readable:
            if descriptor not in self.buffers:
                continue
            data = os.read(descriptor, 1 << 16)
            if data:
                self.buffers[descriptor] += data
                continue
            payload = self.buffers.pop(descriptor)
            os.close(descriptor)
            local_rank = self.ranks[descriptor]
            try:
                self.answers[local_rank] = json.loads(payload.decode())
            except ValueError:
                self.fail(self._how_rank_ended(local_rank))

    def answer_if_over(self) -> Optional[Json]:
        """The answer when every rank has answered or the trial has failed; None while it runs."""
        if self.error is None and not self.buffers:
            for answer in self.answers.values():
                if answer.get("error"):
                    self.fail(answer["error"])
        if self.error is None and self.buffers and self.seconds_left() == 0:
            seconds = float(self.request["plan"]["deadline_seconds"])
            self.fail(
                "still running at its deadline of %g s, killed; %s" % (seconds, self._where_ranks_were())
            )
        if self.error is None and self.buffers:
            return None
        self.kill()
        return {
            "event": "result",
            "id": self.request["id"],
            "ok": self.error is None,
            "error": self.error,
            "ranks": [self.answers[r] for r in sorted(self.answers)],
        }

    def kill(self) -> None:
        """Kill and reap the whole process group, and close everything."""
        if self.group:
            try:
                os.killpg(self.group, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in self.pids.values():
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
        self.pids.clear()
        for descriptor in list(self.buffers):
            os.close(descriptor)
        self.buffers.clear()
        for log in self.logs.values():
            log.close()
        self.logs.clear()

    def _where_ranks_were(self) -> str:
        """What each rank that had not answered was doing, from the last mark in its log."""
        found = []
        for local_rank in sorted(self.ranks[descriptor] for descriptor in self.buffers):
            rank = int(self.request["first_rank"]) + local_rank
            found.append("rank %d: %s" % (rank, last_mark(self.logs[local_rank])))
        return ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")

    def _how_rank_ended(self, local_rank: int) -> str:
        rank = int(self.request["first_rank"]) + local_rank
        _, status = os.waitpid(self.pids.pop(local_rank), 0)
        if os.WIFSIGNALED(status):
            how = "was killed by signal %d (%s)" % (
                os.WTERMSIG(status),
                signal.Signals(os.WTERMSIG(status)).name,
            )
        else:
            how = "ended with status %d" % os.WEXITSTATUS(status)
        tail = tail_of(self.logs[local_rank])
        return "rank %d %s%s" % (rank, how, ": " + tail if tail else "")


AT = "topo-tune is at: "
"""Begins a mark that a rank leaves in its log, so that a rank which hangs can be told from one that is slow."""


def mark(text: str) -> None:
    """Leave a mark of what this rank does next; its standard error is its log."""
    os.write(2, (AT + text + "\n").encode())


def last_mark(log: Any) -> str:
    """The last mark in a rank's log."""
    end = log.seek(0, os.SEEK_END)
    log.seek(max(0, end - LOG_TAIL_BYTES))
    marks = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.startswith(AT)]
    return marks[-1][len(AT) :] if marks else "starting"


def tail_of(log: Any) -> str:
    """The last lines of a rank's output, in one line."""
    end = log.seek(0, os.SEEK_END)
    log.seek(max(0, end - LOG_TAIL_BYTES))
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join([line for line in lines if not line.startswith(AT)][-3:])


def become_rank(group: int, log_fd: int) -> None:
    """Make the forked process a rank: own group, no input, output to its log, and gone when the agent is gone."""
    os.setpgid(0, group)
    die_with_parent()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the agent dies, so that a killed agent leaves no rank on a GPU."""
    set_pdeathsig = 1  # PR_SET_PDEATHSIG, linux/prctl.h
    ctypes.CDLL(None).prctl(set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)


def run_rank(request: Json, backend: str, local_rank: int) -> Json:
    """Everything one rank does in one trial; errors become text, so that the agent can name the rank."""
    rank = int(request["first_rank"]) + local_rank
    os.environ.update(request["env"])
    parts = int(request.get("as_nodes", 1))
    if parts > 1:
        # NCCL takes ranks with different host ids for different nodes and uses the network between them.
        part = local_rank * parts // int(request["local_ranks"])
        os.environ["NCCL_HOSTID"] = "%s-part%d" % (request["node"], part)
    log_path = None
    if request.get("probe"):
        handle, log_path = tempfile.mkstemp(prefix="topo-tune-nccl-")
        os.close(handle)
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
    except Exception as exc:  # any failure of a setting is a result of the trial, with its text
        answer["error"] = "rank %d: %s: %s" % (rank, type(exc).__name__, first_line(str(exc)))
    finally:
        if log_path is not None:
            answer["log"] = read_log(log_path)
            os.unlink(log_path)
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

    def _fill(self, buffer: Any) -> None:
        torch = self.torch
        # 0, 1 and 2 in turn, shifted by rank: small integers, so that the sum is exact in every data type.
        index = torch.arange(buffer.numel(), device=self.device, dtype=torch.int64)
        buffer.copy_(((index + self.rank) % 3).to(self.dtype))

    def _expected(self, buffer: Any) -> Any:
        torch = self.torch
        pattern = [sum((i + r) % 3 for r in range(self.world)) for i in range(3)]
        index = torch.arange(buffer.numel(), device=self.device, dtype=torch.int64) % 3
        return torch.tensor(pattern, dtype=self.dtype, device=self.device)[index]

    def _check(self, buffer: Any) -> bool:
        self._fill(buffer)
        self.dist.all_reduce(buffer)
        self._synchronize()
        return bool(self.torch.equal(buffer, self._expected(buffer)))

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
        """Whether the captured calls sum right. Each call multiplies the sum by the number of ranks, which is exact
        for powers of two; for other counts the eager check stands alone."""
        if self.world & (self.world - 1) or self.world > 64:
            return True
        self._fill(buffer)
        self._synchronize()
        graph.replay()
        self._synchronize()
        expected = self._expected(buffer) * float(self.world) ** (GRAPH_CALLS - 1)
        return bool(self.torch.equal(buffer, expected))

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
        """Rank 0 holds the store, so it leaves last."""
        mark("leaving")
        self.store.set("done/%d" % self.rank, b"1")
        if self.rank == 0:
            self.store.wait(["done/%d" % rank for rank in range(self.world)])


def interface_towards(host: str, port: int) -> Optional[str]:
    """Name of the interface whose address this node would use to reach `host`; None when it cannot be told."""
    import fcntl
    import struct

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # A datagram socket that is connected sends nothing; it only makes the kernel choose a route.
            probe.connect((host, int(port)))
            address = probe.getsockname()[0]
            if address.startswith("127."):
                return "lo"
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    found = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
                except OSError:
                    continue
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    except OSError:
        return None
    return None
