"""What a scan saw of a node's GPUs, PCI devices and kernel, beyond their mere presence."""

from __future__ import annotations

import enum

import msgspec


class PcieLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A PCI Express link: what it runs at now, and the most that both of its ends can do."""

    speed_gt_per_s: float | None = None
    """per lane: 2.5, 5, 8, 16, 32, 64; a GPU that idles lowers it to save power"""
    max_speed_gt_per_s: float | None = None
    width: int | None = None
    """lanes"""
    max_width: int | None = None

    @property
    def gbit_per_s(self) -> float | None:
        """What the link carries now, in each direction; None where speed or width is not known."""
        return pcie_gbit_per_s(self.speed_gt_per_s, self.width)

    @property
    def max_gbit_per_s(self) -> float | None:
        """What it could carry."""
        return pcie_gbit_per_s(self.max_speed_gt_per_s, self.max_width)


def pcie_gbit_per_s(speed_gt_per_s: float | None, width: int | None) -> float | None:
    """Gbit/s in each direction, behind the line coding and before packet headers (which take another 5 to 15 %)."""
    if not speed_gt_per_s or not width:
        return None
    # 8b/10b up to generation 2, 128b/130b up to generation 5, 242 of 256 bytes of a flit from generation 6.
    share = 0.8 if speed_gt_per_s <= 5 else 128 / 130 if speed_gt_per_s <= 32 else 242 / 256
    return speed_gt_per_s * width * share


class GpuHealth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU as `nvidia-smi -q` describes it; None is what it did not say."""

    pci_bus_id: str | None = None
    """as the kernel writes it: `0000:18:00.0`"""
    name: str | None = None
    uuid: str | None = None
    vbios: str | None = None
    persistence: bool | None = None
    mig: bool | None = None
    link: PcieLink | None = None
    """of the GPU itself; the maximum is the device's own"""
    host_max_speed_gt_per_s: float | None = None
    """the most the slot offers; a card may be able to do more"""
    pcie_replays: int | None = None
    bar1_total_bytes: int | None = None
    memory_total_bytes: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    """since the driver was loaded"""
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    """over the card's life"""
    remapped_rows_uncorrectable: int | None = None
    remap_pending: bool | None = None
    """rows or pages wait for a reset before they are taken out of use"""
    remap_failed: bool | None = None
    """no spare rows are left for a bad one, or memory cannot be repaired"""
    sram_threshold_exceeded: bool | None = None
    """more uncorrectable errors in the chip's own memory than NVIDIA accepts"""
    performance_state: str | None = None
    """`P0` is full speed"""
    throttle_reasons: tuple[str, ...] = ()
    """clock event reasons that are active, in NVIDIA's words"""
    throttled_seconds: tuple[tuple[str, float], ...] = ()
    """(reason, time it was active since the driver was loaded), where that is counted and not nothing"""
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    power_limit_watts: float | None = None
    default_power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    compute_mode: str | None = None
    """`Default`; `Exclusive_Process` and `Prohibited` keep ranks out"""
    virtualization_mode: str | None = None
    """`None`, `Pass-Through`, `VGPU`, ..."""
    addressing_mode: str | None = None
    """`HMM`, `ATS` or `None`"""
    fabric_state: str | None = None
    """of the NVSwitch fabric: `Completed`, `In Progress`, `Not Started`; None or `N/A` where there is none"""
    fabric_status: str | None = None
    """`Success` once the state is `Completed`"""
    fabric_clique: str | None = None
    """cluster UUID and clique ID of a multi-node NVLink domain, joined by a dot"""
    fabric_troubles: tuple[str, ...] = ()
    """what the fabric's health says of this GPU that is not as it should be: `Bandwidth: Degraded`"""
    reset_required: bool | None = None
    recovery_action: str | None = None
    """what the driver asks for: `None`, `Reset`, `Reboot`, `Drain P2P`, `Drain and Reset`"""
    is_lost: bool | None = None
    """True: the driver knows that it was there and cannot reach it any more; nothing else told of it counts"""


class NvlinkLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NVLink of one GPU."""

    index: int
    is_active: bool | None
    """None where only its errors were asked"""
    gb_per_s: float | None = None
    """per direction, as reported; None while it is inactive"""
    errors: int | None = None
    """errors together that the link did not correct on the fly (replays, recoveries, CRC, packets, symbols), where
    they were asked"""


class GpuNvlinks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The NVLinks of one GPU, from `nvidia-smi nvlink -s` and `-e`."""

    gpu: int
    name: str | None
    uuid: str | None
    links: tuple[NvlinkLink, ...]


