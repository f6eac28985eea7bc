"""What the names of saved files and folders tell: endings, words, whether a node is meant or a part of one."""

from __future__ import annotations

import re
from pathlib import PurePath

# Known endings only: `gpu001.cluster.example.com` is a whole name.
_NAMES_OF_ENDINGS = """
    txt text log out err json jsonl xml html conf cfg ini csv tsv gz md yaml yml sh bash csh sbatch slurm
    env j2 dump
"""
_ENDINGS = frozenset(_NAMES_OF_ENDINGS.split())
_SEPARATOR = re.compile(r"[-_.]")
_DIGITS = re.compile(r"\d+")

_NAMES_OF_TOOLS = """
    dcgmi dmesg ethtool fabricmanager gids ibdev2netdev ibnetdiscover ibstat ibstatus ibv journalctl lscpu
    lsmod lspci mlnx mst ndr nsys numactl numastat nvidia nvlink nvsm p2p rdma show smi sysctl topo ulimit
    uname
"""
_TOOLS = frozenset(_NAMES_OF_TOOLS.split())
"""Words of names that are a tool's: `smi1` and `smi2` are two outputs, not two nodes."""

_NAMES_OF_PARTS = """
    boot cmd cmds command commands conf config configs cpu cuda data dev driver drivers etc files fabric gpu
    gpus hardware home host hw ib info infiniband infos kernel lib log logs mem memory misc nccl net network
    networking node numa opt os out output outputs pci pcie proc profile.d conf.d root roce run scripts
    slurm sos_commands sys system systemd tmp topo topology usr var
"""
_PARTS = frozenset(_NAMES_OF_PARTS.split())
"""Folders that hold a part of what was saved of a node."""

_DEVICE = re.compile(
    r"(?:mlx\d+_\d+|ib\d+|ibp\w+|ibs\w+|rocep\w+|eth\d+|en[opsx]\w+|bond\d+|numa\d+|nvme\d+|gpu[0-9])$"
)


def stem(name: str) -> str:
    """The last part of a path without the endings that kinds of files have: `gpu001` of `dump/gpu001.txt.gz`."""
    text = PurePath(name).name
    while True:
        before, dot, ending = text.rpartition(".")
        if not dot or not before.strip(".") or ending.lower() not in _ENDINGS:
            return text
        text = before


def words(name: str) -> list[str]:
    """What stands between the separators of a name."""
    return [word for word in _SEPARATOR.split(name) if word]


def shape(name: str) -> str:
    """The name with its numbers left out: names of one shape are nodes of one cluster."""
    return _DIGITS.sub("#", name)


def in_order(name: str) -> tuple[tuple[str, int], ...]:
    """A key to sort names by: `n2` before `n10`."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d{0,18})", name))


def has_number(name: str) -> bool:
    """Whether a name is numbered, as nodes nearly always are."""
    return _DIGITS.search(name) is not None


def are_nodes(names: list[str]) -> bool:
    """Whether several names are those of nodes: alike but for their numbers, and no tool's."""
    if len(names) < 2 or len({shape(name) for name in names}) > 1 or not has_number(names[0]):
        return False
    return not any(_DIGITS.sub("", word).lower() in _TOOLS for word in words(names[0]))


def is_part(name: str) -> bool:
    """Whether a folder's name is that of a part of a node: of a tool, a device, a folder of the system."""
    low = name.lower().strip(".")
    return low in _PARTS or _DEVICE.match(low) is not None or (bool(words(low)) and words(low)[0] in _TOOLS)


def is_of(name: str, node: str) -> bool:
    """Whether a file's name begins or ends with the node's: `gpu003.gpus` and `gpus-gpu003` are of `gpu003`."""
    if name == node:
        return True
    if name.startswith(node):
        return not name[len(node)].isalnum()
    return name.endswith(node) and not name[-len(node) - 1].isalnum()
