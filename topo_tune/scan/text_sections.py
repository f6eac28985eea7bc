"""A text that holds the outputs of several tools, taken apart: a report in Markdown, a session, a job's output.

Outputs are told apart by what people and scripts put between them (headings, fences, prompts, ruled lines), and by
lines with which the usual tools begin, where nothing stands between. Pure; one pass over the text.
"""

from __future__ import annotations

import itertools
import re

import msgspec

SECTIONS_LIMIT = 256
"""Sections that are told apart; what comes behind stays with the last. No script asks a node for half as much."""

_MARKS_LIMIT = 20_000
"""Marks that are looked at: a log of a job has thousands of comments."""

_TITLE_LIMIT = 200

_NAMES_OF_COMMANDS = """
    arp bash brctl cat cma_roce_mode cma_roce_tos cp curl date dcgmi devlink df dmesg dmidecode docker echo
    env ethtool fi_info find free getconf grep head hostname hostnamectl hwloc-ls ibdev2netdev iblinkinfo
    ibnetdiscover ibping ibstat ibstatus ibv_devices ibv_devinfo id ip ipmitool journalctl kubectl lldpctl
    ls lsblk lscpu lshw lsmod lsof lspci lstopo lstopo-no-graphics mlnx_qos mlxconfig mlxlink modinfo mount
    mpirun mst nproc numactl numastat nvcc nvidia-smi ofed_info opensm perfquery pip printenv ps python
    python3 rdma scontrol show_gids sinfo srun sysctl systemctl tail tc top ucx_info ulimit uname uptime
    vmstat
"""
_COMMANDS = frozenset(_NAMES_OF_COMMANDS.split())
"""First words by which a line is taken for a command although it could be a comment."""

_BEFORE_A_COMMAND = re.compile(r"(?:(?:sudo|time|command|exec)[ \t]+(?:-\w+[ \t]+)*|\w+=\S*[ \t]+)*")

# Where each output begins that is often found behind another without anything between them.
_BEGINNINGS = {
    "table": r"\+-{30,}\+[ \t]*$|\|[ \t]NVIDIA-SMI ",
    "details": r"=+NVSMI LOG=+",
    "list": r"GPU \d{1,3}: [^\n]{1,100}\(UUID: ",
    "topology": r"[ \t]*GPU0[ \t]+(?:GPU1[ \t]|NIC0[ \t]|mlx5_|CPU Affinity)",
    "lscpu": r"Architecture:[ \t]{2,}\w",
    "numactl": r"available: \d{1,5} nodes? \(",
    "ulimit": r"(?:real-time non-blocking time|core file size)[ \t]+\(",
    "lsmod": r"Module[ \t]+Size[ \t]+Used by",
    "uname": r"Linux \S{1,64} \d{1,2}\.\d{1,3}\.",
    "addresses": r"1: lo: <",
    "ibstat": r"CA '",
    "ibstatus": r"Infiniband device '",
    "devinfo": r"hca_id:",
    "gids": r"DEV[ \t]+PORT[ \t]+INDEX[ \t]+GID",
    "job": r"# nThread |# nccl-tests version |[^\s:]{1,100}:\d{1,10}:\d{1,10} \[-?\d{1,4}\] NCCL |NCCL version \d",
}

_MARK = re.compile(
    r"^(?:"
    + "".join(f"(?P<{name}>{pattern})|" for name, pattern in _BEGINNINGS.items())
    + r"(?P<fence>[ \t]{0,3}(?:```|~~~)[^\n]*)"
    r"|(?P<heading>#{1,6}[ \t]+(?=\S)[^\n]*)"
    r"|(?P<prompt>(?:\$|\+{1,4})[ \t]+(?=[A-Za-z./])[^\n]*)"
    r"|(?P<session>[(\[]?[\w.-]{1,40}@[\w.-]{1,64}[^\n$#%]{0,80}[$#%][ \t]+(?=[A-Za-z./])[^\n]*)"
    r"|(?P<ruled>(?:={3,}|-{3,}|\*{3,}|>{3,}|<{3,}|#{3,})[ \t]*(?=[A-Za-z./])[^\n]*)"
    r")",
    re.M,
)
_RULED = re.compile(r"([=\-*<>#])\1{2,}(?P<gap>[ \t]*)(?P<title>[^\n]*?)[ \t]*(?P<end>\1*)[ \t]*")


