"""A set of processes at work: what its ranks answer, variant by variant, becomes launches."""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from topo_tune.bench.answers import merge_ranks, not_in_force, was_wrong, wrong_results
from topo_tune.bench.backends.interface import OnLaunch
from topo_tune.bench.limits import cut_off, fair_deadline, slowest_calls
from topo_tune.bench.trials import Processes, Variant
from topo_tune.errors import InputError
from topo_tune.records.bench import BenchPlan, Launch, Layout
from topo_tune.records.inventory import Node
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv


class Shape(NamedTuple):
    """How many ranks stand where. A node is one for NCCL: a host may act as several."""

    nodes: int
    ranks_per_node: int

    @property
    def world(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    def communicator(self, layout: Layout) -> Shape:
        """The shape of one communicator. Raises InputError for a layout that would leave a rank alone."""
        shape = {
            Layout.WORLD: self,
            Layout.WITHIN_NODE: Shape(1, self.ranks_per_node),
            Layout.RAILS: Shape(self.nodes, 1),
            Layout.PAIRS: Shape(1, 2) if self.ranks_per_node % 2 == 0 else Shape(2, 1),
        }[layout]
        if shape.world < 2 or (layout is Layout.PAIRS and self.world % 2):
            raise InputError(
                f"layout `{layout.value}` leaves ranks alone: nodes {self.nodes}, ranks a node {self.ranks_per_node}",
                hint="choose another --layout, or other nodes",
            )
        return shape


class Asked:
    """Launches that were asked for: what waits to be measured, and what was made of it so far."""

    def __init__(
        self,
        nodes: tuple[Node, ...],
        settings: Sequence[NcclEnv],
        plan: BenchPlan,
        first_index: int,
        purpose: str,
        on_launch: OnLaunch,
    ) -> None:
        self.nodes, self.settings, self.plan, self.purpose = nodes, settings, plan, purpose
        self.waiting: deque[Processes] = deque()
        """sets of processes; positions in them are those of `settings`"""
        self.made: list[Launch] = []
        self._first_index, self._on_launch = first_index, on_launch

    @property
    def next_index(self) -> int:
        """Number of the launch that comes next."""
        return self._first_index + len(self.made)

    def setting_of(self, variant: Variant) -> NcclEnv:
        """The setting as it was asked for, without the inventory's own variables."""
        return self.settings[variant.position]

    def refused(self, env: NcclEnv, error: str) -> Launch:
        """The launch of a setting that is not tried."""
        return Launch(
            index=self.next_index,
            purpose=self.purpose,
            nodes=tuple(node.name for node in self.nodes),
            env=env,
            backend=self.plan.backend,
            ranks=0,
            started_at=utc_now(),
            wall_seconds=0.0,
            error=error,
            collective=self.plan.collective,
            dtype=self.plan.dtype,
            layout=self.plan.layout,
            in_place=self.plan.in_place,
        )

    def keep(self, launch: Launch) -> None:
        """One launch has ended."""
        self.made.append(launch)
        self._on_launch(launch)


class SetAtWork:
    """The first of the sets that wait, while it is being measured."""

    def __init__(self, asked: Asked, shape: Shape, defaults: list[Launch]) -> None:
        """`defaults`: usable launches of NCCL's default under this plan; this set's are added to them."""
        self.processes = asked.waiting[0]
        self._asked, self._shape, self._defaults = asked, shape, defaults
        self._number = asked.next_index
        self._done = 0
        self._held: Launch | None = None
        self._started_at, self._clock = utc_now(), time.monotonic()
        self._earlier: dict[str, str] = {}
        """variables that a communicator of this set had"""
        only_default = all(self._is_default(variant) for variant in self.processes.variants)
        self._known = [] if only_default else list(defaults)
        self.deadline_seconds = fair_deadline(asked.plan.deadline_seconds, self._known)

    def variants(self) -> list[dict[str, Any]]:
        """Communicators as the agents take them."""
        return [
            {
                "env": variant.env.as_dict(),
                "config": dict(variant.config),
                "slowest_seconds": () if self._is_default(variant) else self._slowest(),
            }
            for variant in self.processes.variants
        ]

    def on_variant(self, index: int, answers: Sequence[Mapping[str, Any]]) -> None:
        """All ranks have answered for a variant. One that failed there is told by the trial's end instead."""
        has_failed = any(answer["error"] for answer in answers)
        if index != self._done or (has_failed and not wrong_results(answers, self._asked.plan.collective)):
            return
        self._let_go()
        variant = self.processes.variants[index]
        results = merge_ranks(answers)
        launch = msgspec.structs.replace(self._launch(variant), results=results)
        error = (
            wrong_results(answers, self._asked.plan.collective)
            or self._not_in_force(variant, answers)
            or cut_off(launch, self._known)
        )
        setup = answers[0]["setup"] if index == 0 else {}
        in_force = answers[0].get("in_force") or {}
        self._held = msgspec.structs.replace(
            launch,
            error=error,
            setup_seconds=tuple(sorted(setup.items())),
            in_force=tuple(sorted(in_force.items())),
        )
        self._earlier |= variant.env.as_dict()
        self._done += 1
        self._started_at, self._clock = utc_now(), time.monotonic()

    def end(self, error: str | None) -> None:
        """The processes have ended, with an error or well."""
        held, is_over = self._held, self._done == len(self.processes.variants)
        if held is not None and error is not None and is_over and held.error is None:
            self._held = msgspec.structs.replace(
                held, notes=(*held.notes, f"measured, but its processes did not end well: {error}")
            )
        self._let_go()
        # A wrong result ends its set, and is no word about the setting behind it.
        if error is not None and not is_over and not (held is not None and was_wrong(held)):
            failed = self._launch(self.processes.variants[self._done])
            self._done += 1
            self._asked.keep(msgspec.structs.replace(failed, error=error))

    def leave(self) -> None:
        """Make way for the next set, whatever happened: what this one did not get to waits for another."""
        self._let_go()
        self._asked.waiting.popleft()
        if self._done < len(self.processes.variants):
            self._asked.waiting.appendleft(self.processes.behind(self._done))

    def _let_go(self) -> None:
        """Hand on the launch that was held back, in case its processes fail at their very end."""
        launch, self._held = self._held, None
        if launch is None:
            return
        if launch.env == DEFAULTS and launch.is_usable:
            self._defaults.append(launch)
        self._asked.keep(launch)

    def _launch(self, variant: Variant) -> Launch:
        plan = self._asked.plan
        return Launch(
            index=self._asked.next_index,
            purpose=self._asked.purpose,
            nodes=tuple(node.name for node in self._asked.nodes),
            env=self._asked.setting_of(variant),
            backend=plan.backend,
            ranks=self._shape.world,
            started_at=self._started_at,
            wall_seconds=round(time.monotonic() - self._clock, 3),
            notes=self.processes.notes,
            collective=plan.collective,
            dtype=plan.dtype,
            layout=plan.layout,
            in_place=plan.in_place,
            processes=self._number,
            communicator_ranks=self._shape.communicator(plan.layout).world,
        )

    def _not_in_force(self, variant: Variant, answers: Sequence[Mapping[str, Any]]) -> str | None:
        asked = self.processes.env.merged(variant.env).as_dict()
        gone = {name: value for name, value in self._earlier.items() if name not in asked}
        configured = {name: value for name, value in variant.setting.settings if name not in asked}
        of_nccl = {name: value for name, value in asked.items() if name.startswith("NCCL_")}
        return not_in_force(answers, of_nccl, configured=configured, gone=gone)

    def _slowest(self) -> tuple[tuple[int, float], ...]:
        plan = self._asked.plan
        return plan.slowest_seconds or slowest_calls(self._known, plan.sizes_bytes)

    def _is_default(self, variant: Variant) -> bool:
        return self._asked.setting_of(variant) == DEFAULTS


def utc_now() -> str:
    """The time as records carry it: UTC, ISO 8601, milliseconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
