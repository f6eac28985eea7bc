"""A collector's answer for tests: a node with two GPUs, as plain JSON values."""

from __future__ import annotations

from typing import Any

MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tPIX\t0-55\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t0-55\t0\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
QUERY = (
    "index, name, uuid, pci.bus_id, memory.total [MiB], driver_version, compute_cap\n"
    "0, NVIDIA H200, GPU-1, 00000000:18:00.0, 143771, 580.159, 9.0\n"
    "1, NVIDIA H200, GPU-2, 00000000:2A:00.0, 143771, 580.159, 9.0\n"
)


def command(stdout: str, status: int = 0, stderr: str = "") -> dict[str, Any]:
    return {"argv": ["nvidia-smi"], "status": status, "stdout": stdout, "stderr": stderr, "absent": None}


def raw_answer(**changes: Any) -> dict[str, Any]:
    """The answer of a healthy node, with some of its parts replaced."""
    return {
        "format": "topo-tune/collector",
        "version": 1,
        "hostname": "node01",
        "kernel": "6.8.0",
        "architecture": "x86_64",
        "python": "3.12.3 /usr/bin/python3",
        "root": "/",
        "proc": "/proc",
        "sys": "/sys",
        "environment": [["NCCL_DEBUG", "WARN"]],
        "machine": {
            "os_release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n',
            "meminfo": "MemTotal: 1024 kB\n",
        },
        "cpu": {
            "cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\n",
            "sockets": 2,
            "cores": 112,
            "threads": 224,
        },
        "numa": {"nodes": [{"index": 0, "cpulist": "0-55", "meminfo": "Node 0 MemTotal: 512 kB"}]},
        "nvml": {},
        "nvidia_smi": {
            "topology": command(MATRIX),
            "query": command(QUERY),
            "header": command("CUDA Version: 13.0"),
        },
        "network": {
            "interfaces": [{"name": "eth0", "type": "1", "operstate": "up", "has_device": True}],
            "rdma": [
                {
                    "name": "mlx5_0",
                    "ports": [{"state": "4: ACTIVE", "rate": "400 Gb/sec", "link_layer": "InfiniBand"}],
                }
            ],
            "rdma_files": ["/dev/infiniband/uverbs0"],
            "gpu_functions": [{"pci_bus_id": "0000:2a:00.0", "numa_node": "1"}],
        },
        "libraries": {
            "found": [{"path": "/usr/lib/libnccl.so.2", "found_in": "system", "version": "2.27.3"}],
            "torch": "2.11.0",
            "torch_cuda": "13.0",
            "torch_nccl": "2.28.9",
        },
        "files": {
            "files": [
                {"path": "/root/.nccl.conf"},
                {"path": "/etc/nccl.conf", "exists": True, "sha256": "ab", "text": "NCCL_ALGO =Ring\n"},
            ]
        },
        "absent": [{"what": "NVML", "reason": "no pynvml"}],
        "seconds": 0.2,
        **changes,
    }
