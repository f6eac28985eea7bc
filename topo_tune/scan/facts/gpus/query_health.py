"""The state of a GPU by the further columns that people ask `nvidia-smi --query-gpu` for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topo_tune.records.hardware import GpuHealth, PcieLink
from topo_tune.records.scan import Gpu
from topo_tune.scan.facts.words import said, whole_number

GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Generation of PCI Express to transfers of each lane (10^9 a second), by PCI-SIG's base specifications."""

_FLAGS = {"enabled": True, "disabled": False}


def health(gpu: Gpu, row: Mapping[str, str]) -> GpuHealth | None:
    """What a row of the answer, name of the column to cell, tells of the GPU's state; None where it tells nothing.

    None also where the row has neither UUID nor address, by which it could be put beside other outputs.
    """
    told = GpuHealth(
        vbios=said(row.get("vbios_version")),
        persistence=_flag(row, "persistence_mode"),
        mig=_flag(row, "mig.mode.current"),
        link=_link(row),
        ecc_uncorrected_volatile=_number(row, "ecc.errors.uncorrected.volatile.total"),
        ecc_uncorrected_aggregate=_number(row, "ecc.errors.uncorrected.aggregate.total"),
        ecc_corrected_volatile=_number(row, "ecc.errors.corrected.volatile.total"),
        performance_state=said(row.get("pstate")),
        temperature_celsius=_number(row, "temperature.gpu"),
        compute_mode=said(row.get("compute_mode")),
    )
    if told == GpuHealth() or (gpu.uuid is None and gpu.pci_bus_id is None):
        return None
    return msgspec.structs.replace(told, name=gpu.name, uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id)


def _link(row: Mapping[str, str]) -> PcieLink | None:
    link = PcieLink(
        speed_gt_per_s=GT_PER_S.get(_number(row, "pcie.link.gen.current", "pcie.link.gen.gpucurrent") or 0),
        max_speed_gt_per_s=GT_PER_S.get(_number(row, "pcie.link.gen.max") or 0),
        width=_number(row, "pcie.link.width.current"),
        max_width=_number(row, "pcie.link.width.max"),
    )
    return None if link == PcieLink() else link


def _flag(row: Mapping[str, str], column: str) -> bool | None:
    return _FLAGS.get((said(row.get(column)) or "").casefold())


def _number(row: Mapping[str, str], *columns: str) -> int | None:
    return next((number for column in columns if (number := whole_number(row.get(column))) is not None), None)
