"""`nvidia-smi -q` of drivers from 418 to 580, its table, and `nvidia-smi -L`."""

from __future__ import annotations

import re

import pytest
from golden_facts import FACTS, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import gpu, node_scan

from topo_tune.errors import InputError
from topo_tune.records.hardware import GpuHealth, PcieLink
from topo_tune.scan.facts.fact import Gathered, RawCommand
from topo_tune.scan.facts.gpus import gpu_health, nvidia_gpus, smi_errors, smi_table
from topo_tune.scan.facts.gpus.gpu_health import KINDS, parse

FOLDER = FACTS / "smi-q"
H200, H100, A100 = (
    text_of(FOLDER / name)
    for name in ("h200-580-2gpu-vm.txt", "h100-535-power-brake.txt", "a100-460-azure.txt")
)
TABLE, LIST = (text_of(FOLDER / f"h200-580-2gpu-{name}.txt") for name in ("table", "list"))
QUERY_KIND, TABLE_KIND, LIST_KIND, ERROR_KIND = KINDS

VOLTA = """
==============NVSMI LOG==============

Driver Version                      : 418.67
CUDA Version                        : 10.1

Attached GPUs                       : 1
GPU 00000000:06:00.0
    Product Name                    : Tesla V100-SXM2-16GB
    Persistence Mode                : Enabled
    GPU Virtualization Mode
        Virtualization mode         : None
    PCI
        Bus Id                      : 00000000:06:00.0
        GPU Link Info
            PCIe Generation
                Max                 : 3
                Current             : 1
            Link Width
                Max                 : 16x
                Current             : 8x
        Replays Since Reset         : 0
    Performance State               : P0
    Clocks Throttle Reasons
        Idle                        : Not Active
        SW Power Cap                : Active
    Ecc Mode
        Current                     : Enabled
        Pending                     : Enabled
    ECC Errors
        Volatile
            Single Bit
                Device Memory       : 3
                Register File       : 0
                Total               : 3
            Double Bit
                Device Memory       : 1
                Register File       : 0
                CBU                 : 0
                Total               : 1
        Aggregate
            Single Bit
                Total               : 9
            Double Bit
                Total               : 2
    Retired Pages
        Single Bit ECC              : 0
        Double Bit ECC              : 2
        Pending                     : Yes
    Power Readings
        Power Limit                 : 250.00 W
        Default Power Limit         : 300.00 W
    Clocks
        SM                          : 1230 MHz
    Max Clocks
        SM                          : 1530 MHz
"""

GRACE = """==============NVSMI LOG==============
Driver Version                                         : 570.133.20
Attached GPUs                                          : 1
GPU 00000008:01:00.0
    Product Name                                       : NVIDIA GB200
    Addressing Mode                                    : ATS
    GPU Recovery Action                                : Drain P2P
    PCI
        Bus Id                                         : 00000008:01:00.0
        GPU Link Info
            PCIe Generation
                Max                                    : 6
                Current                                : 6
                Device Current                         : 6
                Device Max                             : 6
                Host Max                               : 5
            Link Width
                Max                                    : N/A
                Current                                : N/A
    Clocks Event Reasons Counters
        HW Thermal Slowdown                            : 90000000 us
        SW Power Capping                               : 0 us
    ECC Errors
        Unrepairable Memory                            : Yes
    Power Readings                                     : N/A
    GPU Power Readings
        Current Power Limit                            : 1200.00 W
        Default Power Limit                            : 1200.00 W
    Module Power Readings
        Current Power Limit                            : 1700.00 W
    Fabric
        State                                          : Completed
        Status                                         : Success
        CliqueId                                       : 4026
        ClusterUUID                                    : 9c6f5af3-53bf-49b5-a436-b66766c413c3
        Health
            Summary                                    : Limited Capacity
            Bandwidth                                  : Degraded
            Route Recovery in progress                 : False
            Route Unhealthy                            : True
            Access Timeout Recovery                    : Not Supported
            Incorrect Configuration                    : None
            Partition Assigned                         : True
"""


