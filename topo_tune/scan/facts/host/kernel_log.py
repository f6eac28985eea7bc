"""What the kernel log says of GPUs, PCI Express and network cards, from `dmesg`, `journalctl -k` or a saved log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.hardware import KernelEvent, KernelEventKind
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.beginning import LINES_LIMIT
from topo_tune.scan.facts.fact import Command, Fact, Gathered, RawCommand, SavedKind, with_absent
from topo_tune.scan.facts.host.kernel_signs import SIGNS, WORDS, Sign
from topo_tune.scan.facts.job_output import is_of_a_job
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import without_escapes

DMESG = ("dmesg",)
JOURNAL = ("journalctl", "-k", "-b", "--no-pager", "-o", "short-iso")

_NO_ENTRIES = "-- No entries --"
"""What `journalctl` says to a user who may not read the kernel's messages, and exits with 0."""

_AHEAD = "NVRM: The NVIDIA GPU "
"""Begins a message of several lines, which names the GPU here and says what became of it one or two lines below."""

KEEP = "|".join(re.escape(word) for word in (*WORDS, _AHEAD, _NO_ENTRIES))
"""Lines that may leave a node."""

_EVENTS_LIMIT = 500
_TEXT_LIMIT = 300
_LINE_LIMIT = 1000
_MESSAGE_LINES = 3  # from the line that names the GPU to the last of its message
_SHORTEST = 20  # characters: no line that matters is shorter

_CLOCK = r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
_ISO = rf"\d{{4}}-\d{{2}}-\d{{2}}[T ]{_CLOCK}(?:[+-]\d{{2}}:?\d{{2}}|Z)?"
_MONTH = r"[A-Z][a-z]{2} {1,2}\d{1,2}"
_STAMPS = (
    r"\[ *(?P<uptime>\d{1,12}\.\d{1,9})\](?: ?\[ *[TC]\d{1,8}\])?",  # dmesg, also with the caller
    rf"\[(?P<human>[A-Z][a-z]{{2}} {_MONTH} {_CLOCK} \d{{4}})\]",  # dmesg -T
    r"\[(?P<short>[A-Z][a-z]{2} {0,2}\d{1,2} \d{2}:\d{2})\]",  # dmesg -H, a new minute
    r"\[ *(?P<since>\+\d{1,9}\.\d{1,9})\]",  # dmesg -H, since the line before
    rf"(?P<iso>{_ISO}) (?:\S{{1,253}} kernel:)?",  # dmesg --time-format iso, journalctl -o short-iso, rsyslog
    rf"(?P<syslog>{_MONTH} {_CLOCK}) \S{{1,253}} kernel:",  # journalctl, syslog
    r"\d{1,3},\d{1,20},(?P<kmsg>\d{1,18}),[^;]{0,40};",  # /dev/kmsg, microseconds
    r"(?:[A-Za-z][\w.-]{0,63} )?kernel:",  # what somebody cut the time off
)
_LEVEL = r"(?:\w{2,9} {0,3}: ?(?:emerg|alert|crit|err|warn|notice|info|debug) {0,3}: ?)?"
"""`dmesg -x` writes facility and level in front."""
_PREFIX = re.compile(
    _LEVEL + r"(?:<\d{1,3}>)?"
    rf"(?:{'|'.join(_STAMPS)})?"
    r"[ \t]?(?:\[ *\d{1,12}\.\d{1,9}\] ?)?"  # the uptime that some syslogs keep
)
_STAMPED = re.compile(_LEVEL + r"(?:<\d{1,3}>)?(?:" + "|".join(_STAMPS) + r")")
_OF_KERNEL = re.compile(
    r"Linux version \d|Command line: |NVRM: |nvidia-nvswitch|PCIe Bus Error|mlx5_core|segfault at|\bpci 0000:"
    r"|EXT4-fs|BIOS-e820|systemd\[1\]: |audit: |link becomes ready|nvidia-peermem|\busb \d|\bACPI: "
    r"|oom-kill|blocked for more"
)
_BARE = re.compile(
    r"^[ \t]{0,40}(?:(?:[A-Za-z][\w.-]{0,63} )?kernel: )?(?:NVRM: Xid \(|nvidia-nvswitch\d{1,3}: SXid \()",
    re.M,
)
_SHORT_ADDRESS = re.compile(r"[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$")
_SEVERITIES = {
    "corrected": "corrected",
    "correctable": "corrected",
    "uncorrected (non-fatal)": "nonfatal",
    "uncorrectable (non-fatal)": "nonfatal",
    "uncorrected (fatal)": "fatal",
    "uncorrectable (fatal)": "fatal",
    "non-fatal": "nonfatal",
    "dma": "fault",
    "intr": "fault",
    "io_page_fault": "fault",
    "unhandled context fault": "fault",
    "event 0x10 received": "fault",
    "event: f_translation": "fault",
}


