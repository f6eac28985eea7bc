"""Which sizes and which data type a launch measures, from the inventory and the back end."""

from __future__ import annotations

from topo_tune.bench.surface import load_surface
from topo_tune.errors import InputError
from topo_tune.records.bench import BenchPlan
from topo_tune.records.inventory import BackendName, Inventory
from topo_tune.records.units import format_bytes

_DEFAULT_SIZES_BYTES = (8 << 10, 128 << 10, 2 << 20, 32 << 20)
"""latency-bound, the two sides of the usual crossover, bandwidth-bound; a factor of 16 apart"""

_GLOO_SIZES_BYTES = (8 << 10, 128 << 10, 2 << 20)
"""32 MiB through gloo on CPUs takes a tenth of a second a call and tells nothing new"""


def plan_bench(inventory: Inventory, *, repeats: int = 5, deadline_seconds: float = 60.0) -> BenchPlan:
    """The plan for an inventory. Raises InputError when a replay has no recording of a wanted size."""
    sizes = inventory.sizes_bytes
    if inventory.backend is BackendName.REPLAY:
        assert inventory.replay is not None, "the reader of the cluster file demands a replay block"
        recorded = load_surface(inventory.replay.surface).sizes_bytes()
        sizes = sizes or recorded
        absent = [format_bytes(size) for size in sizes if size not in recorded]
        if absent:
            raise InputError(
                f"the surface `{inventory.replay.surface}` holds no {', '.join(absent)}",
                hint=f"recorded: {', '.join(format_bytes(size) for size in recorded)}",
            )
    elif not sizes:
        sizes = _GLOO_SIZES_BYTES if inventory.backend is BackendName.GLOO else _DEFAULT_SIZES_BYTES
    return BenchPlan(
        backend=inventory.backend,
        collective="all_reduce",
        dtype="float32" if inventory.backend is BackendName.GLOO else "bfloat16",
        sizes_bytes=sizes,
        repeats=repeats,
        deadline_seconds=deadline_seconds,
    )


def weights_of(inventory: Inventory, plan: BenchPlan) -> dict[int, float]:
    """Size in bytes to its weight in the objective; without a word from the operator every size weighs the same."""
    weights = dict(inventory.weights) or dict.fromkeys(plan.sizes_bytes, 1.0)
    return {size: weights.get(size, 0.0) for size in plan.sizes_bytes}
