"""What saved files of NCCL and nccl-tests say: topology, graphs, tuner tables, logs, measurements, job settings."""

from __future__ import annotations

import enum

import msgspec

from topo_tune.records.finding import Severity
from topo_tune.records.hardware import PcieLink
from topo_tune.records.matrix import TopologyMatrix

# --- topology files -----------------------------------------------------------------------------------------


class XmlCpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `<cpu>` of a topology file: a NUMA node."""

    numa_id: int | None
    architecture: str | None = None
    vendor: str | None = None
    cpus: str | None = None
    """CPUs of its mask as a list: `24-31,88-95`; empty where the mask is all zeros, None where there is none"""
    host_hash: str | None = None
    """tells hosts apart in a file of a multi-node NVLink domain"""
    pci_devices: int = 0
    """`<pci>` elements below it, bridges included"""


class XmlLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """NVLinks or XGMI links from one GPU to one target, added up."""

    target: str
    """PCI address of the peer; of an NVSwitch where its class says so"""
    count: int
    is_switch: bool = False
    """by its class, unless the target is a GPU of the same file"""


class XmlGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU: from a `<gpu>` element, or from its PCI class alone."""

    pci_bus_id: str
    numa_id: int | None
    dev: int | None = None
    rank: int | None = None
    compute_capability: int | None = None
    """the `sm` attribute: 80, 90, 100; of AMD GPUs whatever RCCL wrote"""
    architecture: str | None = None
    """`gfx942` on AMD"""
    gdr: bool | None = None
    links: tuple[XmlLink, ...] = ()
    """to others: links of a GPU to itself are left out"""
    link: PcieLink | None = None
    """its own PCIe link, as the file has it"""
    slowest_link: PcieLink | None = None
    """the narrowest PCIe link between it and its CPU; its own where nothing above is narrower"""
    c2c_gb_per_s: float | None = None
    """of the NVLink-C2C that joins it with its CPU, on Grace and GB10; then its PCIe link matters little"""


class XmlNet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One network device: `<net>` elements of one `dev` counted once, or a NIC by its PCI class alone."""

    name: str | None
    dev: int | None = None
    port: int | None = None
    speed_mbit_per_s: int | None = None
    guid: str | None = None
    gdr: bool | None = None
    collnet: bool | None = None
    pci_bus_id: str | None = None
    numa_ids: tuple[int, ...] = ()
    """more than one where the file lists it under several CPUs"""
    is_virtual: bool = False
    """veth, bridge, tunnel, bond and the like by its name, or a NIC without a PCI device"""


class TopologyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="nccl-topology"):
    """A file for NCCL_TOPO_FILE, or one from NCCL_TOPO_DUMP_FILE."""

    vendor: str
    """`nvidia`, `amd` or `unknown`"""
    version: str | None
    cpus: tuple[XmlCpu, ...]
    gpus: tuple[XmlGpu, ...]
    nets: tuple[XmlNet, ...]
    bridges: int
    """PCI bridges and switches"""
    nvswitches: int
    """distinct NVSwitch targets of NVLinks"""
    unclassified: int
    """PCI devices that neither a class nor what is below them tells: they may be GPUs or NICs"""
    paths: TopologyMatrix | None
    """how each pair of GPUs and NICs is joined, in `nvidia-smi topo -m`'s words, as the file's tree has it;
    besides XGMI2 for two XGMI links and NET between hosts. None where there is no GPU and no NIC to tell."""
    slowest_gpu_link_gt_per_s: float | None = None
    """the slowest PCIe link between any GPU and its CPU"""
    slowest_gpu_link_width: int | None = None
    """lanes of that link"""
    unknown_speeds: tuple[str, ...] = ()
    """values of `link_speed` that NCCL's table does not have: NCCL counts such a link as 8 GT/s"""
    refused_by_nccl: tuple[str, ...] = ()
    """why NCCL's own reader, which is no full XML parser, stops at this file"""


# --- graph files --------------------------------------------------------------------------------------------


class XmlGraph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `<graph>`: how NCCL lays its channels for one pattern."""

    id: int
    pattern: str
    """`ring`, `tree`, `split tree`, `balanced tree`, `nvls`, `collnet direct` or the number"""
    channels: int
    gpus_per_channel: int
    type_intra: str | None
    type_inter: str | None
    speed_intra_gb_per_s: float | None
    speed_inter_gb_per_s: float | None
    cross_nic: int | None = None
    nets: tuple[str, ...] = ()
    """`dev` of the network devices used, distinct, as written"""
    gpus: tuple[int, ...] = ()
    """`dev` of the GPUs used, distinct, sorted; NCCL reads them as hexadecimal"""
    orders: tuple[tuple[str, ...], ...] = ()
    """per channel, in the order of the file: `net 0`, `gpu 7`, ..."""
    latency_inter: float | None = None
    same_channels: int | None = None
    is_available: bool = True
    """no channels mean that NCCL found no way for this pattern, whatever the other attributes say"""
    has_ranks: bool = False
    """channels name ranks, which count more than `dev` since NCCL 2.30.3"""


class GraphFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="nccl-graph"):
    """A file for NCCL_GRAPH_FILE, or one from NCCL_GRAPH_DUMP_FILE."""

    version: str | None
    graphs: tuple[XmlGraph, ...]
    refused_by_nccl: tuple[str, ...] = ()
    """why NCCL's own reader stops at this file"""


