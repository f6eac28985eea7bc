"""Saved output of nccl-tests and rccl-tests: their tables and JSON files, and NCCL's own lines among them."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.job_output.log_lines import LogLine, log_lines, unread
from topo_tune.job_output.tests_json import looks_like_json, parse_json
from topo_tune.job_output.tests_output import cause_in, runs_in
from topo_tune.job_output.tests_run import ONE_RANK
from topo_tune.records.nccl_documents import MeasuredRun, NcclTests
from topo_tune.scan.documents import nccl_log
from topo_tune.scan.facts.fact import SavedKind


def parse(text: str, *, file: str | None = None) -> NcclTests:
    """Every run of the file. Raises InputError where there is no table, no run and no reason for having none."""
    if looks_like_json(text):
        return parse_json(text, file=file)
    lines = log_lines(text)
    plain = [line for line in lines if not line.level]
    runs, cause = runs_in(plain), cause_in(plain)
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


_RANKS = re.compile(r"\bn[Rr]anks (\d{1,7})\b")
_RCCL = re.compile(r"rccl-tests|RCCL version|Librccl|AMD Instinct|\bgfx9\d")
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
