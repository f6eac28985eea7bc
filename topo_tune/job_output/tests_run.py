"""One run of nccl-tests, line by line: who took part, what was measured, how it ended."""

from __future__ import annotations

import re

from topo_tune.job_output import tests_row
from topo_tune.job_output.tests_ranks import Rank, distinct_devices, rank_of
from topo_tune.job_output.tests_trust import wrong_rows
from topo_tune.records.nccl_documents import MeasuredRow, MeasuredRun
from topo_tune.words import clipped

ONE_RANK = "one rank only: nothing was communicated"
_MOST_ROWS = 20_000
_MOST_RANKS = 65_536

_START = re.compile(r"\s*(?:# ?)?(?:nThreads?:? \d{1,5} nGpus|nccl-tests version|Collective test starting)")
_PROGRAM = re.compile(r"\b([a-z][a-z_]{1,24}?)_perf(?:_mpi)?\b")
_OPTION = re.compile(r"(validation|graph|minBytes|maxBytes):? (\d{1,18})")
_AVERAGE = re.compile(r"Avg bus bandwidth +: +([-+.\deE]{1,40}|nan) ?(OK|FAILED)?")
_BOUNDS = re.compile(r"Out of bounds values +: +(\d{1,18}) (OK|FAILED)")
_VERSION = re.compile(r"\b[NR]CCL version ?:? ?(\d{1,3}(?:\.\d{1,5}){1,3}[\w.+:-]{0,60})")
_LIBRARY = re.compile(r"nccl-library=(\d{4,6})")
_REDUCED = re.compile(r"Reducing maxBytes to (\d{1,18})")


def version_of_code(code: int) -> str | None:
    """`2.28.9` of 22809, `2.7.8` of 2708: NCCL_VERSION_CODE, whose digits grew with 2.9 (`src/nccl.h.in`)."""
    if 2000 <= code < 10_000:
        return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    if 10_000 <= code < 1_000_000:
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return None