# --- tuner tables -------------------------------------------------------------------------------------------

ANY_SIZE = (1 << 63) - 1
"""`max_bytes` of a rule without upper end: -1 wraps around in the plugin, which reads sizes as unsigned."""

TUNER_WORDS = {
    "collective": ("broadcast", "reduce", "allgather", "reducescatter", "allreduce"),
    "algorithm": ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"),
    "protocol": ("ll", "ll128", "simple"),
}
"""What the example plugin knows, in this very spelling."""
TUNER_DEFAULTS = {"collective": "allreduce", "algorithm": "ring", "protocol": "simple"}
"""What it takes, in silence, in place of a word that it does not know."""


class TunerRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the example tuner plugin's CSV; -1 is any, or the default. Words are as written."""

    line: int
    collective: str
    min_bytes: int
    max_bytes: int
    """included; `ANY_SIZE` where the file says -1"""
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int
    pipe_ops: int | None = None
    registered: int | None = None

    @property
    def words(self) -> dict[str, str]:
        """Collective, algorithm and protocol as written."""
        return {"collective": self.collective, "algorithm": self.algorithm, "protocol": self.protocol}

    @property
    def taken(self) -> dict[str, str]:
        """Collective, algorithm and protocol as the plugin takes them."""
        return {
            field: word if word in TUNER_WORDS[field] else TUNER_DEFAULTS[field]
            for field, word in self.words.items()
        }


class TunerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="nccl-tuner"):
    """A table for NCCL_TUNER_CONFIG_FILE."""

    rules: tuple[TunerRule, ...]


# --- logs ---------------------------------------------------------------------------------------------------


class LogSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A variable that NCCL said it read."""

    name: str
    value: str
    processes: int
    """in how many processes of the log"""


class LogWarning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """NCCL WARN lines that say the same, counted."""

    text: str
    count: int
    first_line: int
    hosts: tuple[str, ...] = ()


class CauseKind(enum.Enum):
    """What ended a run, or would have: the root, not its consequences."""

    SHARED_MEMORY = "shared memory too small"
    DUPLICATE_GPU = "two ranks on one GPU"
    BOOTSTRAP_TIMEOUT = "ranks cannot reach each other"
    NVLS = "NVLS multicast setup failed"
    NO_ALGORITHM = "no algorithm or protocol left"
    RDMA_DEVICES = "RDMA devices cannot be opened"
    RDMA_TRANSPORT = "RDMA transport error"
    OUT_OF_MEMORY = "out of GPU memory"
    MEMLOCK = "locked memory too small"
    OPEN_FILES = "too many open files"
    GPU_MEMORY = "a memory or NVLink error of a GPU"
    CUDA = "CUDA error"
    VERSION_MISMATCH = "ranks use different NCCL versions"
    MISMATCH = "ranks disagree about what they exchange"
    PEER_GONE = "a peer closed its connection"
    WATCHDOG = "a collective timed out"
    INVALID_SETTING = "a setting is invalid"
    OTHER = "other"


RESULT_NAMES = {
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
    7: "ncclInProgress",
}
"""ncclResult_t, as `src/nccl.h.in` of NVIDIA/nccl numbers it; 0 is success."""


class LogCause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failure that the log shows, with what to do."""

    kind: CauseKind
    line: int
    text: str
    """the line that shows it, without its prefix, at most 300 characters"""
    hosts: tuple[str, ...] = ()
    advice: str = ""
    code: int | None = None
    """ncclResult_t that the program saw, where the log shows it"""
    is_fatal: bool = True
    """False where the log goes on after it: the job ran, with less than it should have had"""

    @property
    def code_name(self) -> str | None:
        """`ncclSystemError` for 2; None where there is no code or no such one."""
        return None if self.code is None else RESULT_NAMES.get(self.code)


