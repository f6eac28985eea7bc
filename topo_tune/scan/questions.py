"""Every fact that a scan asks a node for, in the order in which their answers are understood."""

from __future__ import annotations

from topo_tune.scan.facts import (
    ethernet,
    fabric_manager,
    gpu_health,
    gpu_p2p,
    host,
    kernel_log,
    nccl_plugins,
    nccl_settings,
    nvlinks,
    pci,
    rdma,
    roce,
    routes,
)
from topo_tune.scan.facts.fact import Fact

FACTS: tuple[Fact, ...] = (
    *gpu_health.FACTS,
    *gpu_p2p.FACTS,
    *nvlinks.FACTS,
    *fabric_manager.FACTS,
    *kernel_log.FACTS,
    *pci.FACTS,
    *host.FACTS,
    *rdma.FACTS,
    *ethernet.FACTS,
    *roce.FACTS,
    *routes.FACTS,
    *nccl_plugins.FACTS,
    *nccl_settings.FACTS,
)
