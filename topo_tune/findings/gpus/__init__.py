"""Rules about GPUs: links, memory, clocks, NVLink, fabric, peer access."""

from __future__ import annotations

from topo_tune.findings.gpus import (
    fabric,
    gpu_clocks,
    gpu_links,
    gpu_memory,
    gpu_presence,
    nvlinks,
    peer_access,
)
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (
    *gpu_presence.RULES,
    *gpu_memory.RULES,
    *fabric.RULES,
    *nvlinks.RULES,
    *peer_access.RULES,
    *gpu_links.RULES,
    *gpu_clocks.RULES,
)
