"""How a text of settings is written, told by its content, and by the name where that leaves no choice."""

from __future__ import annotations

import re
from pathlib import PurePath

from topo_tune.lint.conf import read_conf
from topo_tune.lint.env_file import read_env_file
from topo_tune.lint.message import Format
from topo_tune.lint.setting import Listing, Target
from topo_tune.lint.shell import read_args, read_shell
from topo_tune.lint.yaml_env import read_yaml

_NAMES_OF_CONF = {"nccl.conf", ".nccl.conf"}
"""What NCCL opens; a file of this name is read as NCCL reads it, whatever is in it."""

_ENDINGS = {
    Format.SHELL: (".sh", ".bash", ".sbatch", ".slurm"),
    Format.YAML: (".yaml", ".yml"),
}
_ENV_FILE_NAMES = re.compile(r"(?:.*\.)?env(?:\.list|-file)?")
_YAML = re.compile(
    r"(?m)^[ \t]*(?:-[ \t]*(?:\{[ \t]*)?[\"']?name[\"']?:[ \t]*[\"']?\w*nccl_|[\"']?\w*nccl_\w+[\"']?[ \t]*:"
    r"|apiVersion:|kind:[ \t]+\w)",
    re.IGNORECASE,
)
_SCRIPT = re.compile(
    r"\A\N{ZERO WIDTH NO-BREAK SPACE}?#!|(?m:^#SBATCH\b|^(?:FROM|ENV|RUN)[ \t]+\S"
    r"|^[ \t]*(?:mpirun|mpiexec|srun|torchrun|docker|python3?|if|for|source|set[ \t]+-)[ \t])"
)
"""A script, a batch script, the lines of a Dockerfile, a command."""

_EXPORT = re.compile(r"(?m)^[ \t]*(?:export|setenv|declare[ \t]+-\w+)[ \t]+\w*nccl_", re.IGNORECASE)
_ARGUMENT = re.compile(
    r"(?m)^[ \t]*(?:-[ \t]+)?(?:[\[{]?[\"']\w*nccl_\w+=|-x[ \t]+\w|-x\w*nccl_|-e[ \t]+\w|--env[ =]"
    r"|-[ \t]+\w*nccl_\w+=)|[\[,][ \t]*[\"']\w*nccl_\w+=",
    re.IGNORECASE,
)
_BARE = re.compile(r"(?m)^\w*nccl_\w+[ \t]*=", re.IGNORECASE)


def told_by_name(path: str) -> Format | None:
    """The format that a file's name promises, whatever is in it; None for a name that promises none."""
    name = PurePath(path).name
    if name in _NAMES_OF_CONF or path.startswith("/etc/nccl/conf.d/"):
        return Format.CONF
    return next((format for format, endings in _ENDINGS.items() if name.endswith(endings)), None)


def recognise(text: str, path: str = "-") -> Format:
    """The format of a text; nccl.conf where nothing speaks for another."""
    named = told_by_name(path)
    if named is not None:
        return named
    if _SCRIPT.search(text):
        return Format.SHELL
    if _YAML.search(text):
        return Format.YAML
    bare = len(_BARE.findall(text))
    exported = len(_EXPORT.findall(text))
    arguments = len(_ARGUMENT.findall(text))
    if exported and exported >= max(bare, arguments):
        return Format.SHELL
    if arguments > bare:
        return Format.ARGS
    return Format.ENV_FILE if is_env_file(path) else Format.CONF


def is_env_file(path: str) -> bool:
    """Whether a file of bare settings is one for containers, by its name: `.env`, `app.env`, `env.list`."""
    return _ENV_FILE_NAMES.fullmatch(PurePath(path).name) is not None


def read(text: str, format: Format, target: Target) -> Listing:
    """The settings of a text in this format."""
    if format is Format.CONF:
        return read_conf(text, target)
    return {
        Format.SHELL: read_shell,
        Format.ENV_FILE: read_env_file,
        Format.ARGS: read_args,
        Format.YAML: read_yaml,
    }[format](text)
