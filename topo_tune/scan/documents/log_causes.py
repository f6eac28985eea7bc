"""Why a run failed, by the lines of its log: the root, not what followed from it.

When one rank fails, the others see closed connections, time out, and return errors; so every sign has a standing,
and the earliest line of the best standing is the cause. Texts are those of NVIDIA/nccl's WARN calls (`src/misc`,
`src/transport`, `src/bootstrap.cc`, `src/init.cc`, `src/enqueue.cc`) over its versions, of aws-ofi-nccl and of torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from topo_tune.job_output.log_lines import LogLine
from topo_tune.records.nccl_documents import RESULT_NAMES, CauseKind, LogCause
from topo_tune.scan.facts.words import clipped

_ROOT, _LIKELY_ROOT, _PEER, _LATE, _AVOIDED, _UNNAMED = range(6)
"""Standing of a sign: what can only be a root; what may be one; a peer that went away; a time-out; what NCCL goes on
without; an error without a name."""

_READ = 1000
"""Characters of a line that signs are looked for in; NCCL's longest message is 1024 with its prefix."""
_TEXT = 300
_MOST_HOSTS = 64


class _Sign(NamedTuple):
    kind: CauseKind
    standing: int
    pattern: re.Pattern[str]
    advice: str
    anywhere: bool = False
    """also in lines that NCCL did not write with its prefix: torch, MPI, the shell"""


class Verdict(NamedTuple):
    """What a log's warnings come to."""

    cause: LogCause | None
    harmless: tuple[str, ...]
    """in words, what looks like a failure and is none"""


def verdict(lines: Iterable[LogLine]) -> Verdict:
    """The root cause that these lines show, if any, and what in them is harmless."""
    codes = _Codes()
    read = _Reader()
    seen: list[tuple[int, LogLine, _Sign]] = []
    unexplained: list[LogLine] = []
    harmless: dict[str, None] = {}
    for line in lines:
        codes.look(line)
        if not _may_tell(line):
            continue
        sign = read(line)
        if isinstance(sign, str):
            harmless[sign] = None
        elif sign is not None:
            seen.append((sign.standing, line, sign))
        elif line.level == "WARN":
            unexplained.append(line)
    # A warning that no sign explains is a failure where its own thread returned an error.
    seen += [(_UNNAMED, line, _UNKNOWN) for line in unexplained if codes.of_thread(line) is not None]
    if not seen:
        return Verdict(None, tuple(harmless))
    _, line, sign = min(seen, key=lambda one: (one[0], one[1].number))
    alike = [other for _, other, another in seen if another.kind is sign.kind]
    went_on = sign.standing == _AVOIDED and codes.first is None and all(one[0] == _AVOIDED for one in seen)
    return Verdict(_cause(line, sign, alike, codes, is_fatal=not went_on), tuple(harmless))


def _cause(line: LogLine, sign: _Sign, alike: list[LogLine], codes: _Codes, *, is_fatal: bool) -> LogCause:
    return LogCause(
        kind=sign.kind,
        line=line.number,
        text=clipped(line.text, _TEXT),
        hosts=tuple(dict.fromkeys(other.host for other in alike if other.host))[:_MOST_HOSTS],
        advice=sign.advice,
        code=codes.after(line) if is_fatal else None,
        is_fatal=is_fatal,
    )


_RETURN = re.compile(r"[\w./-]{1,200}:\d{1,6} -> ([1-7])(?:\s|$)")
_NAME = re.compile("|".join(RESULT_NAMES.values()))
_CODES = {name: code for code, name in RESULT_NAMES.items()}
# ncclGetErrorString, `src/init.cc`.
_SAID = (
    ("unhandled cuda error", 1),
    ("unhandled system error", 2),
    ("internal error", 3),
    ("invalid argument", 4),
    ("invalid usage", 5),
    ("remote process exited or there was a network error", 6),
)


