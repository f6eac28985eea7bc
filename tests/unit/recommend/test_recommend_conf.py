from __future__ import annotations

import json

import yaml

from topo_tune.recommend.conf import fragment, snippets
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env

ENV = nccl_env({"NCCL_SOCKET_NTHREADS": 2, "NCCL_ALGO": "allreduce:ring"})
LIST = nccl_env({"NCCL_PROTO": "allreduce:ll,simple", "NCCL_IB_HCA": "^mlx5_0"})


def text(env: NcclEnv, title: str) -> str:
    return {snippet.title: snippet.text for snippet in snippets(env)}[title]


def test_a_fragment_is_bare_sorted_lines() -> None:
    assert fragment(ENV) == "NCCL_ALGO=allreduce:ring\nNCCL_SOCKET_NTHREADS=2\n"


def test_nccls_default_is_an_empty_fragment_and_needs_no_snippets() -> None:
    assert (fragment(DEFAULTS), snippets(DEFAULTS)) == ("", ())


def test_mpirun_exports_each_setting() -> None:
    assert text(ENV, "Open MPI") == "mpirun -x NCCL_ALGO=allreduce:ring -x NCCL_SOCKET_NTHREADS=2 ...\n"


def test_slurm_adds_the_settings_to_the_whole_environment() -> None:
    assert text(ENV, "Slurm") == "srun --export=ALL,NCCL_ALGO=allreduce:ring,NCCL_SOCKET_NTHREADS=2 ...\n"


def test_a_value_with_a_comma_is_exported_before_srun_because_export_splits_there() -> None:
    assert text(LIST, "Slurm").splitlines() == [
        "export NCCL_IB_HCA='^mlx5_0'",
        "export NCCL_PROTO=allreduce:ll,simple",
        "srun --export=ALL ...",
    ]


def test_shells_get_quotes_where_they_need_them() -> None:
    assert (
        text(LIST, "Docker") == "docker run -e 'NCCL_IB_HCA=^mlx5_0' -e NCCL_PROTO=allreduce:ll,simple ...\n"
    )


def test_an_environment_file_has_no_quotes_because_docker_would_keep_them() -> None:
    assert text(LIST, "environment file") == fragment(LIST)


def test_kubernetes_reads_back_names_and_values_as_strings() -> None:
    read = yaml.safe_load(text(ENV, "Kubernetes"))
    assert json.dumps(read["env"]) == json.dumps(
        [
            {"name": "NCCL_ALGO", "value": "allreduce:ring"},
            {"name": "NCCL_SOCKET_NTHREADS", "value": "2"},
        ]
    )
