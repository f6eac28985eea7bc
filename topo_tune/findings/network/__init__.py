"""Rules about the network: RDMA ports with their counters and MTUs, RoCE, interfaces, and what NCCL takes of them."""

from __future__ import annotations

from topo_tune.findings.network import (
    interfaces,
    rdma_choice,
    rdma_counters,
    rdma_mtu,
    rdma_ports,
    roce,
    sockets,
)
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (
    *rdma_ports.RULES,
    *rdma_choice.RULES,
    *rdma_counters.RULES,
    *rdma_mtu.RULES,
    *roce.RULES,
    *sockets.RULES,
    *interfaces.RULES,
)