def only(text: str) -> GpuHealth:
    (health,) = parse(text).health
    return health


def test_a_hopper_of_driver_580_is_read_whole() -> None:
    found = parse(H200)

    assert (found.driver, found.cuda_driver, found.problems) == ("580.159.04", "13.0", ())
    assert found.health[0] == GpuHealth(
        pci_bus_id="0000:00:06.0",
        name="NVIDIA H200",
        uuid="GPU-00000000-0000-0000-0000-000000000001",
        vbios="96.00.A5.00.1A",
        persistence=True,
        mig=False,
        link=PcieLink(32.0, 32.0, 16, 16),
        host_max_speed_gt_per_s=None,
        pcie_replays=1,
        bar1_total_bytes=262144 << 20,
        memory_total_bytes=143771 << 20,
        ecc_enabled=True,
        ecc_uncorrected_volatile=0,
        ecc_corrected_volatile=0,
        ecc_uncorrected_aggregate=0,
        remapped_rows_uncorrectable=0,
        remap_pending=False,
        remap_failed=False,
        sram_threshold_exceeded=False,
        performance_state="P0",
        throttle_reasons=("Idle",),
        sm_clock_mhz=345,
        max_sm_clock_mhz=1980,
        power_limit_watts=700.0,
        default_power_limit_watts=700.0,
        temperature_celsius=32,
        compute_mode="Default",
        virtualization_mode="Pass-Through",
        addressing_mode="None",
        fabric_state="Completed",
        fabric_status="Success",
        recovery_action="None",
    )
    assert [gpu.pci_bus_id for gpu in found.gpus] == ["0000:00:06.0", "0000:00:07.0"]


def test_a_hopper_of_driver_535_tells_its_slot_its_brake_and_its_replays() -> None:
    health = only(H100)

    assert health.throttle_reasons == ("HW Slowdown", "HW Power Brake Slowdown")
    assert (health.pcie_replays, health.host_max_speed_gt_per_s, health.reset_required) == (67, 32.0, False)
    assert (health.power_limit_watts, health.sm_clock_mhz, health.fabric_clique) == (700.0, 86, None)


def test_an_ampere_of_driver_460_has_other_headings_and_the_same_facts() -> None:
    health = only(A100)

    assert (health.ecc_enabled, health.ecc_uncorrected_volatile, health.remap_pending) == (True, 0, False)
    assert (health.link, health.pci_bus_id) == (PcieLink(16.0, 16.0, 16, 16), "0001:00:00.0")
    assert (health.power_limit_watts, health.throttle_reasons, health.fabric_state) == (
        400.0,
        ("Idle",),
        None,
    )
    assert parse(A100).problems == ("sections of 1 GPUs only, of 8 that are attached",)


def test_a_volta_of_driver_418_counts_single_and_double_bits_and_retires_pages() -> None:
    health = only(VOLTA)

    assert (health.ecc_corrected_volatile, health.ecc_uncorrected_volatile) == (3, 1)
    assert (health.ecc_uncorrected_aggregate, health.remap_pending, health.remap_failed) == (2, True, None)
    assert health.link == PcieLink(2.5, 8.0, 8, 16)
    assert (health.power_limit_watts, health.default_power_limit_watts) == (250.0, 300.0)
    assert (health.virtualization_mode, health.throttle_reasons) == ("None", ("SW Power Cap",))


def test_a_grace_blackwell_tells_its_clique_what_is_wrong_with_it_and_only_its_own_power() -> None:
    health = only(GRACE)

    assert health.fabric_clique == "9c6f5af3-53bf-49b5-a436-b66766c413c3.4026"
    assert health.fabric_troubles == (
        "Summary: Limited Capacity",
        "Bandwidth: Degraded",
        "Route Unhealthy: True",
    )
    assert (health.addressing_mode, health.recovery_action, health.remap_failed) == ("ATS", "Drain P2P", True)
    assert health.link == PcieLink(64.0, 64.0, None, None)
    assert (health.host_max_speed_gt_per_s, health.power_limit_watts) == (32.0, 1200.0)
    assert health.throttled_seconds == (("HW Thermal Slowdown", 90.0),)


