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
    performance_state: str | None = None
    """`P0` is full speed"""
    throttle_reasons: tuple[str, ...] = ()
    """clock event reasons that are active, in NVIDIA's words"""
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
    """cluster UUID and clique ID of a multi-node NVLink domain"""
    reset_required: bool | None = None


class NvlinkLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NVLink of one GPU."""

    index: int
    is_active: bool
    gb_per_s: float | None = None
    """per direction, as reported; None while it is inactive"""
    errors: int | None = None
    """replays, recoveries and CRC errors together, where they were asked"""


class GpuNvlinks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The NVLinks of one GPU, from `nvidia-smi nvlink -s`."""

    gpu: int
    name: str | None
    uuid: str | None
    links: tuple[NvlinkLink, ...]


class P2pMatrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `nvidia-smi topo -p2p` says of each pair of GPUs."""

    capability: str
    """r read, w write, n NVLink, a atomics, p PCIe"""
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

    @property
    def kind(self) -> str:
        """`gpu`, `nic`, `nvswitch`, `bridge`, `other` or `unknown`, by the class."""
        code = self.class_code or ""
        kinds = {
            "0300": "gpu",
            "0302": "gpu",
            "1200": "gpu",
            "0380": "gpu",
            "0680": "nvswitch",
            "0604": "bridge",
        }
        if code[:4] == "0680" and self.vendor_id not in (None, "10de"):
            return "bridge"
        if code[:2] == "02":
            return "nic"
        return kinds.get(code[:4], "other" if code else "unknown")


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
    """of AER: corrected, nonfatal, fatal"""
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
    """`off`, `passthrough` or `translated`"""
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
