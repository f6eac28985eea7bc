"""Kernel modules that decide how GPU memory reaches a network card: /proc/modules, /sys/module and `lsmod`."""

from __future__ import annotations

import re

import msgspec

from topo_tune.errors import InputError
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.fact import Files, Gathered, SavedKind, matches
from topo_tune.scan.facts.task_lines import lines_of_one_task
from topo_tune.scan.facts.words import clipped

OF_INTEREST = (
    "nvidia",
    "nvidia_uvm",
    "nvidia_peermem",
    "nv_peer_mem",
    "nvidia_fs",
    "gdrdrv",
    "nouveau",
    "amdgpu",
    "mlx5_core",
    "mlx5_ib",
    "mlx4_ib",
    "ib_core",
    "ib_uverbs",
    "ib_ipoib",
    "irdma",
    "bnxt_re",
    "efa",
    "hfi1",
)
VERSIONED = ("nvidia", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "mlx5_core", "efa")
"""Modules whose versions tell something; those of the kernel itself have none."""

LOADED = Files("/proc/modules", keep=rf"^({'|'.join(OF_INTEREST)}) ", limit_bytes=16 << 10)
VERSIONS = tuple(Files(f"/sys/module/{name}/version", limit_bytes=128) for name in VERSIONED)
NVIDIA = Files("/proc/driver/nvidia/version", limit_bytes=1024)

_NVRM = re.compile(
    r"NVRM version:\s{0,20}NVIDIA UNIX (Open )?[^\n]{0,60}?Kernel Module(?: for \S{1,20})?\s{1,20}(\S+)"
)
_VERSION = re.compile(r"[0-9A-Za-z][\w.+~-]{0,39}")


class NvidiaModule(msgspec.Struct, frozen=True):
    """The loaded NVIDIA kernel module, in its own words."""

    version: str
    is_open: bool


def parse_nvidia(text: str) -> NvidiaModule | None:
    """/proc/driver/nvidia/version: `NVIDIA UNIX Open Kernel Module for x86_64  550.54.15 ...`."""
    match = _NVRM.search(text[:4096])
    if match is None:
        return None
    return NvidiaModule(match.group(2)[:40], match.group(1) is not None)


def modules(gathered: Gathered) -> tuple[tuple[str, str | None], ...]:
    """The loaded modules of interest with their versions, in the order of OF_INTEREST."""
    loaded = _names(gathered.texts(LOADED.pattern).get(LOADED.pattern, ""))
    versions = {}
    for files in VERSIONS:
        text = gathered.texts(files.pattern).get(files.pattern)
        if text is not None:
            name = files.pattern.split("/")[3]
            # The folder of a module that is not loaded does not exist.
            loaded.add(name)
            match = _VERSION.match(text.strip())
            versions[name] = match.group() if match else None
    return tuple((name, versions.get(name)) for name in OF_INTEREST if name in loaded)


def has_dma_buf(kernel: str, *, is_open: bool | None, driver: str | None) -> bool | None:
    """Whether GPU memory can be exported as a DMA-BUF to a network card; None where that cannot be told.

    It takes NVIDIA's open kernel module, which began with driver 515, and a kernel whose RDMA part takes DMA-BUFs,
    as Linux does since 5.12 (NCCL's user guide: troubleshooting, GPU-to-NIC communication; NCCL itself asks in
    src/transport/net_ib/gdr.cc). Enterprise kernels of older numbers may have that part taken over.
    """
    if is_open is False:
        return False
    version = re.match(r"(\d{1,3})\.(\d{1,3})", kernel)
    branch = re.match(r"(\d{1,4})\.", driver or "")
    if is_open is None or version is None or branch is None:
        return None
    if int(branch.group(1)) < 515:
        return False
    if (int(version.group(1)), int(version.group(2))) >= (5, 12):
        return True
    return None if re.search(r"\.el\d|uek|-default|-cray", kernel) else False


def parse_lsmod(text: str, *, file: str | None = None) -> tuple[str, ...]:
    """The modules of interest in `lsmod` output or in a saved /proc/modules. Raises InputError for other text."""
    lines = [line for _, line in lines_of_one_task(text).lines]
    if not any(re.match(r"\s*\w{1,64}\s{1,80}\d{2,12}\s{1,8}\d{1,6}\b", line[:200]) for line in lines):
        raise InputError(
            f"no kernel module: expected lines such as `nvidia 56623104 12 nvidia_uvm`, found `{clipped(text)}`",
            file=file,
            hint="`lsmod` writes them",
        )
    loaded = _names("\n".join(lines))
    return tuple(name for name in OF_INTEREST if name in loaded)


def _names(text: str) -> set[str]:
    """First words of lines, spelled as the kernel does: with underscores."""
    words = (line[:200].split(None, 1)[:1] for line in text.split("\n"))
    return {word[0].replace("-", "_") for word in words if word}


def _tell_lsmod(scan: NodeScan, text: str, file: str) -> NodeScan:
    known = dict(scan.host.modules)
    found = parse_lsmod(text, file=file)
    merged = tuple((name, known.get(name)) for name in OF_INTEREST if name in known or name in found)
    host = msgspec.structs.replace(scan.host, modules=merged)
    return msgspec.structs.replace(scan, host=host)


KINDS: tuple[SavedKind, ...] = (
    SavedKind(
        "`lsmod` output",
        matches(
            r"^Module[ \t]{1,80}Size[ \t]{1,20}Used by"
            r"|^(?:ib_core|mlx5_core|nvidia(?:_\w{1,20})?|nouveau)[ \t]{1,80}\d{4,12}[ \t]{1,8}\d{1,6}\b"
        ),
        tell=_tell_lsmod,
    ),
)
