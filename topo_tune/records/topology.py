"""What the scan means for NCCL: which paths messages take, and between how many parts."""

from __future__ import annotations

import enum

import msgspec


class Fabric(enum.Enum):
    """What carries messages between two ranks."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    SOCKET = "socket"
    INFINIBAND = "infiniband"
    ROCE = "roce"
    NONE = "none"
    """nothing to cross: a single GPU, or a single node"""
    UNKNOWN = "unknown"


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster as NCCL will see it."""

    node_count: int
    """nodes by NCCL's count: hosts times `as_nodes`"""
    ranks_per_host: int
    intra_fabric: Fabric
    inter_fabric: Fabric
    nccl_version: str | None
    """the version every node agrees on; None when none was found or nodes differ"""
    gpu_model: str | None
    compute_capability: str | None
    driver: str | None
    cpu_vendor: str | None
    nvlink_islands: tuple[int, ...] = ()
    """sizes of the groups of GPUs joined by NVLink on the first node that has any, largest first"""
    reasons: tuple[str, ...] = ()
    """how each conclusion was reached, in words"""
    disagreements: tuple[str, ...] = ()
    """facts on which nodes differ and which NCCL needs equal"""

    def fingerprint(self) -> dict[str, str]:
        """What a recommendation holds for; it is void when any of these changes."""
        facts = {
            "nccl": self.nccl_version,
            "driver": self.driver,
            "gpu": self.gpu_model,
            "nodes": str(self.node_count),
            "ranks_per_host": str(self.ranks_per_host),
            "intra_fabric": self.intra_fabric.value,
            "inter_fabric": self.inter_fabric.value,
        }
        return {name: value for name, value in facts.items() if value is not None}
