"""Rules about processes that the kernel ended or found stuck."""

from __future__ import annotations

import re

from topo_tune.findings.kernel.kernel_events import Verdict, on_each_event
from topo_tune.findings.rule import Rule
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import KernelEvent, KernelEventKind
from topo_tune.records.scan import NodeScan

_COMMUNICATION = re.compile(
    r" in (?:lib(?:nccl|cuda|nvidia|ibverbs|mlx5|mlx4|fabric|efa|rdmacm|ucp|uct|ucs|mpi|torch_cuda|c10_cuda)\S{0,40})\["
)
_LIBRARY = re.compile(r" in ([A-Za-z_+-]{1,40})")
_JOB = re.compile(r"python|pt_main|torch|train|nccl|cuda|mpirun|orted|_perf|ray|vllm|sglang", re.I)
_STORAGE_AND_SYSTEM = re.compile(r"jbd2|xfs|kworker|nfs|systemd|khugepaged|kswapd|dockerd|containerd", re.I)


def _segfault(_: NodeScan, event: KernelEvent) -> Verdict | None:
    match = _COMMUNICATION.search(event.text)
    if match is None:
        return None
    library = _LIBRARY.match(match.group())
    return Verdict(f"a process crashed inside {library.group(1) if library else 'a communication library'}")


def _out_of_memory(_: NodeScan, event: KernelEvent) -> Verdict | None:
    where = "its control group's limit" if "cgroup" in event.text else "the node's memory"
    is_job = event.device is not None and _JOB.search(event.device) is not None
    return Verdict(
        f"the kernel ended a process that went over {where}", Severity.WARNING if is_job else Severity.NOTICE
    )


def _stuck(_: NodeScan, event: KernelEvent) -> Verdict | None:
    if event.device is not None and _STORAGE_AND_SYSTEM.search(event.device):
        return Verdict("kernel or storage tasks were stuck for minutes", Severity.NOTICE)
    return Verdict("processes were stuck in the kernel for minutes")


RULES: tuple[Rule, ...] = (
    Rule(
        id="nccl-segfault",
        title="a process crashed inside a communication library",
        severity=Severity.WARNING,
        why="the rank is gone without a word to the others, which wait for it until a watchdog ends them: it "
        "looks like a hang of NCCL",
        fix=(
            "look at the job's log of that time on this node; run it with `NCCL_DEBUG=INFO` and core dumps on",
            "a library that is older than its plugin, or two NCCL versions in one process, are the usual causes",
        ),
        source="NVIDIA/nccl: docs/userguide/source/troubleshooting/runtime_and_mpi_issues.rst",
        look=on_each_event(KernelEventKind.SEGFAULT, _segfault),
    ),
    Rule(
        id="out-of-memory",
        title="the kernel ended a process for want of memory",
        severity=Severity.WARNING,
        why="if it was a rank, all others hang until their watchdog: the cause stands on this node only",
        fix=(
            "fewer or smaller data loaders, less pinned memory; raise the job's memory limit",
            "`dmesg -T | grep -i -A 2 oom` for who used it",
        ),
        source="https://docs.kernel.org/admin-guide/mm/concepts.html",
        look=on_each_event(KernelEventKind.OUT_OF_MEMORY, _out_of_memory),
    ),
    Rule(
        id="hung-tasks",
        title="processes were stuck in the kernel",
        severity=Severity.WARNING,
        why="a rank that waits in the kernel (a dead file system, a driver that holds a lock) keeps every "
        "other rank waiting in NCCL",
        fix=(
            "the stack below the line in `dmesg` names what it waits for: `dmesg -T | grep -A 20 'blocked for more'`",
        ),
        source="https://docs.kernel.org/admin-guide/sysctl/kernel.html (hung_task_timeout_secs)",
        look=on_each_event(KernelEventKind.HUNG_TASK, _stuck),
    ),
)
