"""The questions that facts ask of a node: commands to run, files to read, variables to look up; answered raw.

What may leave the node is decided here: of a question with `keep` only the lines in which that regular
expression is found. A tool that hangs costs its own answers, a file that does not answer costs itself.
Standard library only, Python 3.8: it travels with the collector.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import select
import signal
import stat
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Pattern, Sequence, Set, Tuple

from topo_tune.on_node import nccl_conf
from topo_tune.on_node.probes import Commands, absence, clean, reap

RAW_OUTPUT_LIMIT_BYTES = 16 << 20
"""Of a command's output before its lines are chosen: a kernel's log buffer may be that large."""
KEPT_OUTPUT_LIMIT_BYTES = 2 << 20
"""Of a command's output that travels: `nvidia-smi -q -x` of 16 GPUs is about 1 MiB."""
OUTPUTS_LIMIT_BYTES = 6 << 20
"""Of one program's outputs together."""
FILES_LIMIT = 20_000
"""Files of one pattern: 64 ports of 256 GIDs each are 16,384."""
ALL_FILES_LIMIT = 50_000
"""Files of all patterns: at some 150 bytes each they stay below the limit of a probe's output."""
FILE_LIMIT_BYTES = 1 << 20
"""Of one file that is looked at, whatever a question asks."""
TEXTS_LIMIT_BYTES = 4 << 20
"""Of all files' texts together."""

MODES = ("text", "numbered", "link", "exists")
"""What is told of a file: its text; its text with `12:` in front of each line, so that lines which stay on the node
leave their numbers behind; where it leads; that it is there."""

# A file of /sys answers in microseconds; a driver in trouble may hold a lock for good.
_STALL_SECONDS = 2.0
# A second stall within a pattern is no accident: the files behind it wait for the same lock.
_STALLS_LIMIT = 2
_GRACE_SECONDS = 0.5

# What the kernel says of an entry that is there and empty, such as an unused place in a table of GIDs.
_EMPTY = (errno.EINVAL, errno.ENODATA, errno.ENODEV, errno.ENXIO)

Json = Dict[str, Any]
Keeps = List[Optional[str]]


class Place:
    """Where files live: below a root prefix, with /proc, /sys and `~` at places of their own.

    A pattern that begins with `$`, such as `$NCCL_TOPO_FILE`, is the file that this variable names.
    """

    def __init__(self, root: str, proc: str, sys: str, home: str, environment: Mapping[str, str]) -> None:
        self._root, self._home, self._environment = root, home, environment
        self._folders = (
            ("/sys/", sys),
            ("/proc/", proc),
            ("~/", nccl_conf.under(root, home)),
            ("/", nccl_conf.under(root, "/")),
            ("$", nccl_conf.under(root, "/")),
        )
        self._told = {"~/": home.rstrip("/") + "/", "$": "/"}

    def named_by(self, pattern: str) -> List[str]:
        """The file that a variable names, by NCCL's own rules; none where it is not set, or names no whole path."""
        named = nccl_conf.resolve(self._environment, self._root, self._home)
        value = named.get(pattern[1:], ("", ""))[0]
        # What begins elsewhere is looked for in the working directory of the job.
        return [nccl_conf.under(self._root, value)] if value.startswith("/") and "\0" not in value else []

    def on_machine(self, pattern: str) -> str:
        """The pattern that finds these files on this machine."""
        prefix, folder = self._of(pattern)
        return glob.escape(folder.rstrip("/")) + "/" + pattern[len(prefix) :]

    def literal(self, path: str) -> str:
        """The file on this machine, where a path without patterns leads."""
        prefix, folder = self._of(path)
        return folder.rstrip("/") + "/" + path[len(prefix) :]

    def without_prefix(self, pattern: str, path: str) -> str:
        """A path that this pattern found, as the node itself would name it."""
        prefix, folder = self._of(pattern)
        folder = folder.rstrip("/") + "/"
        named = self._told.get(prefix, prefix)
        return clean(named + path[len(folder) :] if path.startswith(folder) else path)

    def real(self, pattern: str, path: str) -> str:
        """Where a path that this pattern found really leads, as the node itself would name it."""
        prefix, folder = self._of(pattern)
        real, folder = os.path.realpath(path), os.path.realpath(folder).rstrip("/") + "/"
        named = self._told.get(prefix, prefix)
        return clean(named + real[len(folder) :] if real.startswith(folder) else real)

    def _of(self, pattern: str) -> Tuple[str, str]:
        return next((prefix, folder) for prefix, folder in self._folders if pattern.startswith(prefix))


