"""Rules about the NCCL libraries of a node and the plugins that they could load."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topo_tune.findings.in_force import in_force
from topo_tune.findings.machine import gpu_count, nccl_version
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.scan import NcclLibrary, NcclPlugin, NodeScan, Scan

_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

# Compute capability, and the first NCCL with code for it. 9.0: cupy issue 7094 on NCCL 2.15's release notes; 10.0: the
# notes of NCCL 2.25.1 ("Add Blackwell/SM100 support"), quoted in ROCm/rccl pull request 1662.
_FIRST_WITH_CODE = (((10, 0), (2, 25, 1)), ((9, 0), (2, 15)))

_BUILT_IN_NETWORKS = {"ib", "socket"}


def _absent(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        was_looked_for = not any(absent.what == "NCCL libraries" for absent in node.absent)
        has_none = not node.nccl_libraries and node.torch_nccl is None
        if has_none and was_looked_for and gpu_count(node) and node.gpu_source is not None:
            yield Sighting("no libnccl was found where jobs would look, outside containers", node.node)


def _several(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        found = {library.version for library in node.nccl_libraries if library.version}
        others = found - {node.torch_nccl}
        if node.torch_nccl is None or not others or _on_library_path(node):
            continue
        yield Sighting(
            f"torch brings NCCL {node.torch_nccl}, and other programs load {', '.join(sorted(others))}",
            node.node,
            tuple(_shown(library) for library in node.nccl_libraries[:6]),
        )


def _shadowed(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for library in _on_library_path(node)[:1]:
            yield Sighting(
                f"`LD_LIBRARY_PATH` leads to NCCL {library.version}, and torch brings {node.torch_nccl}",
                node.node,
                tuple(_shown(each) for each in node.nccl_libraries[:6]),
            )


def _on_library_path(node: NodeScan) -> list[NcclLibrary]:
    """Libraries of LD_LIBRARY_PATH that are of another version than torch's."""
    return [
        library
        for library in node.nccl_libraries
        if library.found_in == "LD_LIBRARY_PATH"
        and library.version
        and node.torch_nccl
        and library.version != node.torch_nccl
    ]


