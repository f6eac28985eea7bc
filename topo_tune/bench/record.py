"""Launches on file: appended after each one, and read back instead of measured again when a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from topo_tune.errors import BrokenRecord
from topo_tune.records.bench import Launch
from topo_tune.records.envelope import append_line, load_lines, save_lines_head
from topo_tune.records.nccl_env import NcclEnv

Measure = Callable[[NcclEnv, str, int], Launch]
"""(setting, purpose, index) -> launch"""


class RecordedLaunches:
    """A file of launches with a reading head: what is on file is given back, what lies beyond it is measured.

    An interrupted search goes on where it stopped because searches are deterministic: asked the same questions in the
    same order they get the recorded answers until the record ends.
    """

    def __init__(self, path: Path, measure: Measure, *, append_only: bool = False) -> None:
        """`append_only`: never give back what is on file; a guard must measure now, whatever it measured before.

        Raises BrokenRecord when the launches on file are not numbered as they stand.
        """
        self._path = path
        self._measure = measure
        if not path.exists():
            save_lines_head(path, Launch)
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
                raise BrokenRecord(
                    f"{self._path}: launch {index} was a {launch.purpose} of {launch.env}, "
                    f"this search asks for a {purpose} of {env}",
                    hint="the run folder belongs to another search (other options, seed or version); use a new folder",
                )
            return launch
        launch = self._measure(env, purpose, index)
        append_line(self._path, launch)
        self._launches.append(launch)
        return launch
