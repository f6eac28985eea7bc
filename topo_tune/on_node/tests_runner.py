"""Runs the binaries of nccl-tests, or a launcher that starts them, and never leaves one behind.

It reads JSON lines from standard input and answers in marked JSON lines. When its input closes or a deadline passes, it
ends the command's whole process group: first as an operator would, so that a launcher can end its processes on other
nodes, then by force.

    -> {"op": "start"}                                  <- {"event": "ready", "python", "gpus", "hostname"}
    -> {"op": "look", "candidates": [argv, ...]}        <- {"event": "looked", "found", "help", "error"}
    -> {"op": "run", "id", "argv", "deadline_seconds", "node"}
                                                        <- {"event": "result", "id", "ok", "error", "status", "output",
                                                            "report", "seconds", "node"}
    -> {"op": "abort", "id"}                            <- the result, with an error

A word `{report}` in argv becomes the path of a file that is read and removed when the command has ended: the JSON that
nccl-tests writes there holds the environment of the process, tokens and all, which leaves this node with nobody.

Runs under Python 3.8 and newer; standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

MARKER = "@topo-tune@ "
Json = Dict[str, Any]

OUTPUT_LIMIT_BYTES = 8 << 20
"""of a command; a table of every size is a thousandth of it, a log of hundreds of ranks may be more"""
REPORT_LIMIT_BYTES = 64 << 20
HELP_SECONDS = 60.0
"""loading CUDA's libraries from a cold network file system can take as long"""
ENDING_SECONDS = 5.0
"""how long a launcher has to end its processes before it is killed"""

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: a child must not take the dynamic loader's lock.
_LIBC = ctypes.CDLL(None)


def main(stdin: Any) -> int:
    """Serve requests until the input closes. `stdin` is an unbuffered binary file."""
    return Runner(stdin.fileno()).serve()