def test_a_virtual_machine_that_hides_the_bus_has_no_link() -> None:
    hidden = re.sub(r"(Max|Current|Device \w+|Host Max)( +): (\d+x?|N/A)$", r"\1\2: N/A", A100, flags=re.M)

    assert only(hidden).link is None


def test_what_a_driver_no_longer_tells_is_unknown() -> None:
    text = H100.replace("Persistence Mode                      : Enabled", "Persistence Mode : Unknown Error")

    assert only(text).persistence is None


def test_a_part_of_the_output_fills_what_another_left_open() -> None:
    clocks = (
        "==============NVSMI LOG==============\nGPU 00000000:19:00.0\n    Clocks\n        SM : 1980 MHz\n"
    )
    scan = QUERY_KIND.tell(node_scan(), clocks, "clocks.txt") if QUERY_KIND.tell else None
    assert scan is not None
    assert (scan.gpus, scan.gpu_health[0].sm_clock_mhz) == ((), 1980)

    assert QUERY_KIND.tell is not None
    whole = QUERY_KIND.tell(scan, H100, "q.txt")

    assert len(whole.gpu_health) == 1
    assert (whole.gpu_health[0].sm_clock_mhz, whole.gpu_health[0].pcie_replays) == (1980, 67)
    assert whole.gpus[0].name == "NVIDIA H100 80GB HBM3"


def test_a_saved_file_fills_the_gpus_of_a_node_that_has_none() -> None:
    assert QUERY_KIND.tell is not None

    scan = QUERY_KIND.tell(node_scan(), H200, "q.txt")

    assert [gpu.index for gpu in scan.gpus] == [0, 1]
    assert (scan.gpu_source, scan.driver, scan.cuda_driver) == ("nvidia-smi", "580.159.04", "13.0")
    assert scan.gpus[1].memory_bytes == 143771 << 20


def test_labels_of_srun_and_windows_line_ends_change_nothing() -> None:
    labelled = "".join(f" 3: {line}\r\n" for line in H200.split("\n"))

    assert parse(labelled).health == parse(H200).health


def test_of_two_tasks_outputs_only_the_first_is_read() -> None:
    both = "".join(f"0: {line}\n" for line in H100.split("\n"))
    both += "".join(f"1: {line}\n" for line in A100.split("\n"))

    found = parse(both)

    assert [health.name for health in found.health] == ["NVIDIA H100 80GB HBM3"]
    assert "lines of 1 other tasks are left out" in found.problems


LOST = "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n"


def test_a_lost_gpu_is_a_problem_beside_the_others() -> None:
    found = parse(H100 + LOST)

    assert found.problems[0].endswith("GPU0000:3B:00.0: Unknown Error`")
    assert found.health[-1] == GpuHealth(pci_bus_id="0000:3b:00.0", is_lost=True)
    assert [health.is_lost for health in found.health[:-1]] == [None]


def test_a_lost_gpu_with_a_section_of_its_own_is_lost_and_nameless() -> None:
    section = (
        "GPU 00000000:3B:00.0\n    Product Name : GPU is lost\n    Persistence Mode : GPU is lost\n"
        "    GPU UUID : GPU is lost\n"
    )

    found = parse(H100 + section)

    assert found.health[-1] == GpuHealth(pci_bus_id="0000:3b:00.0", is_lost=True)
    assert len(found.gpus) == len(found.health) - 1


def test_a_lost_gpu_of_a_table_is_no_gpu_of_another_model() -> None:
    found = smi_table.parse(LOST_TABLE)

    assert [(gpu.index, gpu.name) for gpu in found.gpus] == [
        (0, "NVIDIA A100-SXM..."),
        (2, "NVIDIA A100-SXM..."),
    ]
    assert found.health[0].is_lost is None
    assert found.health[1] == GpuHealth(pci_bus_id="0000:48:00.0", is_lost=True)
    assert found.health[2] == GpuHealth(pci_bus_id="0000:4c:00.0", name="NVIDIA A100-SXM...", is_lost=True)


