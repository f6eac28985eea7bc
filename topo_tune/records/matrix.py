"""How each pair of GPUs and NICs of a node is joined, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

import msgspec


class TopologyMatrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The matrix of `nvidia-smi topo -m`: how each pair of GPUs and NICs is joined."""

    gpus: tuple[str, ...]
    """GPU0, GPU1, ...: the columns that are GPUs"""
    nics: tuple[str, ...]
    """NIC columns, by device name (mlx5_0) where the legend tells it"""
    links: tuple[tuple[str, ...], ...]
    """links[i][j]: X, SYS, NODE, PHB, PXB, PIX, NV18 or `?` (not in the text); rows and columns are gpus then nics"""
    cpu_affinity: tuple[str | None, ...]
    """per GPU: `0-55,112-167`"""
    numa_affinity: tuple[str | None, ...]
    """per GPU: `0`, or a list such as `0,3-9`"""
    gpu_numa_ids: tuple[int | None, ...] = ()
    """per GPU: the NUMA node that its own memory is (Grace); empty where the text has no such column"""
    problems: tuple[str, ...] = ()
    """what could not be read: missing rows, unknown words"""

    def link(self, one: str, other: str) -> str:
        """The link word of two devices. Raises ValueError for a name that is not in the matrix."""
        names = self.gpus + self.nics
        return self.links[names.index(one)][names.index(other)]
