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


class FabricLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cable between two ports."""

    ends: tuple[str, str]
    """as the source describes them: `worker20 mlx5_3`"""
    speed: str
    """`4xHDR`"""


class FabricMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fabric-map"):
    """How nodes hang from switches: Slurm topology.conf, ibnetdiscover, topograph."""

    form: str
    """`slurm tree`, `slurm block`, `slurm flat`, `ibnetdiscover` or `topograph`"""
    switches: tuple[FabricSwitch, ...]
    node_count: int
    """distinct ends"""
    block_sizes: tuple[int, ...] = ()
    link_speeds: tuple[tuple[str, int], ...] = ()
    """(`4xHDR`, links), each link once; the most common speed first"""
    domains: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(NVLink domain, its nodes), where the source has them beside the switches"""
    adapters: int = 0
    """InfiniBand adapters of nodes, without the aggregation nodes inside switches"""
    aggregation_nodes: int = 0
    """SHARP's ends inside switches, which look like adapters"""
    unconnected: tuple[str, ...] = ()
    """descriptions of adapter ports that no cable leaves, at most 100"""
    idle_ports: tuple[tuple[str, int], ...] = ()
    """(speed shown, ports) of switch ports that no cable leaves, where the source lists them"""
    slow_links: tuple[FabricLink, ...] = ()
    """links slower than most links of their sort, to a node or between switches; at most 100"""
    slow_link_count: int = 0


class HostList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="host-list"):
    """Nodes in a host file or an Ansible inventory."""

    form: str
    """`host file` or `ansible inventory`"""
    hosts: tuple[str, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(group, its hosts or, for `:children`, its groups)"""
    slots: tuple[tuple[str, int], ...] = ()
    """(host, ranks it takes), where the file says so; a host written N times without slots takes N"""
    repeated: tuple[tuple[str, int], ...] = ()
    """(host, lines) of hosts on more than one line"""


class SlurmDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a gres.conf."""

    name: str
    """`gpu`, `mps`, `shard`, ..."""
    type: str | None
    count: int
    nodes: tuple[str, ...] = ()
    """nodes it is about; empty: every node that reads the file"""


class SlurmDevices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="slurm-gres"):
    """A gres.conf: which device files are GPUs."""

    devices: tuple[tuple[str, int], ...]
    """(name or type, the most on one node)"""
    files: tuple[str, ...] = ()
    """device files, distinct, in the file's order"""
    is_template: bool = False
    """holds Jinja that only its deployment fills in"""
    lines: tuple[SlurmDevice, ...] = ()
    autodetect: str | None = None
    """`nvml`, `rsmi`, ...: Slurm asks the driver instead"""
    vendor: str | None = None
    """`amd` or `nvidia`, by the device files and types"""


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
    """most frequent first"""
    annotations: int
    """user annotations about NCCL"""
    has_message_sizes: bool
    """whether NCCL's kernels, or the operations that start them, say how many elements they move"""
