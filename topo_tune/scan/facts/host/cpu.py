"""The CPUs, from /proc/cpuinfo and `lscpu`. NCCL's model asks for the vendor and for x86_64 or not."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.scan import Cpu, NodeScan, NumaNode
from topo_tune.scan.facts.fact import SavedKind, matches
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped, said, whole_number

# Implementer codes of Arm's main ID register, as Linux prints them (util-linux: sys-utils/lscpu-arm.c).
_ARM_IMPLEMENTERS = {
    0x41: "ARM",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}
_LSCPU_JSON = re.compile(r'"field": ?"([^":]{1,40}):",\s{0,40}"data": ?"([^"]{0,1000})"')
_ARM_PARTS = {0xD0C: "Neoverse-N1", 0xD40: "Neoverse-V1", 0xD49: "Neoverse-N2", 0xD4F: "Neoverse-V2"}


def parse(text: str, *, architecture: str = "unknown") -> Cpu:
    """What a /proc/cpuinfo says; fields that this architecture does not print are None."""
    fields, threads = _first_values(text), 0
    sockets: set[str] = set()
    cores: set[tuple[str, str]] = set()
    socket = ""
    for line in text.split("\n"):
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "processor":
            threads += 1
        elif name == "physical id":
            socket = value
            sockets.add(value)
        elif name == "core id":
            cores.add((socket, value))
    return Cpu(
        vendor=_vendor(fields),
        model=said(fields.get("model name")) or _arm_part(fields) or said(fields.get("cpu")),
        architecture=architecture,
        sockets=len(sockets) or None,
        cores=len(cores) or None,
        threads=threads,
    )


def _first_values(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _vendor(fields: dict[str, str]) -> str | None:
    if said(fields.get("vendor_id")):
        return fields["vendor_id"]
    implementer = _hexadecimal(fields.get("CPU implementer"))
    if implementer is not None:
        return _ARM_IMPLEMENTERS.get(implementer, f"implementer {implementer:#x}")
    return "IBM" if fields.get("cpu", "").startswith("POWER") else None


def _arm_part(fields: dict[str, str]) -> str | None:
    part = _hexadecimal(fields.get("CPU part"))
    return None if part is None else _ARM_PARTS.get(part, f"part {part:#x}")


def _hexadecimal(text: str | None) -> int | None:
    if re.match(r"0x[0-9a-fA-F]{1,8}$", text or ""):
        return int(text or "", 16)
    return whole_number(text)


def parse_lscpu(text: str, *, file: str | None = None) -> tuple[Cpu, tuple[NumaNode, ...], str | None]:
    """The CPUs, the NUMA nodes and the hypervisor that `lscpu` or `lscpu -J` names; in English, as all tools are read.

    Raises InputError where it names neither an architecture nor a number of CPUs.
    """
    fields = _lscpu_fields(text)
    threads = whole_number(fields.get("CPU(s)"))
    if "Architecture" not in fields and threads is None:
        raise InputError(
            f"no CPU: expected lines such as `Architecture: x86_64`, found `{clipped(text)}`",
            file=file,
            hint="`LC_ALL=C lscpu` writes them",
        )
    sockets, each = whole_number(fields.get("Socket(s)")), whole_number(fields.get("Core(s) per socket"))
    cpu = Cpu(
        vendor=said(fields.get("Vendor ID")),
        model=said(fields.get("Model name")),
        architecture=said(fields.get("Architecture")) or "unknown",
        sockets=sockets,
        cores=sockets * each if sockets and each else None,
        threads=min(threads or 0, 1 << 20),
    )
    return cpu, _lscpu_nodes(fields), said(fields.get("Hypervisor vendor"))


def _lscpu_fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for _, line in lines_of_one_task(text).lines:
        # `-J` writes {"field": "Socket(s):", "data": "2"}, over one line or two.
        name, colon, value = line[:2000].strip().partition(":")
        if colon and len(name) <= 40:
            fields.setdefault(name, value.strip()[:1000])
    for match in _LSCPU_JSON.finditer(text[: 1 << 20]):
        fields.setdefault(match.group(1), match.group(2))
    return fields


def _lscpu_nodes(fields: dict[str, str]) -> tuple[NumaNode, ...]:
    found = []
    for name, value in fields.items():
        match = re.fullmatch(r"NUMA node(\d{1,5}) CPU\(s\)", name)
        if match is not None and re.fullmatch(r"[\d,-]{0,1000}", value):
            found.append(NumaNode(int(match.group(1)), value, None))
    return tuple(sorted(found, key=lambda node: node.index))


def _tell_lscpu(scan: NodeScan, text: str, file: str) -> NodeScan:
    cpu, nodes, hypervisor = parse_lscpu(text, file=file)
    host = scan.host
    if host.hypervisor is None and hypervisor is not None:
        host = msgspec.structs.replace(host, hypervisor=clipped(hypervisor, 30).casefold())
    return msgspec.structs.replace(
        scan, cpu=cpu if not scan.cpu.threads else scan.cpu, numa=scan.numa or nodes, host=host
    )


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`lscpu` output",
        matches(r"^(?:[ \t]{0,8}\d{1,6}: )?Architecture:[ \t]{1,40}\w|^[ \t]*\"lscpu\": ?\["),
        tell=_tell_lscpu,
    ),
)