class LogNic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One network device that NCCL listed."""

    index: int
    name: str
    kind: str
    """`IB`, `RoCE`, `IB/SHARP`, `Socket`, ..."""
    address: str | None = None
    """of sockets"""
    gpu_direct: bool | None = None
    port: int | None = None
    """of RDMA devices"""


class NcclLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="nccl-log"):
    """What an NCCL_DEBUG log tells of a job."""

    library: str
    """`NCCL` or `RCCL`"""
    version: str | None
    """`2.28.9+cuda13.0` as logged; the most common one where several are"""
    hosts: tuple[str, ...]
    ranks: int | None
    """of the largest communicator"""
    nodes: int | None
    network: str | None
    """`IB`, `Socket`, `AWS Libfabric`, `IBext_v10`, ...: what the job used"""
    nics: tuple[LogNic, ...] = ()
    """of the first host that lists any"""
    out_of_band: str | None = None
    """interface of bootstrap traffic"""
    settings: tuple[LogSetting, ...] = ()
    choices: tuple[tuple[str, int], ...] = ()
    """(`AllReduce RING SIMPLE`, times chosen)"""
    channels: int | None = None
    """collective channels"""
    transports: tuple[tuple[str, int], ...] = ()
    """(`P2P/CUMEM`, `SHM/direct/direct`, `NET/IB`, `NET/IB/GDRDMA`, ...; edges that use it)"""
    nvls: bool | None = None
    plugins: tuple[str, ...] = ()
    """net, tuner and profiler plugins that were loaded"""
    warnings: tuple[LogWarning, ...] = ()
    cause: LogCause | None = None
    """the root cause of a failed run; None where the log shows no failure"""
    notes: tuple[str, ...] = ()
    """what looks bad and is harmless, or what else deserves a word"""
    versions: tuple[str, ...] = ()
    """every version that the log names, in order of appearance"""
    nvls_channels: int | None = None
    gpu_paths: tuple[tuple[str, int], ...] = ()
    """(kind and GB/s of the path between two GPUs, as NCCL's topology search prints it: `SYS 16.0`; pairs)"""
    p2p_unsupported: int = 0
    """distinct pairs of GPUs that NCCL called unable to reach each other"""
    unopened_devices: tuple[str, ...] = ()
    """RDMA devices that exist and could not be opened"""
    finds_no_rdma: bool = False
    """NET/IB said that there is no device"""
    refused_settings: tuple[str, ...] = ()
    """what NCCL said of values that it did not take: `Invalid NCCL_NTHREADS 100 (must be a multiple of 32)`"""
    failed_plugins: tuple[str, ...] = ()
    """plugins that were asked for and not loaded, with the reason"""


# --- nccl-tests ---------------------------------------------------------------------------------------------


class MeasuredTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One half of a row: out of place, or in place."""

    time_us: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    wrong: float | None
    """wrong elements, or the old `error` column; None where checking was off"""


class MeasuredRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured size."""

    size_bytes: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: MeasuredTime | None
    in_place: MeasuredTime | None


class MeasuredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table with what stands around it."""

    ranks: int | None
    """None where the file has no list of ranks"""
    hosts: tuple[str, ...]
    gpu_names: tuple[str, ...]
    devices: int | None
    """distinct (host, process or device, bus ID) among the ranks: fewer than ranks where a GPU is shared"""
    test: str | None
    """`all_reduce`, ... where a line tells it"""
    nccl_version: str | None
    rows: tuple[MeasuredRow, ...]
    average_busbw_gb_per_s: float | None
    out_of_bounds: int | None
    failed: bool | None
    """by the verdict line; None where there is none"""
    problems: tuple[str, ...] = ()
    """reasons not to trust it: one rank only, a GPU shared, wrong results, rows cut"""
    validation: bool | None = None
    """whether results were checked, where a line tells it"""
    is_graph: bool | None = None
    """whether the collectives ran in a CUDA graph"""
    wrong_results: bool = False
    """some result was not what it should have been"""
    repeated_ranks: bool = False
    """rank 0 appears more than once: processes that do not know of each other, as of a build without MPI"""

    @property
    def best_busbw_gb_per_s(self) -> float | None:
        """The best bus bandwidth of any row, out of place or in place; None without rows."""
        halves = [half for row in self.rows for half in (row.out_of_place, row.in_place) if half is not None]
        return max((half.busbw_gb_per_s for half in halves if half.busbw_gb_per_s is not None), default=None)


class NcclTests(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="nccl-tests"):
    """Output of nccl-tests, of one run or of several after each other."""

    runs: tuple[MeasuredRun, ...]
    cause: str | None = None
    """why there is no table or why it ended early, where the file tells: `not enough slots for 16 processes`"""
    library: str = "NCCL"
    """`NCCL`, or `RCCL` where rccl-tests wrote it"""
    log: NcclLog | None = None
    """what NCCL's own lines tell, where they are in the same file"""


# --- settings of a job --------------------------------------------------------------------------------------


class JobSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NCCL variable that a file gives to a job."""

    name: str
    value: str
    """as it is written where only the shell knows what it becomes"""
    line: int


class JobMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that `topo-tune lint` says about the file."""

    rule: str
    """ID of lint's rule"""
    severity: Severity
    line: int
    """from 1; 0 when it is about the whole file"""
    text: str


class JobSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="job-settings"):
    """What a job's own file sets: a shell snippet, a batch script, launcher options, a manifest."""

    format: str
    """as `topo-tune lint` names it: `shell`, `args`, `yaml`"""
    settings: tuple[JobSetting, ...]
    messages: tuple[JobMessage, ...] = ()
    """errors and warnings, in the file's order; notices are left out"""
