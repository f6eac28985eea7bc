"""NCCL_DEBUG logs, and those of RCCL: what the job used, what it was told, and why it failed if it did.

The messages are those of NVIDIA/nccl 2.2 to 2.30 (`src/init.cc`, `src/graph`, `src/transport`, `src/plugin`); a log
may hold any part of them, of any number of ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from topo_tune.errors import InputError
from topo_tune.job_output.log_lines import LogLine, log_lines, unread
from topo_tune.records.nccl_documents import LogNic, LogSetting, LogWarning, NcclLog
from topo_tune.scan.documents.log_causes import Verdict, verdict
from topo_tune.scan.documents.log_choices import choice_of
from topo_tune.scan.documents.log_devices import nics_of, old_interface, transport
from topo_tune.scan.documents.log_plugins import Plugins
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.words import clipped

MOST = 4096
"""Entries of any list that is kept: hosts, settings, devices. A log of more is of no cluster that exists."""
_MOST_WARNINGS = 200
_TEXT = 300


def parse(text: str, *, file: str | None = None) -> NcclLog:
    """What an NCCL log tells. Raises InputError where no line is NCCL's."""
    found = read(log_lines(text))
    if found is None:
        raise InputError(
            "no line of NCCL: expected lines such as `node01:4242:4242 [0] NCCL INFO ...`",
            file=file,
            hint="run the job with `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH`",
        )
    return found


def read(lines: list[LogLine]) -> NcclLog | None:
    """What NCCL's lines among these tell; None where there is none."""
    reading = _Reading()
    for line in lines:
        reading.take(line)
    return reading.log(verdict(lines)) if reading.is_of_nccl else None


class _Said:
    """A warning that was said word for word, and by whom."""

    def __init__(self, line: LogLine) -> None:
        self.line = line
        self.count = 1
        self.hosts = {line.host: None}

    def add(self, line: LogLine) -> None:
        self.count += 1
        if len(self.hosts) < 64:
            self.hosts[line.host] = None


