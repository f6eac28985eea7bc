"""ClusterFile -> Inventory: everything that types alone do not check, each refusal with its line."""

from __future__ import annotations

from pathlib import Path as FilePath

from msgspec import UNSET

from topo_tune.errors import InputError, did_you_mean
from topo_tune.inventory.cluster_file import ClusterFile, SshBlock
from topo_tune.inventory.nccl_tests import nccl_tests_options
from topo_tune.inventory.nodes import node_hint, racks_of
from topo_tune.inventory.paths import Start, has_control_character
from topo_tune.inventory.sizes import sizes_and_weights
from topo_tune.inventory.yaml_file import Path, YamlFile
from topo_tune.records.inventory import BackendName, Inventory, Rack, ReplayFault, ReplayOptions, SshOptions
from topo_tune.records.nccl_env import DEFAULTS, NcclEnv, nccl_env
from topo_tune.records.nodeset import expand


def build_inventory(
    cluster: ClusterFile, document: YamlFile, start: Start, *, default_name: str
) -> Inventory:
    """The Inventory that a cluster file describes. Raises InputError with file, line and field."""
    racks = racks_of(cluster, document, start)
    _check_ranks(cluster, document)
    _check_roots(cluster, racks, document)
    sizes, weights = sizes_and_weights(cluster.bench, document)
    return Inventory(
        name=default_name if cluster.name is UNSET else cluster.name,
        racks=racks,
        ssh=_ssh(cluster.ssh, document, start),
        backend=cluster.bench.backend,
        ranks_per_node=None if cluster.ranks_per_node is UNSET else cluster.ranks_per_node,
        as_nodes=cluster.as_nodes,
        env=_env(cluster, document),
        sizes_bytes=sizes,
        weights=weights,
        bench_nodes=_bench_nodes(cluster, racks, document),
        replay=_replay(cluster, racks, document, start),
        nccl_tests=nccl_tests_options(cluster, document),
    )


def _ssh(ssh: SshBlock, document: YamlFile, start: Start) -> SshOptions:
    if ssh.jump is not UNSET and ssh.jump.rpartition(":")[2].isdigit():
        port = int(ssh.jump.rpartition(":")[2])
        if not 1 <= port <= 65535:
            raise document.error(("ssh", "jump"), f"there is no port {port}", hint="ports are 1 to 65535")
    return SshOptions(
        user=None if ssh.user is UNSET else ssh.user,
        port=ssh.port,
        identity=None if ssh.identity is UNSET else _file(ssh.identity, ("ssh", "identity"), document, start),
        jump=None if ssh.jump is UNSET else ssh.jump,
        known_hosts=None
        if ssh.known_hosts is UNSET
        else _file(ssh.known_hosts, ("ssh", "known_hosts"), document, start),
        become=ssh.become,
        connect_timeout_seconds=ssh.connect_timeout,
        command_timeout_seconds=ssh.command_timeout,
        parallel=ssh.parallel,
    )


def _file(written: str, path: Path, document: YamlFile, start: Start) -> str:
    if has_control_character(written):
        raise document.error(path, "the path holds a control character")
    return start.resolve(written)


def _check_ranks(cluster: ClusterFile, document: YamlFile) -> None:
    if cluster.ranks_per_node is not UNSET and cluster.as_nodes > cluster.ranks_per_node:
        raise document.error(
            ("as_nodes",),
            f"{cluster.ranks_per_node} ranks cannot be split into {cluster.as_nodes} nodes",
            hint="as_nodes is at most ranks_per_node",
        )


def _check_roots(cluster: ClusterFile, racks: tuple[Rack, ...], document: YamlFile) -> None:
    """NCCL reads /etc/nccl.conf and nothing else, so files written elsewhere would never be in force."""
    if cluster.bench.backend not in (BackendName.NCCL, BackendName.NCCL_TESTS):
        return
    for position, rack in enumerate(racks):
        if any(node.root != "/" for node in rack.nodes):
            is_own = cluster.racks[position].root is not UNSET
            raise document.error(
                ("racks", position, "root") if is_own else ("root",),
                "NCCL reads the real `/etc/nccl.conf`, not one below another root",
                hint="remove `root`; it is for `bench: {backend: replay}` and `bench: {backend: gloo}`",
            )


def _env(cluster: ClusterFile, document: YamlFile) -> NcclEnv:
    env = DEFAULTS
    # One at a time, so that an error has the line of its own variable.
    for name, value in cluster.env.items():
        try:
            env = env.merged(nccl_env({name: value}))
        except InputError as exc:
            raise document.error(("env", name), exc.message, hint=exc.hint or _env_hint(name)) from exc
    return env


def _env_hint(name: str) -> str | None:
    if name.startswith("NCCL_"):
        return None
    return f"only NCCL's own variables go here; others go into `python`, as in `env {name}=... python3`"


def _bench_nodes(cluster: ClusterFile, racks: tuple[Rack, ...], document: YamlFile) -> tuple[str, ...]:
    if cluster.bench.nodes is UNSET:
        return ()
    path: Path = ("bench", "nodes")
    try:
        names = expand(cluster.bench.nodes)
    except InputError as exc:
        raise document.error(path, exc.message, hint=exc.hint) from exc
    known = {node.name for rack in racks for node in rack.nodes}
    for name in names:
        if name not in known:
            raise document.error(path, f"`{name}` is in no rack", hint=node_hint(name, known))
    return names


def _replay(
    cluster: ClusterFile, racks: tuple[Rack, ...], document: YamlFile, start: Start
) -> ReplayOptions | None:
    is_replay = cluster.bench.backend is BackendName.REPLAY
    if cluster.replay is UNSET:
        if is_replay:
            raise document.error(
                ("bench", "backend"),
                "the replay back end has nothing to replay",
                hint="add a block such as `replay: {surface: h200x2-two-node-tcp}`",
            )
        return None
    if not is_replay:
        raise document.error(
            ("replay",),
            f"`replay` does nothing with the back end `{cluster.bench.backend.value}`",
            hint="remove it, or write `bench: {backend: replay}`",
        )
    known = [rack.name for rack in racks]
    faults = []
    for position, fault in enumerate(cluster.replay.faults):
        for index, name in enumerate(fault.racks):
            if name not in known:
                path: Path = ("replay", "faults", position, "racks", index)
                raise document.error(path, f"there is no rack `{name}`", hint=did_you_mean(name, known))
        faults.append(ReplayFault(racks=tuple(fault.racks), tuned_time_factor=fault.tuned_time_factor))
    return ReplayOptions(surface=_surface(cluster.replay.surface, document, start), faults=tuple(faults))


def _surface(written: str, document: YamlFile, start: Start) -> str:
    """A name as it is; a path made absolute, and looked for. The back end knows which names exist."""
    if "/" not in written and not written.endswith(".jsonl"):
        return written
    path = _file(written, ("replay", "surface"), document, start)
    if not FilePath(path).is_file():
        raise document.error(("replay", "surface"), f"no such file: {path}")
    return path
