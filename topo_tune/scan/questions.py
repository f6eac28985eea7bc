"""Every fact that a scan asks a node for, in the order in which their answers are understood."""

from __future__ import annotations

from topo_tune.scan.facts.fact import Fact
from topo_tune.scan.facts.gpus import fabric_manager, gpu_health, gpu_p2p, nvlinks
from topo_tune.scan.facts.host import host, kernel_log
from topo_tune.scan.facts.nccl import nccl_plugins, nccl_settings
from topo_tune.scan.facts.network import ethernet, rdma, roce, routes
from topo_tune.scan.facts.pci import pci

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
