"""One run of nccl-tests on one node or on several side by side, as one result: the slowest node's times. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from topo_tune.bench import tests_reading
from topo_tune.bench.tests_reading import Expected, Reading
from topo_tune.records.bench import SizeResult


class Ended(NamedTuple):
    """One command on one node."""

    reading: Reading
    status: int | None
    error: str | None
    """why the node ended it, if it did"""


def ended(event: Mapping[str, Any]) -> Ended:
    """From the `result` of on_node/tests_runner.py."""
    reading = tests_reading.read(str(event.get("output", "")), event.get("report"))
    return Ended(reading, event.get("status"), event.get("error"))


def outcome(nodes: Sequence[Ended], expected: Expected) -> tuple[tuple[SizeResult, ...], str | None]:
    """Results of all nodes together, or why they are of no use; wrong ones stay beside their reason."""
    errors = [_error(one, expected) for one in nodes]
    # What was aborted was so because of another node's error.
    told = sorted(filter(None, errors), key=lambda error: error.startswith("aborted"))
    each = [tests_reading.results(one.reading, expected) for one in nodes]
    if told:
        return tuple(result for found in each for result in found if result.is_correct is False), told[0]
    return tuple(_slowest(of_size) for of_size in zip(*each, strict=True)), None


def with_calls(
    found: tuple[SizeResult, ...], nodes: Sequence[Ended], expected: Expected
) -> tuple[SizeResult, ...]:
    """The results with calls that were timed one by one, where that run succeeded: it decides nothing else."""
    each = [tests_reading.single_seconds(one.reading, expected) for one in nodes]
    if not all(each):
        return found
    slowest = [_slowest_of(of_size) for of_size in zip(*each, strict=True)]
    return tuple(
        msgspec.structs.replace(result, single_seconds=calls)
        for result, calls in zip(found, slowest, strict=True)
    )


def versions(nodes: Sequence[Ended]) -> list[str]:
    """The NCCL that was measured, in words."""
    found = {one.reading.run.nccl_version for one in nodes if one.reading.run is not None}
    return [f"nccl-tests ran with NCCL {version}" for version in sorted(filter(None, found))]


def _error(one: Ended, expected: Expected) -> str | None:
    return one.error or tests_reading.failure(one.reading, one.status, expected)


def _slowest(of_size: Sequence[SizeResult]) -> SizeResult:
    checks = {result.is_correct for result in of_size}
    return msgspec.structs.replace(
        of_size[0],
        samples_seconds=_slowest_of([result.samples_seconds for result in of_size]),
        is_correct=True if checks == {True} else None,
    )


def _slowest_of(times: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(max(together) for together in zip(*times, strict=False))
