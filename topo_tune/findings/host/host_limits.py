"""Rules about limits of a process and about shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from topo_tune.findings.machine import gpu_count, joins_all_by_nvlink, nccl_version, rdma_names, size
from topo_tune.findings.rule import Rule, Sighting
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import UNLIMITED
from topo_tune.records.scan import NodeScan, Scan

_MIB = 1 << 20
_GIB = 1 << 30

_SHM_BYTES = _GIB
"""What NVIDIA's containers are to be started with (`--shm-size=1g`). One connection takes up to 9.2 MiB
(NVIDIA/nccl issues 290 and 342: segments of 9637888 bytes)."""

_DOCKER_SHM_BYTES = 64 * _MIB
"""Docker's and Kubernetes' default."""

_SHM_FREE_BYTES = 256 * _MIB

_FEW_FILES = 4096
_MANY_RANKS = 16
_SO_MANY_RANKS = 128
"""Every Linux starts with 1024 files and a hard limit far above: below so many ranks that is enough."""
_FILES = 131072
"""What the user guide advises. A job of 144 ranks with 16 GIN contexts opens 32 K files in each process."""

_GUIDE = "NVIDIA/nccl: docs/userguide/source/troubleshooting/"
_RUNTIME = _GUIDE + "runtime_and_mpi_issues.rst"


def _limited_memlock(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        limit = node.host.memlock_bytes
        if limit is None or limit == UNLIMITED or not rdma_names(node):
            continue
        hard = node.host.memlock_hard_bytes
        told = "unlimited" if hard == UNLIMITED else "not told" if hard is None else size(hard)
        yield Sighting(
            f"locked memory is limited to {size(limit)} in this session; RDMA expects unlimited",
            node.node,
            (f"hard limit: {told}",),
        )


def _few_files(scan: Scan) -> Iterator[Sighting]:
    ranks = sum(gpu_count(node) for node in scan.nodes)
    for node in scan.nodes:
        soft, hard = node.host.open_files, node.host.open_files_hard
        if soft is None or soft == UNLIMITED or soft >= _FEW_FILES or ranks < _MANY_RANKS:
            continue
        can_be_raised = hard is not None and (hard == UNLIMITED or hard >= _FILES)
        if can_be_raised and ranks < _SO_MANY_RANKS:
            continue
        yield Sighting(
            f"a process may open {soft} files"
            + (", and may raise that itself" if can_be_raised else f"; expected for many ranks: {_FILES}"),
            node.node,
            () if hard is None else (f"hard limit: {'unlimited' if hard == UNLIMITED else hard}",),
            severity=Severity.NOTICE if can_be_raised else Severity.WARNING,
        )


def _unlimited_stack(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        version = nccl_version(node)
        if (
            node.host.stack_bytes == UNLIMITED
            and version is not None
            and version < (2, 28)
            and gpu_count(node)
        ):
            yield Sighting(
                "the stack size is unlimited and NCCL is older than 2.28: its threads get 2 MiB each",
                node.node,
                (f"NCCL {'.'.join(str(part) for part in version)}",),
            )


def _small_shared_memory(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        total = node.host.shm_bytes
        if total is None or total >= _SHM_BYTES or gpu_count(node) < 2:
            continue
        needs_it = joins_all_by_nvlink(node.matrix) is not True and not _uses_cumem_host(node)
        is_broken = total <= _DOCKER_SHM_BYTES and needs_it
        yield Sighting(
            f"`/dev/shm` holds {size(total)}; expected for NCCL: {size(_SHM_BYTES)} or more",
            node.node,
            severity=Severity.ERROR if is_broken else Severity.WARNING,
        )


def _uses_cumem_host(node: NodeScan) -> bool:
    """Whether NCCL shares host memory through CUDA in place of /dev/shm: since 2.24 with a driver for CUDA 12.6."""
    version = nccl_version(node)
    parts = (node.cuda_driver or "").split(".")
    cuda = tuple(int(part) for part in parts) if len(parts) == 2 and all(p.isdigit() for p in parts) else None
    return version is not None and version >= (2, 24) and cuda is not None and cuda >= (12, 6)


def _full_shared_memory(scan: Scan) -> Iterator[Sighting]:
    for node in scan.nodes:
        total, free = node.host.shm_bytes, node.host.shm_free_bytes
        if total is None or free is None or total < _SHM_BYTES or gpu_count(node) < 2:
            continue
        if free < _SHM_FREE_BYTES or free < total // 20:
            yield Sighting(
                "`/dev/shm` is nearly full",
                node.node,
                (f"{size(free)} of {size(total)} free",),
                severity=Severity.ERROR
                if free < 16 * _MIB and not _uses_cumem_host(node)
                else Severity.WARNING,
            )


RULES: tuple[Rule, ...] = (
    Rule(
        id="memlock-limited",
        title="locked memory is limited on a node with RDMA",
        severity=Severity.WARNING,
        why="RDMA buffers are locked memory: above the limit `ibv_reg_mr` or `ibv_create_qp` fails and the job dies "
        "when its communicator is made; processes of root and those with CAP_IPC_LOCK are exempt",
        fix=(
            "add `* soft memlock unlimited` and `* hard memlock unlimited` to "
            "`/etc/security/limits.d/rdma.conf` and log in again",
            "under Slurm: `LimitMEMLOCK=infinity` in slurmd's unit, and `PropagateResourceLimitsExcept=MEMLOCK`",
            "in a container: `docker run --ulimit memlock=-1`",
        ),
        source=_GUIDE + "networking_troubleshooting.rst",
        look=_limited_memlock,
    ),
    Rule(
        id="open-files-few",
        title="a process may open few files",
        severity=Severity.WARNING,
        why="NCCL opens sockets to all ranks when it starts, and more for every channel: at scale it fails "
        "with `Too many open files`",
        fix=(
            f"add `* - nofile {_FILES}` to `/etc/security/limits.d/nofile.conf` and log in again",
            "in a job script: `ulimit -n $(ulimit -Hn)`",
        ),
        source=_RUNTIME,
        look=_few_files,
    ),
    Rule(
        id="stack-unlimited",
        title="an unlimited stack size shrinks the stacks of NCCL's threads",
        severity=Severity.WARNING,
        why="glibc gives new threads 2 MiB then, less than with the usual 8 MiB, and NCCL's graph search can "
        "overflow it: the job crashes while it starts",
        fix=("`ulimit -s 8192` in the job script, or in `/etc/security/limits.d`",),
        source=_RUNTIME,
        look=_unlimited_stack,
    ),
    Rule(
        id="shm-small",
        title="shared memory (`/dev/shm`) is too small for NCCL",
        severity=Severity.WARNING,
        why="ranks of one node that cannot reach each other's GPU memory share segments of up to 9.2 MiB for "
        "every connection there; without room NCCL fails with `No space left on device`",
        fix=(
            "in Docker: `--shm-size=1g` or more, or `--ipc=host`",
            "in Kubernetes: mount an `emptyDir` with `medium: Memory` at `/dev/shm`",
            "on a host: `mount -o remount,size=50% /dev/shm`",
        ),
        source=_RUNTIME,
        look=_small_shared_memory,
    ),
    Rule(
        id="shm-nearly-full",
        title="shared memory (`/dev/shm`) is nearly full",
        severity=Severity.WARNING,
        why="NCCL needs room there when a job starts; what is in it now is often left over from jobs that crashed",
        fix=(
            "`ls -la /dev/shm` and `fuser -v /dev/shm/*`: remove `nccl-*` and `torch_*` files that no process has open",
        ),
        source="https://github.com/NVIDIA/nccl/issues/525",
        look=_full_shared_memory,
    ),
)
