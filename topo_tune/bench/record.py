"""Launches on file: appended after each one, and read back instead of measured again when a run goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from topo_tune.errors import BrokenRecord, Refused
from topo_tune.records.bench import BenchPlan, Launch
from topo_tune.records.envelope import append_line, load_conditions, load_lines, save_lines_head
from topo_tune.records.inventory import Inventory
from topo_tune.records.nccl_env import NcclEnv

Measure = Callable[[NcclEnv, str, int], Launch]
"""(setting, purpose, index) -> launch"""

MeasureAll = Callable[[tuple[NcclEnv, ...], int, Callable[[Launch], None]], object]
"""(settings, index of the first launch, what each launch is handed to as soon as it has ended)"""


class RecordedLaunches:
    """A file of launches with a reading head: what is on file is given back, what lies beyond it is measured.

    An interrupted search goes on where it stopped because searches are deterministic: asked the same questions in the
    same order they get the recorded answers until the record ends.
    """

    def __init__(
        self,
        path: Path,
        measure: Measure,
        *,
        append_only: bool = False,
        conditions: Mapping[str, str] | None = None,
    ) -> None:
        """`append_only`: never give back what is on file; a guard must measure now, whatever it measured before.

        `conditions`: what is measured, as `conditions_of` tells; None: whoever asks has checked it. Raises Refused when
        the file's are others, BrokenRecord when the launches on file are not numbered as they stand.
        """
        self._path = path
        self._measure = measure
        if not path.exists():
            save_lines_head(path, Launch, conditions=conditions)
        elif conditions is not None:
            _check_conditions(path, conditions)
        self._launches = list(load_lines(path, Launch))
        for position, launch in enumerate(self._launches):
            if launch.index != position:
                raise BrokenRecord(
                    f"{path}: launch {launch.index} stands where launch {position} belongs",
                    hint="two runs wrote into it, or it was edited by hand; use a new file",
                )
        self._next = len(self._launches) if append_only else 0

    @property
    def recorded(self) -> int:
        """How many launches are on file."""
        return len(self._launches)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every launch on file, in order."""
        return tuple(self._launches)

    def evaluate(self, env: NcclEnv, purpose: str) -> Launch:
        """The next launch: from the file while it lasts, measured and appended afterwards.

        Raises BrokenRecord when the file tells of another search than the one that asks.
        """
        index = self._next
        self._next += 1
        if index < len(self._launches):
            launch = self._launches[index]
            if (launch.env, launch.purpose) != (env, purpose):
                raise self._told_of_another(launch, f"a {purpose} of {env}")
            return launch
        launch = self._measure(env, purpose, index)
        self._append(launch)
        return launch

    def evaluate_all(
        self, settings: Sequence[NcclEnv], purpose: str, collective: str, measure: MeasureAll
    ) -> tuple[Launch, ...]:
        """The next launches, one of each setting: from the file while it lasts, the others by `measure`.

        They come in the order in which they were made, which `measure` chooses. Raises BrokenRecord when the file tells
        of other launches than these.
        """
        left = list(settings)
        found = self._launches[self._next : self._next + len(left)]
        for launch in found:
            if launch.env not in left or (launch.purpose, launch.collective) != (purpose, collective):
                wanted = " or ".join(str(env) for env in left)
                raise self._told_of_another(launch, f"a {purpose} of {wanted}, {collective}")
            left.remove(launch.env)
        first = self._next
        self._next += len(found)
        if left:
            measure(tuple(left), self._next, self._append_next)
        return tuple(self._launches[first : self._next])

    def _append_next(self, launch: Launch) -> None:
        self._append(launch)
        self._next += 1

    def _append(self, launch: Launch) -> None:
        append_line(self._path, launch)
        self._launches.append(launch)

    def _told_of_another(self, launch: Launch, asked: str) -> BrokenRecord:
        return BrokenRecord(
            f"{self._path}: launch {launch.index} was a {launch.purpose} of {launch.env}, this run asks for {asked}",
            hint="it belongs to another run (other settings, options, seed or version); use a new file or folder",
        )


def conditions_of(inventory: Inventory, plan: BenchPlan, *further: BenchPlan) -> dict[str, str]:
    """What a launch is measured under besides its own setting: name to SHA-256 of each part.

    `further`: plans that differ from the first in their collective, and in what comes with it. Notes say something
    about numbers and limits of time end what gives none, so both may differ in one file.
    """
    parts: dict[str, Any] = {
        "nodes": inventory.nodes(),
        "ranks_per_node": inventory.ranks_per_node,
        "as_nodes": inventory.as_nodes,
        "env": inventory.env,
        "replay": inventory.replay,
        **{name: getattr(plan, name) for name in MEASURING_FIELDS},
        "collective": ",".join(one.collective for one in (plan, *further)),
    }
    if any(one.in_place != plan.in_place for one in further):
        parts["in_place"] = [one.in_place for one in (plan, *further)]
    return {name: hashlib.sha256(msgspec.json.encode(part)).hexdigest() for name, part in parts.items()}


MEASURING_FIELDS = tuple(
    name
    for name in BenchPlan.__struct_fields__
    if name not in ("notes", "deadline_seconds", "slowest_seconds")
)
"""Fields of a plan of which none may change between launches that are compared."""


def _check_conditions(path: Path, wanted: Mapping[str, str]) -> None:
    found = load_conditions(path, Launch)
    changed = [f"`{name}`" for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if not found:
        raise Refused(
            f"{path} does not say under which conditions its launches were made",
            hint="choose another --output",
        )
    if changed:
        raise Refused(
            f"{path} holds launches of another measurement: {', '.join(changed)} differ{'s' * (len(changed) == 1)}",
            hint="choose another --output, or measure as that file was measured",
        )