class _Reading:
    """What was read so far; one method for each kind of line, chosen by the line's first word."""

    def __init__(self) -> None:
        self.is_of_nccl = False
        self.versions: Counter[str] = Counter()
        self.is_rccl = False
        self.hosts: dict[str, None] = {}
        self.started: dict[tuple[str, str], None] = {}
        self.members: dict[int, str] = {}
        self.ranks: int | None = None
        self.nodes: int | None = None
        self.networks: Counter[str] = Counter()
        self.nics: dict[str, tuple[LogNic, ...]] = {}
        self.direct: dict[tuple[str, int], bool] = {}
        self.out_of_band: str | None = None
        self.settings: dict[tuple[str, str], dict[tuple[str, str], None]] = {}
        self.choices: Counter[str] = Counter()
        self.transports: Counter[str] = Counter()
        self.channels: int | None = None
        self.nvls: bool | None = None
        self.nvls_channels: int | None = None
        self.paths: dict[tuple[str, str], str] = {}
        self.no_p2p: set[tuple[str, str, str]] = set()
        self.unopened: dict[str, None] = {}
        self.finds_no_rdma = False
        self.refused: dict[str, None] = {}
        self.warnings: dict[tuple[str, str], _Said] = {}
        self.plugins = Plugins()

    def take(self, line: LogLine) -> None:
        if line.level:
            self.is_of_nccl = True
            self._remember(line)
        if line.level == "WARN":
            self._warning(line)
        elif line.level == "INFO":
            self._info(line)
        elif not line.level:
            self._plain(line)

    # --- who ---

    def _remember(self, line: LogLine) -> None:
        if len(self.hosts) < MOST:
            self.hosts[line.host] = None

    def _plain(self, line: LogLine) -> None:
        text = line.text
        if "NCCL version" in text or "RCCL version" in text:
            self._version(line)
        elif text.startswith("Hostname     : ") and len(self.hosts) < MOST:
            self.hosts[clipped(text[15:], 64)] = None
        elif "librccl" in text:
            self.is_rccl = True
        if "NCCL" in text and _OF_A_FRAMEWORK.search(text):
            self.is_of_nccl = True

    # --- messages ---

    def _info(self, line: LogLine) -> None:
        text = line.text
        word = text.split(" ", 1)[0][:48]
        handle = _HANDLERS.get(word)
        if handle is not None:
            handle(self, line)
        elif " set by environment to " in text[:200] or word.startswith("NCCL_"):
            self._setting(line)
        elif word.startswith("GPU/"):
            self._path(line)
        elif word.endswith("/Plugin:"):
            self.plugins.look(line.text)
        elif word.startswith("NET/"):
            self._devices(line)
        elif word.isdecimal():
            self._numbers(line)
        elif word.endswith(":") and " Bytes -> " in text[:120]:
            self._choice(line)
        elif "librccl" in text or "hipify" in text:
            self.is_rccl = True

    def _version(self, line: LogLine) -> None:
        found = re.search(r"(R|N)CCL version ?:? ?(\d{1,3}(?:\.\d{1,5}){1,3}[\w.+:-]{0,60})", line.text)
        if found is None:
            return
        self.is_of_nccl = True
        self.is_rccl |= found.group(1) == "R" or "+hip" in found.group(2)
        if found.group(2) in self.versions or len(self.versions) < 64:
            self.versions[found.group(2)] += 1

    def _communicator(self, line: LogLine) -> None:
        shape = re.search(r"\brank (\d{1,7}) n[Rr]anks (\d{1,7})\b(?: nNodes (\d{1,6})\b)?", line.text[:400])
        if shape is None:
            return
        rank, ranks = int(shape.group(1)), int(shape.group(2))
        if ranks > (self.ranks or 0):
            self.ranks, self.members = ranks, {}
        if ranks == self.ranks and len(self.members) < 64 * MOST:
            self.members[rank] = line.host
        if shape.group(3) is not None:
            self.nodes = max(self.nodes or 0, int(shape.group(3)))

    def _using(self, line: LogLine) -> None:
        found = re.match(r"Using (?:internal )?[Nn]etwork (.{1,60})$", line.text)
        if found is not None and (found.group(1) in self.networks or len(self.networks) < 64):
            self.networks[found.group(1).strip()] += 1
        self._start(line)

    def _start(self, line: LogLine) -> None:
        """A line that every process writes once when it starts."""
        if len(self.started) < 64 * MOST:
            self.started[line.host, line.process] = None

    def _bootstrap(self, line: LogLine) -> None:
        found = re.match(
            r"(?:Bootstrap|NET) ?: ?Using (?:interface )?(?:\[\d{1,4}\])?([^\s:\[\]]{1,64}):", line.text
        )
        if found is None:
            return
        self._start(line)
        self.out_of_band = self.out_of_band or found.group(1)
        nic = old_interface(line.text)
        if nic is not None:
            self.nics.setdefault("Socket", (nic,))

    def _devices(self, line: LogLine) -> None:
        text = line.text
        if "No device found" in text[:60]:
            self.finds_no_rdma |= text.startswith("NET/IB")
        elif "GPU Direct RDMA" in text:
            self._direct(text)
        elif ": Using " in text[:40]:
            self._listed(line)
        elif text.startswith("NET/IB: ["):
            self._listed_alone(text)

    def _listed(self, line: LogLine) -> None:
        # Plugins of clouds list their devices in either way: `NET/gIB`, `NET/GPUDirectTCPX`.
        kind = "Socket" if "<" in line.text.split("; OOB", 1)[0] else "IB"
        listed = nics_of(line.text, is_socket=kind == "Socket")
        if listed and kind not in self.nics:
            self.nics[kind] = listed
        if self.out_of_band is None:
            found = re.search(r"; OOB ([^\s:]{1,64}):", line.text)
            self.out_of_band = found.group(1) if found else None

    def _listed_alone(self, text: str) -> None:
        """A device on a line of its own, as versions before 2.4 wrote them."""
        known = self.nics.get("IB", ())
        listed = [
            nic for nic in nics_of(text, is_socket=False) if nic.index not in {own.index for own in known}
        ]
        self.nics["IB"] = (*known, *listed)[:MOST]

    def _direct(self, text: str) -> None:
        found = re.search(
            r"NET/(\S{1,40}) ?: GPU Direct RDMA (Enabled|Disabled) for .{0,40}?HCA (\d{1,4})", text
        )
        if found is not None and len(self.direct) < MOST:
            self.direct[found.group(1), int(found.group(3))] = found.group(2) == "Enabled"

    def _setting(self, line: LogLine) -> None:
        found = re.match(r"(NCCL_\w{1,60}) set (?:by environment )?to (.*)$", line.text)
        if found is None:
            self._refused(line)
            return
        name, value = found.groups()
        value = value.strip()
        if re.fullmatch(r"-?\d{1,20}\.", value):
            value = value[:-1]
        key = name, clipped(value, _TEXT)
        if key in self.settings or len(self.settings) < MOST:
            self.settings.setdefault(key, {})[line.host, line.process] = None
        self.plugins.asked(name, value)

    def _refused(self, line: LogLine) -> None:
        if len(self.refused) < 64:
            self.refused[clipped(line.text, _TEXT)] = None

    def _invalid(self, line: LogLine) -> None:
        if re.match(r"Invalid (?:value \S{1,80} for )?NCCL_", line.text):
            self._refused(line)

    def _limits(self, line: LogLine) -> None:
        if " is larger than " in line.text or " is too low" in line.text:
            self._refused(line)

    def _edge(self, line: LogLine) -> None:
        start = line.text.find(" via ")
        if start < 0 or " -> " not in line.text[:start]:
            return
        name = transport(line.text[start + 5 :])
        if name is not None and (name in self.transports or len(self.transports) < 256):
            self.transports[name] += 1

    def _numbers(self, line: LogLine) -> None:
        found = re.match(
            r"(\d{1,5}) coll channels, (?:\d{1,5} collnet channels, )?(?:(\d{1,5}) nvls channels, )?",
            line.text,
        )
        if found is not None:
            self.channels = max(self.channels or 0, int(found.group(1)))
            if found.group(2) is not None:
                self.nvls_channels = max(self.nvls_channels or 0, int(found.group(2)))
                self.nvls = self.nvls or self.nvls_channels > 0 or None
        elif " Bytes -> " in line.text[:40]:
            self._choice(line)

    def _choice(self, line: LogLine) -> None:
        choice = choice_of(line.text, self.versions)
        if choice is not None and (choice in self.choices or len(self.choices) < MOST):
            self.choices[choice] += 1

    def _nvls(self, line: LogLine) -> None:
        found = re.match(r"NVLS multicast support is (not )?available", line.text)
        if found is not None:
            self.nvls = found.group(1) is None or bool(self.nvls)

    def _no_p2p(self, line: LogLine) -> None:
        found = re.search(
            r"P2P (?:is )?not supported between GPU ?(\d{1,4}) and GPU ?(\d{1,4})", line.text[:120]
        )
        if found is not None and len(self.no_p2p) < MOST:
            first, second = sorted(found.groups(), key=int)
            self.no_p2p.add((line.host, first, second))

    def _path(self, line: LogLine) -> None:
        source, _, rest = line.text.partition(" :")
        for target, speed, kind in _PATH.findall(rest[:4000]):
            if target != source and len(self.paths) < 16 * MOST:
                first, second = sorted((f"{line.host} {source}", f"{line.host} {target}"))
                self.paths[first, second] = f"{kind} {speed}"

    def _plugin(self, line: LogLine) -> None:
        self.plugins.look(line.text)

    def _warning(self, line: LogLine) -> None:
        text = line.text[:_TEXT]
        if line.text.startswith("NET/IB : Unable to open device ") and len(self.unopened) < MOST:
            self.unopened[clipped(text[31:], 64)] = None
        if text.startswith(("Invalid", "NCCL_M", "minCTAs", "maxCTAs")):
            self._refused(line)
        if text.startswith("NET/OFI"):
            self.plugins.look(text)
        if "hipify" in line.place:
            self.is_rccl = True
        seen = self.warnings.get((line.place, text))
        if seen is not None:
            seen.add(line)
        elif len(self.warnings) < 8 * _MOST_WARNINGS:
            self.warnings[line.place, text] = _Said(line)

    # --- the whole ---

    def log(self, told: Verdict) -> NcclLog:
        network = max(self.networks, key=lambda name: self.networks[name], default=None)
        numbers = [version for version, _ in self.versions.most_common(1)]
        return NcclLog(
            library="RCCL" if self.is_rccl else "NCCL",
            version=numbers[0] if numbers else None,
            hosts=tuple(self.hosts),
            ranks=self.ranks or len(self.started) or None,
            nodes=self.nodes or self._counted_nodes(),
            network=network,
            nics=self._nics(),
            out_of_band=self.out_of_band,
            settings=tuple(
                LogSetting(name, value, len(processes))
                for (name, value), processes in sorted(self.settings.items())
            ),
            choices=tuple(self.choices.most_common()),
            channels=self.channels,
            transports=tuple(self.transports.most_common()),
            nvls=self.nvls,
            plugins=self.plugins.loaded,
            warnings=self._warnings(),
            cause=told.cause,
            notes=(*told.harmless, *self._notes(told)),
            versions=tuple(self.versions),
            nvls_channels=self.nvls_channels,
            gpu_paths=tuple(Counter(self.paths.values()).most_common(64)),
            p2p_unsupported=len(self.no_p2p),
            unopened_devices=tuple(self.unopened),
            finds_no_rdma=self.finds_no_rdma,
            refused_settings=tuple(self.refused),
            failed_plugins=self.plugins.failed,
        )

    def _counted_nodes(self) -> int | None:
        """Hosts, where they are all seen: those of all ranks, or of all processes that started."""
        if self.ranks is not None:
            return len(set(self.members.values())) if len(self.members) == self.ranks else None
        return len({host for host, _ in self.started}) or None

    def _warnings(self) -> tuple[LogWarning, ...]:
        """Those that differ only in numbers and addresses as one."""
        groups: dict[str, list[_Said]] = {}
        for (place, text), said in self.warnings.items():
            groups.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "#", f"{place} {text}"), []).append(said)
        return tuple(
            LogWarning(
                text=clipped(group[0].line.text, _TEXT),
                count=sum(said.count for said in group),
                first_line=group[0].line.number,
                hosts=tuple(dict.fromkeys(host for said in group for host in said.hosts))[:64],
            )
            for group in list(groups.values())[:_MOST_WARNINGS]
        )

    def _nics(self) -> tuple[LogNic, ...]:
        found: list[LogNic] = []
        for network, listed in self.nics.items():
            direct = {index: flag for (name, index), flag in self.direct.items() if _is_of(name, network)}
            found += [
                LogNic(nic.index, nic.name, nic.kind, nic.address, direct.get(nic.index), nic.port)
                for nic in listed
            ]
        return tuple(found)

    def _notes(self, told: Verdict) -> list[str]:
        notes = []
        if self.ranks is None and self.started:
            notes.append("no line tells the number of ranks: it is the number of processes that started")
        if len(self.networks) > 1:
            notes.append("not all ranks use the same network: " + ", ".join(sorted(self.networks)))
        if self.unopened and (told.cause is None or not told.cause.is_fatal):
            notes.append("RDMA devices could not be opened and the run went on without them")
        return notes + list(self.plugins.notes)


