"""Output of nccl-tests and rccl-tests: their tables, of any generation, and their JSON files.

What the columns are, the table's own header tells; where the header is lost, the shape of the rows does. Formats are
those of `src/common.cu` and `src/util.cu` of NVIDIA/nccl-tests from 2016 to 2.20.
"""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.nccl_documents import MeasuredRun, NcclTests
from topo_tune.scan.documents import nccl_log
from topo_tune.scan.documents.log_lines import LogLine, log_lines, unread
from topo_tune.scan.documents.tests_json import looks_like_json, parse_json
from topo_tune.scan.documents.tests_run import ONE_RANK, Run
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.words import clipped

_MOST_RUNS = 1000
_RANKS = re.compile(r"\bn[Rr]anks (\d{1,7})\b")


def parse(text: str, *, file: str | None = None) -> NcclTests:
    """Every run of the file. Raises InputError where there is no table, no run and no reason for having none."""
    if looks_like_json(text):
        return parse_json(text, file=file)
    lines = log_lines(text)
    plain = [line for line in lines if not line.level]
    runs = _runs(plain)
    cause = next((reason for line in plain if (reason := _failure(line.text)) is not None), None)
    if not runs and cause is None:
        raise InputError(
            "no output of nccl-tests: expected a table that begins `#       size         count      type`",
            file=file,
            hint="save what `all_reduce_perf -b 8 -e 8G -f 2` writes, or its `-J FILE`",
        )
    if len(runs) == 1:
        runs = (_with_all_ranks(runs[0], lines),)
    is_rccl = _RCCL.search(text) is not None
    log = nccl_log.read(lines) if any(line.level for line in lines) else None
    return NcclTests(runs, cause, library="RCCL" if is_rccl else "NCCL", log=log)


def _with_all_ranks(run: MeasuredRun, lines: list[LogLine]) -> MeasuredRun:
    """The run with the ranks that NCCL's own lines tell, where its list of them has fewer: mails lose lines."""
    found = (_RANKS.search(line.text) for line in lines if line.level and "anks " in line.text)
    told = max((int(ranks.group(1)) for ranks in found if ranks), default=0)
    if told <= (run.ranks or 0):
        return run
    problems = tuple(problem for problem in run.problems if problem != ONE_RANK)
    hosts = dict.fromkeys((*run.hosts, *(line.host for line in lines if line.level)))
    return msgspec.structs.replace(
        run, ranks=told, devices=None, hosts=tuple(hosts)[: nccl_log.MOST], problems=problems
    )


def _runs(lines: list[LogLine]) -> tuple[MeasuredRun, ...]:
    runs: list[MeasuredRun] = []
    run = Run()
    for line in lines:
        if run.is_over_before(line.text):
            if not run.is_empty:
                runs.append(run.record())
            if len(runs) >= _MOST_RUNS:
                return tuple(runs)
            run = Run()
        run.take(line.text)
    if not run.is_empty:
        runs.append(run.record())
    return tuple(runs)


_RCCL = re.compile(r"rccl-tests|RCCL version|Librccl|AMD Instinct|\bgfx9\d")
_GAVE_UP = ("satisfy the", "failure", "Invalid number", "error", "unable to find", "_perf", "terminated")
_FAILURES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"satisfy the (\d{1,6})"), "not enough slots for {} processes"),
    (re.compile(r"Test (?:NCCL|CUDA) failure \S{1,80} '([^']{1,120})"), "{}"),
    (re.compile(r"(Invalid number of GPUs: \d{1,6} requested but only \d{1,6} were found)"), "{}"),
    (
        re.compile(r"(error while loading shared libraries: [^:]{1,120}: [^\n]{1,120})"),
        "{}",
    ),
    (re.compile(r"(unable to find the specified executable file)"), "{}"),
    (re.compile(r"(\w{1,32}_perf\w{0,16}: (?:command not found|No such file or directory))"), "{}"),
    (re.compile(r"(?:srun|slurmstepd): error: ([^\n]{1,160})"), "{}"),
    (
        re.compile(r"(Primary job  ?terminated normally, but)"),
        "a process returned an error and the job was ended",
    ),
)


def _failure(text: str) -> str | None:
    """Why the launcher or the test gave up, if this line tells."""
    if not any(word in text for word in _GAVE_UP):
        return None
    for pattern, words in _FAILURES:
        found = pattern.search(text[:2000])
        if found is not None:
            return clipped(words.format(found.group(1)), 200)
    return None


_IS_TABLE = re.compile(
    r"\bsize +count +(?:\(elements\) +)?type +redop|\bAvg bus bandwidth +:|Test (?:NCCL|CUDA) failure "
    r"|^[ \w\[\],<>:.-]{0,60}# ?(?:nThreads?:? \d{1,5} nGpus:? \d|nccl-tests version|Collective test starting)",
    re.M,
)
_IS_LAUNCH = re.compile(
    r"not enough slots available|unable to find the specified executable|(?:srun|slurmstepd): error:"
    r"|error while loading shared libraries"
)
_PROGRAM = re.compile(
    r"\b(?:all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|gather)_perf"
)


def _recognise(text: str) -> bool:
    if looks_like_json(text) or _IS_TABLE.search(text) is not None:
        return True
    return _IS_LAUNCH.search(text) is not None and _PROGRAM.search(text) is not None


def _document(text: str, file: str) -> tuple[NcclTests, tuple[str, ...]]:
    return parse(text, file=file), unread(text)


KINDS: tuple[SavedKind, ...] = (SavedKind("nccl-tests output", _recognise, document=_document),)
