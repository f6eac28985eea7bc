"""What a probe proves about a written setting. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from topo_tune.records.bench import Probe
from topo_tune.records.nccl_env import NcclEnv

_INTEGER = re.compile(r"[+-]?[0-9]+")


def can_tell(probe: Probe) -> bool:
    """Whether somebody reads NCCL variables at all; gloo's ranks do not."""
    return not probe.source.startswith("nobody")


def in_force_already(probe: Probe, env: NcclEnv, nodes: Collection[str]) -> tuple[str, ...]:
    """Settings that ranks of `nodes` have before anything was written there, one sentence each.

    Whatever they come from, a write could not be shown to be their cause.
    """
    wanted = env.as_dict()
    return tuple(
        f"rank {setting.rank} on {setting.node} has `{setting.name}={setting.value}` already"
        for setting in probe.settings
        if setting.node in nodes and setting.name in wanted and _same(setting.value, wanted[setting.name])
    )


def not_in_force(probe: Probe, env: NcclEnv) -> tuple[str, ...]:
    """What lacks for the proof that every rank has every setting, one sentence each; empty: it is proved."""
    if probe.error is not None:
        return (f"the probe failed: {probe.error}",)
    if probe.ranks < 1:
        return ("the probe had no ranks",)
    return tuple(
        problem for name, wanted in env.settings if (problem := _problem(probe, name, wanted)) is not None
    )


def _problem(probe: Probe, name: str, wanted: str) -> str | None:
    values = probe.values(name)
    unset = [str(rank) for rank in range(probe.ranks) if rank not in values]
    other = [f"`{value}` on rank {rank}" for rank, value in values.items() if not _same(value, wanted)]
    if not unset and not other:
        return None
    found = [*other[:3], *([f"not seen on rank {', '.join(unset[:8])}"] if unset else [])]
    return f"`{name}` should be `{wanted}` on every rank: {'; '.join(found)}"


def _same(one: str, other: str) -> bool:
    # NCCL's log prints the number it parsed, so `+4` shows as `4`.
    if _INTEGER.fullmatch(one) and _INTEGER.fullmatch(other):
        return int(one) == int(other)
    return one == other
