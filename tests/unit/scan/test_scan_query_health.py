"""The state of GPUs by the further columns of `nvidia-smi --query-gpu`."""

from __future__ import annotations

from scans import node_scan

from topo_tune.records.hardware import GpuHealth, PcieLink
from topo_tune.records.scan import NodeScan
from topo_tune.scan.facts.gpus.nvidia_gpus import KINDS

HEADER = (
    "index, name, pci.bus_id, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current,"
    " pcie.link.width.max, pstate, temperature.gpu, persistence_mode, mig.mode.current,"
    " ecc.errors.uncorrected.volatile.total\n"
)


def told(text: str) -> NodeScan:
    (kind,) = KINDS
    assert kind.recognise(text)
    assert kind.tell is not None
    return kind.tell(node_scan(), text, "gpus.csv")


def test_columns_about_the_state_are_read() -> None:
    row = "1, NVIDIA H100 80GB HBM3, 00000000:43:00.0, 5, 5, 8, 16, P0, 31, Enabled, Disabled, 3\n"

    assert told(HEADER + row).gpu_health == (
        GpuHealth(
            pci_bus_id="0000:43:00.0",
            name="NVIDIA H100 80GB HBM3",
            link=PcieLink(32.0, 32.0, 8, 16),
            performance_state="P0",
            temperature_celsius=31,
            persistence=True,
            mig=False,
            ecc_uncorrected_volatile=3,
        ),
    )


def test_cells_without_a_value_tell_nothing() -> None:
    row = "0, NVIDIA L4, 00000000:43:00.0" + ", [N/A]" * 9 + "\n"

    assert told(HEADER + row).gpu_health == ()


def test_a_row_without_uuid_and_address_is_no_state_of_any_card() -> None:
    assert told("index, name, temperature.gpu\n0, NVIDIA L4, 31\n").gpu_health == ()