class Log(msgspec.Struct, frozen=True):
    """The events of a log, in the order in which they were first seen."""

    events: tuple[KernelEvent, ...]
    problems: tuple[str, ...] = ()


def parse(text: str) -> Log:
    """The events of a kernel log, counted; none where nothing in it matters."""
    present = tuple(sign for sign in SIGNS if sign.word in text)
    folded: dict[tuple[object, ...], KernelEvent] = {}
    companions: set[tuple[object, ...]] = set()
    left_out = 0
    for sign, event, key in _events(_lines(text), present) if present else ():
        if key in folded:
            known = folded[key]
            folded[key] = msgspec.structs.replace(
                known, text=event.text, count=known.count + 1, last_at=event.last_at
            )
        elif len(folded) < _EVENTS_LIMIT:
            folded[key] = event
            if sign.is_companion:
                companions.add(key)
        else:
            left_out += 1
    told = {(event.kind, event.severity) for key, event in folded.items() if key not in companions}
    events = tuple(
        event
        for key, event in folded.items()
        if key not in companions or (event.kind, event.severity) not in told
    )
    problems = (f"{left_out} lines of more than {_EVENTS_LIMIT} kinds are left out",) if left_out else ()
    return Log(events, problems)


def recognise(text: str) -> bool:
    """Whether a text is a kernel log: lines with its stamps and at least one that only a kernel writes."""
    if _BARE.search(text) is not None:
        return True
    if is_of_a_job(text):
        return False
    return any(_STAMPED.match(line) and _OF_KERNEL.search(line) for line in text.split("\n"))


def _lines(text: str) -> Iterator[str]:
    """Lines without what `srun --label` puts in front of them; a long log is taken as it is."""
    if text.count("\n") <= LINES_LIMIT // 10:
        return (line for _, line in lines_of_one_task(text).lines)
    return iter(without_escapes(text).split("\n"))


def _events(
    lines: Iterable[str], signs: tuple[Sign, ...]
) -> Iterator[tuple[Sign, KernelEvent, tuple[object, ...]]]:
    words = (*dict.fromkeys(sign.word for sign in signs), _AHEAD)
    named, lines_behind = "", 0
    for line in lines:
        lines_behind += 1
        if len(line) < _SHORTEST:
            continue
        line = line[:_LINE_LIMIT]
        if not any(word in line for word in words):
            continue
        prefix = _PREFIX.match(line)
        assert prefix is not None
        message, at = line[prefix.end() :].strip(), _time(prefix)
        if message.startswith(_AHEAD):
            named, named_at, lines_behind = message, at, 0
        elif "fallen off the bus" in message and lines_behind <= _MESSAGE_LINES and named:
            message, at, named = _joined(named, message), at or named_at, ""
        for sign in signs:
            match = sign.pattern.match(message) if sign.word in line else None
            if match is not None:
                yield sign, *_event(sign, match, message, at)
                break


def _joined(first: str, last: str) -> str:
    """The beginning and the end of a message of several lines, as one."""
    return f"{first} ... {last.removeprefix('NVRM: ')}"


