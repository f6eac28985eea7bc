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

THEMES = (gpus, kernel, pci, host, network, nccl_files, jobs, cluster, settings, drift)
"""The modules that hold rules, in the order in which findings of one severity are told."""

RULES: tuple[Rule, ...] = tuple(rule for theme in THEMES for rule in theme.RULES)
