"""What a scan saw on each node. Whatever could not be read is a value with its reason, never a hole."""

from __future__ import annotations

import msgspec

from topo_tune.records.inventory import Missing

RDMA_DEVICE_FILES = "/dev/infiniband"
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


class TopologyMatrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The matrix of `nvidia-smi topo -m`: how each pair of GPUs and NICs is joined."""

    gpus: tuple[str, ...]
    """GPU0, GPU1, ...: the columns that are GPUs"""
    nics: tuple[str, ...]
    """NIC columns, by device name (mlx5_0) where the legend tells it"""
    links: tuple[tuple[str, ...], ...]
    """links[i][j]: X, SYS, NODE, PHB, PXB, PIX, NV18 or `?` (not in the text); rows and columns are gpus then nics"""
    cpu_affinity: tuple[str | None, ...]
    """per GPU: `0-55,112-167`"""
    numa_affinity: tuple[str | None, ...]
    """per GPU: `0`, or a list such as `0,3-9`"""
    gpu_numa_ids: tuple[int | None, ...] = ()
    """per GPU: the NUMA node that its own memory is (Grace); empty where the text has no such column"""
    problems: tuple[str, ...] = ()
    """what could not be read: missing rows, unknown words"""

    def link(self, one: str, other: str) -> str:
        """The link word of two devices. Raises ValueError for a name that is not in the matrix."""
        names = self.gpus + self.nics
        return self.links[names.index(one)][names.index(other)]


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


class NcclFileSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a file that NCCL reads, as NCCL understands it."""

    line: int
    name: str
    value: str


class NcclFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One configuration file that NCCL reads, or topo-tune's drop-in directory feeds into one."""

    path: str
    exists: bool
    sha256: str | None
    settings: tuple[NcclFileSetting, ...] = ()
    problems: tuple[str, ...] = ()
    """lines that NCCL would misread: spaces, quotes, `export`, suffixes, duplicates"""


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


class Scan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all nodes told, and who did not answer."""

    cluster: str
    nodes: tuple[NodeScan, ...]
    missing: tuple[Missing, ...] = ()

    def node(self, name: str) -> NodeScan | None:
        """The scan of one node, or None when it did not answer."""
        return next((scan for scan in self.nodes if scan.node == name), None)
