"""The CPUs, from /proc/cpuinfo. NCCL's model asks for the vendor and for x86_64 or not."""

from __future__ import annotations

import re

from topo_tune.records.scan import Cpu
from topo_tune.scan.facts.words import said, whole_number

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
