"""Which layer sets each NCCL variable on a node, and whether it reaches NCCL. Pure.

The rules are NCCL's own (src/misc/param.cc, src/os/linux.cc; docs/explanation/how-nccl-reads-settings.md): the
environment goes before $NCCL_CONF_FILE or else ~/.nccl.conf, which goes before /etc/nccl.conf; in a file the first
line of a name counts. Whether a profile or a unit is in a job's environment depends on how the job starts, and
is said so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

from topo_tune.on_node import nccl_conf
from topo_tune.records.catalogue import version_tuple
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import NcclFile, NcclFileSetting, NodeScan

NOT_OF_THIS_NODE = "no layer of this node sets this value: the launcher, a job script or an image does"

_CONF_FILE_SINCE = (2, 23)
"""NCCL_CONF_FILE; older versions read only the home file and /etc/nccl.conf."""
_CARRIAGE_RETURN_SINCE = (2, 30, 3)
"""Drops the carriage return at the end of a line; older versions keep it in the value."""
_ENV_PLUGIN_SINCE = (2, 28, 7)

# What stands in a process's environment, however it got there, goes before NCCL's files.
_STRONGEST_FIRST = (
    Layer.ENVIRONMENT,
    Layer.LAUNCHER,
    Layer.TASK_PROLOG,
    Layer.PROFILE,
    Layer.PAM,
    Layer.SLURMD,
    Layer.SYSTEMD,
    Layer.CONTAINER_IMAGE,
    Layer.CONF_FILE,
    Layer.HOME_FILE,
    Layer.SYSTEM_FILE,
    Layer.UNPLACED_FILE,
    Layer.PLUGIN,
    Layer.DROP_IN,
)

_HOW_IT_ARRIVES = {
    Layer.PROFILE: "login shells read it; `srun` and commands over ssh may not",
    Layer.PAM: "sessions that PAM opens have it: ssh logins, not the jobs of slurmd unless PAM is used there",
    Layer.SLURMD: "jobs inherit it unless `sbatch --export` leaves it out",
    Layer.SYSTEMD: "only processes that this unit starts have it",
    Layer.TASK_PROLOG: "tasks that `srun` starts have it, if the script comes to this line",
    Layer.LAUNCHER: "jobs that are started with this file have it",
    Layer.CONTAINER_IMAGE: "what the container's own start command runs has it; sshd inside does not pass it on",
    Layer.PLUGIN: "a plugin sets it where it is not set",
}
_UNPLACED = "a job has it if NCCL reads this file, and where the file lay on the node is not known"
_INTERACTIVE = "interactive shells read it; in scripts and in commands over ssh it may end before this line"

# Variables that a plugin puts into the environment itself, where they are not set: aws/aws-ofi-nccl issue 982.
_SET_BY_PLUGINS = {
    "ofi": ("NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_PROTO", "NCCL_TOPO_FILE"),
}


def with_settings(scan: NodeScan, others: Iterable[SettingOrigin] | None = None) -> NodeScan:
    """The scan with every place that sets an NCCL variable.

    others: settings of layers that NCCL does not read itself; None keeps those that the scan has already, so
    that this can be asked again whenever a file of the node became known.
    """
    if others is None:
        others = (origin for origin in scan.settings if is_of_elsewhere(origin))
    seen = {(origin.name, origin.value): origin.file_exists for origin in scan.settings}
    found = tuple(
        msgspec.structs.replace(origin, file_exists=seen.get((origin.name, origin.value)))
        if origin.file_exists is None
        else origin
        for origin in origins(scan, others)
    )
    return msgspec.structs.replace(scan, settings=found)


def origins(scan: NodeScan, others: Iterable[SettingOrigin] = ()) -> tuple[SettingOrigin, ...]:
    """Every place that sets an NCCL variable, by name, strongest first.

    others: settings of layers that NCCL does not read itself (profiles, units, images).
    """
    versions = known_versions(scan)
    found = [_from_session(name, value) for name, value in scan.nccl_environment]
    session = {origin.name: origin for origin in found}
    winners = dict(session)
    layers = layers_of(scan.nccl_files, session)
    placed = list(zip(scan.nccl_files, layers, strict=True))
    for file, layer in sorted(placed, key=lambda pair: _STRONGEST_FIRST.index(pair[1])):
        if layer is Layer.UNPLACED_FILE:
            found += _from_unplaced(file, versions)
        elif layer is not Layer.DROP_IN:
            found += _from_file(file, layer, winners, versions)
    for file, layer in placed:
        if layer is Layer.DROP_IN:
            found += _from_drop_in(file, winners)
    found += [_with_reach(origin, session) for origin in others]
    if answers_look_ups(scan, winners):
        found = [_through_plugin(origin) for origin in found]
    order = {layer: place for place, layer in enumerate(_STRONGEST_FIRST)}
    return tuple(sorted(found, key=lambda origin: (origin.name, order[origin.layer])))


def sources_of(environment: Mapping[str, str], scan: NodeScan) -> dict[str, tuple[SettingOrigin, ...]]:
    """For each NCCL variable of a job's environment, the places of its node that may have set this value.

    environment: what a process had, as `env` printed it or as NCCL's `set by environment` lines tell it; files that
    NCCL reads are in it too, once NCCL has started. A value that nothing on the node explains has one origin
    without a path.
    """
    explained = {}
    for name, value in environment.items():
        if not name.startswith("NCCL_"):
            continue
        same = [
            o
            for o in scan.settings
            if o.name == name and _is_same(o.value, value) and o.reach is not Reach.NEVER
        ]
        same += _from_plugins(name, value, scan)
        unknown = SettingOrigin(name, value, Layer.ENVIRONMENT, Reach.WINS, reason=NOT_OF_THIS_NODE)
        explained[name] = tuple(same) or (unknown,)
    return explained


def is_of_elsewhere(origin: SettingOrigin) -> bool:
    """Whether a setting is of a layer that NCCL does not read itself."""
    return origin.layer in _HOW_IT_ARRIVES


def layers_of(files: Sequence[NcclFile], session: Mapping[str, SettingOrigin]) -> tuple[Layer, ...]:
    """Which layer each file of one node is, by its path.

    A saved file may be called anything and lie anywhere: only those called as NCCL looks for them have a layer. Of
    several that claim the same one, the one whose folder says so has it.
    """
    named = session.get("NCCL_CONF_FILE")
    layers = [_layer_of(file.path, named.value if named else "") for file in files]
    for layer, folder in ((Layer.SYSTEM_FILE, "etc"), (Layer.HOME_FILE, None)):
        claims = [place for place, own in enumerate(layers) if own is layer]
        told = [place for place in claims if PurePosixPath(files[place].path).parent.name == folder]
        if len(claims) > 1:
            kept = told if len(told) == 1 else []
            for place in claims:
                layers[place] = layer if place in kept else Layer.UNPLACED_FILE
    return tuple(layers)


def _layer_of(path: str, named: str) -> Layer:
    if f"{nccl_conf.DROP_IN_DIRECTORY}/" in f"/{path}":
        return Layer.DROP_IN
    if named and path.endswith(named):
        return Layer.CONF_FILE
    by_name = {"nccl.conf": Layer.SYSTEM_FILE, ".nccl.conf": Layer.HOME_FILE}
    return by_name.get(PurePosixPath(path).name, Layer.UNPLACED_FILE)


def known_versions(scan: NodeScan) -> tuple[tuple[int, ...], ...]:
    """The versions of NCCL that a process of this node could load."""
    told = [scan.torch_nccl, *(library.version for library in scan.nccl_libraries)]
    return tuple(sorted({version_tuple(version) for version in told if version}))


def answers_look_ups(scan: NodeScan, winners: Mapping[str, SettingOrigin]) -> bool:
    """Whether an env plugin answers every look-up of a variable in place of the environment."""
    versions = known_versions(scan)
    if versions and all(version < _ENV_PLUGIN_SINCE for version in versions):
        return False
    named = winners.get("NCCL_ENV_PLUGIN")
    if named is not None and named.value:
        return named.value.lower() != "none"
    found = (p for p in scan.plugins if p.kind == "env" and p.found_in in {"LD_LIBRARY_PATH", "system"})
    return any(plugin.path.endswith("libnccl-env.so") for plugin in found)


def _from_session(name: str, value: str) -> SettingOrigin:
    reason = None if value else "is empty: hides what files set, and NCCL takes its default"
    return SettingOrigin(name, value, Layer.ENVIRONMENT, Reach.WINS, reason=reason)


def _from_file(
    file: NcclFile, layer: Layer, winners: dict[str, SettingOrigin], versions: tuple[tuple[int, ...], ...]
) -> list[SettingOrigin]:
    """The settings of one file; those that win are added to the winners."""
    found = []
    for setting in file.settings:
        name, never = _meant(setting, layer, versions)
        if name is None:
            continue
        origin = SettingOrigin(name, setting.value, layer, Reach.WINS, file.path, setting.line)
        stronger = winners.get(name)
        if never is not None:
            origin = msgspec.structs.replace(origin, reach=Reach.NEVER, reason=never)
        elif stronger is not None:
            origin = msgspec.structs.replace(origin, reach=Reach.HIDDEN, reason=_hidden_by(stronger, file))
        else:
            origin = msgspec.structs.replace(origin, reason=_doubt(file, setting, versions))
            winners[name] = origin
        found.append(origin)
    return found


def _meant(
    setting: NcclFileSetting, layer: Layer, versions: tuple[tuple[int, ...], ...]
) -> tuple[str | None, str | None]:
    """The variable that a line is meant for, None where it is none of NCCL's, and what keeps it from being read."""
    match = re.fullmatch(r"(.*?)(NCCL_[A-Z0-9_]{2,64})(\s*)", setting.name, re.S)
    if match is None:
        return None, None
    before, name, after = match.groups()
    if before or after:
        written = before.strip() or "a space"
        return name, f"NCCL takes `{written}` as a part of the name"
    if name == "NCCL_CONF_FILE":
        return name, "NCCL takes it from the environment only, before it reads any file"
    if layer is Layer.CONF_FILE and versions and all(version < _CONF_FILE_SINCE for version in versions):
        return name, "NCCL before 2.23 does not know NCCL_CONF_FILE"
    return name, None