def test_a_list_and_a_query_name_no_gpu_that_is_lost() -> None:
    listed = smi_table.parse(LIST + LOST)
    queried = nvidia_gpus.parse(
        "index, name, uuid, pci.bus_id\n0, NVIDIA H200, GPU-1, 00000000:18:00.0\n"
        "1, [GPU is lost], [GPU is lost], [GPU is lost]\n"
    )

    assert ([health.is_lost for health in listed.health], len(listed.gpus)) == ([True], 2)
    assert [gpu.index for gpu in queried.gpus] == [0]
    assert queried.problems == (
        "line 3: `1, [GPU is lost], [GPU is lost], [GPU is lost]` is not about a GPU",
    )


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.86\n",
            ("Failed to initialize NVML: Driver/library version mismatch", "NVML library version: 570.86"),
        ),
        (
            "[root@gpu7 ~]# nvidia-smi\r\nNVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
            " Make sure that the latest NVIDIA driver is installed and running.\r\n\r\n",
            (
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the"
                " latest NVIDIA driver is installed and running.",
            ),
        ),
        ("No devices were found", ("No devices were found",)),
        (
            "Failed to initialize NVML: Insufficient Permissions\n",
            ("Failed to initialize NVML: Insufficient Permissions",),
        ),
    ],
)
def test_an_error_in_place_of_an_answer_is_trouble_with_the_driver(
    text: str, trouble: tuple[str, ...]
) -> None:
    saved = ERROR_KIND.tell(node_scan(), text, "smi.txt")  # type: ignore[misc]
    asked = gpu_health.FACTS[0].tell(
        node_scan(), Gathered(commands=(RawCommand(gpu_health.COMMAND, 9, text),))
    )

    assert ERROR_KIND.recognise(text.replace("\r", ""))
    assert saved.driver_trouble == asked.driver_trouble == trouble
    assert (saved.absent[0].what, saved.absent[0].reason) == ("GPUs", "; ".join(trouble))
    assert asked.absent[0].reason == f"`nvidia-smi -q` exited with status 9: {trouble[0]}"


@pytest.mark.parametrize(
    "text",
    [
        "$ nvidia-smi\nUnable to determine the device handle for GPU 0000:9D:00.0: GPU is lost.  Reboot the system to"
        " recover this GPU\n",
        "Unable to determine the device handle for GPU2: 0000:9D:00.0: Unknown Error\nNo devices were found\n",
    ],
)
def test_a_file_that_only_says_which_gpu_is_lost_tells_it(text: str) -> None:
    scan = ERROR_KIND.tell(node_scan(), text, "smi.txt")  # type: ignore[misc]

    assert ERROR_KIND.recognise(text)
    assert scan.gpu_health == (GpuHealth(pci_bus_id="0000:9d:00.0", is_lost=True),)
    assert "9D:00.0" in scan.absent[0].reason


@pytest.mark.parametrize(
    "text",
    [
        "step 1\nFailed to initialize NVML: Unknown Error\nTraceback (most recent call last):\n  File ...\n",
        "NVML library version: 570.86\n",
        "node01:1:1 [0] NCCL INFO NVML library version: 570.86\nNo devices were found\n",
    ],
)
def test_an_error_among_other_lines_is_not_a_file_of_errors(text: str) -> None:
    assert not ERROR_KIND.recognise(text)


def test_a_command_that_failed_over_one_gpu_still_tells_the_others() -> None:
    raw = RawCommand(gpu_health.COMMAND, 15, H200, "GPU is lost")

    scan = gpu_health.FACTS[0].tell(node_scan(), Gathered(commands=(raw,)))

    assert len(scan.gpu_health) == 2
    assert "exited with status 15" in scan.absent[0].reason


def test_a_node_without_the_tool_says_so() -> None:
    raw = RawCommand(gpu_health.COMMAND, absent="`nvidia-smi` is not installed here")

    scan = gpu_health.FACTS[0].tell(node_scan(), Gathered(commands=(raw,)))

    assert (scan.gpu_health, scan.absent[0].what) == ((), "GPU health")


