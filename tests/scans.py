"""Scans for tests: a healthy node that says nothing, to be changed field by field."""

from __future__ import annotations

from typing import Any

from topo_tune.records.scan import Cpu, Gpu, NodeScan, Scan


def gpu(index: int = 0, **changes: Any) -> Gpu:
    given: dict[str, Any] = {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index}",
        "pci_bus_id": f"0000:{0x18 + index:02x}:00.0",
        "memory_bytes": 80 << 30,
        "compute_capability": "9.0",
        "numa_node": 0,
    }
    return Gpu(**(given | changes))


def node_scan(name: str = "gpu001", **changes: Any) -> NodeScan:
    """A node on which nothing was looked at but its name; `changes` are fields of NodeScan."""
    given: dict[str, Any] = {
        "node": name,
        "hostname": name,
        "kernel": "6.8.0",
        "operating_system": "Ubuntu 24.04 LTS",
        "python": "3.12.3 /usr/bin/python3",
        "cpu": Cpu("GenuineIntel", "Xeon", "x86_64", 2, 112, 224),
        "numa": (),
        "memory_bytes": 2 << 40,
        "gpus": (),
        "gpu_source": None,
        "driver": None,
        "cuda_driver": None,
        "matrix": None,
        "nics": (),
        "nccl_libraries": (),
        "torch": None,
        "torch_nccl": None,
        "nccl_environment": (),
        "nccl_files": (),
    }
    return NodeScan(**(given | changes))


def scan_of(*nodes: NodeScan, **changes: Any) -> Scan:
    """A scan of these nodes; of one healthy node where none is given."""
    return Scan(cluster="test", nodes=nodes or (node_scan(),), **changes)
