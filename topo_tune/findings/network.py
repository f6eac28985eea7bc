"""Rules about RDMA ports, GIDs, RoCE settings, interfaces."""

from __future__ import annotations

from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = ()