def test_a_text_without_a_gpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"q\.txt: no GPU"):
        parse("==============NVSMI LOG==============\nAttached GPUs : 0\n", file="q.txt")


def test_an_error_of_a_labelled_task_is_one_too() -> None:
    text = "0: Failed to initialize NVML: Unknown Error\n0: NVML library version: 570.86\n"

    assert ERROR_KIND.recognise(text)
    assert smi_errors.parse(text).trouble[0] == "Failed to initialize NVML: Unknown Error"


# --- the table and the list ---------------------------------------------------------------------------------

OLD_TABLE = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 440.33.01    Driver Version: 440.33.01    CUDA Version: 10.2     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  GeForce RTX 208...  Off  | 00000000:3B:00.0 Off |                  N/A |
| 27%   28C    P8    24W / 250W |      0MiB / 11019MiB |      0%   E. Process |
+-------------------------------+----------------------+----------------------+
|   1  A100-SXM-80GB       On   | 00000000:5E:00.0 Off |                    2 |
| N/A   28C    P0   ERR! / N/A  |      0MiB / 81251MiB |      0%      Default |
|                               |                      |              Enabled |
+-------------------------------+----------------------+----------------------+
|   2  Tesla T4            Off  | 00000000:AF:00.0 Off |                  Off |
| N/A   28C    P0    24W /  70W |      0MiB / 15109MiB |      0%   Prohibited |
+-------------------------------+----------------------+----------------------+
+-----------------------------------------------------------------------------+
| MIG devices:                                                                |
+------------------+----------------------+-----------+-----------------------+
|  1    7   0   0  |     11MiB /  9728MiB | 14      0 |  1   0    0    0    0 |
+------------------+----------------------+-----------+-----------------------+
| Processes:                                                       GPU Memory |
|    0     12345      C   python                                    1234MiB   |
+-----------------------------------------------------------------------------+
"""


LOST_TABLE = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 525.125.06   Driver Version: 525.125.06   CUDA Version: 12.0     |
|-------------------------------+----------------------+----------------------+
|   0  NVIDIA A100-SXM...  On   | 00000000:07:00.0 Off |                    0 |
| N/A   30C    P0    62W / 400W |      0MiB / 81920MiB |      0%      Default |
|                               |                      |             Disabled |
+-------------------------------+----------------------+----------------------+
|   1  ERR!                Off  | 00000000:48:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!    ERR! / ERR! |   GPU is lost        | ERR!         ERR!    |
|                               |                      |                 ERR! |
+-------------------------------+----------------------+----------------------+
|   2  NVIDIA A100-SXM...  On   | 00000000:4C:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!    ERR! / ERR! |      0MiB / 81920MiB |     ERR!     Default |
|                               |                      |                 ERR! |
+-------------------------------+----------------------+----------------------+
"""


def test_a_table_of_driver_580_names_every_gpu() -> None:
    found = smi_table.parse(TABLE)

    assert [(gpu.index, gpu.name, gpu.pci_bus_id) for gpu in found.gpus] == [
        (0, "NVIDIA H200", "0000:00:06.0"),
        (1, "NVIDIA H200", "0000:00:07.0"),
    ]
    assert (found.driver, found.cuda_driver) == ("580.159.04", "13.0")
    assert found.health[1] == GpuHealth(
        pci_bus_id="0000:00:07.0",
        name="NVIDIA H200",
        persistence=True,
        mig=False,
        memory_total_bytes=143771 << 20,
        ecc_enabled=True,
        ecc_uncorrected_volatile=0,
        performance_state="P0",
        power_limit_watts=700.0,
        temperature_celsius=33,
        compute_mode="Default",
    )