class P2pMatrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `nvidia-smi topo -p2p` says of each pair of GPUs."""

    capability: str
    """r read, w write, n NVLink, a atomics, p PCIe; `?` where a saved text does not say what was asked"""
    gpus: tuple[str, ...]
    states: tuple[tuple[str, ...], ...]
    """states[i][j]: OK, NS (not supported), CNS, GNS, TNS, DR, U, X; `?` where the text has none"""


class PciDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function on the PCI bus, from /sys or from `lspci`."""

    address: str
    """`0000:18:00.0`"""
    class_code: str | None = None
    """four hex digits: 0302 3D controller, 0207 InfiniBand, 0604 bridge, 0680 NVSwitch, ..."""
    vendor_id: str | None = None
    """four hex digits: 10de NVIDIA, 15b3 Mellanox, 1002 AMD"""
    device_id: str | None = None
    name: str | None = None
    """as `lspci` words it"""
    parent: str | None = None
    """address of the bridge above; None at the root or where it is not known"""
    numa_node: int | None = None
    driver: str | None = None
    link: PcieLink | None = None
    acs: tuple[str, ...] | None = None
    """ACS controls that are on (`SrcValid`, `ReqRedir`, `CmpltRedir`, `UpstreamFwd`, ...); None: not known"""
    is_virtual_function: bool = False
    is_dead: bool = False
    """it does not answer the bus any more: all of its registers read as ones (`rev ff`)"""

    @property
    def kind(self) -> str:
        """`gpu`, `nic`, `nvswitch`, `bridge`, `other` or `unknown`: by the class, else by the name."""
        code = (self.class_code or "")[:4]
        if not code:
            return _kind_by_name(self.name or "", self.address)
        if code == "0680":
            return "nvswitch" if self.is_of("10de", "NVIDIA") else "bridge"
        if code in _GPU_CLASSES:
            # Boards have a VGA controller of their own, for the remote console; so have some CPUs.
            return "gpu" if self.is_of("10de", "NVIDIA") or self.is_of("1002", "AMD/ATI") else "other"
        return "bridge" if code == "0604" else "nic" if code.startswith("02") else "other"

    def is_of(self, vendor_id: str, word: str) -> bool:
        """Whether it is of this vendor: by the ID, else by a word of the name; one that says neither may be."""
        if self.vendor_id is not None:
            return self.vendor_id == vendor_id
        return self.name is None or word in self.name


_GPU_CLASSES = ("0300", "0302", "0380", "1200")
_NO_NIC = ("Bridge", "Management Interface", "DMA", "Crypto", "Switch")
_NIC_WORDS = (
    "ConnectX",
    "Connect-IB",
    "BlueField",
    "Ethernet",
    "Network Adapter",
    "Network Connection",
    "network device",
    "Elastic Fabric",
    "NetXtreme",
    "Omni-Path",
)
_GPU_WORDS = ("NVIDIA Corporation", "Instinct", "Radeon")
_NO_GPU = ("Audio", "USB", "Bridge", "UCSI")
_NVSWITCH_WORDS = (
    "NVSwitch",
    "NVIDIA Corporation Device 1ac2",
    "NVIDIA Corporation Device 1af1",
    "Device 22a3",
)


def _kind_by_name(name: str, address: str) -> str:
    """For `lspci -tv`, which tells no classes. A GPU's further functions are audio and USB."""
    if not name:
        return "unknown"
    if any(word in name for word in _NVSWITCH_WORDS):
        return "nvswitch"
    if any(word in name for word in _NIC_WORDS) and not any(word in name for word in _NO_NIC):
        return "nic"
    if any(word in name for word in _GPU_WORDS) and not any(word in name for word in _NO_GPU):
        return "gpu" if address.endswith(".0") else "other"
    return "other"


