"""Rules about CPUs and memory: governors, NUMA balancing, the CPUs that a session may use."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.machine import gpu_count, is_virtual, numbers_in
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.scan import NodeScan, Scan

_CPUS_FOR_A_GPU = 2
"""NCCL runs a proxy thread for each GPU beside the program's own."""


def _slow_governors(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        others = [(name, count) for name, count in node.host.governors if name != "performance"]
        if others and gpu_count(node):
            yield Sighting(
                f"CPUs run with the frequency governor {' and '.join(f'`{name}`' for name, _ in others)}; expected: "
                "`performance`",
                node.node,
                tuple(f"{count} CPUs: {name}" for name, count in node.host.governors),
            )


def _balancing(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        nodes = sum(1 for one in node.numa if one.cpus)
        if node.host.numa_balancing is True and nodes > 1 and gpu_count(node):
            yield Sighting("automatic NUMA balancing is on, on a machine of several NUMA nodes", node.node)


def _few_cpus(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        if node.host.allowed_cpus is None or _is_in_job(node) or not node.cpu.threads:
            continue
        allowed, gpus = numbers_in(node.host.allowed_cpus), gpu_count(node)
        if not gpus or allowed >= node.cpu.threads:
            continue
        is_few = allowed < _CPUS_FOR_A_GPU * gpus
        yield Sighting(
            "this session may run on a part of the CPUs only"
            + (f", fewer than {_CPUS_FOR_A_GPU} for each GPU" if is_few else ""),
            node.node,
            (f"{allowed} of {node.cpu.threads}: {node.host.allowed_cpus[:80]}",),
            severity=Severity.WARNING if is_few else Severity.NOTICE,
        )


def _is_in_job(node: NodeScan) -> bool:
    """Slurm gives a job the CPUs that it asked for."""
    return any(name == "SLURM_JOB_ID" for name, _ in node.host.slurm)


def _one_node_per_socket(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        nodes = sum(1 for one in node.numa if one.cpus)
        if node.cpu.vendor != "AuthenticAMD" or node.cpu.sockets is None or nodes != node.cpu.sockets:
            continue
        if gpu_count(node) >= 4 and _is_without_nvlink(node) and not is_virtual(node):
            yield Sighting(
                "GPUs without NVLink on AMD CPUs with one NUMA node per socket (NPS1)",
                node.node,
                (f"{nodes} NUMA nodes on {node.cpu.sockets} sockets",),
            )


def _is_without_nvlink(node: NodeScan) -> bool:
    """Whether it is known that no pair of GPUs has NVLink."""
    if node.matrix is None:
        return False
    words = [word for row in node.matrix.links[: len(node.matrix.gpus)] for word in row]
    return "?" not in words and not any(word.startswith("NV") for word in words)


RULES: tuple[Rule, ...] = (
    Rule(
        id="cpu-governor",
        title="the CPUs do not run with the performance governor",
        severity=Severity.NOTICE,
        why="NCCL's proxy threads wait and poll; a CPU that clocks down between messages adds latency to "
        "every small message over the network",
        fix=(
            "`cpupower frequency-set -g performance`",
            "for good: `tuned-adm profile hpc-compute`, or `performance` in the BIOS",
        ),
        source="https://nvidia.github.io/grace-cpu-benchmarking-guide/platform/index.html",
        look=_slow_governors,
    ),
    Rule(
        id="numa-balancing-on",
        title="automatic NUMA balancing is on",
        severity=Severity.WARNING,
        why="the kernel unmaps pages of running processes to see who uses them: collectives wait for it now "
        "and then, some milliseconds at a time, and times vary from run to run",
        fix=(
            "`sysctl kernel.numa_balancing=0`",
            "for good: `echo kernel.numa_balancing=0 > /etc/sysctl.d/90-numa-balancing.conf`",
        ),
        source="https://github.com/deepseek-ai/DeepEP/issues/624; https://github.com/ROCm/rccl/pull/696",
        look=_balancing,
    ),
    Rule(
        id="session-few-cpus",
        title="the session may not use all CPUs",
        severity=Severity.NOTICE,
        why="NCCL pins its threads to CPUs near each GPU that the process may use; where none of those is "
        "allowed, they run on the wrong socket, and with few CPUs they wait for each other",
        fix=(
            "`taskset -pc $$` and `cat /sys/fs/cgroup/cpuset.cpus.effective` show the limit; ask for more CPUs",
            "in a container: leave `--cpuset-cpus` away",
        ),
        source="NVIDIA/nccl: docs/userguide/source/troubleshooting/performance_and_tuning.rst (CPU affinity)",
        look=_few_cpus,
    ),
    Rule(
        id="amd-one-numa-node-per-socket",
        title="NPS1 under GPUs that talk through the CPU's memory",
        severity=Severity.NOTICE,
        why="without NVLink much traffic goes through the CPU's memory, and on AMD CPUs GPUs reach it faster "
        "with more NUMA nodes per socket",
        fix=(
            "try NPS4 (NUMA nodes per socket) in the BIOS and measure; memory-heavy programs may prefer NPS1",
        ),
        source="https://github.com/NVIDIA/nccl-tests/issues/115; https://github.com/NVIDIA/nccl/issues/721",
        look=_one_node_per_socket,
    ),
)
