"""Rules about NCCL topology, graph and tuner files."""

from __future__ import annotations

from topo_tune.findings.nccl_files import files_of_another_machine, topology_files, tuner_tables
from topo_tune.findings.rule import Rule

RULES: tuple[Rule, ...] = (
    *files_of_another_machine.RULES,
    *topology_files.RULES,
    *tuner_tables.RULES,
)
