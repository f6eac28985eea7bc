"""What a scan saw on each node. Whatever could not be read is a value with its reason, never a hole."""

from __future__ import annotations

import msgspec

from topo_tune.records.document import Document
from topo_tune.records.finding import Finding
from topo_tune.records.hardware import (
    FabricManager,
    GpuHealth,
    GpuNvlinks,
    Host,
    KernelEvent,
    P2pMatrix,
    PciDevice,
)
from topo_tune.records.inventory import Missing
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice, RoceSettings, Route
from topo_tune.records.provenance import SettingOrigin

RDMA_DEVICE_FILES = "/dev/infiniband"
GPUS_ARE_CUT = "GPUs only, of"
"""In the reason of an `Absent`: a text describes fewer GPUs than it says are attached."""
"""`what` of the Absent that says: RDMA devices exist, and this session may not open them."""


class Absent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something the scan looked for and did not get, and why: a fact, not an error."""

    what: str
    reason: str


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU as NVML or nvidia-smi reports it."""

    index: int
    name: str
    uuid: str | None
    pci_bus_id: str | None
    memory_bytes: int | None
    compute_capability: str | None
    """`9.0`"""
    numa_node: int | None


class Nic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One network interface or RDMA device of the kernel."""

    name: str
    kind: str
    """infiniband and roce (RDMA devices), ethernet, loopback, or other: bridges, veths, IPoIB, EFA"""
    is_up: bool | None
    speed_gbit_per_s: float | None
    numa_node: int | None
    driver: str | None
    addresses: tuple[str, ...] = ()
    mtu_bytes: int | None = None
    pci_bus_id: str | None = None
    is_virtual: bool | None = None
    """no device of its own behind it: bridge, veth, bond, tunnel, VLAN"""
    master: str | None = None
    """bond or bridge that it is a member of"""


class NumaNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NUMA node: its CPUs and its memory."""

    index: int
    cpus: str
    memory_bytes: int | None


class Cpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The CPUs of a node. NCCL's model asks for the vendor."""

    vendor: str | None
    """GenuineIntel, AuthenticAMD, ARM, ..."""
    model: str | None
    architecture: str
    sockets: int | None
    cores: int | None
    threads: int


class NcclLibrary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One libnccl found on the node."""

    path: str
    version: str | None
    """`2.28.9`; None when the file does not tell"""
    found_in: str
    """torch, system, LD_LIBRARY_PATH, pip, ..."""
    names: tuple[str, ...] = ()
    """every NCCL_ name that is a string of its read-only data; a name that is not there cannot have an effect.
    Empty where the file was not looked into."""
    accepts: tuple[str, ...] = ()
    """plugin interfaces that it looks for, newest first: `ncclNetPlugin_v11`; empty where nobody looked"""


class NcclPlugin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plugin library that NCCL could load."""

    kind: str
    """net, tuner, profiler, env; a library that exports symbols of several kinds appears once for each"""
    path: str
    found_in: str
    """NCCL_NET_PLUGIN and the like where such a variable names it; LD_LIBRARY_PATH; system: the loader's cache or
    folders; usual folder: one that is on no library path by itself"""
    interfaces: tuple[str, ...] = ()
    """symbols that it exports, newest first: `ncclNetPlugin_v10`, `ncclTunerPlugin_v4`"""
    exists: bool = True
    """False: a variable names it, and no such file was found where NCCL would look; `path` is the name"""
    names: tuple[str, ...] = ()
    """NCCL_ names in its read-only data: variables that it reads itself"""


class NcclFileSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a file that NCCL reads, as NCCL understands it."""

    line: int
    name: str
    value: str


class NcclFileError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that NCCL reads as it is written, and that has no effect or breaks jobs."""

    line: int
    """from 1; 0 when it is about the whole file"""
    rule: str
    """ID of lint's rule"""
    text: str


class NcclFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One configuration file that NCCL reads, or topo-tune's drop-in directory feeds into one."""

    path: str
    exists: bool
    sha256: str | None
    settings: tuple[NcclFileSetting, ...] = ()
    problems: tuple[str, ...] = ()
    """what is wrong in it, as `topo-tune lint` says it, without notices; or why it could not be read"""
    misread: tuple[str, ...] = ()
    """those of the problems that NCCL reads otherwise than they were meant: spaces, quotes, `export`, suffixes"""
    errors: tuple[NcclFileError, ...] = ()
    """those of the other problems that lint calls errors, and names that no NCCL ever read"""


class NodeScan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one node told."""

    node: str
    hostname: str
    kernel: str
    operating_system: str | None
    python: str
    """version and path of the Python that ran the collector"""
    cpu: Cpu
    numa: tuple[NumaNode, ...]
    memory_bytes: int | None
    gpus: tuple[Gpu, ...]
    gpu_source: str | None
    """nvml, nvidia-smi or None"""
    driver: str | None
    """NVIDIA driver version"""
    cuda_driver: str | None
    """highest CUDA version the driver takes: `13.0`"""
    matrix: TopologyMatrix | None
    nics: tuple[Nic, ...]
    nccl_libraries: tuple[NcclLibrary, ...]
    torch: str | None
    """version of the torch that this Python would import"""
    torch_nccl: str | None
    """version of the NCCL that this torch brings"""
    nccl_environment: tuple[tuple[str, str], ...]
    """NCCL_* variables in the environment that topo-tune's own session had on the node"""
    nccl_files: tuple[NcclFile, ...]
    absent: tuple[Absent, ...] = ()
    collected_in_seconds: float | None = None
    gpu_health: tuple[GpuHealth, ...] = ()
    driver_trouble: tuple[str, ...] = ()
    """what `nvidia-smi` said in place of an answer, where it reached no GPU at all: its sentences, the reason first
    (`Failed to initialize NVML: Driver/library version mismatch`, `NVML library version: 570.86`)"""
    nvlinks: tuple[GpuNvlinks, ...] = ()
    p2p: tuple[P2pMatrix, ...] = ()
    """one for each capability that was asked"""
    fabric_manager: FabricManager | None = None
    pci: tuple[PciDevice, ...] = ()
    unnamed_acs: tuple[tuple[str, ...], ...] = ()
    """ACS controls that are on, one entry a PCI device, where the text does not say which devices they are"""
    kernel_events: tuple[KernelEvent, ...] = ()
    host: Host = Host()
    rdma: tuple[RdmaDevice, ...] = ()
    roce: tuple[RoceSettings, ...] = ()
    routes: tuple[Route, ...] = ()
    plugins: tuple[NcclPlugin, ...] = ()
    settings: tuple[SettingOrigin, ...] = ()
    """every place that sets an NCCL variable, by name, strongest first"""


class Scan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all nodes told, and who did not answer."""

    cluster: str
    nodes: tuple[NodeScan, ...]
    missing: tuple[Missing, ...] = ()
    documents: tuple[Document, ...] = ()
    """saved files about a job or the whole cluster"""
    findings: tuple[Finding, ...] = ()
    """worst first"""
    unread: tuple[Absent, ...] = ()
    """saved files that could not be read and that belong to no node of the scan"""

    def node(self, name: str) -> NodeScan | None:
        """The scan of one node, or None when it did not answer."""
        return next((scan for scan in self.nodes if scan.node == name), None)
