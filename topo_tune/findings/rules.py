"""Every rule, theme by theme."""

from __future__ import annotations

from topo_tune.findings import (
    cluster,
    drift,
    gpus,
    host,
    jobs,
    kernel,
    nccl_files,
    network,
    pci,
    settings,
)
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (
    *gpus.RULES,
    *kernel.RULES,
    *pci.RULES,
    *host.RULES,
    *network.RULES,
    *nccl_files.RULES,
    *jobs.RULES,
    *cluster.RULES,
    *settings.RULES,
    *drift.RULES,
)
