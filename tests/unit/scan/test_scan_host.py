"""What the operating system gives a process: the live fact, and outputs saved in files."""

from __future__ import annotations

import time

import pytest
from golden_facts import beside_the_repository, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.hardware import UNLIMITED, Host, PciDevice
from topo_tune.records.scan import Cpu, NodeScan, NumaNode
from topo_tune.scan.facts.fact import Files, Gathered, RawCommand, RawText, SavedKind
from topo_tune.scan.facts.host import host, kernel_modules, kernel_options

(FACT,) = host.FACTS
KINDS = {kind.name: kind for kind in host.KINDS}
COMMANDS = {command.argv[0] + command.argv[-1]: command.argv for command in FACT.commands}

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max stack size            8388608              unlimited            bytes
Max open files            1024                 524288               files
Max locked memory         8388608              unlimited            bytes
"""
MODULES = """\
nvidia_uvm 1830912 4 - Live 0x0000000000000000 (POE)
nvidia_peermem 16384 0 - Live 0x0000000000000000 (POE)
nvidia 56823808 12 nvidia_uvm, Live 0x0000000000000000 (POE)
ib_core 544768 9 rdma_ucm, Live 0x0000000000000000 (OE)
mlx5_core 2215936 1 mlx5_ib, Live 0x0000000000000000 (OE)
"""
OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@)  \n"
CLOSED_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
DF = "Mounted on    1B-blocks        Avail\n/dev/shm   274877906944 274877900000\n"
CMDLINE = (
    "BOOT_IMAGE=/vmlinuz root=UUID=17-secret ro password=hunter2 intel_iommu=on iommu=pt pci=realloc=off "
    "numa_balancing=disable hugepages=16 nvidia.NVreg_OpenRmEnableUnsupportedGpus=1 ds=nocloud;s=http://10.0.0.1/ "
    "iommu_password=x --auth-token abc\n"
)


def raw(files: Files | str, text: str, path: str | None = None) -> RawText:
    pattern = files if isinstance(files, str) else files.pattern
    return RawText(pattern, path or pattern, text)


def healthy() -> list[RawText]:
    return [
        raw("/proc/self/limits", LIMITS),
        raw("/proc/self/status", "Cpus_allowed_list:\t0-55,112-167\n"),
        raw("/proc/modules", MODULES),
        raw("/sys/module/nvidia/version", "580.159.04\n"),
        raw("/sys/module/nvidia_peermem/version", "580.159.04\n"),
        raw("/proc/driver/nvidia/version", OPEN_MODULE),
        raw("/proc/cmdline", CMDLINE),
        raw("/proc/meminfo", "HugePages_Total:      16\n"),
        raw("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        raw("/proc/sys/kernel/numa_balancing", "1\n"),
        raw("/sys/class/dmi/id/sys_vendor", "NVIDIA\n"),
        raw("/sys/class/dmi/id/product_name", "DGXH100\n"),
        raw("/proc/1/cgroup", "0::/init.scope\n"),
        raw(
            "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
            "performance\n",
            "/sys/devices/system/cpu/cpu0/c",
        ),
        raw(
            "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
            "powersave\n",
            "/sys/devices/system/cpu/cpu1/c",
        ),
        raw(
            "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
            "powersave\n",
            "/sys/devices/system/cpu/cpu2/c",
        ),
        raw("/sys/class/iommu/*", "", "/sys/class/iommu/dmar0"),
        raw("/sys/kernel/iommu_groups/*/type", "identity\n", "/sys/kernel/iommu_groups/7/type"),
        raw("/sys/kernel/iommu_groups/*/type", "DMA-FQ\n", "/sys/kernel/iommu_groups/9/type"),
        raw(
            "/sys/bus/pci/devices/*/iommu_group",
            "/sys/kernel/iommu_groups/7",
            "/sys/bus/pci/devices/0000:19:00.0/iommu_group",
        ),
        raw("/dev/gdrdrv", ""),
    ]


def commands(**outputs: RawCommand) -> tuple[RawCommand, ...]:
    given = {
        "df": RawCommand(COMMANDS["df/dev/shm"], 0, DF),
        "machine": RawCommand(COMMANDS["systemd-detect-virt--vm"], 1, "none\n"),
        "container": RawCommand(COMMANDS["systemd-detect-virt--container"], 1, "none\n"),
        "services": RawCommand(
            COMMANDS["systemctlslurmd"], 3, "active\nactive\ninactive\nactive\nactive\nfailed\n"
        ),
        "slurm": RawCommand(COMMANDS["sinfo--version"], 0, "slurm 23.11.10\n"),
    }
    return tuple((given | outputs).values())


def told(
    *files: RawText,
    asked: tuple[RawCommand, ...] | None = None,
    environment: tuple[tuple[str, str], ...] = (),
    kernel: str = "6.8.0-45-generic",
) -> Host:
    """The host that these files tell, in place of those of the same name of a healthy node."""
    named = {file.pattern for file in files}
    kept = [file for file in healthy() if file.pattern not in named]
    gathered = Gathered(commands() if asked is None else asked, (*kept, *files), environment)
    gpu = PciDevice("0000:19:00.0", "0302", "10de")
    return FACT.tell(node_scan(kernel=kernel, pci=(gpu,)), gathered).host


def read(name: str, text: str, scan: NodeScan | None = None) -> NodeScan:
    kind = KINDS[name]
    assert kind.recognise(text)
    assert kind.tell is not None
    return kind.tell(scan or blank(), text, "saved.txt")


def blank() -> NodeScan:
    return node_scan(kernel="unknown", cpu=Cpu(None, None, "unknown", None, None, 0))


def test_a_healthy_node_is_told_in_full() -> None:
    assert told() == Host(
        memlock_bytes=8388608,
        memlock_hard_bytes=UNLIMITED,
        open_files=1024,
        open_files_hard=524288,
        stack_bytes=8388608,
        shm_bytes=274877906944,
        shm_free_bytes=274877900000,
        hypervisor="none",
        container="none",
        allowed_cpus="0-55,112-167",
        governors=(("performance", 1), ("powersave", 2)),
        huge_pages=16,
        transparent_huge_pages="madvise",
        numa_balancing=True,
        iommu="passthrough",
        kernel_options=(
            "intel_iommu=on",
            "iommu=pt",
            "pci=realloc=off",
            "numa_balancing=disable",
            "hugepages=16",
            "nvidia.NVreg_OpenRmEnableUnsupportedGpus=1",
        ),
        modules=(
            ("nvidia", "580.159.04"),
            ("nvidia_uvm", None),
            ("nvidia_peermem", "580.159.04"),
            ("mlx5_core", None),
            ("ib_core", None),
        ),
        is_open_nvidia_module=True,
        dma_buf=True,
        gdrcopy="loaded",
        services=(
            ("nvidia-persistenced", "active"),
            ("nvidia-fabricmanager", "active"),
            ("nvidia-imex", "inactive"),
            ("openibd", "active"),
            ("irqbalance", "active"),
            ("slurmd", "failed"),
        ),
        slurm=(("version", "23.11.10"),),
        is_in_kubernetes=False,
        machine="NVIDIA DGXH100",
        has_virtual_topology=False,
        has_imex_channel=False,
    )


def test_a_node_that_answers_nothing_is_a_host_that_says_nothing() -> None:
    scan = FACT.tell(node_scan(), Gathered())

    assert scan.host == Host()
    assert [(absent.what, absent.reason) for absent in scan.absent] == [
        ("/dev/shm", "not asked by this collector")
    ]


def test_no_word_of_the_command_line_but_those_on_the_list_is_kept() -> None:
    kept = " ".join(kernel_options.parse(CMDLINE))

    assert "hunter2" not in kept
    assert "secret" not in kept
    assert "10.0.0.1" not in kept
    assert "iommu_password" not in kept


def test_nothing_of_the_environment_but_slurm_names_on_the_list_is_kept() -> None:
    secret = (("SLURM_JOB_ID", "17"), ("SLURM_JWT", "token"), ("KUBERNETES_SERVICE_HOST", "10.0.0.1"))

    told_host = told(environment=secret)

    assert told_host.slurm == (("SLURM_JOB_ID", "17"), ("version", "23.11.10"))
    assert told_host.is_in_kubernetes is True
    assert "SLURM_JWT" not in FACT.environment


@pytest.mark.parametrize(
    ("kernel", "is_open", "driver", "expected"),
    [
        ("6.8.0-45-generic", True, "550.54.15", True),
        ("5.12.0", True, "515.43.04", True),
        ("5.11.22-generic", True, "550.54.15", False),
        ("4.18.0-553.el8_10.x86_64", True, "550.54.15", None),
        ("5.3.18-150300.59-default", True, "550.54.15", None),
        ("6.8.0", False, "550.54.15", False),
        ("6.8.0", True, "510.47.03", False),
        ("6.8.0", None, "550.54.15", None),
        ("unknown", True, "550.54.15", None),
        ("6.8.0", True, None, None),
    ],
)
def test_whether_gpu_memory_can_be_given_to_a_card(
    kernel: str, is_open: bool | None, driver: str | None, expected: bool | None
) -> None:
    assert kernel_modules.has_dma_buf(kernel, is_open=is_open, driver=driver) is expected


def test_the_proprietary_module_names_its_version_behind_the_architecture() -> None:
    told_host = told(raw("/proc/driver/nvidia/version", CLOSED_MODULE))

    assert told_host.is_open_nvidia_module is False
    assert told_host.dma_buf is False
    assert dict(told_host.modules)["nvidia"] == "535.129.03"


@pytest.mark.parametrize(
    ("virt", "files", "expected"),
    [
        (RawCommand((), 0, "kvm\n"), (), "kvm"),
        (RawCommand((), 1, "none\n"), (), "none"),
        (RawCommand(absent="not installed"), (raw("/sys/class/dmi/id/sys_vendor", "QEMU\n"),), "kvm"),
        (
            RawCommand(absent="not installed"),
            (
                raw("/sys/class/dmi/id/sys_vendor", "Microsoft Corporation\n"),
                raw("/sys/class/dmi/id/product_name", "Virtual Machine\n"),
            ),
            "microsoft",
        ),
        (
            RawCommand(absent="not installed"),
            (
                raw("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
                raw("/sys/class/dmi/id/product_name", "p5.48xlarge\n"),
            ),
            "amazon",
        ),
        (
            RawCommand(absent="not installed"),
            (
                raw("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
                raw("/sys/class/dmi/id/product_name", "p4d.metal\n"),
            ),
            "none",
        ),
        (RawCommand(absent="not installed"), (raw("/sys/hypervisor/type", "xen\n"),), "xen"),
        (RawCommand(absent="not installed"), (), None),
    ],
)
def test_who_names_the_hypervisor(virt: RawCommand, files: tuple[RawText, ...], expected: str | None) -> None:
    answer = RawCommand(COMMANDS["systemd-detect-virt--vm"], virt.status, virt.stdout, absent=virt.absent)

    assert told(*files, asked=commands(machine=answer)).hypervisor == expected


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ((raw("/.dockerenv", ""),), (), "docker"),
        ((raw("/run/.containerenv", ""),), (), "podman"),
        ((raw("/.singularity.d", ""),), (), "apptainer"),
        (
            (raw("/proc/self/cgroup", "0::/kubepods.slice/pod1\n"),),
            (("KUBERNETES_SERVICE_HOST", "1"),),
            "kubernetes",
        ),
        ((raw("/proc/self/cgroup", "12:cpu:/docker/0123\n"),), (), "docker"),
        ((raw("/proc/self/cgroup", "0::/user.slice\n"),), (), "none"),
    ],
)
def test_who_names_the_container(
    files: tuple[RawText, ...], environment: tuple[tuple[str, str], ...], expected: str
) -> None:
    unknown = RawCommand(COMMANDS["systemd-detect-virt--container"], absent="not installed")

    assert told(*files, asked=commands(container=unknown), environment=environment).container == expected


def test_a_container_without_any_mark_is_not_called_one() -> None:
    unknown = RawCommand(COMMANDS["systemd-detect-virt--container"], absent="not installed")

    assert told(raw("/proc/1/cgroup", "0::/\n"), asked=commands(container=unknown)).container is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            (
                raw(
                    "/sys/bus/pci/devices/*/iommu_group",
                    "/sys/kernel/iommu_groups/9",
                    "/sys/bus/pci/devices/0000:19:00.0/iommu_group",
                ),
            ),
            "translated",
        ),
        (
            (
                raw("/sys/kernel/iommu_groups/*/type", "", "/x"),
                raw("/sys/class/iommu/*", "", "/sys/class/iommu/dmar0"),
                raw("/proc/cmdline", "intel_iommu=on"),
            ),
            "translated",
        ),
        (
            (raw("/sys/kernel/iommu_groups/*/type", "identity", "/sys/kernel/iommu_groups/1/type"),),
            "passthrough",
        ),
    ],
    ids=["the group of a GPU", "an old kernel", "all groups"],
)
def test_the_mode_of_the_iommu(files: tuple[RawText, ...], expected: str) -> None:
    patterns = {file.pattern for file in files}
    kept = [file for file in healthy() if file.pattern not in patterns]
    answers = tuple(file for file in (*kept, *files) if file.path != "/x")
    gpu = PciDevice("0000:19:00.0", "0302", "10de")

    scan = FACT.tell(node_scan(pci=(gpu,)), Gathered(commands(), answers))

    assert scan.host.iommu == expected


def test_a_machine_without_iommu_groups_has_it_off() -> None:
    answers = tuple(
        file for file in healthy() if "iommu" not in file.pattern and file.pattern != "/proc/cmdline"
    )

    assert FACT.tell(node_scan(), Gathered(commands(), answers)).host.iommu == "off"


def test_services_that_systemd_does_not_know_in_a_container_are_not_told() -> None:
    broken = RawCommand(
        COMMANDS["systemctlslurmd"], 1, "", "System has not been booted with systemd as init system"
    )

    assert told(asked=commands(services=broken)).services == ()


def test_shared_memory_that_is_not_mounted_is_absent() -> None:
    failed = RawCommand(COMMANDS["df/dev/shm"], 1, "", "df: /dev/shm: No such file or directory")

    scan = FACT.tell(node_scan(), Gathered(commands(df=failed), tuple(healthy())))

    assert scan.host.shm_bytes is None
    assert "No such file or directory" in scan.absent[0].reason


def test_channels_and_topology_files_are_seen() -> None:
    told_host = told(
        raw("/dev/nvidia-caps-imex-channels/channel*", "", "/dev/nvidia-caps-imex-channels/channel0"),
        raw("/var/run/nvidia-topologyd/virtualTopology.xml", ""),
    )

    assert told_host.has_imex_channel is True
    assert told_host.has_virtual_topology is True


@settings(max_examples=60, deadline=None)
@given(
    pattern=st.sampled_from([files.pattern for files in FACT.files]),
    path=st.sampled_from(["", "/", "/sys/a/b/c/d/e/f/g", "/sys/kernel/iommu_groups/1/type"]),
    text=st.text(max_size=300),
    output=st.text(max_size=100),
)
def test_any_answer_is_read(pattern: str, path: str, text: str, output: str) -> None:
    asked = tuple(RawCommand(command.argv, 0, output) for command in FACT.commands)

    FACT.tell(node_scan(), Gathered(asked, (raw(pattern, text, path or pattern),)))


# --- saved files --------------------------------------------------------------------------------------------

BASH_ULIMIT = """\
real-time non-blocking time  (microseconds, -R) unlimited
core file size              (blocks, -c) 0
max locked memory           (kbytes, -l) 8192
open files                          (-n) 1024
stack size                  (kbytes, -s) unlimited
"""
OLD_BASH_ULIMIT = """\
max locked memory       (kbytes, -l) unlimited
open files                      (-n) 131072
stack size              (kbytes, -s) 8192
"""
ZSH_ULIMIT = """\
-t: cpu time (seconds)              unlimited
-s: stack size (kbytes)             8192
-n: file descriptors                1024
-l: locked-in-memory size (kbytes)  64
"""


@pytest.mark.parametrize(
    ("text", "memlock", "files", "stack"),
    [
        (BASH_ULIMIT, 8192 << 10, 1024, UNLIMITED),
        (OLD_BASH_ULIMIT, UNLIMITED, 131072, 8192 << 10),
        (ZSH_ULIMIT, 64 << 10, 1024, 8192 << 10),
        ("".join(f" 3: {line}\n" for line in BASH_ULIMIT.splitlines()), 8192 << 10, 1024, UNLIMITED),
    ],
    ids=["bash", "older bash", "zsh", "srun -l"],
)
def test_limits_of_a_shell(text: str, memlock: int, files: int, stack: int) -> None:
    told_host = read("`ulimit -a` output", text).host

    assert (told_host.memlock_bytes, told_host.open_files, told_host.stack_bytes) == (memlock, files, stack)


LSCPU = """\
Architecture:                            x86_64
CPU op-mode(s):                          32-bit, 64-bit
CPU(s):                                  224
On-line CPU(s) list:                     0-223
Vendor ID:                               GenuineIntel
BIOS Vendor ID:                          Intel(R) Corporation
Model name:                              Intel(R) Xeon(R) Platinum 8480CL
Thread(s) per core:                      2
Core(s) per socket:                      56
Socket(s):                               2
NUMA node(s):                            2
NUMA node0 CPU(s):                       0-55,112-167
NUMA node1 CPU(s):                       56-111,168-223
"""


def test_lscpu_fills_cpu_and_numa_nodes() -> None:
    scan = read("`lscpu` output", LSCPU)

    assert scan.cpu == Cpu("GenuineIntel", "Intel(R) Xeon(R) Platinum 8480CL", "x86_64", 2, 112, 224)
    assert scan.numa == (NumaNode(0, "0-55,112-167", None), NumaNode(1, "56-111,168-223", None))
    assert scan.host.hypervisor is None


def test_newer_lscpu_indents_its_fields_and_names_the_hypervisor() -> None:
    text = (
        "Architecture:             aarch64\nCPU(s):                   144\nVendor ID:                ARM\n"
        "  Model name:             Neoverse-V2\n    Thread(s) per core:   1\n    Core(s) per socket:   72\n"
        "    Socket(s):            2\nVirtualization features:  \n  Hypervisor vendor:      KVM\n"
        "NUMA:                     \n  NUMA node(s):           2\n  NUMA node0 CPU(s):      0-71\n"
    )

    scan = read("`lscpu` output", text)

    assert scan.cpu == Cpu("ARM", "Neoverse-V2", "aarch64", 2, 144, 144)
    assert scan.host.hypervisor == "kvm"
    assert scan.numa == (NumaNode(0, "0-71", None),)


def test_lscpu_in_json_is_read() -> None:
    text = (
        '{\n   "lscpu": [\n      {"field": "Architecture:", "data": "x86_64"},\n      {\n         "field": "CPU(s):",\n'
        '         "data": "64"\n      }, {"field": "Vendor ID:", "data": "AuthenticAMD"},\n'
        '      {"field": "Socket(s):", "data": "1"}\n   ]\n}\n'
    )

    assert read("`lscpu` output", text).cpu == Cpu("AuthenticAMD", None, "x86_64", 1, None, 64)


def test_lscpu_does_not_overwrite_what_the_node_told() -> None:
    known = node_scan(numa=(NumaNode(0, "0-7", 1 << 30),))

    scan = read("`lscpu` output", LSCPU, known)

    assert scan.cpu == known.cpu
    assert scan.numa == known.numa


NUMACTL = """\
available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3 8 9 10 11
node 0 size: 257655 MB
node 0 free: 3342 MB
node 1 cpus:
node 1 size: 97280 MB
node distances:
node   0   1
  0:  10  21
