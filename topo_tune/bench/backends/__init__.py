"""What makes numbers. `BACKENDS` is the explicit table: name -> lazy factory."""

from __future__ import annotations

from collections.abc import Callable

from topo_tune.bench.agents import AgentPool
from topo_tune.bench.backends.interface import Backend
from topo_tune.records.inventory import BackendName, Inventory


def _agent(inventory: Inventory, pool: AgentPool, seed: int) -> Backend:
    from topo_tune.bench.backends.agent import AgentBackend

    return AgentBackend(inventory, pool)


def _nccl_tests(inventory: Inventory, pool: AgentPool, seed: int) -> Backend:
    from topo_tune.bench.backends.nccl_tests import NcclTestsBackend

    return NcclTestsBackend(inventory, pool)


def _replay(inventory: Inventory, pool: AgentPool, seed: int) -> Backend:
    from topo_tune.bench.backends.replay import ReplayBackend
    from topo_tune.bench.surface import load_surface

    assert inventory.replay is not None, "the reader of the cluster file demands a replay block"
    return ReplayBackend(inventory, pool, load_surface(inventory.replay.surface), seed)


BACKENDS: dict[BackendName, Callable[[Inventory, AgentPool, int], Backend]] = {
    BackendName.NCCL: _agent,
    BackendName.NCCL_TESTS: _nccl_tests,
    BackendName.GLOO: _agent,
    BackendName.REPLAY: _replay,
}

_NODE_PROGRAMS = {BackendName.NCCL_TESTS: "tests_runner"}


def node_program(backend: BackendName) -> str:
    """The program of `on_node/` that a back end talks to."""
    return _NODE_PROGRAMS.get(backend, "bench_agent")
