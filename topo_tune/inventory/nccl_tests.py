"""The `nccl_tests` block of a cluster file -> NcclTestsOptions: words of commands, checked."""

from __future__ import annotations

import re
import shlex

from msgspec import UNSET

from topo_tune.errors import did_you_mean
from topo_tune.inventory.cluster_file import ClusterFile, NcclTestsBlock
from topo_tune.inventory.paths import has_control_character
from topo_tune.inventory.yaml_file import Path, YamlFile
from topo_tune.records.inventory import LAUNCHER_WORDS, BackendName, NcclTestsOptions

_OWN = {
    "-b": "`bench: {sizes: ...}`",
    "-e": "`bench: {sizes: ...}`",
    "-i": "`bench: {sizes: ...}`",
    "-f": "`bench: {sizes: ...}`",
    "-d": "the type that is measured",
    "-g": "`ranks_per_node` or `gpus_per_process`",
    "-t": "`ranks_per_node` or `gpus_per_process`",
    "-J": "topo-tune, which reads the file",
    "-N": "the number of samples",
    "-h": "nobody",
}
"""Options of which topo-tune needs to know the value, and where it comes from."""

_LONG = {
    "minbytes": "-b",
    "maxbytes": "-e",
    "stepbytes": "-i",
    "stepfactor": "-f",
    "datatype": "-d",
    "ngpus": "-g",
    "nthreads": "-t",
    "output_file": "-J",
    "run_cycles": "-N",
    "help": "-h",
}
_IN_BRACES = re.compile(r"\{([^{}]*)\}")


def nccl_tests_options(cluster: ClusterFile, document: YamlFile) -> NcclTestsOptions | None:
    """How nccl-tests is run; None with another back end. Raises InputError with file, line and field."""
    is_used = cluster.bench.backend is BackendName.NCCL_TESTS
    if not is_used and cluster.nccl_tests is not UNSET:
        raise document.error(
            ("nccl_tests",),
            f"`nccl_tests` does nothing with the back end `{cluster.bench.backend.value}`",
            hint="remove it, or write `bench: {backend: nccl-tests}`",
        )
    if not is_used:
        return None
    if cluster.as_nodes > 1:
        raise document.error(
            ("as_nodes",),
            "nccl-tests cannot split a host into several nodes",
            hint="remove `as_nodes`, or measure with `bench: {backend: nccl}`",
        )
    block = NcclTestsBlock() if cluster.nccl_tests is UNSET else cluster.nccl_tests
    launcher = () if block.launcher is UNSET else _words(block.launcher, ("nccl_tests", "launcher"), document)
    _check_launcher(launcher, document)
    _check_processes(cluster, block, is_launched=bool(launcher), document=document)
    arguments = _words(block.arguments, ("nccl_tests", "arguments"), document)
    _check_arguments(arguments, document)
    return NcclTestsOptions(
        folder="" if block.folder is UNSET else block.folder.rstrip("/") or "/",
        launcher=launcher,
        gpus_per_process=block.gpus_per_process,
        arguments=arguments,
    )


def _words(written: str, path: Path, document: YamlFile) -> tuple[str, ...]:
    if has_control_character(written):
        raise document.error(path, "it holds a control character")
    try:
        return tuple(shlex.split(written))
    except ValueError as exc:
        raise document.error(path, f"it does not split into words: {exc}") from exc


def _check_launcher(launcher: tuple[str, ...], document: YamlFile) -> None:
    for found in _IN_BRACES.findall(" ".join(launcher)):
        if found not in LAUNCHER_WORDS:
            known = ", ".join(f"`{{{word}}}`" for word in LAUNCHER_WORDS)
            raise document.error(
                ("nccl_tests", "launcher"),
                f"`{{{found}}}` stands for nothing",
                hint=(did_you_mean(found, LAUNCHER_WORDS) if found else None) or f"known: {known}",
            )


def _check_processes(
    cluster: ClusterFile, block: NcclTestsBlock, *, is_launched: bool, document: YamlFile
) -> None:
    path = ("nccl_tests", "gpus_per_process")
    if block.gpus_per_process > 1 and not is_launched:
        raise document.error(
            path,
            "without a launcher one process drives all GPUs of its node",
            hint="set `ranks_per_node`, or a `launcher`",
        )
    if cluster.ranks_per_node is not UNSET and cluster.ranks_per_node % block.gpus_per_process:
        raise document.error(
            path,
            f"{cluster.ranks_per_node} ranks a node are no whole number of processes with "
            f"{block.gpus_per_process} GPUs each",
        )


def _check_arguments(arguments: tuple[str, ...], document: YamlFile) -> None:
    for word in arguments:
        name = word[2:].split("=", 1)[0]
        option = _LONG.get(name, "") if word.startswith("--") else word[:2]
        if option in _OWN:
            raise document.error(
                ("nccl_tests", "arguments"),
                f"`{word}` is not yours to give: it comes from {_OWN[option]}",
                hint="leave it out",
            )