def _event(
    sign: Sign, match: re.Match[str], message: str, at: str | None
) -> tuple[KernelEvent, tuple[object, ...]]:
    groups = match.groupdict()
    code = groups.get("code")
    event = KernelEvent(
        kind=sign.kind,
        text=message[:_TEXT_LIMIT],
        device=_device(groups.get("device"), sign.kind),
        code=int(code) if code else None,
        severity=_severity(groups.get("severity"), sign.kind),
        first_at=at,
        last_at=at,
    )
    return event, (event.kind, event.device, event.code, event.severity, groups.get("key"), sign.is_companion)


def _severity(word: str | None, kind: KernelEventKind) -> str | None:
    if word is None:
        return "mode" if kind is KernelEventKind.IOMMU else None
    return _SEVERITIES.get(word.casefold(), word.casefold())


def _device(text: str | None, kind: KernelEventKind) -> str | None:
    """An address as the kernel writes it, `0000:18:00.0`; the driver leaves out the function, DMAR the domain."""
    if text is None or kind in (KernelEventKind.SEGFAULT, KernelEventKind.OUT_OF_MEMORY):
        return text.strip() if text else None
    if _SHORT_ADDRESS.fullmatch(text):
        return f"0000:{text.lower()}"
    parts = text.split(":")
    if len(parts) == 3 and all(parts) and re.fullmatch(r"[0-9a-fA-F]{4,8}", parts[0]):
        function = parts[2] if "." in parts[2] else parts[2] + ".0"
        return f"{int(parts[0], 16):04x}:{parts[1]}:{function}".lower()
    return text.strip()


def _time(prefix: re.Match[str]) -> str | None:
    return next((stamp for stamp in prefix.groupdict().values() if stamp), None)


# --- asking and recognising ---------------------------------------------------------------------------------


def _tell_node(scan: NodeScan, gathered: Gathered) -> NodeScan:
    dmesg, journal = gathered.output(*DMESG), gathered.output(*JOURNAL)
    failure = dmesg.failure()
    if failure is None:
        return _with(scan, parse(dmesg.stdout), "kernel log")
    also = _unreadable(journal)
    if also is None:
        return _with(scan, parse(journal.stdout), "kernel log")
    return with_absent(scan, "kernel log", f"{failure}; {also}")


def _unreadable(journal: RawCommand) -> str | None:
    """Why the journal is no answer: it shows a user without rights an empty one, and exits with 0."""
    if (failure := journal.failure()) is not None:
        return failure
    is_hidden = _NO_ENTRIES in journal.stdout or "not seeing messages" in journal.stderr
    return "this user may not read the journal of the kernel" if is_hidden else None


def _with(scan: NodeScan, log: Log, what: str) -> NodeScan:
    """The scan with the events of a log; of an event that another log has too, the higher count stands."""
    for problem in log.problems:
        scan = with_absent(scan, what, problem)
    merged = list(scan.kernel_events)
    for event in log.events:
        at = next((i for i, known in enumerate(merged) if _is_same(known, event)), None)
        if at is None:
            merged.append(event)
        elif event.count > merged[at].count:
            merged[at] = event
    return msgspec.structs.replace(scan, kernel_events=tuple(merged))


def _is_same(one: KernelEvent, other: KernelEvent) -> bool:
    return (one.kind, one.device, one.code, one.severity, one.text) == (
        other.kind,
        other.device,
        other.code,
        other.severity,
        other.text,
    )


def _tell_saved(scan: NodeScan, text: str, file: str) -> NodeScan:
    if not text.strip():
        raise InputError("is empty", file=file)
    return _with(scan, parse(text), file)


FACTS: tuple[Fact, ...] = (
    Fact("kernel log", _tell_node, commands=(Command(DMESG, keep=KEEP), Command(JOURNAL, keep=KEEP))),
)
KINDS: tuple[SavedKind, ...] = (SavedKind("kernel log", recognise, _tell_saved),)
