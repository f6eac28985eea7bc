"""NVIDIA's fabric manager: whether it runs, and what its log says."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import FabricManager
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.beginning import beginning
from topo_tune.scan.facts.fact import Command, Fact, Files, Gathered, SavedKind, matches, with_absent
from topo_tune.scan.facts.task_lines import lines_of_one_task

LOG = "/var/log/fabricmanager.log"
STATE = ("systemctl", "is-active", "nvidia-fabricmanager")
# The kernel keeps 15 characters of a process's name; a fabric manager in a driver container is seen by it, too.
PROCESS = ("pgrep", "-x", "nv-fabricmanage")
VERSION = ("nv-fabricmanager", "--version")

_LINE = re.compile(
    r"\[([A-Z][a-z]{2} \d{2} \d{4} \d{2}:\d{2}:\d{2})\] \[([A-Z]{3,10})\] (?:\[tid \d{1,9}\] )?(.*)"
)
_WRONG = frozenset(("ERROR", "CRITICAL", "FATAL", "EMERG", "ALERT"))
_VERSION = re.compile(r"fabric manager version[ a-z]{0,4}:? {0,4}(\d{1,4}(?:\.\d{1,4}){1,3})", re.I)
_KEEP = r"\] \[(?:ERROR|CRITICAL|FATAL|EMERG|ALERT)\]|[Ff]abric [Mm]anager [Vv]ersion"
_LOG_LINES_LIMIT = 1_000_000
_PROBLEMS_LIMIT = 50
_TEXT_LIMIT = 300
# What it says where there is no NVSwitch for it to manage.
_NOTHING_TO_DO = "NV_WARN_NOTHING_TO_DO"


def parse(text: str, *, file: str | None = None) -> FabricManager:
    """Version and different error lines of a log, the latest last. Raises InputError where no line is one of it."""
    count, found = _read(text)
    if not count and found.version is None:
        raise InputError(
            "no line of a fabric manager's log: expected `[Feb 25 2025 13:59:45] [INFO] [tid 1803] ...`",
            file=file,
            hint=f"it is `{LOG}` unless `LOG_FILE_NAME` in `fabricmanager.cfg` says otherwise",
        )
    return found


def _read(text: str) -> tuple[int, FabricManager]:
    """How many lines are of a log, and what they say."""
    version, count, problems = None, 0, dict[str, None]()
    for _, line in lines_of_one_task(beginning(text, _LOG_LINES_LIMIT)).lines:
        if (named := _VERSION.search(line)) is not None:
            version = named.group(1)
        match = _LINE.match(line.strip())
        if match is None:
            continue
        count += 1
        _, level, message = match.groups()
        if level in _WRONG and _NOTHING_TO_DO not in message:
            clipped = message.strip()[:_TEXT_LIMIT]
            problems.pop(clipped, None)
            problems[clipped] = None
    return count, FabricManager(version=version, problems=tuple(problems)[-_PROBLEMS_LIMIT:])


def _tell_node(scan: NodeScan, gathered: Gathered) -> NodeScan:
    found = FabricManager(is_running=_is_running(gathered), version=_version(gathered))
    text = gathered.texts(LOG).get(LOG)
    if text:
        _, log = _read(text)
        found = msgspec.structs.replace(found, version=found.version or log.version, problems=log.problems)
    for unread in gathered.problems(LOG):
        scan = with_absent(scan, LOG, unread.problem or "could not be read")
    if found == FabricManager():
        reason = gathered.output(*STATE).failure() or "systemd does not say"
        return with_absent(scan, "fabric manager", reason)
    return msgspec.structs.replace(scan, fabric_manager=found)


def _is_running(gathered: Gathered) -> bool | None:
    """By its unit or by its process; None where neither can be told."""
    state, process = gathered.output(*STATE), gathered.output(*PROCESS)
    if state.stdout.strip() == "active" or (process.status == 0 and process.stdout.strip()):
        return True
    # `is-active` exits with 3 (or 4 for an unknown unit) and says the state in a word.
    is_known = state.absent is None and state.stdout.strip() in ("inactive", "failed", "deactivating")
    return False if is_known else None


def _version(gathered: Gathered) -> str | None:
    raw = gathered.output(*VERSION)
    match = _VERSION.search(raw.stdout[:4096] + "\n" + raw.stderr[:4096])
    return match.group(1) if match else None


def _tell_saved(scan: NodeScan, text: str, file: str) -> NodeScan:
    log, known = parse(text, file=file), scan.fabric_manager or FabricManager()
    together = msgspec.structs.replace(
        known,
        version=known.version or log.version,
        problems=tuple(dict.fromkeys((*known.problems, *log.problems)))[-_PROBLEMS_LIMIT:],
    )
    return msgspec.structs.replace(scan, fabric_manager=together)


FACTS: tuple[Fact, ...] = (
    Fact(
        "fabric manager",
        _tell_node,
        commands=(Command(STATE), Command(PROCESS), Command(VERSION)),
        files=(Files(LOG, keep=_KEEP, limit_bytes=256 << 10),),
    ),
)
KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "fabric manager log",
        matches(
            r"^\[[A-Z][a-z]{2} \d{2} \d{4} \d{2}:\d{2}:\d{2}\] \[[A-Z]{3,10}\] \[tid \d{1,9}\]"
            r"|^[Ff]abric [Mm]anager [Vv]ersion"
        ),
        _tell_saved,
    ),
)