def _too_old(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        version = nccl_version(node)
        capabilities = [re.findall(r"\d{1,3}", gpu.compute_capability or "") for gpu in node.gpus]
        newest = max((tuple(map(int, parts)) for parts in capabilities if len(parts) == 2), default=None)
        if version is None or newest is None:
            continue
        for capability, first in _FIRST_WITH_CODE:
            if newest >= capability and version < first:
                yield Sighting(
                    f"NCCL {'.'.join(map(str, version))} has no code for these GPUs: compute capability "
                    f"{'.'.join(map(str, capability))} needs {'.'.join(map(str, first))} or newer",
                    node.node,
                    tuple(f"GPU {gpu.index}: {gpu.name}" for gpu in node.gpus[:2]),
                    # Of several libraries the oldest need not be the one that jobs load.
                    severity=None if node.torch_nccl or len(node.nccl_libraries) == 1 else Severity.WARNING,
                )
                break


def _plugin_missing(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for plugin in node.plugins:
            if plugin.exists:
                continue
            needs_it = plugin.kind == "net" and _has_efa(node)
            yield Sighting(
                f"`{plugin.found_in}` names a plugin that is not there: `{plugin.path}`",
                node.node,
                (f"looked for {plugin.path} and libnccl-{plugin.kind}-{plugin.path}.so",)
                if "/" not in plugin.path
                else (),
                severity=Severity.ERROR if needs_it else None,
            )


def _plugin_refused(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        library = _of_jobs(node)
        if library is None:
            continue
        for plugin in node.plugins:
            beginning = _INTERFACES.get(plugin.kind, "")
            own = [name for name in plugin.interfaces if name.startswith(beginning)]
            taken = [name for name in library.accepts if name.startswith(beginning)]
            if beginning and own and taken and _is_loaded(plugin) and not set(own) & set(taken):
                yield Sighting(
                    f"a {plugin.kind} plugin speaks no interface that NCCL {library.version or ''}"
                    f" takes".rstrip(),
                    node.node,
                    (f"{plugin.path}: {', '.join(own)}", f"{library.path}: {', '.join(taken)}"),
                )


_INTERFACES = {
    "net": "ncclNet",
    "tuner": "ncclTunerPlugin_",
    "profiler": "ncclProfiler_",
    "env": "ncclEnvPlugin_",
}


def _of_jobs(node: NodeScan) -> NcclLibrary | None:
    """The library that torch brings, else the only one; None where it is not clear or nobody looked into it."""
    known = [library for library in node.nccl_libraries if library.accepts]
    own = [library for library in known if library.found_in in {"torch", "pip"}]
    if own and (node.torch_nccl is None or own[0].version == node.torch_nccl):
        return own[0]
    return known[0] if len(known) == 1 and node.torch_nccl in {None, known[0].version} else None


def _is_loaded(plugin: NcclPlugin) -> bool:
    """Whether NCCL would open it: a variable names it, or it has the name that NCCL looks for by itself."""
    if plugin.found_in.startswith("NCCL_"):
        return plugin.exists
    is_default = re.search(rf"/libnccl-{plugin.kind}\.so$", plugin.path) is not None
    return is_default and plugin.found_in in {"LD_LIBRARY_PATH", "system"}


def _efa_without_plugin(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if not _has_efa(node) or not node.nccl_libraries:
            continue
        nets = [plugin for plugin in node.plugins if plugin.kind == "net" and plugin.exists]
        if any(plugin.found_in != "usual folder" for plugin in nets):
            continue
        where = tuple(f"found, on no library path: {plugin.path}" for plugin in nets[:2])
        yield Sighting(
            "EFA devices are there, and no net plugin is where NCCL looks for one",
            node.node,
            where or ("no libnccl-net*.so in the usual folders either",),
            severity=Severity.NOTICE if nets else None,
        )


def _has_efa(node: NodeScan) -> bool:
    return any(device.driver == "efa" for device in node.rdma) or any(
        nic.driver == "efa" for nic in node.nics
    )


def _network_without_plugin(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        net, plugin = in_force(node, "NCCL_NET"), in_force(node, "NCCL_NET_PLUGIN")
        if net is None or net.value.strip().casefold() in _BUILT_IN_NETWORKS or not node.nccl_libraries:
            continue
        is_none = plugin is not None and plugin.value.strip().casefold() == "none"
        has_plugin = any(each.kind == "net" and each.exists for each in node.plugins)
        if is_none or not has_plugin:
            yield Sighting(
                f"`NCCL_NET={net.value}` asks for a network that only a plugin has, and there is none",
                node.node,
                (str(net), *((str(plugin),) if plugin else ())),
            )


def _plugin_unused(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        net, plugin = in_force(node, "NCCL_NET"), in_force(node, "NCCL_NET_PLUGIN")
        if net is None or plugin is None or plugin.value.strip().casefold() == "none":
            continue
        if net.value.strip().casefold() in _BUILT_IN_NETWORKS:
            yield Sighting(
                f"`NCCL_NET_PLUGIN` names a plugin, and `NCCL_NET={net.value}` asks for NCCL's own network",
                node.node,
                (str(net), str(plugin)),
            )


def _shown(library: NcclLibrary) -> str:
    return f"{library.path}: {library.version or 'version unknown'} ({library.found_in})"


RULES: tuple[Rule, ...] = (
    Rule(
        id="nccl-absent",
        title="no NCCL library outside containers",
        severity=Severity.NOTICE,
        why="rules and settings that depend on NCCL's version cannot be checked here; `bench` needs a Python "
        "with torch",
        fix=(
            "let `python:` of the cluster file start the Python of the container or environment that jobs use",
        ),
        source="https://man7.org/linux/man-pages/man8/ld.so.8.html",
        look=_absent,
    ),
    Rule(
        id="nccl-versions-differ",
        title="torch brings another NCCL than the system has",
        severity=Severity.NOTICE,
        why="nccl-tests built against the system's library measures another NCCL than training uses",
        fix=(
            "build nccl-tests with `NCCL_HOME` of torch's package, or set `LD_PRELOAD` to its libnccl.so.2 "
            "for the test",
            "remove the system's package where nobody needs it",
        ),
        source="https://github.com/rapidsai/cugraph/issues/4465",
        look=_several,
    ),
    Rule(
        id="nccl-library-path",
        title="`LD_LIBRARY_PATH` leads to another NCCL than torch brings",
        severity=Severity.WARNING,
        why="programs without a path of their own load that one, and so does a torch that was linked with "
        "RUNPATH (wheels use RPATH, which goes before it): jobs may mix two versions",
        fix=(
            "take the folder out of `LD_LIBRARY_PATH`",
            "`python -c 'import torch; print(torch.cuda.nccl.version())'` shows which one torch has loaded",
        ),
        source="https://github.com/pytorch/builder/pull/1150",
        look=_shadowed,
    ),
    Rule(
        id="nccl-older-than-gpus",
        title="NCCL is older than the GPUs",
        severity=Severity.ERROR,
        why="a library without code for the GPU fails at its first kernel, or runs without what the machine "
        "offers",
        fix=("install a newer torch, or `pip install -U nvidia-nccl-cu12` in the jobs' environment",),
        source="https://github.com/ROCm/rccl/pull/1662 (notes of NCCL 2.25.1);"
        " https://github.com/cupy/cupy/issues/7094",
        look=_too_old,
    ),
    Rule(
        id="plugin-missing",
        title="a variable names a plugin that is not there",
        severity=Severity.WARNING,
        why="NCCL goes on without it, with a line in its INFO log only: its own network or tuner takes over, "
        "or TCP sockets",
        fix=(
            "correct the name: a path, a library's name, or the end of `libnccl-net-NAME.so`",
            "put its folder into `LD_LIBRARY_PATH` or `/etc/ld.so.conf.d`, then `ldconfig`",
        ),
        source=_DOCS + "#nccl-net-plugin",
        look=_plugin_missing,
    ),
    Rule(
        id="plugin-refused",
        title="a plugin speaks no interface that NCCL takes",
        severity=Severity.WARNING,
        why="NCCL looks for the versions of the interface that it knows, finds none and goes on without the "
        "plugin",
        fix=(
            "install the plugin's version that belongs to this NCCL, or the NCCL that belongs to the plugin",
        ),
        source="NVIDIA/nccl: src/plugin/net.cc",
        look=_plugin_refused,
    ),
    Rule(
        id="plugin-efa-absent",
        title="EFA devices without a net plugin",
        severity=Severity.WARNING,
        why="NCCL itself cannot use EFA: without aws-ofi-nccl on the library path traffic between nodes goes "
        "over TCP sockets",
        fix=(
            "install aws-ofi-nccl, or put its folder (`/opt/amazon/ofi-nccl/lib`) into `LD_LIBRARY_PATH` of "
            "jobs",
            "`NCCL_DEBUG=INFO` must show `Using network Libfabric` or `AWS Libfabric`",
        ),
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html",
        look=_efa_without_plugin,
    ),
    Rule(
        id="plugin-network-absent",
        title="`NCCL_NET` asks for a plugin's network, and there is no plugin",
        severity=Severity.ERROR,
        why="NCCL looks for a network of exactly this name; where none has it the start of every "
        "communicator fails",
        fix=("delete `NCCL_NET`, or make the plugin loadable: `NCCL_NET_PLUGIN`, `LD_LIBRARY_PATH`",),
        source="NVIDIA/nccl: src/plugin/net.cc",
        look=_network_without_plugin,
    ),
    Rule(
        id="plugin-unused",
        title="a net plugin is named, and `NCCL_NET` asks for NCCL's own network",
        severity=Severity.WARNING,
        why="NCCL takes the network of this name, so that the plugin is loaded and never used",
        fix=("delete one of `NCCL_NET` and `NCCL_NET_PLUGIN`",),
        source="NVIDIA/nccl: src/plugin/net.cc",
        look=_plugin_unused,
    ),
)
