"""Which sizes and which data type a launch measures, from the inventory and the back end."""

from __future__ import annotations

import msgspec

from topo_tune.bench.surface import Surface, load_surface
from topo_tune.errors import InputError
from topo_tune.on_node.collectives import COLLECTIVES
from topo_tune.on_node.data_types import DATA_TYPES
from topo_tune.on_node.gloo_rank import IN_PLACE_ONLY
from topo_tune.records.bench import BenchPlan, Collective, Layout
from topo_tune.records.inventory import BackendName, Inventory
from topo_tune.records.units import format_bytes

_DEFAULT_SIZES_BYTES = (8 << 10, 128 << 10, 2 << 20, 32 << 20)
"""latency-bound, the two sides of the usual crossover, bandwidth-bound; a factor of 16 apart"""

_GLOO_SIZES_BYTES = (8 << 10, 128 << 10, 2 << 20)
"""32 MiB through gloo on CPUs takes a tenth of a second a call and tells nothing new"""


def plan_bench(
    inventory: Inventory,
    *,
    collective: Collective = Collective.ALL_REDUCE,
    dtype: str | None = None,
    layout: Layout = Layout.WORLD,
    in_place: bool | None = None,
    repeats: int = 5,
    single_calls: int = 0,
    overlap: bool = False,
    deadline_seconds: float = 60.0,
) -> BenchPlan:
    """The plan for an inventory. None: as it is usual, or as it was recorded.

    Raises InputError for what the back end cannot measure, or when a replay has no recording of what is wanted.
    """
    plan = BenchPlan(
        backend=inventory.backend,
        collective=collective.value,
        dtype=dtype or ("float32" if inventory.backend is BackendName.GLOO else "bfloat16"),
        sizes_bytes=inventory.sizes_bytes or _usual_sizes(inventory.backend),
        repeats=repeats,
        deadline_seconds=deadline_seconds,
        layout=layout,
        in_place=COLLECTIVES[collective.value].has_in_place if in_place is None else in_place,
        single_calls=single_calls,
        overlap=overlap,
    )
    if inventory.backend is not BackendName.REPLAY:
        _refuse_the_impossible(plan)
        return plan
    assert inventory.replay is not None, "the reader of the cluster file demands a replay block"
    if single_calls or overlap:
        raise InputError("a replay has neither single calls nor a matrix product beside the collective")
    surface = load_surface(inventory.replay.surface).measuring(plan.collective, dtype or "", layout, in_place)
    return msgspec.structs.replace(
        plan,
        dtype=surface.measured.dtype or plan.dtype,
        in_place=surface.measured.in_place,
        sizes_bytes=_recorded_sizes(inventory, surface),
    )


def _refuse_the_impossible(plan: BenchPlan) -> None:
    """Raises InputError for what every launch of this plan would fail of."""
    if plan.in_place and not COLLECTIVES[plan.collective].has_in_place:
        raise InputError(f"{plan.collective} cannot be done in place", hint="leave --in-place out")
    if plan.backend not in (BackendName.NCCL, BackendName.GLOO):
        return
    if plan.dtype not in DATA_TYPES:
        raise InputError(
            f"the back end {plan.backend.value} measures no {plan.dtype}",
            hint=f"it measures {', '.join(DATA_TYPES)}",
        )
    if plan.backend is BackendName.NCCL:
        return
    if plan.overlap:
        raise InputError("gloo runs on CPUs, where no collective lies beside a matrix product of a GPU")
    if plan.dtype.startswith("float8"):
        raise InputError(f"gloo has no {plan.dtype}", hint="choose another --dtype")
    if not plan.in_place and plan.collective in IN_PLACE_ONLY:
        raise InputError(f"gloo has {plan.collective} in place only", hint="leave --out-of-place out")


def recorded(surface: Surface, plan: BenchPlan) -> Surface:
    """The surface's recordings of what a plan measures; those that name no type are taken for any.

    Raises InputError when there are none.
    """
    for found in surface.contents():
        if (found.collective, found.layout, found.in_place) == (
            plan.collective,
            plan.layout,
            plan.in_place,
        ) and found.dtype in ("", plan.dtype):
            is_at_hand = found == surface.measured
            return surface if is_at_hand else surface.measuring(*found)
    return surface.measuring(plan.collective, plan.dtype, plan.layout, plan.in_place)


def _usual_sizes(backend: BackendName) -> tuple[int, ...]:
    return _GLOO_SIZES_BYTES if backend is BackendName.GLOO else _DEFAULT_SIZES_BYTES


def _recorded_sizes(inventory: Inventory, surface: Surface) -> tuple[int, ...]:
    found = surface.sizes_bytes()
    sizes = inventory.sizes_bytes or found
    absent = [format_bytes(size) for size in sizes if size not in found]
    if absent:
        raise InputError(
            f"the surface `{surface.name}` holds no {', '.join(absent)}",
            hint=f"recorded: {', '.join(format_bytes(size) for size in found)}",
        )
    return sizes


def weights_of(inventory: Inventory, plan: BenchPlan) -> dict[int, float]:
    """Size in bytes to its weight in the objective; without a word from the operator every size weighs the same."""
    weights = dict(inventory.weights) or dict.fromkeys(plan.sizes_bytes, 1.0)
    return {size: weights.get(size, 0.0) for size in plan.sizes_bytes}