"""


def test_numactl_tells_cpus_and_memory() -> None:
    assert read("`numactl -H` output", NUMACTL).numa == (
        NumaNode(0, "0-3,8-11", 257655 << 20),
        NumaNode(1, "", 97280 << 20),
    )


LSMOD = """\
Module                  Size  Used by
nvidia_peermem         16384  0
nvidia_uvm           4952064  16
nvidia              54374400  342 nvidia_uvm,nvidia_peermem,gdrdrv
gdrdrv                 24576  0
mlx5_ib               462848  0
snd_hda_intel          53248  0
"""


def test_lsmod_names_the_modules_of_interest() -> None:
    names = [name for name, _ in read("`lsmod` output", LSMOD).host.modules]

    assert names == ["nvidia", "nvidia_uvm", "nvidia_peermem", "gdrdrv", "mlx5_ib"]


@pytest.mark.parametrize(
    "text", ["nvidia_peermem         16384  0\nib_core   491520  9 rdma_cm,nvidia_peermem\n", MODULES]
)
def test_filtered_lsmod_and_saved_proc_modules_are_read(text: str) -> None:
    assert "nvidia_peermem" in dict(read("`lsmod` output", text).host.modules)


@pytest.mark.parametrize(
    ("text", "kernel", "hostname"),
    [
        (
            "Linux gpu001 5.15.0-105-generic #115-Ubuntu SMP Mon Apr 15 09:52:04 UTC 2024 x86_64 GNU/Linux\n",
            "5.15.0-105-generic",
            "gpu001",
        ),
        (
            "0: Linux n1 4.18.0-553.el8_10.x86_64 #1 SMP Fri May 10 15:19:13 EDT 2024 x86_64 x86_64 x86_64 GNU/Linux\n",
            "4.18.0-553.el8_10.x86_64",
            "n1",
        ),
    ],
)
def test_uname_names_kernel_and_host(text: str, kernel: str, hostname: str) -> None:
    scan = read("`uname -a` output", text)

    assert (scan.kernel, scan.hostname, scan.cpu.architecture) == (kernel, hostname, "x86_64")


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_text_of_another_kind_is_refused(kind: SavedKind) -> None:
    assert kind.tell is not None
    assert not kind.recognise("GPU0\tX\tNV18\nhello\n")
    with pytest.raises(InputError):
        kind.tell(blank(), "GPU0\tX\tNV18\nhello\n", "saved.txt")


def test_no_file_of_another_kind_is_taken_for_one() -> None:
    beginnings = {file.name: text_of(file)[: 256 << 10] for file in beside_the_repository(".")}

    taken = [
        (kind.name, name)
        for kind in KINDS.values()
        for name, text in beginnings.items()
        if kind.recognise(text)
    ]

    assert taken == []


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS.values())),
    text=st.sampled_from([BASH_ULIMIT, LSCPU, NUMACTL, LSMOD, MODULES]),
    at=st.integers(0, 500),
    cut=st.integers(0, 60),
    junk=st.text(max_size=60),
)
def test_a_broken_text_is_read_or_refused(kind: SavedKind, text: str, at: int, cut: int, junk: str) -> None:
    broken = text[:at] + junk + text[at + cut :]
    kind.recognise(broken)
    assert kind.tell is not None
    try:
        kind.tell(blank(), broken, "saved.txt")
    except InputError:
        pass


@pytest.mark.parametrize(
    "line", ["x" * 5_000_000, LSMOD * 20_000, "node 0 cpus: " + "1 " * 2_500_000, LSCPU * 7000]
)
def test_five_megabytes_take_no_time(line: str) -> None:
    for kind in KINDS.values():
        assert kind.tell is not None
        started = time.monotonic()
        try:
            kind.tell(blank(), line, "saved.txt")
        except InputError:
            pass
        assert time.monotonic() - started < 5.0