class Questions:
    """A request's questions, each asked once, however many facts ask it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Raises ValueError where the request is of the wrong shape."""
        self.commands: Dict[Tuple[str, ...], Keeps] = {}
        self.files: Dict[Tuple[str, str], Tuple[Keeps, int]] = {}
        self.environment = _texts(request, "environment")
        for asked in _objects(request, "commands"):
            argv = tuple(_texts(asked, "argv"))
            if not argv or not argv[0] or "\0" in "".join(argv):
                raise ValueError("a command has no program")
            self.commands.setdefault(argv, []).append(_keep(asked))
        for asked in _objects(request, "files"):
            pattern, mode, limit = (
                asked.get("pattern"),
                asked.get("mode", "text"),
                asked.get("limit_bytes", 4096),
            )
            if (
                not isinstance(pattern, str)
                or not pattern.startswith(("/", "~/", "$NCCL_"))
                or "\0" in pattern
            ):
                raise ValueError("a file's pattern is no absolute path")
            if mode not in MODES:
                raise ValueError("`mode` of %s is none of %s" % (pattern, ", ".join(MODES)))
            if not isinstance(limit, int) or limit < 0:
                raise ValueError("`limit_bytes` of %s is no number of bytes" % pattern)
            keeps, largest = self.files.get((pattern, mode), ([], 0))
            limit = max(largest, min(limit, FILE_LIMIT_BYTES))
            self.files[(pattern, mode)] = ([*keeps, _keep(asked)], limit)

    def by_program(self) -> Dict[str, List[Tuple[Tuple[str, ...], Keeps]]]:
        """The commands of each program, in the order in which they were asked."""
        groups: Dict[str, List[Tuple[Tuple[str, ...], Keeps]]] = {}
        for argv, keeps in self.commands.items():
            groups.setdefault(argv[0], []).append((argv, keeps))
        return groups


def run_commands(commands: Commands, asked: Sequence[Tuple[Tuple[str, ...], Keeps]]) -> Json:
    """The answers of one program's commands, one after the other; what travels of them is bounded."""
    answers, absent, left = [], [], OUTPUTS_LIMIT_BYTES
    for argv, keeps in asked:
        name = "`%s`" % clean(" ".join(argv))
        kept, problem = _chooser(keeps)
        if problem:
            absent.append(absence(name, problem))
        if kept is None:
            answers.append(unanswered(argv, problem or "not asked"))
            continue
        answer = commands.run(argv, RAW_OUTPUT_LIMIT_BYTES)
        text = kept(answer["stdout"])
        limit = min(left, KEPT_OUTPUT_LIMIT_BYTES)
        if len(text) > limit:
            absent.append(absence(name, "only the first %d of %d characters were kept" % (limit, len(text))))
        answer["stdout"] = text[:limit]
        left -= len(answer["stdout"])
        answer["argv"] = [clean(word) for word in argv]
        answer["stderr"] = answer["stderr"][:4096]
        answers.append(answer)
    return {"commands": answers, "absent": absent}


def unanswered(argv: Tuple[str, ...], reason: str) -> Json:
    """The answer of a command that was not run."""
    words = [clean(word) for word in argv]
    return {"argv": words, "status": None, "stdout": "", "stderr": "", "absent": reason}


def read_files(questions: Questions, place: Place, until: float) -> Json:
    """Every file that the questions find, with its text or why there is none.

    A child reads and tells each file before it opens it; where one does not answer, the child is given up
    and another goes on behind that file.
    """
    reading = _Reading(questions, place, until - _GRACE_SECONDS)
    while not reading.is_done:
        reading.go_on()
    return {"files": reading.answers, "absent": reading.absent}


def variables(names: Sequence[str], environment: Mapping[str, str]) -> List[List[str]]:
    """The variables whose names were asked for, sorted."""
    whole = {name for name in names if not name.endswith("*")}
    beginnings = tuple(name[:-1] for name in names if name.endswith("*"))
    return [
        [clean(name), clean(nccl_conf.NOT_KEPT if name in nccl_conf.SECRETS else environment[name])]
        for name in sorted(environment)
        if name in whole or (beginnings and name.startswith(beginnings))
    ]


# --- reading files in children ------------------------------------------------------------------------------


