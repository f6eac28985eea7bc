"""Every kind of saved file that a scan can read, in the order in which a file is tried against them."""

from __future__ import annotations

from topo_tune.scan.documents import (
    health_checks,
    host_list,
    ibnetdiscover,
    nccl_graph,
    nccl_log,
    nccl_tests,
    nccl_topology,
    slurm_gres,
    slurm_topology,
    topograph,
    traces,
    tuner_table,
)
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.gpus import (
    fabric_manager,
    gpu_health,
    gpu_p2p,
    nvidia_gpus,
    nvidia_topology,
    nvlinks,
)
from topo_tune.scan.facts.host import host, kernel_log
from topo_tune.scan.facts.nccl import job_settings, nccl_files, nccl_plugins, nccl_settings
from topo_tune.scan.facts.network import ethernet, rdma, roce, routes
from topo_tune.scan.facts.pci import acs_lines, pci
from topo_tune.scan.saved_answer import ANSWER as ANSWER

# What is told by a word of its own comes first; what is told by the shape of its lines comes last.
KINDS: tuple[SavedKind, ...] = (
    *traces.KINDS,
    *nccl_topology.KINDS,
    *nccl_graph.KINDS,
    *topograph.KINDS,
    *nvidia_gpus.KINDS,
    *nvidia_topology.KINDS,
    *gpu_health.KINDS,
    *gpu_p2p.KINDS,
    *nvlinks.KINDS,
    *fabric_manager.KINDS,
    *kernel_log.KINDS,
    *pci.KINDS,
    *acs_lines.KINDS,
    *host.KINDS,
    *rdma.KINDS,
    *ethernet.KINDS,
    *roce.KINDS,
    *routes.KINDS,
    *nccl_plugins.KINDS,
    *nccl_settings.KINDS,
    *nccl_tests.KINDS,
    *nccl_log.KINDS,
    *slurm_topology.KINDS,
    *ibnetdiscover.KINDS,
    *tuner_table.KINDS,
    *slurm_gres.KINDS,
    *health_checks.KINDS,
    *job_settings.KINDS,
    *nccl_files.KINDS,
    *host_list.KINDS,
)

STAY_WHOLE: tuple[SavedKind, ...] = (*nccl_tests.KINDS, *nccl_log.KINDS)
"""Kinds whose own texts hold prompts, comments and other tools' lines: never taken apart."""

SETTINGS: tuple[SavedKind, ...] = (*job_settings.KINDS, *nccl_files.KINDS)
"""Kinds whose comments look like headings: a text of nothing else is one file."""

NOT_IN_SECTIONS: tuple[SavedKind, ...] = host_list.KINDS
"""Kinds told by words alone, which a paragraph of a report holds by chance."""
