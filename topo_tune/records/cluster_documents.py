"""What saved files say of the whole cluster: switches, host lists, schedulers' devices, checks, traces."""

from __future__ import annotations

import msgspec


class FabricSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One switch, or one block, and what hangs from it."""

    name: str
    description: str | None = None
    """the switch's own name where `name` is an ID"""
    switches: tuple[str, ...] = ()
    """names of the switches below it, or beside it where the source has no order"""
    nodes: tuple[str, ...] = ()
    """names, or GUIDs where the source has no names"""


class FabricMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fabric-map"):
    """How nodes hang from switches: Slurm topology.conf, ibnetdiscover, topograph."""

    form: str
    """`slurm tree`, `slurm block`, `ibnetdiscover` or `topograph`"""
    switches: tuple[FabricSwitch, ...]
    node_count: int
    """distinct ends"""
    block_sizes: tuple[int, ...] = ()
    link_speeds: tuple[tuple[str, int], ...] = ()
    """(`4xHDR`, links)"""


class HostList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="host-list"):
    """Nodes in a host file or an Ansible inventory."""

    form: str
    """`host file` or `ansible inventory`"""
    hosts: tuple[str, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(group, its hosts or, for `:children`, its groups)"""
    slots: tuple[tuple[str, int], ...] = ()


class SlurmDevices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="slurm-gres"):
    """A gres.conf: which device files are GPUs."""

    devices: tuple[tuple[str, int], ...]
    """(name or type, count)"""
    files: tuple[str, ...] = ()
    is_template: bool = False
    """holds Jinja that only its deployment fills in"""


class HealthChecks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="node-health-checks"):
    """A node health check list (LBNL NHC)."""

    checks: tuple[tuple[str, str], ...]
    """(node mask, check with its arguments)"""


class TraceSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="trace"):
    """A PyTorch profiler trace, as far as its NCCL part goes."""

    rank: int | None
    world_size: int | None
    backend: str | None
    events: int
    kernels: tuple[tuple[str, int], ...]
    """(NCCL kernel, times it ran)"""
    annotations: int
    """user annotations about NCCL"""
    has_message_sizes: bool
