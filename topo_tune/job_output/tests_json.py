"""JSON files of nccl-tests (`-J`): formats 1 to 3 of `src/util.cu`.

The file holds the whole environment of the process, tokens and all: it is never looked at.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from topo_tune.errors import InputError
from topo_tune.job_output.tests_ranks import Rank, distinct_devices
from topo_tune.job_output.tests_run import version_of_code
from topo_tune.job_output.tests_trust import wrong_rows
from topo_tune.records.nccl_documents import MeasuredRow, MeasuredRun, MeasuredTime, NcclTests
from topo_tune.words import clipped

_MOST_ROWS = 20_000


def looks_like_json(text: str) -> bool:
    """Whether this is a file of `-J`: an object whose first keys are the format's."""
    return (
        re.match(r"\s{0,64}\{\s{0,64}\"version\"\s{0,8}:\s{0,8}\d{1,4}\s{0,8},\s{0,64}\"start_time\"", text)
        is not None
    )


def parse_json(text: str, *, file: str | None = None) -> NcclTests:
    """The run of a JSON file. Raises InputError where it is cut or is something else."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(
            f"not a whole JSON file of nccl-tests: {clipped(str(exc), 120)}",
            file=file,
            hint="a run that is killed leaves its file without an end; save the table that it printed instead",
        ) from exc
    if not isinstance(body, dict):
        raise InputError("not a JSON file of nccl-tests: it holds no object", file=file)
    run = _run(body)
    errors = [clipped(str(error), 200) for error in _list(body.get("errors")) if error]
    is_rccl = any("AMD" in name or "gfx" in name for name in run.gpu_names)
    return NcclTests((run,), errors[0] if errors else None, library="RCCL" if is_rccl else "NCCL")


def _run(body: dict[str, Any]) -> MeasuredRun:
    config = _object(body.get("config"))
    ranks = [rank for rank in map(_rank, _list(config.get("devices"))) if rank is not None]
    rows = tuple(row for row in map(_row, _list(body.get("results"))[:_MOST_ROWS]) if row is not None)
    bounds, average = _object(body.get("out_of_bounds")), _object(body.get("average_bus_bandwidth"))
    count = _whole(bounds.get("count"))
    wrong = wrong_rows(rows, count)
    local = (_whole(config.get("nthreads")) or 1) * (_whole(config.get("ngpus")) or 1)
    # Without MPI only the first of a process's ranks is written down.
    ranks_in_all = local if len(ranks) == 1 else len(ranks) or None
    devices = distinct_devices(ranks) if ranks_in_all == len(ranks) else None
    checked, graph = _whole(config.get("validation")), _whole(config.get("graph"))
    verdicts = [verdict for one in (bounds, average) if (verdict := _flag(one.get("okay"))) is not None]
    return MeasuredRun(
        ranks=ranks_in_all,
        hosts=tuple(dict.fromkeys(rank.host for rank in ranks)),
        gpu_names=tuple(dict.fromkeys(rank.gpu for rank in ranks)),
        devices=devices,
        test=_test(body.get("args")),
        nccl_version=version_of_code(_whole(body.get("nccl_version")) or 0),
        rows=rows,
        average_busbw_gb_per_s=_number(average.get("bandwidth")),
        out_of_bounds=count,
        failed=None if not verdicts else not all(verdicts),
        problems=tuple(_problems(ranks_in_all, devices, wrong, is_closed=bool(average))),
        validation=None if checked is None else checked > 0,
        is_graph=None if graph is None else graph > 0,
        wrong_results=bool(wrong),
    )


def _problems(ranks: int | None, devices: int | None, wrong: list[str], *, is_closed: bool) -> list[str]:
    found = ["one rank only: nothing was communicated"] if ranks == 1 else []
    if ranks is not None and devices is not None and devices < ranks:
        found.append(f"{ranks} ranks share {devices} GPU" + ("s" if devices > 1 else ""))
    found += wrong
    return found if is_closed else [*found, "the file has no closing values: the run did not end by itself"]


def _rank(value: object) -> Rank | None:
    device = _object(value)
    rank = _whole(device.get("rank"))
    if rank is None:
        return None
    return Rank(
        rank,
        _whole(device.get("group")) or 0,
        _whole(device.get("pid")) or 0,
        clipped(str(device.get("hostname", "")), 128),
        _whole(device.get("device")) or 0,
        clipped(str(device.get("device_hex", "")), 20),
        clipped(str(device.get("device_info", "")), 64),
    )


def _row(value: object) -> MeasuredRow | None:
    result = _object(value)
    size = _whole(result.get("size"))
    if size is None:
        return None
    redop = clipped(str(result.get("redop") or ""), 16)
    return MeasuredRow(
        size_bytes=size,
        count=_whole(result.get("count")) or 0,
        type=clipped(str(result.get("type", "")), 16),
        redop=redop or None,
        root=_whole(result.get("root")),
        out_of_place=_half(result.get("out_of_place")),
        in_place=_half(result.get("in_place")),
    )


def _half(value: object) -> MeasuredTime | None:
    half = _object(value)
    if not half:
        return None
    time = half.get("time", half.get("cpu_time"))
    return MeasuredTime(
        _number(time), _number(half.get("alg_bw")), _number(half.get("bus_bw")), _number(half.get("nwrong"))
    )


def _test(args: object) -> str | None:
    for word in _list(args)[:1]:
        found = re.search(r"([a-z][a-z_]{1,24}?)_perf(?:_mpi)?$", str(word)[:4096])
        if found is not None:
            return found.group(1)
    return None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    """A number of at most 18 digits; `root` is written as a string with blanks."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s{0,16}(-?\d{1,18})\s{0,16}", value)
        return int(found.group(1)) if found else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 10**18 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _flag(value: object) -> bool | None:
    """Truth values are written as the strings `true` and `false`; `unchecked` is neither."""
    return {"true": True, "false": False}.get(str(value).casefold())