class _Codes:
    """ncclResult_t values that functions returned (`init.cc:903 -> 5`), or that a program named."""

    def __init__(self) -> None:
        self.first: int | None = None
        self._by_thread: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
        self._all: list[tuple[int, int]] = []

    def look(self, line: LogLine) -> None:
        if line.level == "INFO" and " -> " in line.text[:220]:
            found = _RETURN.match(line.text)
            if found is not None:
                self._keep(line, int(found.group(1)))
        elif not line.level and ("NCCL" in line.text or "nccl" in line.text):
            self._named(line)

    def _named(self, line: LogLine) -> None:
        text = line.text[:_READ]
        found = _NAME.search(text)
        if found is not None:
            self._keep(line, _CODES[found.group()])
        elif "NCCL failure" in text or "NCCL error" in text or "NCCL Error" in text:
            said = next((code for words, code in _SAID if words in text), None)
            if said is not None:
                self._keep(line, said)

    def _keep(self, line: LogLine, code: int) -> None:
        if self.first is None:
            self.first = code
        self._all.append((line.number, code))
        self._by_thread.setdefault(line.who, []).append((line.number, code))

    def of_thread(self, line: LogLine) -> int | None:
        """The first code of the line's own thread after it."""
        found = self._by_thread.get(line.who, []) if line.host else []
        return next((code for number, code in found if number >= line.number), None)

    def after(self, line: LogLine) -> int | None:
        """The code that came of this line: of its own thread, else of any, preferably after it."""
        own = self.of_thread(line)
        if own is not None:
            return own
        return next((code for number, code in self._all if number >= line.number), self.first)


_TELLING = ("NCCL", "nccl", "CUDA", "Cuda", "NET/", "bus error", "Bus error", "Watchdog", "socket", "GPU")


def _may_tell(line: LogLine) -> bool:
    if line.level == "WARN":
        return True
    if line.level:
        return "async event" in line.text
    return any(word in line.text for word in _TELLING)


class _Reader:
    """Line -> its sign, or a note where it is harmless, or None. Remembers, since ranks say the same."""

    _MOST = 4096

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Sign | str | None] = {}

    def __call__(self, line: LogLine) -> _Sign | str | None:
        words = f"{line.place} {line.text}"[:_READ]
        key = line.level, words
        if key not in self._known:
            if len(self._known) >= self._MOST:
                self._known.clear()
            self._known[key] = self._read(words, line)
        return self._known[key]

    def _read(self, words: str, line: LogLine) -> _Sign | str | None:
        if line.level == "WARN":
            note = next((note for pattern, note in _HARMLESS if pattern.search(words)), None)
            if note is not None:
                return note
        if not _ANY_SIGN.search(words):
            return None
        signs = _SIGNS if line.level else _SIGNS_ANYWHERE
        return next((sign for sign in signs if sign.pattern.search(words)), None)


_HARMLESS = tuple(
    (re.compile(pattern), note)
    for pattern, note in (
        (
            r"\[Service thread\] (?:Accept failed|Could not receive type)|Failed to execute operation Close",
            "warnings of the proxy service while ranks shut down are harmless at the end of a run",
        ),
        (r"MSCCL\+\+: Cannot enable", "RCCL's warning that MSCCL++ is not enabled is harmless"),
        (
            r"Could not find ncclGetVersion symbol",
            "aws-ofi-nccl's warning about `ncclGetVersion` is harmless",
        ),
        (r"Failed to open libibverbs\.so", "libibverbs is not installed: NCCL goes on without RDMA"),
        (
            r"NUMA auto balancing enabled",
            "RCCL warns of automatic NUMA balancing: `sysctl kernel.numa_balancing=0` makes times steadier",
        ),
        (
            r'Missing "?(?:amd_)?iommu=',
            "RCCL warns of an `iommu` option that is missing from the kernel's command line",
        ),
        (
            r"Could not find a path for pattern \d+, falling back",
            "NCCL found no path for a pattern and took the simple order: the topology that it saw is incomplete",
        ),
        (
            r"async event ?: (?:client reregistration|SM change|LID change|GID)",
            "the subnet manager changed something",
        ),
    )
)

_UNREACHABLE = (
    "ranks cannot reach each other over the bootstrap interface: set NCCL_SOCKET_IFNAME to one that all nodes"
    " share (`ip -br addr`), open the firewall between them for all TCP ports, and check that every rank started"
)
_OTHER_RANK = (
    "another rank ended first: look for the earliest error in the logs of all ranks (`NCCL_DEBUG_FILE` with"
    " `%h.%p` keeps them apart), and for an out-of-memory kill in `dmesg`"
)
_SHOW_FABRIC = "`systemctl status nvidia-fabricmanager`, `nvidia-smi -q -i 0 | grep -A3 Fabric`"

