"""Rules about variables that are set: hidden, set twice, misread, without a file or without anybody who reads them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from topo_tune.findings.machine import nccl_version
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.catalogue import catalogue, misnomers
from topo_tune.records.finding import Severity
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import NcclFile, NodeScan, Scan

_PARAM = "NVIDIA/nccl: src/misc/param.cc"
_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%|\$\{?[A-Za-z_(]|<[A-Z][A-Z0-9_ -]*>|@[A-Z][A-Z0-9_]*@")
"""A placeholder that a template or a shell should have filled in; NCCL takes it as it stands."""

# Read by others than NCCL: plugins, profilers, test programs (the catalogue's `not_nccl`, aws-ofi-nccl, Google's
# and NVIDIA's plugins).
_READ_BY_OTHERS = re.compile(
    r"NCCL_(OFI|FASTRAK|GPUDIRECTTCPX|TCPXO?|GIB|SHARP|UCX|IBEXT|INSPECTOR|PROFILE|PROFILER|TESTS|TUNER|PLUGIN|NET_OFI)_"
)
_READ_BY_BUILDS = re.compile(
    r"NCCL_(VERSION|HOME|DIR|PATH|PREFIX|ROOT(_DIR)?|INCLUDE(_DIRS?)?|INC_DIR|LIB(_DIR|RARY|RARIES|RARY_DIR)?|INSTALL_PATH|GENCODE)"
)
"""Left in the environment by images and modules for whoever builds against NCCL: CUDA's images set NCCL_VERSION."""
_READ_BY_TORCH = {
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_AVOID_RECORD_STREAMS",
}
"""PyTorch read these under their old names; new versions warn and ask for TORCH_NCCL_*."""


def _shown(origin: SettingOrigin) -> str:
    """`NCCL_ALGO=Ring (/etc/nccl.conf:3)`."""
    place = origin.path or origin.layer.value
    line = f":{origin.line}" if origin.line is not None else ""
    return f"{origin.name}={origin.value} ({place}{line})"


def _place(origin: SettingOrigin) -> str:
    return f"`{origin.path}`" if origin.path else f"the {origin.layer.value}"


def _for_nodes(origins: list[SettingOrigin]) -> list[SettingOrigin]:
    """Those that NCCL may read on the node itself: what a job's own file sets is told with the file's other lines."""
    return [o for o in origins if o.reach is not Reach.NEVER and o.layer is not Layer.LAUNCHER]


def _by_name(node: NodeScan) -> dict[str, list[SettingOrigin]]:
    found: dict[str, list[SettingOrigin]] = {}
    for origin in node.settings:
        found.setdefault(origin.name, []).append(origin)
    return found