_OF_A_FRAMEWORK = re.compile(
    r"Watchdog caught collective operation timeout|\bNCCL (?:E|e)rror in: |\bNCCL communicator was aborted"
    r"|setting up NCCL communicator|\bNCCL operation nccl\w{1,40}\b.{0,300} failed: "
)
"""What frameworks say of NCCL where it was not asked to say anything itself: torch, JAX."""
_PATH = re.compile(r"(GPU/\S{1,32}) \(\d{1,4}/([\d.]{1,12})/([A-Z]{2,8})\)")


def _is_of(name: str, network: str) -> bool:
    return (name == "Socket") == (network == "Socket")


_HANDLERS: Final[dict[str, Callable[[_Reading, LogLine], None]]] = {
    "NCCL": _Reading._version,
    "RCCL": _Reading._version,
    "comm": _Reading._communicator,
    "ncclCommInitRank": _Reading._communicator,
    "ncclCommInitRankConfig": _Reading._communicator,
    "ncclCommInitAll": _Reading._communicator,
    "ncclCommSplit": _Reading._communicator,
    "ncclCommInitRankScalable": _Reading._communicator,
    "Init": _Reading._communicator,
    "Using": _Reading._using,
    "Bootstrap": _Reading._bootstrap,
    "Bootstrap:": _Reading._bootstrap,
    "NET": _Reading._bootstrap,
    "NET/IB": _Reading._devices,
    "NET/IB:": _Reading._devices,
    "NET/Socket": _Reading._devices,
    "NET/Socket:": _Reading._devices,
    "Channel": _Reading._edge,
    "Ring": _Reading._edge,
    "NVLS": _Reading._nvls,
    "P2P": _Reading._no_p2p,
    "Invalid": _Reading._invalid,
    "minCTAs": _Reading._limits,
    "maxCTAs": _Reading._limits,
    "Successfully": _Reading._plugin,
    "Failed": _Reading._plugin,
    "NET/Plugin": _Reading._plugin,
    "TUNER/Plugin": _Reading._plugin,
    "PROFILER/Plugin": _Reading._plugin,
    "Initialized": _Reading._plugin,
}


def _document(text: str, file: str) -> tuple[NcclLog, tuple[str, ...]]:
    return parse(text, file=file), unread(text)


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "NCCL log",
        matches(
            r":\d{1,10}:\d{1,10} (?:\[-?\d{1,4}\] )?(?:[^\n]{0,200} )?NCCL (?:INFO|WARN|TRACE|CALL) "
            r"|:\d{1,10}:\d{1,10} \[-?\d{1,4}\] (?:INFO NET|[\w./]{1,80}:\d{1,6} WARN )"
            r"|^(?:NCCL|RCCL) version ?:? \d"
            rf"|{_OF_A_FRAMEWORK.pattern}"
        ),
        document=_document,
    ),
)
