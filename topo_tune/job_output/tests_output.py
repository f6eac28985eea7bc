"""What nccl-tests and rccl-tests print: tables of any generation, and why there is none.

What the columns are, the table's own header tells; where the header is lost, the shape of the rows does. Formats are
those of `src/common.cu` and `src/util.cu` of NVIDIA/nccl-tests from 2016 to 2.20.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from topo_tune.job_output.log_lines import LogLine
from topo_tune.job_output.tests_run import Run
from topo_tune.records.nccl_documents import MeasuredRun
from topo_tune.words import clipped

_MOST_RUNS = 1000


def runs_in(lines: Iterable[LogLine]) -> tuple[MeasuredRun, ...]:
    """Every run among these lines, none of which is NCCL's own."""
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


def cause_in(lines: Iterable[LogLine]) -> str | None:
    """Why the launcher or the test gave up, by the first line that tells; None where none does."""
    return next((reason for line in lines if (reason := _failure(line.text)) is not None), None)


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
            # nccl-tests puts the last error of NCCL behind a stroke, and often there is none.
            return clipped(words.format(found.group(1).rstrip(" /")), 200)
    return None
