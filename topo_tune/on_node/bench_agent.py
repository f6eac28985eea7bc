"""The bench agent: one process a node that starts ranks, times collectives, and never leaves one behind.

It reads JSON lines from standard input and answers in marked JSON lines. It imports torch once, never touches a GPU
itself, and forks the local ranks of each trial with that trial's environment, so that a trial costs a fork and not an
interpreter. When its input closes, when a deadline passes or when a rank dies, it kills the trial's whole process
group and says so; the next trial starts clean.

    -> {"op": "start", "backend": "nccl" | "gloo" | "replay", "root": "/"}
    <- {"event": "ready", "backend", "python", "torch", "nccl", "gpus", "hostname", "environment"}
    -> {"op": "port"}                       <- {"event": "port", "port"}
    -> {"op": "trial", "id", "env", "variants": [{"env", "config", "slowest_seconds"}], "master", "world_size",
        "first_rank", "local_ranks", "ranks_per_node", "as_nodes", "node", "probe", "plan"}
    <- {"event": "variant", "id", "index", "ranks": [{"rank", "results", "setup", "in_force", "back", "log", "error"}]}
    <- {"event": "result", "id", "ok", "error", "ranks", "variants_done"}
    -> {"op": "abort", "id"}                <- the result, with an error
    -> {"op": "resolve", "env"}             <- {"event": "resolved", "settings": {name: [value, where]}}

A trial has one set of processes and any number of variants, one communicator each. `env` of a variant is what NCCL
reads anew for each communicator, `config` fields of ncclConfig_t, and its `slowest_seconds` stands in for the plan's.
A `variant` is told as soon as all local ranks have it, and the deadline is one variant's. A variant that fails, hangs
or sums wrong is the last. Without `variants` there is a single one, and the result has what it gave.

The plan: `sizes_bytes`, `dtype`, `repeats`, `deadline_seconds`, and if need be `collective`, `layout`, `in_place`,
`single_calls`, `overlap`, `slowest_seconds` ([[size, seconds]]), `needs_bytes` (of GPU memory, for a communicator)
and `release` (one of `nccl_rank.RELEASES`).

Runs under Python 3.8 and newer; standard library, and torch inside the ranks.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from typing import Any, Dict, List, Optional

from topo_tune.on_node import nccl_conf
from topo_tune.on_node.trial import Trial, write_line

MARKER = "@topo-tune@ "
Json = Dict[str, Any]


def main(stdin: Any) -> int:
    """Serve requests until the input closes. `stdin` is an unbuffered binary file."""
    status = Agent(stdin.fileno()).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    # No interpreter clean-up: torch's takes a second, and nothing is left to clean up.
    os._exit(status)


def say(event: Json) -> None:
    """One marked line on standard output, written whole."""
    write_line(1, event, MARKER)


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
            for event in self.trial.events():
                say(event)
            if self.trial.is_over:
                self.trial = None
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