class Section(msgspec.Struct, frozen=True):
    """What stands between two marks."""

    title: str | None
    """the command or heading above it"""
    line: int
    """of its first line in the text, from 1"""
    last_line: int
    text: str


def sections(text: str) -> list[Section]:
    """The parts of a text that hold something, in its order; the whole as one where nothing takes it apart.

    text: without escape codes and carriage returns.
    """
    reading = _Reading(text)
    for mark in itertools.islice(_MARK.finditer(text), _MARKS_LIMIT):
        if len(reading.found) >= SECTIONS_LIMIT:
            break
        reading.take(mark)
    reading.end(len(text))
    return reading.found


class _Reading:
    """Where the current section began, and what was seen in it."""

    def __init__(self, text: str) -> None:
        self.found: list[Section] = []
        self._text = text
        self._start = 0
        self._start_line = 1
        self._title: str | None = None
        self._output: str | None = None
        self._is_fenced = False
        self._counted = 0
        """characters whose lines `_start_line` has counted"""

    def take(self, mark: re.Match[str]) -> None:
        """End the current section if the mark is one."""
        name = mark.lastgroup or ""
        if name in _BEGINNINGS:
            if self._output is not None and name != self._output:
                self.end(mark.start())
            self._output = name
            return
        is_fence = name == "fence"
        title = None if is_fence else self._title_of(name, mark)
        if not is_fence and title is None:
            return
        self.end(mark.start())
        self._start = mark.end()
        if is_fence:
            self._is_fenced = not self._is_fenced
        else:
            self._title = title

    def end(self, at: int) -> None:
        """The current section ends at this character, and the next begins."""
        text = self._text[self._start : at]
        self._start_line += self._text.count("\n", self._counted, self._start)
        blank = len(text) - len(text.lstrip())
        if blank < len(text):
            first = self._start_line + text.count("\n", 0, blank)
            last = self._start_line + text.rstrip().count("\n")
            beginning = text.rfind("\n", 0, blank) + 1
            self.found.append(Section(self._title, first, last, text[beginning:]))
            self._title = None
        self._counted, self._start, self._output = self._start, at, None

    def _title_of(self, name: str, mark: re.Match[str]) -> str | None:
        """The words of a heading or the command of a prompt; None where the line belongs to an output."""
        line = mark.group()[:_TITLE_LIMIT]
        if name == "ruled":
            title = _ruled_title(line)
        elif name == "session":
            title = re.split(r"[$#%][ \t]+", line, maxsplit=1)[1]
        else:
            title = line.lstrip("#$+")
        if title is None or not title.strip():
            return None
        title = title.strip()
        if name == "session" or is_command(title):
            return title
        # A comment of the output itself, unless it looks like a heading: with more than one `#`, or with room above.
        if self._output == "job" or (name == "heading" and self._is_fenced):
            return None
        has_room = self._text[max(0, mark.start() - 2) : mark.start()] in ("", "\n", "\n\n")
        return title if name != "heading" or line.startswith("##") or has_room else None


def is_command(title: str) -> bool:
    """Whether words begin with the name of a tool that people ask nodes with: `sudo dmesg -T`, `/sbin/ip addr`."""
    before = _BEFORE_A_COMMAND.match(title)
    words = title[before.end() if before else 0 :].split(maxsplit=1)
    return bool(words) and words[0].strip("`:").rsplit("/", 1)[-1] in _COMMANDS


def _ruled_title(line: str) -> str | None:
    """`lscpu` of `===== lscpu =====`; None for a line that some tool draws: `====NVSMI LOG====`."""
    match = _RULED.fullmatch(line)
    if match is None or not match["title"] or not match["gap"]:
        return None
    return match["title"]
