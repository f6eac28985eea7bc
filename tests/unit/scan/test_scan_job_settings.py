"""A job's own file: what it gives to a job, what lint says of it, and what it says about the node beside it."""

from __future__ import annotations

import pytest
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.finding import Severity
from topo_tune.records.nccl_documents import JobSetting
from topo_tune.records.provenance import Layer, Reach
from topo_tune.report.documents import summary
from topo_tune.scan.facts.nccl import job_settings

SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
export NCCL_IB_HCA=mlx5_0
export NCCL_NTHREADS=500
export NCCL_IB_TIMOUT=23
NCCL_MIN_NCHANNELS=32
srun train
"""


def test_a_script_tells_what_it_passes_on_and_what_lint_says() -> None:
    body, problems = job_settings.parse(SCRIPT, "job.sbatch")

    assert problems == ()
    assert body.format == "shell"
    assert body.settings[0] == JobSetting("NCCL_IB_HCA", "mlx5_0", 3)
    assert "NCCL_MIN_NCHANNELS" not in {setting.name for setting in body.settings}
    assert (5, Severity.ERROR) in {(m.line, m.severity) for m in body.messages if "NCCL_IB_TIMOUT" in m.text}
    assert Severity.NOTICE not in {message.severity for message in body.messages}
    assert summary(body) == "3 NCCL settings, read as shell"


def test_beside_a_nodes_files_it_is_a_layer_of_that_node() -> None:
    body, _ = job_settings.parse(SCRIPT, "job.sbatch")

    origin = job_settings.of_node(node_scan(), body, "n1/job.sbatch").settings[0]

    assert (origin.name, origin.layer, origin.reach) == ("NCCL_IB_HCA", Layer.LAUNCHER, Reach.DEPENDS)
    assert (origin.path, origin.line) == ("n1/job.sbatch", 3)


def test_a_script_that_passes_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="it passes no NCCL variable to a job"):
        job_settings.parse("#!/bin/sh\nNCCL_ALGO=Ring\n", "job.sh")
