"""The cluster file: what a person writes. Every key, its meaning, its unit, and the values it takes.

The structs here are the schema (docs/reference/cluster-file.schema.json is made from them); what goes beyond
types, such as a node that stands in two racks, is checked where the Inventory is built.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topo_tune.records.inventory import BackendName, Become, ConnectionKind

NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
"""Names of clusters and racks reach file names, options and logs."""

_USER_PATTERN = r"^[^\s:@-][^\s:@]*$"
_JUMP_PATTERN = r"^([^\s:@,-][^\s:@,]*@)?([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"


def _meta(description: str, *, hint: str | None = None, **rules: Any) -> Meta:
    """A field's description and rules; the hint is what an error says when a rule is broken."""
    return Meta(description=description, extra=None if hint is None else {"hint": hint}, **rules)


_NAME_HINT = "up to 64 letters, digits, `.`, `_` and `-`, with a letter or digit at both ends"

Size = str | int


class SshBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to log in to the nodes. Host keys are always checked."""

    user: (
        Annotated[
            str,
            _meta(
                "User to log in as; without it, your own name or what ~/.ssh/config says.",
                pattern=_USER_PATTERN,
                hint="a login name such as `ops`, without the host",
            ),
        ]
        | UnsetType
    ) = UNSET
    port: Annotated[int, _meta("TCP port of the SSH server.", ge=1, le=65535)] = 22
    identity: (
        Annotated[
            str,
            _meta(
                "Private key file on this machine. `~` is your home; a relative path starts at the cluster "
                "file. Without it: the agent and the usual key files.",
                min_length=1,
            ),
        ]
        | UnsetType
    ) = UNSET
    jump: (
        Annotated[
            str,
            _meta(
                "Jump host, `[user@]host[:port]`.",
                pattern=_JUMP_PATTERN,
                hint="one jump host, written `[user@]host[:port]`",
            ),
        ]
        | UnsetType
    ) = UNSET
    known_hosts: (
        Annotated[
            str,
            _meta(
                "File of host keys on this machine, read instead of ~/.ssh/known_hosts and "
                "/etc/ssh/ssh_known_hosts. `~` is your home; a relative path starts at the cluster file.",
                min_length=1,
            ),
        ]
        | UnsetType
    ) = UNSET
    become: Annotated[
        Become,
        _meta("How `apply` becomes root on a node: `sudo` is `sudo -n`, which never asks for a password."),
    ] = Become.NONE
    connect_timeout: Annotated[
        float, _meta("Seconds until a node that does not answer is given up.", gt=0)
    ] = 5.0
    command_timeout: Annotated[float, _meta("Seconds that one short command on a node may take.", gt=0)] = (
        60.0
    )
    parallel: Annotated[int, _meta("Nodes that are reached at the same time.", ge=1)] = 64


class BenchBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is measured, and what counts how much."""

    backend: Annotated[
        BackendName,
        _meta(
            "What makes the numbers: `nccl` (real GPUs), `nccl-tests` (real GPUs, measured by NVIDIA's "
            "nccl-tests, where a site has it), `gloo` (CPUs, where no NCCL variable does anything) or `replay` "
            "(times drawn from a recorded surface)."
        ),
    ] = BackendName.NCCL
    nodes: (
        Annotated[
            str,
            _meta(
                "Nodes that a search measures on, as `gpu[001-008]`; without it, all of them. A rollout "
                "judges every wave on the wave's own nodes."
            ),
        ]
        | UnsetType
    ) = UNSET
    sizes: (
        Annotated[
            Size | list[Size],
            _meta(
                "Message sizes in bytes; K, M and G are powers of two. A list (`[8K, 128K]`), or a sweep: "
                "`8K..32M` doubles, `8K..32M x4` goes by fours. Without it: the sizes under `weights`, or "
                "else the back end's usual sweep."
            ),
        ]
        | UnsetType
    ) = UNSET
    weights: (
        Annotated[
            dict[str, Annotated[float, Meta(ge=0)]],
            _meta(
                "How much each message size counts in the objective, as size: weight. A size without a "
                "weight counts 0: it is measured and shown, but does not decide. Without `weights` every "
                "size counts the same."
            ),
        ]
        | UnsetType
    ) = UNSET


class FaultEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault put into a replay on purpose, so that there is something to catch. Every output says so."""

    racks: Annotated[list[str], _meta("Names of the racks that have the fault.", min_length=1)]
    tuned_time_factor: Annotated[
        float,
        _meta(
            "In these racks, any setting other than NCCL's default takes this many times the time that the "
            "default takes: 1.12 is twelve per cent slower.",
            gt=0,
        ),
    ]


class ReplayBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `backend: replay` replays."""

    surface: Annotated[
        str,
        _meta(
            "Name of a surface that ships with topo-tune, or path of a .jsonl file; a relative path starts "
            "at the cluster file.",
            min_length=1,
        ),
    ]
    faults: Annotated[list[FaultEntry], _meta("Faults put in on purpose.")] = []


class NcclTestsBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How `backend: nccl-tests` runs the binaries of NVIDIA/nccl-tests."""

    folder: (
        Annotated[
            str,
            _meta(
                "Absolute path, on the nodes, of the folder that holds `all_reduce_perf` and its siblings. Without "
                "it they are looked for on the PATH of the nodes.",
                pattern=r"^/",
                hint="an absolute path on the nodes, such as `/opt/nccl-tests/build`",
            ),
        ]
        | UnsetType
    ) = UNSET
    launcher: (
        Annotated[
            str,
            _meta(
                "Command that starts the processes of a job, run on the job's first node, split into words as a "
                "shell would, but not run by a shell. `{nodes}`, `{addresses}`, `{slots}`, `{ranks}`, "
                "`{processes}`, `{node_count}` and `{processes_per_node}` stand for the job's own: "
                "`mpirun -np {processes} -H {slots}`. Without it one process runs on each node and drives all of "
                "its GPUs, which measures within nodes only.",
                min_length=1,
            ),
        ]
        | UnsetType
    ) = UNSET
    gpus_per_process: Annotated[
        int, _meta("GPUs that each process of the launcher drives (`-g` of nccl-tests).", ge=1)
    ] = 1
    arguments: Annotated[
        str,
        _meta(
            "Further arguments of the binaries, as `-n 50 -R 1`; they replace those that topo-tune gives. Sizes, "
            "the type and the number of GPUs are topo-tune's own."
        ),
    ] = ""


class RackEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that fail and change together: a rollout goes rack by rack."""

    name: Annotated[str, _meta("Name of the rack.", pattern=NAME_PATTERN, max_length=64, hint=_NAME_HINT)]
    nodes: Annotated[
        str | list[str],
        _meta("Node names: a node set such as `gpu[001-016]`, or a list of names and node sets."),
    ]
    connection: (
        Annotated[ConnectionKind, _meta("Replaces the cluster's `connection` for this rack.")] | UnsetType
    ) = UNSET
    root: Annotated[str, _meta("Replaces the cluster's `root` for this rack.", min_length=1)] | UnsetType = (
        UNSET
    )
    python: (
        Annotated[str, _meta("Replaces the cluster's `python` for this rack.", min_length=1)] | UnsetType
    ) = UNSET


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster for topo-tune: which nodes there are, how to reach them, and what to measure."""

    racks: Annotated[
        list[RackEntry], _meta("The racks, in the order in which a rollout takes them.", min_length=1)
    ]
    name: (
        Annotated[
            str,
            _meta(
                "Name of the cluster; without it, the file's name without its ending.",
                pattern=NAME_PATTERN,
                max_length=64,
                hint=_NAME_HINT,
            ),
        ]
        | UnsetType
    ) = UNSET
    connection: Annotated[
        ConnectionKind,
        _meta("How nodes are reached: `ssh`, or `local` for commands on this machine."),
    ] = ConnectionKind.SSH
    ssh: Annotated[SshBlock, _meta("How to log in, with `connection: ssh`.")] = SshBlock()
    python: (
        Annotated[
            str,
            _meta(
                "Command that starts Python 3.8 or newer where jobs run, split into words as a shell would, "
                "but not run by a shell. It may be a container command: `docker exec -i train python3`. "
                "Without it: `python3` (ssh), or the Python that runs topo-tune (local).",
                min_length=1,
            ),
        ]
        | UnsetType
    ) = UNSET
    root: Annotated[
        str,
        _meta(
            "Prefix of every path that topo-tune reads or writes on a node; `/` is the machine itself, and all "
            "that the back ends `nccl` and `nccl-tests` take, because NCCL reads the real `/etc/nccl.conf`. "
            "`{node}` stands for the node's name; a relative path starts at the cluster file; `~` is your "
            "home (local only).",
            min_length=1,
        ),
    ] = "/"
    as_nodes: Annotated[
        int,
        _meta(
            "Into how many nodes NCCL shall split each host, to try the network path between the GPUs of "
            "one host.",
            ge=1,
        ),
    ] = 1
    ranks_per_node: (
        Annotated[
            int,
            _meta(
                "Ranks on each host. Without it: one per GPU (nccl, nccl-tests), two (gloo), as recorded (replay).",
                ge=1,
            ),
        ]
        | UnsetType
    ) = UNSET
    env: Annotated[
        dict[str, str | int],
        _meta(
            "NCCL variables that every job of this cluster sets in its environment; they are never searched."
        ),
    ] = {}
    bench: Annotated[BenchBlock, _meta("What is measured, and what counts how much.")] = BenchBlock()
    nccl_tests: (
        Annotated[NcclTestsBlock, _meta("How the binaries are run, with `backend: nccl-tests`.")] | UnsetType
    ) = UNSET
    replay: Annotated[ReplayBlock, _meta("What is replayed, with `backend: replay`.")] | UnsetType = UNSET
    addresses: Annotated[
        dict[str, str],
        _meta(
            "Node name: host name or IP address to connect to, where the name alone does not lead there. "
            "Ranks meet at this address too."
        ),
    ] = {}