def _hidden(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for name, origins in _by_name(node).items():
            winner = next((o for o in origins if o.reach is Reach.WINS), None)
            for origin in origins:
                if winner is None or origin.reach is not Reach.HIDDEN or origin.value == winner.value:
                    continue
                if origin.path != winner.path:
                    yield Sighting(
                        f"`{name}` of {_place(origin)} has no effect: {_place(winner)} sets another"
                        f" value and goes before it",
                        node.node,
                        (_shown(winner), _shown(origin)),
                    )


_MEANT_TO_DIFFER = {Layer.UNPLACED_FILE, Layer.LAUNCHER}
"""A file that lies beside others is one of several to choose from; what one job sets is meant for this job."""


def _may_be_hidden(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for name, origins in _by_name(node).items():
            winner = next((o for o in origins if o.reach is Reach.WINS), None)
            for origin in origins:
                if winner is None or origin.reach is not Reach.DEPENDS or origin.value == winner.value:
                    continue
                if origin.layer in _MEANT_TO_DIFFER:
                    continue
                yield Sighting(
                    f"`{name}` depends on how the job starts: {_place(origin)} sets another value than"
                    f" {_place(winner)}",
                    node.node,
                    (_shown(winner), _shown(origin), *((origin.reason,) if origin.reason else ())),
                )


def _twice(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for name, origins in _by_name(node).items():
            paths = (o.path for o in origins if _is_file_of_nccl(o) or o.layer is Layer.UNPLACED_FILE)
            for path in dict.fromkeys(path for path in paths if path):
                same = [o for o in origins if o.path == path and o.reach is not Reach.NEVER]
                if len(same) < 2:
                    continue
                first, differs = same[0], len({origin.value for origin in same}) > 1
                yield Sighting(
                    f"`{path}` sets `{name}` more than once"
                    + (" with different values; the first counts" if differs else ", each time to the same"),
                    node.node,
                    (_shown(first), *(_shown(origin) for origin in same[1:4])),
                    severity=None if differs else Severity.NOTICE,
                )


def _is_file_of_nccl(origin: SettingOrigin) -> bool:
    return origin.layer in {Layer.CONF_FILE, Layer.HOME_FILE, Layer.SYSTEM_FILE}


def _drop_in(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        origins = _by_name(node)
        lost = [
            origin
            for name, found in origins.items()
            for origin in found
            if origin.layer is Layer.DROP_IN
            and not any(
                o.reach in {Reach.WINS, Reach.DEPENDS} and o.value == origin.value for o in origins[name]
            )
        ]
        if lost:
            yield Sighting(
                "settings in `/etc/nccl/conf.d` have no effect: no file that NCCL reads has them",
                node.node,
                tuple(_shown(origin) for origin in lost[:8]),
            )


def _conf_file_missing(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        named = dict(node.nccl_environment).get("NCCL_CONF_FILE")
        if not named:
            continue
        if named.startswith("~"):
            yield Sighting(
                "`NCCL_CONF_FILE` begins with `~`, which NCCL does not expand: no such file is read",
                node.node,
                (f"NCCL_CONF_FILE={named}",),
            )
            continue
        for file in node.nccl_files:
            is_unread = not file.exists or (file.sha256 is None and bool(file.problems))
            if file.path.endswith(named) and is_unread:
                yield Sighting(
                    "`NCCL_CONF_FILE` names a file that cannot be read; NCCL passes over it without a"
                    " word, and over "
                    "`~/.nccl.conf` too",
                    node.node,
                    (f"NCCL_CONF_FILE={named}", *file.problems[:1]),
                )


def _conf_file_in_file(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for origin in node.settings:
            if origin.name == "NCCL_CONF_FILE" and _is_file_of_nccl(origin):
                yield Sighting(
                    f"{_place(origin)} sets `NCCL_CONF_FILE`, which NCCL takes from the environment only",
                    node.node,
                    (_shown(origin),),
                )


def _file_missing(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for origin in node.settings:
            if origin.file_exists is False and origin.name != "NCCL_CONF_FILE":
                # A graph file that is not there ends the start of a communicator; a topology file is passed over.
                is_fatal = origin.name == "NCCL_GRAPH_FILE"
                yield Sighting(
                    f"`{origin.name}` names a file that is not there: `{origin.value}`",
                    node.node,
                    (_shown(origin),),
                    severity=Severity.ERROR if is_fatal else None,
                )


def _template(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for origin in node.settings:
            # A shell expands `$NAME` in a profile; nobody does in a file of NCCL's.
            is_expanded = origin.layer in {
                Layer.PROFILE,
                Layer.TASK_PROLOG,
                Layer.SLURMD,
                Layer.SYSTEMD,
                Layer.PAM,
            }
            match = TEMPLATE.search(origin.value)
            is_of_a_script = origin.reach is Reach.NEVER and origin.layer is not Layer.DROP_IN
            # A job's own file is told with all that is wrong in it.
            if is_of_a_script or origin.layer is Layer.LAUNCHER:
                continue
            if match is None or (is_expanded and match.group().startswith("$")):
                continue
            yield Sighting(
                f"`{origin.name}` holds a placeholder that nobody has filled in",
                node.node,
                (_shown(origin),),
                severity=None if origin.reach is Reach.WINS else Severity.WARNING,
            )


def _misread(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        for file in node.nccl_files:
            lines = tuple(f"{file.path}: {problem}" for problem in file.misread)
            if lines and is_nccls(file):
                yield Sighting(
                    f"NCCL reads lines of `{file.path}` otherwise than they were meant", node.node, lines[:8]
                )


def is_nccls(file: NcclFile) -> bool:
    """Whether NCCL could have anything from a file: a script whose lines all begin with `export` gives it nothing."""
    return file.path.endswith("nccl.conf") or any(s.name.startswith("NCCL_") for s in file.settings)


def _unread_name(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        known = {name for library in node.nccl_libraries for name in library.names}
        of_plugins = {name for plugin in node.plugins for name in plugin.names}
        versions = nccl_version(node)
        for name, origins in _by_name(node).items():
            # That this very NCCL does not read a name is the node's to know, whoever sets it.
            where = [o for o in origins if o.reach is not Reach.NEVER]
            where = where if name in catalogue() else _for_nodes(where)
            if not where or name in known | of_plugins or name in misnomers() or _is_for_others(name):
                continue
            variable = catalogue().get(name)
            if known:
                hint = _nearest(name, sorted(known))
                what = f"no NCCL on the node knows `{name}`: it has no effect{hint}"
            elif variable is not None and versions is not None and not variable.exists_in(versions):
                since = variable.since or variable.first_tag
                what = f"`{name}` has no effect on this NCCL: " + (
                    f"the last version that read it was {variable.until}"
                    if variable.until
                    else f"it is read from version {since} on"
                )
            else:
                continue
            shown = ".".join(map(str, versions)) if versions else "unknown"
            yield Sighting(what, node.node, (*(_shown(o) for o in where[:3]), f"NCCL of jobs: {shown}"))


def _is_for_others(name: str) -> bool:
    return bool(_READ_BY_OTHERS.match(name) or _READ_BY_BUILDS.fullmatch(name))


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    return f"; `{near[0]}` may be meant" if near else ""


def _wrong_name(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        known = {name for library in node.nccl_libraries for name in library.names}
        for name, origins in _by_name(node).items():
            misnomer = misnomers().get(name)
            where = _for_nodes(origins)
            if misnomer is None or not where or name in known or _READ_BY_OTHERS.match(name):
                continue
            use = f"; `{misnomer.use}` is meant" if misnomer.use else ""
            yield Sighting(
                f"`{name}` is no variable of NCCL and has no effect on it{use}",
                node.node,
                tuple(_shown(origin) for origin in where[:3]),
                severity=Severity.NOTICE if name in _READ_BY_TORCH else None,
            )


RULES: tuple[Rule, ...] = (
    Rule(
        id="setting-hidden",
        title="a setting has no effect because a stronger place sets the same variable",
        severity=Severity.WARNING,
        why="NCCL takes the environment first, then `$NCCL_CONF_FILE` or `~/.nccl.conf`, then "
        "`/etc/nccl.conf`: whoever edits the weaker place changes nothing",
        fix=(
            "delete the variable in the place that should not decide; `topo-tune scan` shows both under "
            "settings",
            "to change the value, change it where the winner stands",
        ),
        source=_PARAM,
        look=_hidden,
    ),
    Rule(
        id="setting-may-be-hidden",
        title="a profile, unit or image sets another value than the file that NCCL reads",
        severity=Severity.WARNING,
        why="where the profile, unit or image is in a job's environment it hides the file's value, elsewhere "
        "it does not: the same job runs with different settings, depending on how it was started",
        fix=(
            "keep the variable in one place: `/etc/nccl.conf` is read whatever starts the job",
            "`srun env | grep ^NCCL_` shows what jobs really get",
        ),
        source=_PARAM,
        look=_may_be_hidden,
    ),
    Rule(
        id="setting-twice",
        title="a file sets a variable more than once",
        severity=Severity.WARNING,
        why="NCCL keeps the first line of a name in a file; whoever appends a line to change a value changes "
        "nothing",
        fix=("keep one line of each name; delete the others",),
        source=_PARAM,
        look=_twice,
    ),
    Rule(
        id="setting-drop-in-unread",
        title="settings in `/etc/nccl/conf.d` are in no file that NCCL reads",
        severity=Severity.WARNING,
        why="NCCL reads no drop-in folder; its fragments have an effect only when they are merged into "
        "`/etc/nccl.conf`",
        fix=(
            "copy the lines to `/etc/nccl.conf`, or let `topo-tune apply` merge them",
            "delete fragments that nobody needs",
        ),
        source=_PARAM,
        look=_drop_in,
    ),
    Rule(
        id="setting-conf-file-missing",
        title="`NCCL_CONF_FILE` names a file that cannot be read",
        severity=Severity.WARNING,
        why="NCCL passes over a file that it cannot open without a message, and does not read `~/.nccl.conf` "
        "either: none of the settings that were meant is in force",
        fix=(
            'put the file at that path on every node, readable by the users of jobs: `ls -l "$NCCL_CONF_FILE"`',
            "or `unset NCCL_CONF_FILE`",
        ),
        source=_PARAM,
        look=_conf_file_missing,
    ),
    Rule(
        id="setting-conf-file-in-file",
        title="`NCCL_CONF_FILE` is set in a file",
        severity=Severity.WARNING,
        why="NCCL asks the environment for it before it reads any file, so the file that is named here is "
        "never read",
        fix=(
            "export `NCCL_CONF_FILE` in the job's environment, or put the settings themselves into this file",
        ),
        source=_PARAM,
        look=_conf_file_in_file,
    ),
    Rule(
        id="setting-file-missing",
        title="a variable names a file that is not there",
        severity=Severity.WARNING,
        why="a topology file or tuner table that is not there is passed over and NCCL goes by what it "
        "detects; a graph file that is not there ends the start of every communicator",
        fix=(
            "put the file at that path on every node: `ls -l PATH`; in containers, mount it",
            "or delete the variable",
        ),
        source="NVIDIA/nccl: src/graph/xml.cc",
        look=_file_missing,
    ),
    Rule(
        id="setting-template",
        title="a value holds a placeholder of the tool that should have written it",
        severity=Severity.ERROR,
        why="NCCL expands nothing: it takes `{{...}}` or `$NAME` as the value itself, so that a plugin or "
        "file of that name is looked for and not found",
        fix=("write the value itself; check the template or playbook that makes this file",),
        source=_PARAM,
        look=_template,
    ),
    Rule(
        id="setting-misread",
        title="NCCL reads lines of its file otherwise than they were meant",
        severity=Severity.WARNING,
        why="NCCL cuts a line at the first `=` and trims nothing: quotes, spaces, `export` and comments "
        "behind a value become part of the name or the value, and of `4M` it reads 4",
        fix=(
            "write bare `NAME=VALUE` lines: no quotes, no spaces, no `export`, no suffix behind a number",
            "`topo-tune lint FILE` shows each line and how to write it",
        ),
        source=_PARAM,
        look=_misread,
    ),
    Rule(
        id="setting-unread-name",
        title="a variable is set that no NCCL on the node reads",
        severity=Severity.WARNING,
        why="NCCL does not complain about names that it does not know: the setting looks like one and does "
        "nothing",
        fix=("delete it, or correct the name; `topo-tune explain NAME` says which versions read it",),
        source=_DOCS,
        look=_unread_name,
    ),
    Rule(
        id="setting-wrong-name",
        title="a variable is set whose name NCCL never had",
        severity=Severity.WARNING,
        why="it was found in guides and scripts, and no version of NCCL reads it: what it was meant to "
        "change is unchanged",
        fix=("use the name that is meant, or delete the line",),
        source=_DOCS,
        look=_wrong_name,
    ),
)