_RULES: tuple[tuple[CauseKind, int, str, str, bool], ...] = (
    (
        CauseKind.SHARED_MEMORY,
        _ROOT,
        r"/dev/shm/nccl-.{0,300}No space left|posix_fallocate failed : No space left|failed to extend /dev/shm"
        r"|shared memory segment .{0,300}No space left|insufficient shared memory|Bus error",
        "/dev/shm is too small: start the container with `--shm-size=8g` or `--ipc=host`, in Kubernetes mount an"
        " `emptyDir` with `medium: Memory` at /dev/shm; `df -h /dev/shm` shows its size",
        True,
    ),
    (
        CauseKind.DUPLICATE_GPU,
        _ROOT,
        r"Duplicate GPU detected",
        "give each local rank a GPU of its own: `torch.cuda.set_device(local_rank)`, or `--gpus-per-task=1`; check"
        " that CUDA_VISIBLE_DEVICES is not the same single GPU for all ranks",
        True,
    ),
    (
        CauseKind.VERSION_MISMATCH,
        _ROOT,
        r"Mismatched NCCL version|socketFinalizeAccept.{0,200}: wrong (?:type|magic)",
        "every rank must load the same NCCL: compare `python -c 'import torch; print(torch.cuda.nccl.version())'` and"
        " LD_LIBRARY_PATH on all nodes, or look for `NCCL version` in each rank's log",
        True,
    ),
    (
        CauseKind.OUT_OF_MEMORY,
        _ROOT,
        r"C(?:uda failure|UDA error) (?:\d+ )?'out of memory'|Failed to (?:CUDA|Cuda) \w{0,10} ?[mc]alloc"
        r"|CUDA out of memory|torch\.OutOfMemoryError",
        "NCCL found no GPU memory left for its buffers: leave room beside the framework's cache"
        " (`nvidia-smi --query-compute-apps=pid,used_memory --format=csv` shows who holds it), or lower"
        " NCCL_BUFFSIZE or NCCL_MAX_CTAS",
        True,
    ),
    (
        CauseKind.NVLS,
        _ROOT,
        r"transport/(?:nvls|multicast)\.cc:\d+ .{0,200}(?:Cuda failure|[Ff]ail)|Failed to bind NVLink SHARP",
        "the NVSwitch fabric is not in the state that multicast needs, often after the fabric manager was restarted"
        f" under running GPUs: {_SHOW_FABRIC}; restart it with all GPUs idle or reboot the node, or go on"
        " with `NCCL_NVLS_ENABLE=0`",
        True,
    ),
    (
        CauseKind.NO_ALGORITHM,
        _ROOT,
        r"[Nn]o algorithm/protocol available",
        "NCCL_ALGO, NCCL_PROTO or a tuner leaves nothing for this collective: unset them, or allow `Ring` and"
        " `Simple`; without them it is a known bug of some 2.2x versions with NVLS: try `NCCL_NVLS_ENABLE=0` or another"
        " NCCL",
        True,
    ),
    (
        CauseKind.MEMLOCK,
        _ROOT,
        r"Call to ibv_(?:reg_mr|create_qp|create_cq|alloc_pd|reg_dmabuf_mr)\w{0,20} failed.{0,60}"
        r"(?:Cannot allocate memory|Unknown error -12)",
        "RDMA needs to lock memory: `ulimit -l` must say `unlimited` inside the job; `--ulimit memlock=-1` for Docker,"
        " `LimitMEMLOCK=infinity` for slurmd and containerd, IPC_LOCK for a pod",
        True,
    ),
    (
        CauseKind.RDMA_TRANSPORT,
        _ROOT,
        r"Call to ibv_reg_(?:mr|dmabuf_mr)\w{0,20} failed.{0,60}Bad address",
        "the NIC cannot map GPU memory: `modprobe nvidia_peermem` (or use the open driver with DMA-BUF), or turn GPU"
        " Direct off with `NCCL_NET_GDR_LEVEL=LOC` to get going",
        True,
    ),
    (
        CauseKind.RDMA_TRANSPORT,
        _ROOT,
        r"Call to ibv_modify_qp failed",
        "the queue pair cannot reach its peer: on RoCE the GID is wrong or not routed: compare `show_gids` on both"
        " nodes and set NCCL_IB_GID_INDEX, and let NCCL_IB_HCA name only ports of one fabric",
        True,
    ),
    (
        CauseKind.RDMA_TRANSPORT,
        _ROOT,
        r"Got completion.{0,160}(?:status=|error )(?:IBV_WC_RETRY_EXC_ERR|12\b)",
        "the peer did not acknowledge (retry exceeded): test the pair with `ib_write_bw`; look for link errors, a"
        " missing PFC/ECN setup, unequal MTU or a wrong GID on RoCE; NCCL_IB_TIMEOUT=22 only hides short outages",
        True,
    ),
    (
        CauseKind.RDMA_TRANSPORT,
        _ROOT,
        r"Got completion.{0,160}(?:status=|error )(?:IBV_WC_(?:LOC_PROT|LOC_ACCESS|REM_ACCESS)_ERR|4\b|8\b|10\b)",
        "the NIC was refused access to memory: check GPU Direct (`lsmod | grep peermem`, ACS and IOMMU on the PCIe"
        " path, equal driver versions); `NCCL_NET_GDR_LEVEL=LOC` tells whether GPU Direct is to blame",
        True,
    ),
    (
        CauseKind.RDMA_TRANSPORT,
        _LIKELY_ROOT,
        r"Got completion.{0,160}(?:status=|error )(?:IBV_WC_WR_FLUSH_ERR|5\b)",
        "a queue pair was already in error when this came: the first error is on the peer or in another rank's log;"
        " read the logs of all ranks by time",
        True,
    ),
    (
        CauseKind.RDMA_TRANSPORT,
        _ROOT,
        r"Got completion|async event ?: (?:port error|local|device fatal|QP )|ibv_\w{1,30} failed with error No space"
        r"|NET/OFI .{0,200}(?:completed with error|RC: -?\d)",
        "the RDMA transport failed: `dmesg | grep -iE 'mlx5|efa'`, `ibstat` and `ib_write_bw` between the two nodes"
        " show whether it is the link, the fabric or the adapter",
        True,
    ),
    (
        CauseKind.OPEN_FILES,
        _ROOT,
        r"Too many open files",
        "NCCL needs some file handles for each pair of ranks: raise `ulimit -n` inside the job to 1048576;"
        " `--ulimit nofile=1048576` for Docker, `LimitNOFILE=` for slurmd and containerd",
        True,
    ),
    (
        CauseKind.GPU_MEMORY,
        _ROOT,
        r"uncorrectable (?:ECC|NVLink) error",
        "a GPU is faulty: drain the node, look at `nvidia-smi -q -d ECC,ROW_REMAPPER`, `nvidia-smi nvlink -e` and"
        " `dmesg | grep -i xid`, reset the GPU; if it comes back: `dcgmi diag -r 3`, then replace it",
        True,
    ),
    (
        CauseKind.CUDA,
        _ROOT,
        r"system not yet initialized",
        f"the NVSwitch fabric is not up: `systemctl enable --now nvidia-fabricmanager`; {_SHOW_FABRIC};"
        " its version must equal the driver's",
        True,
    ),
    (
        CauseKind.CUDA,
        _ROOT,
        r"driver version is insufficient|Driver/library version mismatch",
        "the driver does not fit the CUDA libraries: `nvidia-smi` shows the highest CUDA version that it takes; update"
        " it, reboot after an update, or use an image of an older CUDA",
        True,
    ),
    (
        CauseKind.CUDA,
        _ROOT,
        r"no kernel image is available",
        "this NCCL was not built for this GPU: use a newer NCCL (a framework built for this compute capability)",
        True,
    ),
    (
        CauseKind.CUDA,
        _ROOT,
        r"illegal memory access|unspecified launch failure|device-side assert",
        "a kernel or the GPU itself failed, which NCCL only reports: look for Xid lines with `dmesg | grep -i xid` and"
        " run once with `CUDA_LAUNCH_BLOCKING=1` to find the kernel",
        True,
    ),
    (
        CauseKind.INVALID_SETTING,
        _ROOT,
        r"no socket interface found|No IP interface found|No usable listening interface"
        r"|Error: network \S{1,80} not found|Failed to initialize any NET plugin|Invalid NCCL_COMM_ID"
        r"|(?:Unrecognized|[Ii]nvalid|[Uu]nknown|not a valid).{0,80}(?:NCCL_ALGO|NCCL_PROTO|token|prefix)"
        r"|NCCL_(?:ALGO|PROTO)\b.{0,120}(?:[Uu]nrecognized|[Ii]nvalid|[Uu]nknown|not valid)",
        "a variable names something that is not there: `env | grep NCCL_`, `cat /etc/nccl.conf ~/.nccl.conf`; compare"
        " NCCL_SOCKET_IFNAME with `ip -br addr` on every node, and NCCL_NET with the plugins in the image",
        True,
    ),
    (
        CauseKind.MISMATCH,
        _ROOT,
        r"[Mm]essage truncated|collective mismatch|mismatch in (?:rank count|info) from procs|has already checked in"
        r"|Mismatched collective",
        "ranks do not agree: the same collectives in the same order with the same sizes, the same NCCL_ALGO, NCCL_PROTO"
        " and NCCL_BUFFSIZE, and one world size on all ranks; `NCCL_DEBUG_SUBSYS=COLL,ENV` shows both",
        True,
    ),
    (
        CauseKind.CUDA,
        _ROOT,
        r"Cuda failure|CUDA failure|CUDA driver error|nvmlInit\w{0,10}\(?\)? failed|Failed to find CUDA library",
        "a CUDA call inside NCCL failed: `nvidia-smi` and `dmesg | grep -iE 'xid|nvrm'` on that node",
        True,
    ),
    (
        CauseKind.BOOTSTRAP_TIMEOUT,
        _LIKELY_ROOT,
        r"Call to connect \w{0,12} ?(?:timeout|failed|:|returned)|[Cc]onnect(?: to \S{1,80})? (?:failed|returned)"
        r"|exceeded error retry count|No route to host|Call to connect",
        _UNREACHABLE,
        False,
    ),
    (
        CauseKind.BOOTSTRAP_TIMEOUT,
        _LIKELY_ROOT,
        r"socket(?:Poll|Start)Connect: ",
        _UNREACHABLE,
        True,
    ),
    (
        CauseKind.BOOTSTRAP_TIMEOUT,
        _LIKELY_ROOT,
        r"client socket has timed out|Timed out after \d+ seconds waiting for clients|failed to connect to .{0,80}"
        r"(?:timed out|refused)",
        "ranks do not meet: MASTER_ADDR and MASTER_PORT must name the first node as all others see it, the port must"
        " be open, and the number of processes must be the one that was started",
        True,
    ),
    (
        CauseKind.PEER_GONE,
        _PEER,
        r"[Cc]onnection closed by remote peer|Connection reset by peer|Broken pipe|Socket recv failed while polling"
        r"|Proxy Call to rank|Failed to execute operation|connection abort|Call to recv\w* .{0,80}failed",
        _OTHER_RANK,
        False,
    ),
    (
        CauseKind.PEER_GONE,
        _PEER,
        r"socketProgress: Connection closed",
        _OTHER_RANK,
        True,
    ),
    (
        CauseKind.WATCHDOG,
        _LATE,
        r"Watchdog caught collective operation timeout",
        "one rank did not come to the collective, or the network stalled: compare `last enqueued` and `last completed`"
        " of all ranks, and run with `TORCH_NCCL_TRACE_BUFFER_SIZE=2000` and `TORCH_NCCL_DUMP_ON_TIMEOUT=1`",
        True,
    ),
    (
        CauseKind.RDMA_DEVICES,
        _AVOIDED,
        r"Call to ibv_open_device failed|Unable to open device",
        "the job may not open the RDMA devices: give the container /dev/infiniband (`--device=/dev/infiniband`, in"
        " Kubernetes the RDMA device plugin) and check the rights of /dev/infiniband/uverbs*",
        False,
    ),
    (
        CauseKind.OTHER,
        _UNNAMED,
        r"NCCL failure|NCCL (?:E|e)rror|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclInvalid\w{5,8}:"
        r"|ncclRemoteError|[Ii]nternal error - please report",
        "the log does not name the reason: run again with `NCCL_DEBUG=WARN` (or INFO) on all ranks",
        True,
    ),
)
_SIGNS = tuple(
    _Sign(kind, standing, re.compile(pattern), advice, anywhere)
    for kind, standing, pattern, advice, anywhere in _RULES
)
_ANY_SIGN = re.compile("|".join(f"(?:{sign.pattern.pattern})" for sign in _SIGNS))
"""One look that spares most lines the others."""
_SIGNS_ANYWHERE = tuple(sign for sign in _SIGNS if sign.anywhere)
_UNKNOWN = _Sign(
    CauseKind.OTHER,
    _UNNAMED,
    re.compile(""),
    "NCCL's warning and the error that followed name the place: search NVIDIA/nccl's issues for its text, and run again"
    " with `NCCL_DEBUG=INFO` on all ranks",
)
