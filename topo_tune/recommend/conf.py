"""The recommended settings as text: a fragment for nccl.conf, and snippets for launchers."""

from __future__ import annotations

import json
import shlex
from typing import NamedTuple

from topo_tune.records.nccl_env import NcclEnv


class Snippet(NamedTuple):
    """One way to hand the settings to a job."""

    title: str
    text: str
    """ends in a newline"""


def fragment(env: NcclEnv) -> str:
    """Lines for nccl.conf: bare `NAME=VALUE`, sorted, LF; empty for NCCL's default.

    No comments, spaces or quotes: NCCL before 2.26.2 would take a comment line for a setting.
    """
    return "".join(f"{name}={value}\n" for name, value in env.settings)


def snippets(env: NcclEnv) -> tuple[Snippet, ...]:
    """The same settings for mpirun, Slurm, a shell, Docker and Kubernetes; empty for NCCL's default."""
    if not env.settings:
        return ()
    return (
        Snippet("Open MPI", f"mpirun {_flags('-x', env)} ...\n"),
        Snippet("Slurm", _slurm(env)),
        Snippet("environment file", fragment(env)),
        Snippet("shell", _exports(env)),
        Snippet("Docker", f"docker run {_flags('-e', env)} ...\n"),
        Snippet("Kubernetes", "env:\n" + "".join(_kubernetes(name, value) for name, value in env.settings)),
    )


def _flags(flag: str, env: NcclEnv) -> str:
    return " ".join(f"{flag} {shlex.quote(f'{name}={value}')}" for name, value in env.settings)


def _exports(env: NcclEnv) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.settings)


def _slurm(env: NcclEnv) -> str:
    # --export splits at every comma, and NCCL's lists hold commas; then the batch script's own environment
    # carries them.
    if any("," in value for _, value in env.settings):
        return _exports(env) + "srun --export=ALL ...\n"
    assignments = ",".join(f"{name}={value}" for name, value in env.settings)
    return f"srun {shlex.quote(f'--export=ALL,{assignments}')} ...\n"


def _kubernetes(name: str, value: str) -> str:
    # A JSON string is a YAML string too, and a number left bare would be refused as an env value.
    return f"  - name: {name}\n    value: {json.dumps(value)}\n"
