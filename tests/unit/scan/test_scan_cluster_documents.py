"""Files about the whole cluster are told from each other, and from every other kind of file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from golden_facts import FACTS, beside_the_repository, text_of
from saved_file_trials import beginning

from topo_tune.scan.documents import (
    health_checks,
    host_list,
    ibnetdiscover,
    slurm_gres,
    slurm_topology,
    topograph,
    traces,
)
from topo_tune.scan.facts.fact import SavedKind

KINDS: tuple[SavedKind, ...] = (
    *traces.KINDS,
    *topograph.KINDS,
    *slurm_topology.KINDS,
    *ibnetdiscover.KINDS,
    *slurm_gres.KINDS,
    *health_checks.KINDS,
    *host_list.KINDS,
)

EXPECTED = {
    "topology-tree-azure.conf": "Slurm topology",
    "topology-tree-guids.conf": "Slurm topology",
    "topology-block-azure.conf": "Slurm topology",
    "topology-tree-oci-sim.conf": "Slurm topology",
    "gres-oci-mi300x.conf.j2": "Slurm gres.conf",
    "hostfile-superbench.txt": "host file",
    "inventory-deepops.ini": "Ansible inventory",
    "ibnetdiscover-superbench.txt": "ibnetdiscover output",
    "ibnetdiscover-p-hdr-odd-names.txt": "ibnetdiscover output",
    "azure-nhc-nd40rs_v2.conf": "node health check list (NHC)",
    "azure-nhc-nd96asr_v4.conf": "node health check list (NHC)",
    "azure-nhc-nd96isr_h100_v5.conf": "node health check list (NHC)",
    "hta-sampled-rank0.json.gz": "PyTorch profiler trace",
    "hta-sampled-rank1.json.gz": "PyTorch profiler trace",
    "hta-nccl-metadata-rank0.json.gz": "PyTorch profiler trace",
    "hta-no-rank.json.gz": "PyTorch profiler trace",
    "hta-base-rank1.json.gz": "PyTorch profiler trace",
}

GOLDEN = sorted(file for file in FACTS.rglob("*") if file.is_file() and file.name != "SOURCES.md")


def kinds_of(file: Path) -> list[str]:
    text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else text_of(file)
    return [kind.name for kind in KINDS if kind.recognise(beginning(text))]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_is_of_one_kind(name: str) -> None:
    (file,) = [file for file in GOLDEN if file.name == name]

    assert kinds_of(file) == [EXPECTED[name]]


def test_every_other_file_is_of_none() -> None:
    others = [file for file in {*GOLDEN, *beside_the_repository(".")} if file.name not in EXPECTED]

    assert len(others) > 10
    assert {file.name: kinds for file in others if (kinds := kinds_of(file))} == {}