class _Reading:
    """How far the reading has come, over as many children as it takes."""

    def __init__(self, questions: Questions, place: Place, until: float) -> None:
        self.answers: List[Json] = []
        self.absent: List[Json] = []
        self.is_done = False
        self._questions, self._place, self._until = questions, place, until
        self._texts_left = TEXTS_LIMIT_BYTES
        # The question that is being answered, its files so far, and the questions that are behind it.
        self._question: Optional[Tuple[str, str]] = None
        self._paths: List[str] = []
        self._behind: Set[Tuple[str, str]] = set()
        self._stalls = 0

    def go_on(self) -> None:
        """Let one child read until it is done, hangs or the time is used up."""
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            self._child(writing)
        os.close(writing)
        try:
            reason = self._listen(reading)
        finally:
            os.close(reading)
            os.kill(pid, signal.SIGKILL)
            reap(pid, 0.2)
        if reason is not None:
            self._give_up(reason)

    def _child(self, writing: int) -> None:
        """Tell every file, line by line; never comes back."""
        try:
            # Nothing of the parent's may be held open by a child that cannot be killed.
            os.dup2(writing, 3)
            os.closerange(4, 1024)
            signal.alarm(max(1, int(self._until - time.monotonic()) + 2))
            with os.fdopen(3, "w", encoding="ascii") as out:
                for line in self._lines():
                    out.write(json.dumps(line) + "\n")
                    if line[0] == "at":
                        # What follows may hang.
                        out.flush()
        finally:
            os._exit(0)

    def _lines(self) -> Iterator[List[Any]]:
        """`at` before each thing that may hang, `is` with each answer, `end`."""
        left = self._texts_left
        for (pattern, mode), (keeps, limit) in self._questions.files.items():
            if (pattern, mode) in self._behind:
                continue
            seen = set(self._paths) if (pattern, mode) == self._question else set()
            yield ["at", pattern, mode, None]
            kept, problem = _chooser(keeps, is_numbered=mode == "numbered")
            paths, answers = _found(self._place, pattern)
            if problem is not None:
                answers.append({"pattern": pattern, "path": pattern, "problem": problem})
            for answer in answers if not seen else []:
                yield ["is", answer]
            for path in paths:
                if kept is None or clean(path) in seen:
                    continue
                yield ["at", pattern, mode, clean(path)]
                answer = {"pattern": pattern, "path": self._place.without_prefix(pattern, path)}
                told = _told(self._place, pattern, path, mode, kept, min(limit, left))
                left -= len(told.get("text") or "")
                if told:
                    yield ["is", {**answer, **told}]
        yield ["end"]

    def _listen(self, reading: int) -> Optional[str]:
        """Why the child did not come to its end; None where it did."""
        rest, stall = b"", time.monotonic() + _STALL_SECONDS
        while not self.is_done:
            seconds = min(stall, self._until) - time.monotonic()
            if seconds <= 0 or not select.select([reading], [], [], seconds)[0]:
                return "gave no answer in %.1f s" % _STALL_SECONDS
            chunk = os.read(reading, 1 << 16)
            if not chunk:
                return "could not be read: the reading crashed"
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                self._hear(*json.loads(line.decode("ascii")))
            stall = time.monotonic() + _STALL_SECONDS
        return None

    def _hear(self, word: str, *told: Any) -> None:
        if word == "at":
            self._begin((told[0], told[1]))
            if told[2] is not None:
                self._paths.append(told[2])
        elif word == "is":
            self.answers.append(told[0])
            self._texts_left -= len(told[0].get("text") or "")
        self.is_done = self.is_done or word == "end"
        if len(self.answers) >= ALL_FILES_LIMIT and not self.is_done:
            self.absent.append(absence("files", "more than %d found; the rest is left out" % ALL_FILES_LIMIT))
            self.is_done = True

    def _begin(self, question: Tuple[str, str]) -> None:
        if question != self._question:
            if self._question is not None:
                self._behind.add(self._question)
            self._question, self._paths, self._stalls = question, [], 0

    def _give_up(self, reason: str) -> None:
        """Say what did not answer; the next child goes on behind it."""
        if self._question is None or time.monotonic() >= self._until:
            pattern = self._question[0] if self._question else "files"
            self.absent.append(absence(clean(pattern), "the time for this node was used up while reading"))
            self.is_done = True
            return
        self._stalls += 1
        pattern = self._question[0]
        path = self._place.without_prefix(pattern, self._paths[-1]) if self._paths else pattern
        self.answers.append({"pattern": pattern, "path": path, "problem": reason})
        if not self._paths or self._stalls >= _STALLS_LIMIT:
            self.absent.append(absence(clean(pattern), "%s; no more of these were read" % reason))
            self._behind.add(self._question)


