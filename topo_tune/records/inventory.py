"""The inventory: which nodes there are, in which rack, and how to reach and use them."""

from __future__ import annotations

import enum

import msgspec

from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.nodeset import fold


class ConnectionKind(enum.Enum):
    """How a node is reached."""

    SSH = "ssh"
    LOCAL = "local"
    """the node is this machine: commands run as child processes"""


class BackendName(enum.Enum):
    """What makes the numbers."""

    NCCL = "nccl"
    """real GPUs through torch's NCCL"""
    NCCL_TESTS = "nccl-tests"
    """real GPUs through the binaries of NVIDIA/nccl-tests that a site has"""
    GLOO = "gloo"
    """CPUs through torch's gloo; NCCL variables do nothing there"""
    REPLAY = "replay"
    """times drawn from a recorded surface"""


class Become(enum.Enum):
    """How a command becomes root on the node."""

    NONE = "none"
    SUDO = "sudo"
    """`sudo -n`: never asks for a password"""


class SshOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to log in. Times in seconds."""

    user: str | None = None
    port: int = 22
    identity: str | None = None
    """private key file; None: the agent and the usual key files"""
    jump: str | None = None
    """`[user@]host[:port]` of a jump host"""
    known_hosts: str | None = None
    """None: ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts. Host keys are always checked."""
    become: Become = Become.NONE
    connect_timeout_seconds: float = 5.0
    command_timeout_seconds: float = 60.0
    parallel: int = 64


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node: its name, where it is reached, and what runs Python there."""

    name: str
    rack: str
    address: str
    """host name or IP address that topo-tune connects to and that ranks meet at"""
    connection: ConnectionKind
    root: str = "/"
    """prefix of every path read or written on the node; `/` is the machine itself"""
    python: tuple[str, ...] = ("python3",)
    """argv that starts Python where jobs run; may be a container command"""


class Rack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that fail and change together."""

    name: str
    nodes: tuple[Node, ...]


class ReplayFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault put into a replay on purpose, so that the guard has something to catch. Always shown as such."""

    racks: tuple[str, ...]
    tuned_time_factor: float
    """in these racks any setting other than NCCL's default takes this many times the default's time"""


class ReplayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which surface is replayed, with which faults put in."""

    surface: str
    """name of a surface that ships with topo-tune, or a path to a .jsonl file"""
    faults: tuple[ReplayFault, ...] = ()


class NcclTestsOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which binaries of nccl-tests are run, and how."""

    folder: str = ""
    """absolute path, on the nodes, of the folder with `all_reduce_perf` and its siblings; empty: they are on PATH"""
    launcher: tuple[str, ...] = ()
    """argv that starts the processes of a job, run on its first node; may hold `LAUNCHER_WORDS`. Empty: one process a
    node, with all of its GPUs, which measures within nodes only"""
    gpus_per_process: int = 1
    """with a launcher: GPUs that each process drives"""
    arguments: tuple[str, ...] = ()
    """put behind the arguments that topo-tune gives, whose options they replace"""


LAUNCHER_WORDS = ("nodes", "addresses", "slots", "ranks", "processes", "node_count", "processes_per_node")
"""what may stand in braces in a launcher: node names and addresses with commas between them, `address:processes` of
each node with commas between them, and numbers"""


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster as the operator describes it."""

    name: str
    racks: tuple[Rack, ...]
    ssh: SshOptions
    backend: BackendName
    ranks_per_node: int | None = None
    """None: one per GPU (nccl, nccl-tests), two (gloo), as recorded (replay)"""
    as_nodes: int = 1
    """into how many nodes NCCL shall split each host (a different NCCL_HOSTID per part); for trying the network path"""
    env: NcclEnv = DEFAULTS
    """NCCL variables that every job of this cluster sets in its launch environment; never searched"""
    sizes_bytes: tuple[int, ...] = ()
    """message sizes to measure; empty: the back end's usual sweep"""
    weights: tuple[tuple[int, float], ...] = ()
    """(size in bytes, weight) of the objective; empty: every measured size weighs the same"""
    bench_nodes: tuple[str, ...] = ()
    """nodes that a search measures on; empty: all. A rollout judges every wave on its own nodes."""
    replay: ReplayOptions | None = None
    nccl_tests: NcclTestsOptions | None = None
    """None: with another back end"""

    def nodes(self) -> tuple[Node, ...]:
        """Every node, in rack order."""
        return tuple(node for rack in self.racks for node in rack.nodes)

    def node(self, name: str) -> Node:
        """The node of that name. Raises KeyError."""
        return {node.name: node for node in self.nodes()}[name]

    def describe(self) -> str:
        """`4 nodes in 2 racks: n[1-4]`."""
        nodes = self.nodes()
        plural = "" if len(nodes) == 1 else "s"
        racks = "" if len(self.racks) == 1 else "s"
        return f"{len(nodes)} node{plural} in {len(self.racks)} rack{racks}: {fold(n.name for n in nodes)}"


class Missing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that did not answer: part of the result, with its reason."""

    node: str
    kind: str
    """unreachable, host key refused, login refused, connection lost, deadline passed, ..."""
    reason: str
    hint: str | None = None
    """the next step, where one is known"""
