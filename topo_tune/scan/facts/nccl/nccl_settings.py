"""Where NCCL variables are set besides the files that NCCL reads: profiles, units, prologs, images.

Of every file only the lines that name an NCCL variable leave the node, with their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import Absent, NodeScan
from topo_tune.scan import provenance
from topo_tune.scan.facts.fact import Fact, Files, Gathered, SavedKind
from topo_tune.scan.facts.nccl import setting_lines
from topo_tune.scan.facts.nccl.setting_lines import Setting
from topo_tune.scan.facts.task_lines import lines_of_one_task

Reader = Callable[[str], list[Setting]]

_NAMING_FILES = (
    "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE",
    "NCCL_TUNER_CONFIG_FILE",
    "NCCL_TUNER_CONFIG_PATH",
    "NCCL_CONF_FILE",
)
"""Variables whose value is the path of a file that must be there."""

_UNIT_FOLDERS = ("/usr/lib/systemd/system", "/etc/systemd/system", "/run/systemd/system")


class _Source(msgspec.Struct, frozen=True):
    """Files of one layer and the way in which they are written."""

    pattern: str
    layer: Layer
    read: Reader


_SOURCES = (
    *(
        _Source(pattern, Layer.PROFILE, setting_lines.in_shell)
        for pattern in (
            "/etc/profile",
            "/etc/profile.d/*.sh",
            "/etc/profile.d/*.csh",
            "/etc/bash.bashrc",
            "/etc/bashrc",
            "~/.bash_profile",
            "~/.profile",
            "~/.bashrc",
        )
    ),
    _Source("/etc/environment", Layer.PAM, setting_lines.in_environment_file),
    _Source("/etc/security/pam_env.conf", Layer.PAM, setting_lines.in_pam_conf),
    *(
        _Source(f"{folder}/{name}", Layer.SLURMD, setting_lines.in_unit)
        for folder in _UNIT_FOLDERS
        for name in ("slurmd.service", "slurmd.service.d/*.conf")
    ),
    _Source("/etc/sysconfig/slurmd", Layer.SLURMD, setting_lines.in_environment_file),
    _Source("/etc/default/slurmd", Layer.SLURMD, setting_lines.in_environment_file),
    _Source("/etc/systemd/system.conf", Layer.SYSTEMD, setting_lines.in_unit),
    _Source("/etc/systemd/system.conf.d/*.conf", Layer.SYSTEMD, setting_lines.in_unit),
    *(
        _Source(pattern, Layer.TASK_PROLOG, setting_lines.in_shell)
        for pattern in (
            "/etc/slurm/*[pP]rolog*",
            "/etc/slurm/*[pP]rolog*/*",
            "/etc/slurm-llnl/*[pP]rolog*",
            "/usr/local/etc/slurm/*[pP]rolog*",
            "/opt/slurm/etc/*[pP]rolog*",
            "/opt/slurm/etc/*[pP]rolog*/*",
        )
    ),
    _Source("/etc/enroot/environ.d/*", Layer.CONTAINER_IMAGE, setting_lines.in_environment_file),
)

_FIRST_PROCESS = Files("/proc/1/environ", keep="^NCCL_", limit_bytes=64 << 10)
"""The first process of a container has its image's and its start command's variables."""


def tell(scan: NodeScan, gathered: Gathered) -> NodeScan:
    """The scan with every place that sets an NCCL variable, and with what could not be looked at."""
    found = []
    for source in _SOURCES:
        for path, text in gathered.texts(source.pattern).items():
            found += [_origin(setting, source.layer, path) for setting in source.read(text)]
    found += _of_first_process(scan, gathered)
    told = provenance.with_settings(scan, found)
    settings = tuple(_with_file(origin, gathered) for origin in told.settings)
    return msgspec.structs.replace(told, settings=settings, absent=(*scan.absent, *_not_read(gathered)))


def _of_first_process(scan: NodeScan, gathered: Gathered) -> list[SettingOrigin]:
    lines = gathered.texts(_FIRST_PROCESS.pattern).get(_FIRST_PROCESS.pattern, "")
    found = setting_lines.in_environment_file(lines)
    return [
        SettingOrigin(name, value, Layer.CONTAINER_IMAGE, Reach.DEPENDS, _FIRST_PROCESS.pattern)
        for _, name, value in found
    ]


def _origin(setting: Setting, layer: Layer, path: str | None) -> SettingOrigin:
    line, name, value = setting
    return SettingOrigin(name, value, layer, Reach.DEPENDS, path, line)


def _with_file(origin: SettingOrigin, gathered: Gathered) -> SettingOrigin:
    """A winning setting that names a file, with whether that file is there."""
    if origin.name not in _NAMING_FILES or origin.reach is not Reach.WINS:
        return origin
    for file in gathered.files:
        if file.pattern == f"${origin.name}" and file.path == origin.value:
            is_there = file.text is not None
            is_gone = file.problem in {"No such file or directory", "Not a directory"}
            return msgspec.structs.replace(origin, file_exists=is_there or (False if is_gone else None))
    return origin


def _not_read(gathered: Gathered) -> list[Absent]:
    """Files that are there and could not be read: what they set is not known."""
    return [
        Absent("NCCL variables set elsewhere", f"{file.path}: {file.problem}")
        for source in _SOURCES
        for file in gathered.problems(source.pattern)
        if file.problem != "is not an ordinary file"
    ]


FACTS: tuple[Fact, ...] = (
    Fact(
        "NCCL variables set elsewhere",
        tell,
        files=(
            *(Files(source.pattern, "numbered", "NCCL_", 64 << 10) for source in _SOURCES),
            _FIRST_PROCESS,
            *(Files(f"${name}", "exists") for name in _NAMING_FILES),
        ),
    ),
)


# --- saved files --------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"(?:declare -x |export )?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_OF_EVERY_SESSION = ("PATH", "HOME", "PWD", "SHELL", "USER", "LOGNAME", "HOSTNAME", "LANG", "SHLVL")
_LABEL = r"(?:[ \t]{0,8}\d{1,6}: |\[\d+(?:,\d+)*\]<std\w{3}> ?: ?)?"


def is_environment(text: str) -> bool:
    """Whether a text is what `env`, `printenv` or `export -p` printed: nearly all lines set something, among them
    two that every session has."""
    lines = [re.sub(f"^{_LABEL}", "", line) for line in text.split("\n") if line.strip()]
    names = [match.group(1) for match in map(_VARIABLE.match, lines) if match]
    if len(names) < 5 or len(names) < 0.7 * len(lines):
        return False
    return len(set(names) & set(_OF_EVERY_SESSION)) >= 2


def tell_environment(scan: NodeScan, text: str, _file: str) -> NodeScan:
    """The NCCL variables of a saved environment; nothing else of it is kept."""
    read = lines_of_one_task(text)
    found = dict(scan.nccl_environment)
    for _, line in read.lines:
        match = _VARIABLE.match(line)
        if match and re.fullmatch(r"NCCL_[A-Z0-9_]{2,64}", match.group(1)):
            found.setdefault(match.group(1), _unquoted(match.group(2), line)[:1023])
    if not any(_VARIABLE.match(line) for _, line in read.lines):
        raise InputError("no line sets a variable: expected the output of `env`")
    return provenance.with_settings(
        msgspec.structs.replace(scan, nccl_environment=tuple(sorted(found.items())))
    )


def _unquoted(value: str, line: str) -> str:
    """A value as the process has it: `export -p` puts quotes around it, `env` does not."""
    is_declared = line.startswith(("declare -x ", "export "))
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return value[1:-1] if is_declared and is_quoted else value


def is_unit(text: str) -> bool:
    """Whether a text is a systemd unit or a drop-in of one that sets an environment."""
    has_section = re.search(r"^\[(Service|Manager)\]\s*$", text, re.M)
    return (
        has_section is not None and re.search(r"^(Default)?Environment(File)?[ \t]*=", text, re.M) is not None
    )


def tell_unit(scan: NodeScan, text: str, file: str) -> NodeScan:
    """The NCCL variables that a systemd unit sets."""
    layer = Layer.SLURMD if "slurmd" in file or "slurmd" in text else Layer.SYSTEMD
    found = [_origin(setting, layer, file) for setting in setting_lines.in_unit(text)]
    known = (origin for origin in scan.settings if provenance.is_of_elsewhere(origin))
    return provenance.with_settings(scan, (*known, *found))


KINDS: tuple[SavedKind, ...] = (
    SavedKind("a systemd unit", is_unit, tell=tell_unit),
    SavedKind("the output of `env`", is_environment, tell=tell_environment),
)
