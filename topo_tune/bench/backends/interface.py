"""The seam to what makes numbers: one launch on some nodes with one environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from topo_tune.records.bench import BenchPlan, Launch, Probe
from topo_tune.records.inventory import Node
from topo_tune.records.nccl_env import NcclEnv

OnLaunch = Callable[[Launch], None]
"""what is done with a launch as soon as it has ended"""


def keep_nothing(launch: Launch) -> None:
    """Wait for the end of all launches instead."""


class Backend(Protocol):
    """Measures launches and probes. A launch that fails is a Launch with an `error`.

    A node that cannot be reached, or goes away on the way, says nothing of the setting: then every method tries once
    more with fresh processes on the nodes, and raises HostError when that fails as well.
    """

    def measure(
        self, nodes: tuple[Node, ...], env: NcclEnv, plan: BenchPlan, *, index: int, purpose: str
    ) -> Launch:
        """One launch: fresh ranks on `nodes` with `env` added to the launch environment."""

    def measure_together(
        self,
        nodes: tuple[Node, ...],
        settings: tuple[NcclEnv, ...],
        plan: BenchPlan,
        *,
        first_index: int,
        purpose: str,
        on_launch: OnLaunch = keep_nothing,
    ) -> tuple[Launch, ...]:
        """One launch of each setting, with as few sets of processes as `bench/trials.py` allows.

        Settings that differ only in what NCCL reads for each communicator share their processes: the first launch of
        each set carries the set-up, all carry its number (`Launch.processes`). A setting that hangs or fails ends its
        set; those behind it run in a new one. The launches of one set are not independent of each other as fresh
        launches are: `stats/` treats the set as the unit where it compares across sets.

        Launches come, are numbered and are handed to `on_launch` in the order in which they were made, which need not
        be that of `settings`. When HostError is raised, those before it have been handed on.
        """

    def probe(self, nodes: tuple[Node, ...], env: NcclEnv) -> Probe:
        """An untimed launch that tells which NCCL variables each rank really had."""

    def can_measure(self, env: NcclEnv) -> bool:
        """Whether the back end has an answer for this setting (a replay knows only what was recorded)."""

    def notes(self) -> tuple[str, ...]:
        """What every reader of its numbers must be told."""

    def close(self) -> None:
        """End whatever runs on the nodes."""


def measured_one_by_one(
    backend: Backend,
    nodes: tuple[Node, ...],
    settings: tuple[NcclEnv, ...],
    plan: BenchPlan,
    *,
    first_index: int,
    purpose: str,
    on_launch: OnLaunch,
) -> tuple[Launch, ...]:
    """`measure_together` of a back end whose settings share nothing. Raises HostError."""
    made = []
    for index, env in enumerate(settings, start=first_index):
        made.append(backend.measure(nodes, env, plan, index=index, purpose=purpose))
        on_launch(made[-1])
    return tuple(made)