class Run:
    """What was read of a run so far."""

    def __init__(self) -> None:
        self.test: str | None = None
        self.ranks: list[Rank] = []
        self.columns: tests_row.Layout | None = None
        self.rows: list[MeasuredRow] = []
        self.cut: list[int] = []
        self.version: str | None = None
        self.average: float | None = None
        self.out_of_bounds: int | None = None
        self.verdicts: list[bool] = []
        self.options: dict[str, int] = {}
        self.reduced_to: int | None = None
        self._open: tests_row.PartialRow | None = None
        self._has_table = False
        self._is_closed = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a run was there: neither ranks nor a table nor its closing lines."""
        return not (self.ranks or self._has_table or self._is_closed)

    def is_over_before(self, line: str) -> bool:
        """Whether this line belongs to the next run."""
        if self._is_closed and ("nThread" in line or "_perf" in line or "Rank" in line or "size" in line):
            return bool(_START.match(line) or _is_command(line) or rank_of(line) or tests_row.layout(line))
        return bool((self._has_table or self.ranks) and _START.match(line))

    def take(self, line: str) -> None:
        """One more line of the run."""
        if self._take_row(line):
            return
        rank = rank_of(line) if "Rank" in line else None
        if rank is not None:
            if len(self.ranks) < _MOST_RANKS:
                self.ranks.append(rank)
            return
        columns = tests_row.layout(line) if "busbw" in line else None
        if columns is not None:
            self.columns, self._has_table = columns, True
            return
        self._take_words(line)

    # --- rows ---

    def _take_row(self, line: str) -> bool:
        begun = tests_row.begun(line)
        if begun is not None and self._is_full:
            return True
        if begun is not None:
            self._close_row()
            self._open, self._has_table = begun, True
        elif self._open is not None:
            more = tests_row.continued(self._open, line)
            if more is None:
                return False
            self._open = more
        else:
            return False
        if tests_row.missing(self._open, self.columns) == 0:
            self._close_row()
        return True

    @property
    def _is_full(self) -> bool:
        return len(self.rows) + len(self.cut) >= _MOST_ROWS

    def _close_row(self) -> None:
        if self._open is None:
            return
        partial, self._open = self._open, None
        row = tests_row.row(partial, self.columns)
        if tests_row.missing(partial, self.columns) > 0:
            self.cut.append(partial.size_bytes)
        if row is not None:
            self.rows.append(row)

    # --- everything else ---

    def _take_words(self, line: str) -> None:
        text = line[:2000]
        if "bandwidth" in text or "Out of bounds" in text:
            self._take_closing(text)
        elif "nThread" in text:
            self.options |= {name: int(value) for name, value in _OPTION.findall(text)}
        elif "_perf" in text:
            self._take_program(text)
        version = _VERSION.search(text) if "CCL version" in text else None
        if version is not None:
            self.version = version.group(1)
        library = _LIBRARY.search(text) if "nccl-library" in text else None
        if library is not None:
            self.version = self.version or version_of_code(int(library.group(1)))
        reduced = _REDUCED.search(text) if "Reducing" in text else None
        if reduced is not None:
            self.reduced_to = int(reduced.group(1))

    def _take_program(self, text: str) -> None:
        program = _PROGRAM.search(text)
        if program is None:
            return
        if "concluded" in text or not self._is_closed:
            self.test = self.test or clipped(program.group(1), 32)

    def _take_closing(self, text: str) -> None:
        bounds, average = _BOUNDS.search(text), _AVERAGE.search(text)
        if bounds is None and average is None:
            return
        self._close_row()
        self._is_closed = True
        if bounds is not None:
            self.out_of_bounds = int(bounds.group(1))
            self.verdicts.append(bounds.group(2) == "OK")
        if average is not None:
            self.average = _number(average.group(1))
            if average.group(2) is not None:
                self.verdicts.append(average.group(2) == "OK")

    @property
    def _has_communicated(self) -> bool:
        """Whether a bus bandwidth is there that one rank alone cannot have: only with a root its factor is not 0."""
        halves = (
            half
            for row in self.rows
            if row.root in (None, -1)
            for half in (row.out_of_place, row.in_place)
            if half is not None
        )
        return any((half.busbw_gb_per_s or 0) > 0 for half in halves)

    # --- the whole ---

    def record(self) -> MeasuredRun:
        """The run as far as it was read."""
        self._close_row()
        repeated = len({(rank.group, rank.rank) for rank in self.ranks}) < len(self.ranks)
        ranks = max((rank.rank + 1 for rank in self.ranks), default=0)
        # A list that lost a line tells neither how many GPUs there were nor whether one was shared.
        devices = distinct_devices(self.ranks) if ranks <= len(self.ranks) else None
        wrong = wrong_rows(self.rows, self.out_of_bounds)
        checked = self.options.get("validation")
        graph = self.options.get("graph")
        return MeasuredRun(
            ranks=max(ranks, len(self.ranks)) or None,
            hosts=tuple(dict.fromkeys(rank.host for rank in self.ranks)),
            gpu_names=tuple(dict.fromkeys(rank.gpu for rank in self.ranks)),
            devices=devices,
            test=self.test,
            nccl_version=self.version,
            rows=tuple(self.rows),
            average_busbw_gb_per_s=self.average,
            out_of_bounds=self.out_of_bounds,
            failed=None if not self.verdicts else not all(self.verdicts),
            problems=tuple(self._problems(devices, repeated=repeated, wrong=wrong)),
            validation=None if checked is None else checked > 0,
            is_graph=None if graph is None else graph > 0,
            wrong_results=bool(wrong),
            repeated_ranks=repeated,
        )

    def _problems(self, devices: int | None, *, repeated: bool, wrong: list[str]) -> list[str]:
        found = []
        if repeated:
            found.append(
                "ranks appear more than once: the processes did not form one job (built without MPI?)"
            )
        elif len(self.ranks) == 1 and self.ranks[0].rank == 0 and not self._has_communicated:
            found.append(ONE_RANK)
        if devices is not None and not repeated and devices < len(self.ranks):
            found.append(f"{len(self.ranks)} ranks share {devices} GPU" + ("s" if devices > 1 else ""))
        found += wrong
        if self.cut:
            found.append(f"{len(self.cut)} row(s) cut, the first of {self.cut[0]} bytes")
        if self._is_full:
            found.append(f"only the first {_MOST_ROWS} rows were read")
        asked = self.options.get("minBytes")
        if asked and self.rows and 0 < self.rows[0].size_bytes < asked:
            found.append(
                f"the smallest size is {self.rows[0].size_bytes} bytes where {asked} were asked: rounded"
            )
        if self.reduced_to is not None:
            found.append(f"the largest size was cut to {self.reduced_to} bytes for lack of memory")
        if not self._is_closed:
            found.append("the table has no closing lines: the run did not end by itself")
        return found


def _is_command(line: str) -> bool:
    """Whether a shell traced or was given a command that starts a test."""
    return bool(re.match(r"\s*(?:\+|\$|\S{1,80}[$#>]) ", line[:200]) and _PROGRAM.search(line[:2000]))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e12 else None
