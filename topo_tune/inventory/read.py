"""A file -> Inventory: a cluster file or a host file, told apart by what stands in it."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from topo_tune.errors import InputError, nearest
from topo_tune.inventory.build import build_inventory
from topo_tune.inventory.cluster_file import ClusterFile
from topo_tune.inventory.convert import convert
from topo_tune.inventory.host_file import read_host_file
from topo_tune.inventory.paths import Start
from topo_tune.inventory.yaml_file import read_yaml
from topo_tune.records.inventory import Inventory

_MAX_BYTES = 16 << 20
"""4,000 nodes with an address each are 0.2 MB."""

_YAML_MAPPING = re.compile(r"""^(\{|---|%YAML|\s*(- )?("[^"]*"|'[^']*'|[\w<.-]+)\s*:(\s|$))""")
_YAML_LIST = re.compile(r"^(- |\[\S*[,\s])")
_ANSIBLE = re.compile(r"^\[[A-Za-z_][\w.-]*(:(children|vars))?\]\s*(#.*)?$|.*\sansible_\w+=")
_SLURM = re.compile(
    r"^(SwitchName|BlockName|BlockSizes|NodeName|PartitionName|ClusterName|SlurmctldHost|SlurmUser|AutoDetect)\s*=",
    re.IGNORECASE,
)
_NOT_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def read_inventory(path: Path, *, home: Path | None = None) -> Inventory:
    """The inventory that a cluster file or a host file describes; `home` is what `~` stands for.

    Raises InputError with file, line and field, and a hint with the nearest right value where there is one.
    """
    file = str(path)
    text = _read_text(path)
    significant = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if not significant:
        raise InputError(
            "is empty",
            file=file,
            hint="a cluster file begins with `racks:`; docs/reference/cluster-file.md has an example",
        )
    _refuse_other_formats(significant, file)
    if any(_YAML_MAPPING.match(line) for line in significant):
        document = read_yaml(text, file)
        cluster = convert(document, ClusterFile)
        start = Start(folder=path.absolute().parent, home=home or Path.home())
        return build_inventory(cluster, document, start, default_name=_name_of(path))
    if _YAML_LIST.match(significant[0]):
        raise InputError(
            "is a YAML list, expected a mapping",
            file=file,
            hint="put the nodes under `racks:`, or write one node a line without `- `",
        )
    return read_host_file(text, file, default_name=_name_of(path))


def _read_text(path: Path) -> str:
    file = str(path)
    try:
        with path.open("rb") as opened:
            raw = opened.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise _cannot_read(path, exc) from exc
    if len(raw) > _MAX_BYTES:
        raise InputError(f"is larger than {_MAX_BYTES >> 20} MiB, which no cluster file is", file=file)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise InputError("is not UTF-8 text", file=file, line=line, hint="save it as UTF-8") from exc
    if "\0" in text:
        raise InputError("is not text", file=file, line=text.count("\n", 0, text.index("\0")) + 1)
    return text.replace("\r\n", "\n")


def _cannot_read(path: Path, exc: OSError) -> InputError:
    if exc.errno == errno.ENOENT:
        return InputError("no such file", file=str(path), hint=_similar_file(path))
    if exc.errno == errno.EISDIR:
        return InputError("is a directory", file=str(path), hint="name the cluster file in it")
    return InputError(f"cannot be read: {exc.strerror}", file=str(path))


def _similar_file(path: Path) -> str | None:
    try:
        close = nearest(path.name, (entry.name for entry in path.parent.iterdir() if entry.is_file()))
    except OSError:
        # The folder is not there either, and the message has its name.
        return None
    return None if close is None else f"did you mean `{path.parent / close}`?"


def _refuse_other_formats(lines: list[str], file: str) -> None:
    own = "write a cluster file (docs/reference/cluster-file.md), or one node or node set a line"
    for line in lines:
        if _ANSIBLE.match(line):
            raise InputError(
                "is an Ansible inventory, which topo-tune does not read yet", file=file, hint=own
            )
        if _SLURM.match(line):
            raise InputError(
                "is a Slurm configuration file, which topo-tune does not read yet", file=file, hint=own
            )


def _name_of(path: Path) -> str:
    """The file's name without its ending, in the letters that a cluster's name may have."""
    return _NOT_NAME.sub("-", path.stem).strip("-._")[:64].rstrip("-._") or "cluster"