def _found(place: Place, pattern: str) -> Tuple[List[str], List[Json]]:
    """The paths on this machine, and what kept them from being listed."""
    if pattern.startswith("$"):
        return place.named_by(pattern), []
    here = place.on_machine(pattern)
    if not glob.has_magic(pattern):
        # Read in any case: a folder that may not be searched must not look like a file that is not there.
        return [place.literal(pattern)], []
    head = place.literal(re.split(r"/[^/]*[*?\[]", pattern)[0] or "/")
    try:
        os.scandir(head).close()
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        path = place.without_prefix(pattern, head)
        return [], [{"pattern": pattern, "path": path, "problem": clean(error.strerror or str(error))}]
    paths = sorted(glob.iglob(here))
    if len(paths) <= FILES_LIMIT:
        return paths, []
    problem = "%d files found, the first %d read" % (len(paths), FILES_LIMIT)
    return paths[:FILES_LIMIT], [{"pattern": pattern, "path": pattern, "problem": problem}]


def _told(place: Place, pattern: str, path: str, mode: str, kept: Callable[[str], str], limit: int) -> Json:
    """What is told of one file; nothing of one that is not there, or of which nothing may be told."""
    try:
        if mode == "link":
            os.lstat(path)
            return {"text": place.real(pattern, path)}
        if mode == "exists":
            os.stat(path)
            return {"text": ""}
        return _text(path, kept, limit)
    except (FileNotFoundError, NotADirectoryError) as error:
        return {"problem": str(error.strerror)} if pattern.startswith("$") else {}
    except OSError as error:
        if error.errno in _EMPTY and kept is not _whole:
            return {}
        return {"problem": clean(error.strerror or str(error))}


def _text(path: str, kept: Callable[[str], str], limit: int) -> Json:
    # A pipe in place of a file must not be waited for.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return {"problem": "is not an ordinary file"}
        data = file.read(FILE_LIMIT_BYTES + 1)
    # Zero bytes end the lines of /proc/1/environ.
    whole = data[:FILE_LIMIT_BYTES].replace(b"\0", b"\n").decode("utf-8", "replace")
    text = kept(nccl_conf.without_secrets(whole))
    if kept is not _whole and not text:
        return {}
    if len(data) > FILE_LIMIT_BYTES:
        return {"text": text[:limit], "problem": "only the first %d bytes were looked at" % FILE_LIMIT_BYTES}
    if len(text) > limit:
        return {"text": text[:limit], "problem": "only the first %d of %d characters" % (limit, len(text))}
    return {"text": text}


# --- what may leave the node --------------------------------------------------------------------------------


def _whole(text: str) -> str:
    return text


def _chooser(keeps: Keeps, is_numbered: bool = False) -> Tuple[Optional[Callable[[str], str]], Optional[str]]:
    """What chooses the lines that any of the questions asks for, and what is wrong with one of them.

    None where nothing may leave the node, because no question can be understood.
    """
    patterns: List[Pattern[str]] = []
    problem: Optional[str] = None
    for keep in keeps:
        try:
            patterns.append(re.compile(keep or ""))
        except (re.error, OverflowError, RecursionError) as error:
            problem = "`keep` is no regular expression: %s" % clean(str(error))
    if None in keeps and not is_numbered:
        return _whole, problem
    if not patterns:
        return None, problem

    def chosen(text: str) -> str:
        found = [
            "%d:%s" % (number, line) if is_numbered else line
            for number, line in enumerate(text.split("\n"), 1)
            if any(pattern.search(line) for pattern in patterns)
        ]
        return "\n".join(found) + "\n" if any(found) else ""

    return chosen, problem


# --- the request --------------------------------------------------------------------------------------------


def _objects(request: Mapping[str, Any], name: str) -> List[Json]:
    given = request.get(name) or []
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise ValueError("`%s` is no list of objects" % name)
    return given


def _texts(request: Mapping[str, Any], name: str) -> List[str]:
    given = request.get(name) or []
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise ValueError("`%s` is no list of texts" % name)
    return given


def _keep(asked: Json) -> Optional[str]:
    keep = asked.get("keep")
    if not isinstance(keep, (str, type(None))):
        raise ValueError("`keep` is no text")
    return keep