def say(event: Json) -> None:
    """One marked line on standard output, written whole."""
    data = (MARKER + json.dumps(event) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


class Runner:
    """The request loop. Holds at most one running command."""

    def __init__(self, input_fd: int) -> None:
        self.input_fd = input_fd
        self.pending = b""
        self.running: Optional[Running] = None

    def serve(self) -> int:
        """Handle requests and watch the running command until the input closes."""
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
            if self.running is not None:
                self.running.end()

    def _step(self) -> bool:
        watched = [self.input_fd] + (self.running.open_pipes() if self.running else [])
        readable, _, _ = select.select(watched, [], [], self.running.seconds_left() if self.running else None)
        if self.running is not None:
            self.running.read(readable)
            answer = self.running.answer_if_over()
            if answer is not None:
                self.running = None
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
            say(
                {
                    "event": "ready",
                    "python": "%d.%d.%d" % sys.version_info[:3],
                    "gpus": count_gpus(),
                    "hostname": socket.gethostname(),
                }
            )
        elif operation == "look":
            say(look(request["candidates"]))
        elif operation == "run":
            if self.running is not None:
                say(
                    {
                        "event": "result",
                        "id": request["id"],
                        "ok": False,
                        "error": "another command is running",
                    }
                )
                return
            self.running = Running(request)
        elif operation == "abort":
            if self.running is not None and self.running.identity == request.get("id"):
                self.running.give_up("aborted: " + str(request.get("reason", "asked to")))
        else:
            say({"event": "error", "error": "unknown operation `%s`" % operation})


class Running:
    """One command from its start to its answer."""

    def __init__(self, request: Json) -> None:
        self.identity = request["id"]
        self.node = request.get("node")
        self.started = time.monotonic()
        self.deadline = self.started + float(request["deadline_seconds"])
        self.deadline_seconds = float(request["deadline_seconds"])
        self.error: Optional[str] = None
        self.output = bytearray()
        self.left_out = 0
        self.folder = tempfile.mkdtemp(prefix="topo-tune-")
        self.report = os.path.join(self.folder, "report.json")
        self.process: Optional["subprocess.Popen[bytes]"] = None
        argv = [self.report if word == "{report}" else word for word in request["argv"]]
        try:
            # NCCL's own lines and those of the launcher stand among the table's: one stream keeps their order.
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as exc:
            self.error = "cannot start `%s`: %s" % (argv[0], exc.strerror or exc)

    def open_pipes(self) -> List[int]:
        """What may be read."""
        return [self.process.stdout.fileno()] if self.process and self.process.stdout else []

    def seconds_left(self) -> float:
        """Until something has to be done without any output."""
        if self.error is not None:
            return 0.0
        return max(0.0, min(self.deadline - time.monotonic(), 0.5))

    def give_up(self, error: str) -> None:
        """End it in the next step, for this reason."""
        self.error = self.error or error

    def read(self, readable: List[int]) -> None:
        """Take what has been written."""
        for descriptor in self.open_pipes():
            if descriptor not in readable:
                continue
            data = os.read(descriptor, 1 << 16)
            if not data and self.process is not None and self.process.stdout is not None:
                self.process.stdout.close()
                self.process.stdout = None
            room = max(0, OUTPUT_LIMIT_BYTES - len(self.output))
            self.output += data[:room]
            self.left_out += len(data) - len(data[:room])

    def answer_if_over(self) -> Optional[Json]:
        """The answer, once the command has ended or was given up."""
        if self.error is None and time.monotonic() >= self.deadline:
            self.error = "deadline of %g s passed" % self.deadline_seconds
        is_over = self.process is None or _has_ended(self.process)
        if self.error is None and not is_over:
            return None
        # What it wrote just before it ended is still in the pipe. A grandchild may hold the pipe open for ever.
        while is_over and self.open_pipes() and select.select(self.open_pipes(), [], [], 0)[0]:
            self.read(self.open_pipes())
        seconds = time.monotonic() - self.started
        report = self._report()
        self.end()
        status = None if self.process is None else self.process.returncode
        if self.left_out:
            self.error = self.error or "it wrote %d bytes too many" % self.left_out
        return {
            "event": "result",
            "id": self.identity,
            "node": self.node,
            "ok": self.error is None and status == 0,
            "error": self.error,
            "status": status,
            "output": self.output.decode("utf-8", "replace"),
            "report": report,
            "seconds": round(seconds, 3),
        }

    def end(self) -> None:
        """Nothing of the command is left: neither its processes nor its files."""
        if self.process is not None:
            _end_group(self.process)
            if self.process.stdout is not None:
                self.process.stdout.close()
                self.process.stdout = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _report(self) -> Optional[Json]:
        """The JSON that nccl-tests wrote, without the environment; None where there is none, or half of one."""
        try:
            if os.path.getsize(self.report) > REPORT_LIMIT_BYTES:
                return None
            with open(self.report, encoding="utf-8", errors="replace") as file:
                report = json.load(file)
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(report, dict):
            return None
        report.pop("env", None)
        return report


def look(candidates: List[List[str]]) -> Json:
    """Which of these commands is there, and what it says of its options."""
    tried = []
    for argv in candidates:
        if shutil.which(argv[0]) is None:
            tried.append(argv[0])
            continue
        try:
            made = subprocess.run(
                [*argv, "--help"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=HELP_SECONDS,
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as exc:
            return {"event": "looked", "found": argv, "help": "", "error": str(exc)}
        return {
            "event": "looked",
            "found": argv,
            "help": made.stdout.decode("utf-8", "replace")[: 64 << 10],
            "error": None,
        }
    return {"event": "looked", "found": None, "help": "", "error": "not found: " + ", ".join(tried)}


def count_gpus(root: str = "/") -> Optional[int]:
    """GPUs that a process here may use; None where nothing tells."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([word for word in visible.split(",") if word.strip() not in ("", "-1")])
    try:
        return len(os.listdir(os.path.join(root, "proc/driver/nvidia/gpus"))) or None
    except OSError:
        pass
    try:
        devices = os.listdir(os.path.join(root, "dev"))
    except OSError:
        return None
    return len([name for name in devices if re.match(r"nvidia\d+$", name)]) or None


def _die_with_parent() -> None:
    """The command ends when this process is killed by force; a launcher then ends its processes on other nodes."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether it has ended; its number is not given away yet, so that its group can still be addressed."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started here: asked first, then by force."""
    if process.returncode is not None:
        return
    if not _has_ended(process):
        _signal_group(process.pid, signal.SIGTERM)
        until = time.monotonic() + ENDING_SECONDS
        while not _has_ended(process) and time.monotonic() < until:
            time.sleep(0.02)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # Nobody is left, or what is left is not ours.
        pass