def _hidden_by(stronger: SettingOrigin, file: NcclFile) -> str:
    if stronger.path == file.path:
        return f"line {stronger.line} of this file comes first"
    where = f"`{stronger.path}`" if stronger.path else "the environment of topo-tune's session"
    return f"{where} sets it, and goes before this file"


def _doubt(file: NcclFile, setting: NcclFileSetting, versions: tuple[tuple[int, ...], ...]) -> str | None:
    returns = any("end in CR LF" in problem or "ends in CR LF" in problem for problem in file.problems)
    if returns and not (versions and all(version >= _CARRIAGE_RETURN_SINCE for version in versions)):
        return "ends with a carriage return, which NCCL before 2.30.3 keeps in the value"
    return None if setting.value else "is empty: hides what later files set, and NCCL takes its default"


def _from_unplaced(file: NcclFile, versions: tuple[tuple[int, ...], ...]) -> list[SettingOrigin]:
    """The settings of a file that hides nothing and that nothing hides: who reads it is not known."""
    found = _from_file(file, Layer.UNPLACED_FILE, {}, versions)
    return [
        origin
        if origin.reach is Reach.NEVER
        else msgspec.structs.replace(origin, reach=Reach.DEPENDS, reason=_UNPLACED)
        for origin in found
    ]


