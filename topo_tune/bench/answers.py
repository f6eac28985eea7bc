"""What the ranks of a launch answered, as one result: merged, checked against what was asked, failures explained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from topo_tune.on_node.nccl_conf import NOT_KEPT
from topo_tune.records.bench import Launch, Overlap, SettingInForce, SizeResult, TimingMode
from topo_tune.records.nodeset import fold
from topo_tune.records.units import format_bytes

Answer = Mapping[str, Any]
"""of one rank: `rank`, `results`, `setup`, `in_force` or `log`, `error`"""

# NCCL ends the line of an integer with a period and that of a string without one (src/misc/param.cc, src/debug.cc).
_SET = re.compile(r"(NCCL_\w+) set by environment to (?:(-?\d+)\.|(.+))$")

# What a rank tells when its peer has gone, and an agent when another node has failed: never the cause.
_CONSEQUENCE = re.compile(r"^aborted|connection (closed|reset) by peer|broken pipe", re.IGNORECASE)


def merge_ranks(answers: Sequence[Answer]) -> tuple[SizeResult, ...]:
    """One result a size that all ranks have: sample by sample the slowest rank's time, correct only if all are."""
    return tuple(_merged(of_size) for of_size in zip(*(a["results"] for a in answers), strict=False))


def _merged(of_size: Sequence[Answer]) -> SizeResult:
    first = of_size[0]
    checks = [result["is_correct"] for result in of_size]
    return SizeResult(
        size_bytes=first["size_bytes"],
        samples_seconds=_slowest(of_size, "samples_seconds"),
        calls_per_sample=first["calls_per_sample"],
        mode=TimingMode(first["mode"]),
        is_correct=False if False in checks else None if None in checks else True,
        warmup_seconds=_slowest(of_size, "warmup_seconds"),
        single_seconds=_slowest(of_size, "single_seconds"),
        slower_than_seconds=first.get("slower_than_seconds"),
        overlap=_overlap([result["overlap"] for result in of_size if result.get("overlap")]),
    )


def _slowest(of_size: Sequence[Answer], name: str) -> tuple[float, ...]:
    return tuple(max(times) for times in zip(*(result.get(name) or () for result in of_size), strict=True))


def _overlap(found: Sequence[Answer]) -> Overlap | None:
    """The slowest rank's time of each part; None where no rank measured it."""
    if not found:
        return None
    return Overlap(**{name: max(one[name] for one in found) for name in Overlap.__struct_fields__})


def wrong_results(answers: Iterable[Answer], collective: str) -> str | None:
    """An error text that names sizes and ranks, when a result was wrong anywhere; None where all are right."""
    sizes: dict[int, None] = {}
    ranks = set()
    for answer in answers:
        for result in answer["results"]:
            if result["is_correct"] is False:
                sizes[result["size_bytes"]] = None
                ranks.add(int(answer["rank"]))
    if not ranks:
        return None
    return f"wrong {collective} at {', '.join(map(format_bytes, sorted(sizes)))} on {_ranks(ranks)}"


def was_wrong(launch: Launch) -> bool:
    """Whether a result of it was wrong: such a setting is never measured again."""
    return any(result.is_correct is False for result in launch.results)


def not_in_force(
    answers: Iterable[Answer],
    asked: Mapping[str, str],
    *,
    configured: Mapping[str, str],
    gone: Mapping[str, str],
) -> str | None:
    """An error text when a rank had another setting than it should have had; None where all had it.

    `asked`: variables that must have reached every rank. `configured`: what its communicator was given instead of the
    variable, which would win over it. `gone`: what settings before this one in the same processes had and this one
    has not. A rank that does not tell its variables is not judged.
    """
    wrong: dict[str, list[int]] = {}
    for answer in answers:
        found = answer.get("in_force")
        if found is None:
            continue
        # A field of the configuration leaves no variable behind.
        expected = {**asked, **{name: value for name, value in configured.items() if name in found}}
        for name, value in expected.items():
            if found.get(name) not in (value, NOT_KEPT):
                has = f"it has {found[name]}" if name in found else "it is not set there"
                wrong.setdefault(f"{name}={value} did not reach {{}}: {has}", []).append(answer["rank"])
        for name, value in gone.items():
            # Where the processes had the same by themselves, as from a file, it is rightly back.
            if found.get(name) == value and answer.get("back", {}).get(name) != value:
                told = f"{name}={value} of an earlier setting is still in force on {{}}"
                wrong.setdefault(told, []).append(answer["rank"])
    return next((text.replace("{}", _ranks(ranks)) for text, ranks in wrong.items()), None)


def _ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-7`."""
    numbers = sorted(set(ranks))
    folded = fold(f"rank{number}" for number in numbers)
    return f"rank{'s' * (len(numbers) > 1)} {folded.removeprefix('rank').strip('[]')}"


def cause(results: Iterable[Answer]) -> str | None:
    """Why a trial failed, or None: the error that came first, since the others most likely follow from it."""
    errors = [str(result["error"]) for result in results if not result["ok"]]
    return next(iter(sorted(errors, key=lambda text: _CONSEQUENCE.search(text) is not None)), None)


def settings_in_log(rank: int, node: str, lines: Iterable[str]) -> tuple[SettingInForce, ...]:
    """The variables that a rank's NCCL log says it took; the first line of a name is kept as the evidence."""
    found: dict[str, SettingInForce] = {}
    for line in lines:
        match = _SET.search(line)
        if match and match[1] not in found:
            found[match[1]] = SettingInForce(
                rank=rank, node=node, name=match[1], value=match[2] or match[3], evidence=line
            )
    return tuple(found.values())
