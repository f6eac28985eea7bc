"""What is known about a name: a variable of NCCL, somebody else's, one that people mean, or none."""

from __future__ import annotations

import enum

import msgspec

from topo_tune.lint.names import DEPRECATED, RENAMED, nearest_name, not_a_variable
from topo_tune.lint.owners import DEBUGGING_ONLY, FRAMEWORK_NAMES, PYTORCH_OLD_NAMES, owner_of
from topo_tune.records.catalogue import Variable, catalogue, misnomer_of, other_live_names

_PREFIX = "NCCL_"
_OF_OTHERS = ("CUDA_", "FI_", "LD_", "OMPI_", "OMP_", "PYTORCH_", "UCC_", "UCX_")
"""How names begin that belong to what runs beside NCCL: nobody left out an `NCCL_` there."""


class Kind(enum.Enum):
    """What a name is."""

    VARIABLE = "variable"
    """NCCL reads it, or did"""
    UNDESCRIBED = "undescribed"
    """NCCL reads it; the catalogue holds no more than the name"""
    PLUGIN = "plugin"
    FRAMEWORK = "framework"
    MISNOMER = "misnomer"
    """people write it; NCCL never read it"""
    UNKNOWN = "unknown"


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One name, explained."""

    name: str
    kind: Kind
    text: str
    """one sentence or more: what it does, or whose it is"""
    use: str | None = None
    """the name to use in its place"""
    variable: Variable | None = None
    debugging_only: bool = False
    """listed under Debugging in NVIDIA's guide"""
    source: str | None = None


def explain(name: str) -> Explanation:
    """What is known about a name, in any case, with or without `NCCL_` in front."""
    name = _in_full(name)
    if variable := catalogue().get(name):
        return Explanation(
            name,
            Kind.VARIABLE,
            variable.purpose or variable.notes,
            use=RENAMED.get(name) or DEPRECATED.get(name),
            variable=variable,
            debugging_only=name in DEBUGGING_ONLY,
            source=variable.source,
        )
    if name in other_live_names():
        text = "NCCL reads it; it is rarely of use, and the catalogue holds no more than its name"
        return Explanation(name, Kind.UNDESCRIBED, text, DEPRECATED.get(name), None, name in DEBUGGING_ONLY)
    return _not_nccl(name)


def in_group(group: str) -> tuple[Variable, ...]:
    """The variables of a group, in the catalogue's order."""
    return tuple(variable for variable in catalogue().values() if variable.group == group)


def groups() -> tuple[str, ...]:
    """The groups of the catalogue, in its order."""
    return tuple(dict.fromkeys(variable.group for variable in catalogue().values()))


def _in_full(name: str) -> str:
    upper = name.strip().upper()
    if upper in catalogue() or upper.startswith((_PREFIX, "TORCH_", "OFI_")):
        return upper
    in_full = _PREFIX + upper
    is_of_others = upper.startswith(_OF_OTHERS) and in_full not in {*catalogue(), *other_live_names()}
    return in_full if upper and not is_of_others else upper


def _not_nccl(name: str) -> Explanation:
    misnomer, owner = misnomer_of(name), owner_of(name)
    if owner is not None:
        return Explanation(name, Kind.PLUGIN, f"read by {owner.who}, not by NCCL itself", source=owner.source)
    if name in FRAMEWORK_NAMES or name.startswith("TORCH_"):
        text = (
            misnomer.why
            if misnomer is not None and name == "NCCL_TIMEOUT"
            else "read by PyTorch, not by NCCL"
        )
        source = "pytorch/pytorch: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
        return Explanation(name, Kind.FRAMEWORK, text, PYTORCH_OLD_NAMES.get(name), source=source)
    if misnomer is not None:
        return Explanation(name, Kind.MISNOMER, not_a_variable(misnomer), misnomer.use)
    near, _ = nearest_name(name)
    return Explanation(name, Kind.UNKNOWN, "no NCCL from 2.3 on reads it", near)