def _from_drop_in(file: NcclFile, winners: Mapping[str, SettingOrigin]) -> list[SettingOrigin]:
    found = []
    for setting in file.settings:
        winner = winners.get(setting.name)
        is_merged = winner is not None and winner.path is not None and winner.value == setting.value
        reason = (
            f"NCCL reads it from {winner.path}, which says the same"
            if is_merged and winner is not None
            else "NCCL reads no drop-in folder, and no file that it reads says the same"
        )
        if setting.name.startswith("NCCL_"):
            found.append(
                SettingOrigin(
                    setting.name, setting.value, Layer.DROP_IN, Reach.NEVER, file.path, setting.line, reason
                )
            )
    return found


def _with_reach(origin: SettingOrigin, session: Mapping[str, SettingOrigin]) -> SettingOrigin:
    """A setting of a layer that NCCL does not read, with what is known of whether jobs get it."""
    reason = _HOW_IT_ARRIVES.get(origin.layer, "it is not known who reads it")
    if origin.layer is Layer.PROFILE and re.search(r"bashrc$", origin.path or ""):
        reason = _INTERACTIVE
    in_session = session.get(origin.name)
    if in_session is None:
        is_far = origin.layer is Layer.LAUNCHER
        reason += "" if is_far else "; topo-tune's own session did not get it"
    elif _is_same(in_session.value, origin.value):
        reason += "; topo-tune's own session has this value"
    else:
        reason += "; topo-tune's own session has another value"
    return msgspec.structs.replace(origin, reach=Reach.DEPENDS, reason=reason)


def _through_plugin(origin: SettingOrigin) -> SettingOrigin:
    if origin.reach is not Reach.WINS or origin.name == "NCCL_ENV_PLUGIN":
        return origin
    reason = "an env plugin answers every look-up in place of the environment"
    return msgspec.structs.replace(origin, reach=Reach.DEPENDS, reason=reason)


def _from_plugins(name: str, value: str, scan: NodeScan) -> list[SettingOrigin]:
    return [
        SettingOrigin(
            name, value, Layer.PLUGIN, Reach.DEPENDS, plugin.path, reason=_HOW_IT_ARRIVES[Layer.PLUGIN]
        )
        for plugin in scan.plugins
        for word, names in _SET_BY_PLUGINS.items()
        if plugin.kind == "net" and word in plugin.path and name in names
    ]


def _is_same(one: str, other: str) -> bool:
    """Whether two values are the same to NCCL: integers by what strtoll makes of them, other words by their letters."""
    return one == other or (_integer(one) is not None and _integer(one) == _integer(other))


def _integer(value: str) -> int | None:
    match = re.fullmatch(r"\s*([+-]?)(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})", value)
    if match is None:
        return None
    digits = match.group(2)
    if digits[:2].lower() == "0x":
        number = int(digits, 16)
    elif digits.startswith("0") and set(digits) <= set("01234567"):
        number = int(digits, 8)
    else:
        number = int(digits)
    return -number if match.group(1) == "-" else number