class KernelEventKind(enum.Enum):
    """What a line of the kernel log is about."""

    XID = "xid"
    """an error of a GPU"""
    SXID = "sxid"
    """an error of an NVSwitch"""
    AER = "aer"
    """an error on a PCI Express link"""
    PCIE_BANDWIDTH = "pcie-bandwidth"
    """the kernel says that a link runs below what the device could do"""
    GPU_LOST = "gpu-lost"
    """fallen off the bus"""
    NIC = "nic"
    """firmware or command errors of a network card, cable trouble"""
    LINK = "link"
    """a network link went down or came up"""
    SEGFAULT = "segfault"
    OUT_OF_MEMORY = "out-of-memory"
    HUNG_TASK = "hung-task"
    IOMMU = "iommu"
    """DMA faults, or what the kernel says of its IOMMU mode"""
    DRIVER = "driver"
    """other words of the NVIDIA driver and its fabric manager"""


class KernelEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of the kernel log that say the same of one device, counted."""

    kind: KernelEventKind
    text: str
    """the last such line, without its time, at most 300 characters"""
    device: str | None = None
    """PCI address, interface or process it is about"""
    code: int | None = None
    """Xid or SXid number"""
    severity: str | None = None
    """of AER: corrected, nonfatal, fatal; of SXid and of Xid 144 to 150: nonfatal, fatal; of a link: down, up; of
    IOMMU: fault, mode"""
    count: int = 1
    first_at: str | None = None
    """as the log writes it"""
    last_at: str | None = None


class FabricManager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """NVIDIA's fabric manager, which NVSwitch machines need before NVLink works."""

    is_running: bool | None = None
    version: str | None = None
    problems: tuple[str, ...] = ()
    """error lines of its log, without times, each at most 300 characters"""


UNLIMITED = -1
"""A limit that is none."""


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the operating system gives a process there: limits, memory, modules, virtualisation."""

    memlock_bytes: int | None = None
    """soft limit of locked memory in topo-tune's own session; UNLIMITED is none. A job may have another."""
    memlock_hard_bytes: int | None = None
    open_files: int | None = None
    """soft limit; UNLIMITED is none"""
    open_files_hard: int | None = None
    """NCCL's bootstrap raises its soft limit up to this one"""
    stack_bytes: int | None = None
    """soft limit of a thread's stack; UNLIMITED is none"""
    shm_bytes: int | None = None
    """size of /dev/shm"""
    shm_free_bytes: int | None = None
    hypervisor: str | None = None
    """`kvm`, `microsoft`, `vmware`, `xen`, ...; `none` on bare metal"""
    container: str | None = None
    """`docker`, `podman`, `kubernetes`, `apptainer`, `enroot`, ...; `none` outside of one"""
    allowed_cpus: str | None = None
    """CPUs that this session may run on: `0-55`"""
    governors: tuple[tuple[str, int], ...] = ()
    """(scaling governor, CPUs that have it)"""
    huge_pages: int | None = None
    transparent_huge_pages: str | None = None
    """`always`, `madvise` or `never`"""
    numa_balancing: bool | None = None
    iommu: str | None = None
    """`off`, `passthrough` or `translated`: of GPUs and NICs where their groups are known, else of the machine"""
    kernel_options: tuple[str, ...] = ()
    """words of the kernel's command line about IOMMU, PCI, NUMA, huge pages and NVIDIA; no others are kept"""
    modules: tuple[tuple[str, str | None], ...] = ()
    """(loaded kernel module of interest, its version): nvidia, nvidia_peermem, nv_peer_mem, gdrdrv, mlx5_core, ..."""
    is_open_nvidia_module: bool | None = None
    """whether the loaded NVIDIA kernel module is the open one"""
    dma_buf: bool | None = None
    """whether GPU memory can be given to a NIC without a peer-memory module; None where that cannot be told"""
    gdrcopy: str | None = None
    """version of GDRCopy's driver; None: not there"""
    services: tuple[tuple[str, str], ...] = ()
    """(unit, `active`, `inactive`, `failed`, ...) of the few services that matter"""
    slurm: tuple[tuple[str, str], ...] = ()
    """SLURM_ variables of this session, and Slurm's version where a command told it"""
    is_in_kubernetes: bool | None = None
    machine: str | None = None
    """vendor and product of the firmware: `NVIDIA DGXH100`"""
    has_virtual_topology: bool | None = None
    """whether the file is there that NCCL loads before it detects a topology of its own"""
    has_imex_channel: bool | None = None
    """whether there is a device file of an IMEX channel, which multi-node NVLink needs"""