def test_a_table_of_an_old_driver_cuts_names_and_has_no_line_for_mig() -> None:
    found = smi_table.parse(OLD_TABLE)

    assert [gpu.name for gpu in found.gpus] == ["GeForce RTX 208...", "A100-SXM-80GB", "Tesla T4"]
    assert [health.persistence for health in found.health] == [False, True, False]
    assert [health.mig for health in found.health] == [None, True, None]
    assert [health.ecc_enabled for health in found.health] == [None, True, False]
    assert [health.ecc_uncorrected_volatile for health in found.health] == [None, 2, None]
    assert [health.compute_mode for health in found.health] == ["Exclusive_Process", "Default", "Prohibited"]
    assert [health.power_limit_watts for health in found.health] == [250.0, None, 70.0]


def test_a_partitioned_gpu_shows_no_count_of_errors_but_that_it_checks() -> None:
    table = OLD_TABLE.replace("                    2 |", "                   On |")

    partitioned = smi_table.parse(table).health[1]

    assert (partitioned.mig, partitioned.ecc_enabled, partitioned.ecc_uncorrected_volatile) == (
        True,
        True,
        None,
    )


def test_a_whole_name_from_another_file_replaces_one_that_was_cut() -> None:
    assert TABLE_KIND.tell is not None
    assert LIST_KIND.tell is not None
    scan = TABLE_KIND.tell(node_scan(), OLD_TABLE, "smi.txt")

    listed = "GPU 0: GeForce RTX 2080 Ti (UUID: GPU-1)\nGPU 1: A100-SXM-80GB (UUID: GPU-2)\n"
    scan = LIST_KIND.tell(scan, listed, "L.txt")

    assert (scan.gpus[0].name, scan.gpus[0].uuid) == ("GeForce RTX 2080 Ti", "GPU-1")
    assert scan.gpus[1].pci_bus_id == "0000:5e:00.0"


def test_what_nvml_told_stands_against_a_table() -> None:
    assert TABLE_KIND.tell is not None
    known = gpu(0, name="NVIDIA H200", pci_bus_id="0000:00:06.0", memory_bytes=1)

    scan = TABLE_KIND.tell(node_scan(gpus=(known,), gpu_source="nvml", driver="1"), TABLE, "smi.txt")

    assert (scan.gpus, scan.gpu_source, scan.driver) == ((known,), "nvml", "1")


def test_a_list_has_names_and_uuids_and_mig_devices_are_no_gpus() -> None:
    mig = "  MIG 1g.10gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)\n"

    found = smi_table.parse(LIST + mig)

    assert [(gpu.index, gpu.name, gpu.uuid) for gpu in found.gpus] == [
        (0, "NVIDIA H200", "GPU-00000000-0000-0000-0000-000000000001"),
        (1, "NVIDIA H200", "GPU-00000000-0000-0000-0000-000000000002"),
    ]
    assert found.health == ()


def test_the_nvlinks_of_a_gpu_are_no_list_of_gpus() -> None:
    assert LIST_KIND.recognise(LIST)
    assert not LIST_KIND.recognise(text_of(FACTS / "nvlink" / "nvlink-status-a100.txt"))


def test_a_jobs_log_that_begins_with_a_table_is_no_table() -> None:
    assert TABLE_KIND.recognise(TABLE)
    assert not TABLE_KIND.recognise(TABLE + "node1:12:34 [0] NCCL INFO Bootstrap : Using eth0\n")
    assert not QUERY_KIND.recognise(H200 + "# nThread 1 nGpus 1 minBytes 8\n")


@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from([H200, H100, VOLTA, GRACE, TABLE, OLD_TABLE, LIST]) | st.text(max_size=300),
    cut=st.tuples(st.integers(0, 9000), st.integers(0, 9000)),
    inserted=st.text(max_size=30)
    | st.sampled_from([": ", "\n", "|", "GPU 00000000:19:00.0\n", "9" * 5000, "        Max : 16x", "\t"]),
)
def test_a_damaged_text_is_read_or_refused(text: str, cut: tuple[int, int], inserted: str) -> None:
    damaged = text[: cut[0]] + inserted + text[cut[1] :]

    for read in (parse, smi_table.parse):
        try:
            found = read(damaged)
        except InputError:
            continue
        assert all(0 <= gpu.index < 10_000 for gpu in found.gpus)
    for kind in KINDS:
        kind.recognise(damaged)
