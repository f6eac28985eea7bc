"""GPUs: what must alarm, and what looks alike and must not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from scans import gpu, node_scan, scan_of

from topo_tune.findings.gpus import RULES
from topo_tune.findings.judge import find
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import (
    FabricManager,
    GpuHealth,
    GpuNvlinks,
    Host,
    KernelEvent,
    KernelEventKind,
    NvlinkLink,
    P2pMatrix,
    PciDevice,
    PcieLink,
)
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.scan import Cpu, NodeScan, Scan

H100 = "NVIDIA H100 80GB HBM3"
HEALTHY = GpuHealth(
    pci_bus_id="0000:18:00.0",
    name=H100,
    uuid="GPU-0",
    persistence=True,
    mig=False,
    link=PcieLink(32.0, 32.0, 16, 16),
    host_max_speed_gt_per_s=32.0,
    pcie_replays=67,
    bar1_total_bytes=131072 << 20,
    memory_total_bytes=81559 << 20,
    ecc_enabled=True,
    ecc_uncorrected_volatile=0,
    ecc_corrected_volatile=0,
    ecc_uncorrected_aggregate=0,
    remapped_rows_uncorrectable=0,
    remap_pending=False,
    remap_failed=False,
    sram_threshold_exceeded=False,
    performance_state="P0",
    sm_clock_mhz=1980,
    max_sm_clock_mhz=1980,
    power_limit_watts=700.0,
    default_power_limit_watts=700.0,
    temperature_celsius=40,
    compute_mode="Default",
    virtualization_mode="None",
    fabric_state="Completed",
    fabric_status="Success",
    reset_required=False,
    recovery_action="None",
)
CLIQUE = "9c6f5af3-53bf-49b5-a436-b66766c413c3."


def health(**changes: Any) -> GpuHealth:
    return msgspec.structs.replace(HEALTHY, **changes)


def one(**changes: Any) -> Scan:
    """A node with one GPU that differs from a healthy one."""
    return scan_of(node_scan(gpus=(gpu(0),), gpu_health=(health(**changes),)))


def nvlinks(index: int, active: int, total: int = 18, *, name: str = H100, **changes: Any) -> GpuNvlinks:
    links = tuple(NvlinkLink(i, i < active, 26.562 if i < active else None) for i in range(total))
    links = tuple(msgspec.structs.replace(link, **changes) for link in links) if changes else links
    return GpuNvlinks(index, name, f"GPU-{index}", links)


def matrix(link: str) -> TopologyMatrix:
    return TopologyMatrix(("GPU0", "GPU1"), (), (("X", link), (link, "X")), (None, None), (None, None))


def p2p(state: str, capability: str = "r") -> P2pMatrix:
    return P2pMatrix(capability, ("GPU0", "GPU1"), (("X", state), (state, "X")))


def function(index: int, **changes: Any) -> PciDevice:
    given: dict[str, Any] = {
        "address": f"0000:{0x18 + index:02x}:00.0",
        "class_code": "0302",
        "vendor_id": "10de",
        "driver": "nvidia",
    }
    return PciDevice(**(given | changes))


SWITCH = PciDevice("0000:85:00.0", class_code="0680", vendor_id="10de")
A100_HEALTH = health(name="NVIDIA A100-SXM4-80GB", fabric_state=None, fabric_status=None)


def node_of(**changes: Any) -> Scan:
    return scan_of(node_scan(**changes))


FIRES: dict[str, Scan] = {
    "gpu-lost": node_of(gpus=(gpu(0),), pci=(function(0), function(1))),
    "gpus-mixed": node_of(gpus=(gpu(0), gpu(1, name="NVIDIA A100-SXM4-80GB"))),
    "gpu-ecc-off": one(ecc_enabled=False),
    "gpu-ecc-uncorrected": one(ecc_uncorrected_volatile=1, ecc_uncorrected_aggregate=1),
    "gpu-ecc-history": one(ecc_uncorrected_aggregate=4),
    "gpu-sram-threshold": one(sram_threshold_exceeded=True),
    "gpu-remap-pending": one(remap_pending=True),
    "gpu-remap-failed": one(remap_failed=True),
    "gpu-reset-required": one(recovery_action="Drain P2P"),
    "gpu-fabric-not-ready": one(fabric_state="In Progress", fabric_status=None),
    "gpu-fabric-degraded": one(fabric_troubles=("Bandwidth: Degraded",)),
    "gpu-fabric-cliques-differ": node_of(
        gpu_health=(health(fabric_clique=CLIQUE + "1"), health(uuid="GPU-1", fabric_clique=CLIQUE + "2"))
    ),
    "fabric-manager-down": node_of(
        pci=(SWITCH,), gpu_health=(A100_HEALTH,), fabric_manager=FabricManager(is_running=False)
    ),
    "fabric-manager-version": node_of(
        pci=(SWITCH,), driver="580.95.05", fabric_manager=FabricManager(True, "580.82.07")
    ),
    "fabric-manager-errors": node_of(
        fabric_manager=FabricManager(True, problems=("detected NVSwitch fatal error 20034 on fid 0",))
    ),
    "nvlink-inactive": node_of(nvlinks=(nvlinks(0, 18), nvlinks(1, 17))),
    "nvlink-speeds-differ": node_of(nvlinks=(nvlinks(0, 18), nvlinks(1, 18, gb_per_s=13.281))),
    "nvlink-errors": node_of(nvlinks=(nvlinks(0, 18, errors=1),)),
    "p2p-off-over-nvlink": node_of(matrix=matrix("NV18"), p2p=(p2p("NS"),)),
    "p2p-off": node_of(matrix=matrix("PHB"), p2p=(p2p("CNS"),)),
    "gpu-link-narrow": one(link=PcieLink(32.0, 32.0, 8, 16)),
    "gpu-link-slow": one(link=PcieLink(8.0, 32.0, 16, 16)),
    "gpu-slot-slow": one(host_max_speed_gt_per_s=16.0),
    "gpu-pcie-replays": one(pcie_replays=25_000),
    "gpu-bar1-small": one(bar1_total_bytes=256 << 20),
    "gpu-throttled": one(throttle_reasons=("HW Slowdown", "HW Power Brake Slowdown"), sm_clock_mhz=86),
    "gpu-throttled-before": one(throttled_seconds=(("HW Thermal Slowdown", 600.0),)),
    "gpu-power-capped": one(power_limit_watts=500.0),
    "gpu-persistence-off": one(persistence=False),
    "gpu-mig-on": one(mig=True),
    "gpu-compute-mode": one(compute_mode="Exclusive_Process"),
}

QUIET: dict[str, Scan] = {
    # the card for the screen of a workstation is bound to another driver
    "gpu-lost": node_of(gpus=(gpu(0),), pci=(function(0), function(1, driver="vfio-pci"))),
    # the names are one, cut by a table; the third card only drives a screen
    "gpus-mixed": node_of(
        gpus=(
            gpu(0),
            gpu(1, name="NVIDIA H100 80GB..."),
            gpu(2, name="NVIDIA T400 4GB", memory_bytes=4 << 30),
        )
    ),
    "gpu-ecc-off": one(name="NVIDIA GeForce RTX 4090", ecc_enabled=False),
    "gpu-ecc-uncorrected": one(ecc_uncorrected_aggregate=4, ecc_corrected_volatile=100),
    "gpu-ecc-history": one(ecc_uncorrected_aggregate=4, ecc_uncorrected_volatile=None),
    "gpu-sram-threshold": one(ecc_uncorrected_aggregate=1),
    "gpu-remap-pending": one(remapped_rows_uncorrectable=2),
    "gpu-remap-failed": one(remapped_rows_uncorrectable=2),
    "gpu-reset-required": one(reset_required=None, recovery_action="None"),
    # one GPU of a board, given to a virtual machine
    "gpu-fabric-not-ready": one(fabric_state="Not Supported", fabric_status=None),
    "gpu-fabric-degraded": one(),
    "gpu-fabric-cliques-differ": node_of(
        gpu_health=(health(fabric_clique=CLIQUE + "1"), health(uuid="GPU-1", fabric_clique=CLIQUE + "1"))
    ),
    # it runs elsewhere: the GPUs say that the fabric works
    "fabric-manager-down": node_of(
        pci=(SWITCH,), gpu_health=(HEALTHY,), fabric_manager=FabricManager(is_running=False)
    ),
    "fabric-manager-version": node_of(driver="580.95.05", fabric_manager=FabricManager(False, "580.82.07")),
    "fabric-manager-errors": node_of(fabric_manager=FabricManager(True, "580.95.05")),
    # two of four cards have a bridge
    "nvlink-inactive": node_of(
        nvlinks=tuple(nvlinks(i, 12 if i < 2 else 0, 12, name="NVIDIA A100 80GB PCIe") for i in range(4))
    ),
    "nvlink-speeds-differ": node_of(
        nvlinks=(nvlinks(0, 18), nvlinks(1, 12, 12, name="NVIDIA A100-SXM4-80GB", gb_per_s=25.0))
    ),
    "nvlink-errors": node_of(nvlinks=(nvlinks(0, 18, errors=0),)),
    # the question was peer access over PCIe, which does not exist where NVLink does
    "p2p-off-over-nvlink": node_of(matrix=matrix("NV18"), p2p=(p2p("OK"), p2p("NS", "p"), p2p("NS", "?"))),
    "p2p-off": node_of(matrix=matrix("SYS"), p2p=(p2p("OK"), p2p("NS", "n"), p2p("U", "a"))),
    # a virtual machine that hides the bus
    "gpu-link-narrow": one(link=PcieLink(32.0, 32.0, None, 16)),
    # an idle GPU lowers the generation by itself
    "gpu-link-slow": one(
        link=PcieLink(2.5, 16.0, 16, 16), performance_state="P8", throttle_reasons=("Idle",)
    ),
    "gpu-slot-slow": one(host_max_speed_gt_per_s=None),
    "gpu-pcie-replays": one(),
    "gpu-bar1-small": one(name="NVIDIA GeForce RTX 3090", bar1_total_bytes=256 << 20),
    "gpu-throttled": one(
        throttle_reasons=("Idle", "SW Power Cap", "Applications Clocks Setting", "Display Clock Setting")
    ),
    "gpu-throttled-before": one(throttled_seconds=(("SW Power Capping", 9e5), ("HW Thermal Slowdown", 2.0))),
    "gpu-power-capped": one(power_limit_watts=700.0),
    "gpu-persistence-off": one(persistence=None),
    "gpu-mig-on": one(mig=None),
    "gpu-compute-mode": one(),
}


def findings(rule: str, *nodes: NodeScan) -> tuple[Finding, ...]:
    return find(scan_of(*nodes), rules=[r for r in RULES if r.id == rule])


LOST = GpuHealth(pci_bus_id="0000:19:00.0", name=H100, is_lost=True)


def off_the_bus(device: str | None) -> KernelEvent:
    return KernelEvent(KernelEventKind.GPU_LOST, "NVRM: GPU has fallen off the bus.", device=device)


def test_a_gpu_that_the_driver_has_lost_and_the_bus_too_is_one_finding() -> None:
    board = (function(0), function(1, is_dead=True, name="NVIDIA Corporation GH100"))
    node = node_scan(gpus=(gpu(0), gpu(1)), gpu_health=(HEALTHY, LOST), pci=board)

    (finding,) = find(scan_of(node), rules=RULES)

    assert (finding.rule, finding.severity) == ("gpu-lost", Severity.ERROR)
    assert finding.what == "a GPU that was there is lost"
    assert finding.evidence == (
        "GPU 1: the driver cannot reach it any more",
        "0000:19:00.0: it answers the PCI bus no more (`rev ff`)",
    )


def test_a_gpu_that_answers_the_bus_no_more_is_lost_without_a_driver_that_says_so() -> None:
    (finding,) = findings("gpu-lost", node_scan(pci=(function(0, is_dead=True),)))

    assert finding.evidence == ("0000:18:00.0: it answers the PCI bus no more (`rev ff`)",)


def test_a_laptops_gpu_that_sleeps_and_one_that_the_driver_shows_are_not_lost() -> None:
    asleep = function(0, is_dead=True, name="NVIDIA Corporation AD107M [GeForce RTX 4060 Max-Q / Mobile]")

    assert findings("gpu-lost", node_scan(pci=(asleep,))) == ()
    assert findings("gpu-lost", node_scan(gpus=(gpu(0),), pci=(function(0, is_dead=True),))) == ()


@pytest.mark.parametrize("device", ["0000:19:00.0", None])
def test_a_gpu_that_is_lost_by_the_kernel_log_is_told_there(device: str | None) -> None:
    node = node_scan(gpus=(gpu(0),), gpu_health=(LOST,), kernel_events=(off_the_bus(device),))

    assert findings("gpu-lost", node) == ()


def test_a_healthy_board_is_silent() -> None:
    node = node_scan(
        gpus=(gpu(0), gpu(1)),
        gpu_health=(HEALTHY, health(uuid="GPU-1", pci_bus_id="0000:19:00.0")),
        nvlinks=(nvlinks(0, 18, errors=0), nvlinks(1, 18, errors=0)),
        matrix=matrix("NV18"),
        p2p=(p2p("OK"), p2p("OK", "w"), p2p("OK", "n")),
        pci=(function(0), function(1), SWITCH),
        fabric_manager=FabricManager(True, "580.95.05"),
        driver="580.95.05",
    )

    assert find(scan_of(node), rules=RULES) == ()


def test_a_node_of_which_nothing_is_known_is_silent() -> None:
    bare = node_scan(gpus=(gpu(0),), gpu_health=(GpuHealth(),), nvlinks=(GpuNvlinks(0, None, None, ()),))

    assert find(scan_of(bare), rules=RULES) == ()


def switched(odd: str, gpus: int = 8) -> TopologyMatrix:
    """GPUs joined by NV18, but for the last one, which is joined by `odd` to all others."""
    names = tuple(f"GPU{i}" for i in range(gpus))
    last = gpus - 1
    links = tuple(
        tuple("X" if i == j else odd if last in (i, j) else "NV18" for j in range(gpus)) for i in range(gpus)
    )
    return TopologyMatrix(names, (), links, (None,) * gpus, (None,) * gpus)


def test_a_gpu_with_fewer_links_to_all_others_shows_in_the_matrix_alone() -> None:
    (finding,) = findings("nvlink-inactive", node_scan(matrix=switched("NV17")))

    assert finding.evidence == ("GPU7: NV17 to the others, which have NV18",)


@pytest.mark.parametrize("matrix", [switched("NV18"), switched("SYS"), switched("NV17", gpus=3)])
def test_a_matrix_of_equal_links_of_a_display_card_or_of_few_gpus_shows_no_link_down(
    matrix: TopologyMatrix,
) -> None:
    assert not findings("nvlink-inactive", node_scan(matrix=matrix))


def test_pairs_with_one_link_or_two_by_design_show_no_link_down() -> None:
    links = (
        ("X", "NV2", "NV1", "NV1"),
        ("NV2", "X", "NV1", "NV1"),
        ("NV1", "NV1", "X", "NV2"),
        ("NV1", "NV1", "NV2", "X"),
    )
    four = TopologyMatrix(("GPU0", "GPU1", "GPU2", "GPU3"), (), links, (None,) * 4, (None,) * 4)

    assert not findings("nvlink-inactive", node_scan(matrix=four))


def test_consumer_cards_without_nvlink_are_silent() -> None:
    card = health(
        name="NVIDIA GeForce RTX 4090",
        ecc_enabled=False,
        fabric_state=None,
        fabric_status=None,
        bar1_total_bytes=256 << 20,
        memory_total_bytes=24564 << 20,
        link=PcieLink(2.5, 16.0, 16, 16),
        performance_state="P8",
        throttle_reasons=("Idle",),
    )

    assert find(scan_of(node_scan(gpu_health=(card,), matrix=matrix("SYS"))), rules=RULES) == ()


def test_a_tray_of_grace_blackwell_is_silent() -> None:
    superchip = health(
        name="NVIDIA GB200",
        addressing_mode="ATS",
        bar1_total_bytes=1 << 30,
        link=PcieLink(64.0, 64.0, 1, 1),
        host_max_speed_gt_per_s=None,
        fabric_clique=CLIQUE + "4026",
    )
    node = node_scan(
        gpu_health=(superchip,),
        nvlinks=tuple(nvlinks(i, 18, name="NVIDIA GB200") for i in range(4)),
        fabric_manager=FabricManager(is_running=False),
    )

    assert find(scan_of(node), rules=RULES) == ()


def test_the_same_trouble_on_several_nodes_is_one_finding_with_each_nodes_gpus() -> None:
    narrow = {"gpus": (gpu(0),), "gpu_health": (health(link=PcieLink(32.0, 32.0, 8, 16)),)}
    narrower = {"gpus": (gpu(0),), "gpu_health": (health(link=PcieLink(32.0, 32.0, 4, 16)),)}

    (finding,) = findings("gpu-link-narrow", node_scan("gpu001", **narrow), node_scan("gpu002", **narrower))

    assert finding.nodes == ("gpu001", "gpu002")
    assert finding.evidence == ("gpu001: GPU 0: x8 of x16", "gpu002: GPU 0: x4 of x16")


@pytest.mark.parametrize(
    ("reasons", "severity"),
    [
        (("HW Slowdown", "HW Thermal Slowdown"), Severity.ERROR),
        (("HW Slowdown", "HW Power Brake Slowdown"), Severity.ERROR),
        (("HW Slowdown",), Severity.WARNING),
        (("SW Thermal Slowdown", "SW Power Cap"), Severity.WARNING),
    ],
)
def test_a_brake_is_as_bad_as_its_cause(reasons: tuple[str, ...], severity: Severity) -> None:
    (finding,) = findings("gpu-throttled", *one(throttle_reasons=reasons).nodes)

    assert finding.severity is severity


def test_a_brake_names_clocks_and_heat() -> None:
    (finding,) = findings("gpu-throttled", *FIRES["gpu-throttled"].nodes)

    assert finding.what == "a GPU's clocks are held down: HW Power Brake Slowdown"
    assert finding.evidence == ("GPU 0: HW Power Brake Slowdown is active, SM clock 86 of 1980 MHz, 40 C",)


def test_an_idle_gpu_whose_link_is_slow_where_all_its_equals_are_fast_alarms() -> None:
    idle = {"throttle_reasons": ("Idle",)}
    fast = tuple(health(uuid=f"GPU-{i}", **idle) for i in range(1, 4))
    slow = health(link=PcieLink(8.0, 32.0, 16, 16), **idle)

    assert findings("gpu-link-slow", node_scan(gpu_health=(slow, *fast)))
    assert not findings("gpu-link-slow", node_scan(gpu_health=(slow, fast[0])))


def test_a_slot_of_an_older_generation_is_the_most_that_a_link_can_reach() -> None:
    limited = health(link=PcieLink(16.0, 32.0, 16, 16), host_max_speed_gt_per_s=16.0)

    assert not findings("gpu-link-slow", node_scan(gpu_health=(limited,)))


def test_compute_mode_prohibited_is_an_error() -> None:
    (finding,) = findings("gpu-compute-mode", *one(compute_mode="Prohibited").nodes)

    assert finding.severity is Severity.ERROR


def test_the_links_of_a_v100_board_that_are_down_are_named() -> None:
    counts = {0: (), 3: (3, 5), 4: (1,)}
    name = "Tesla V100-SXM2-32GB"
    board = tuple(
        GpuNvlinks(g, name, None, tuple(NvlinkLink(i, i not in down) for i in range(6)))
        for g, down in counts.items()
    )

    (finding,) = findings("nvlink-inactive", node_scan(nvlinks=board))

    assert finding.evidence == (
        "GPU 3: 4 of 6 links active; down: 3, 5",
        "GPU 4: 5 of 6 links active; down: 1",
    )


def test_links_that_a_board_lacks_by_design_are_silent() -> None:
    by_design = tuple(nvlinks(i, 4, 6, name="Tesla V100-SXM2-16GB") for i in range(4))

    assert not findings("nvlink-inactive", node_scan(nvlinks=by_design))


def test_a_switched_board_with_every_gpu_one_link_short_alarms() -> None:
    short = tuple(nvlinks(i, 17) for i in range(8))

    assert findings("nvlink-inactive", node_scan(nvlinks=short))


def test_a_gpu_without_any_link_beside_others_with_all_alarms_on_a_board() -> None:
    board = (nvlinks(0, 18), GpuNvlinks(1, H100, None, ()))

    (finding,) = findings("nvlink-inactive", node_scan(nvlinks=board))

    assert finding.evidence == ("GPU 1: 0 of 18 links active",)


def test_links_whose_state_was_not_asked_are_silent() -> None:
    asked_for_errors = tuple(nvlinks(i, 18, is_active=None, gb_per_s=None, errors=0) for i in range(2))

    assert not findings("nvlink-inactive", node_scan(nvlinks=(nvlinks(2, 18), *asked_for_errors)))


@pytest.mark.parametrize(("errors", "severity"), [(3, Severity.NOTICE), (5000, Severity.WARNING)])
def test_few_errors_of_a_link_are_worth_knowing_and_many_cost(errors: int, severity: Severity) -> None:
    (finding,) = findings("nvlink-errors", node_scan(nvlinks=(nvlinks(0, 1, 1, errors=errors),)))

    assert finding.severity is severity


@pytest.mark.parametrize(
    ("state", "severity", "words"),
    [
        ("CNS", Severity.WARNING, "the chipset does not support it"),
        ("GNS", Severity.NOTICE, "the GPU or its driver does not offer it"),
        ("TNS", Severity.NOTICE, "not over this path"),
        ("DR", Severity.WARNING, "a registry key"),
    ],
)
def test_each_peer_state_is_explained(state: str, severity: Severity, words: str) -> None:
    (finding,) = findings("p2p-off", node_scan(matrix=matrix("PHB"), p2p=(p2p(state), p2p(state, "w"))))

    assert finding.severity is severity
    assert words in finding.what
    assert finding.evidence == (f"GPU0 and GPU1: {state}",)


def test_peer_states_of_an_unknown_question_count_where_no_other_is_ok() -> None:
    assert findings("p2p-off", node_scan(matrix=matrix("PHB"), p2p=(p2p("GNS", "?"),)))
    assert not findings("p2p-off", node_scan(matrix=matrix("PHB"), p2p=(p2p("GNS", "?"), p2p("OK", "?"))))


def test_nvlink_is_also_known_from_its_own_peer_states() -> None:
    assert findings("p2p-off-over-nvlink", node_scan(p2p=(p2p("NS"), p2p("OK", "n"))))


def test_a_container_may_see_more_of_the_bus_than_it_was_given() -> None:
    lost = FIRES["gpu-lost"].nodes[0]

    assert not findings("gpu-lost", msgspec.structs.replace(lost, host=Host(container="docker")))
    assert not findings("gpu-lost", msgspec.structs.replace(lost, host=Host(slurm=(("SLURM_JOB_ID", "7"),))))
    assert findings("gpu-lost", msgspec.structs.replace(lost, host=Host(container="none")))


def test_a_lost_gpu_is_named_by_its_address() -> None:
    (lost,) = FIRES["gpu-lost"].nodes
    (finding,) = findings("gpu-lost", msgspec.structs.replace(lost, host=Host(container="none")))
    (saved,) = findings("gpu-lost", lost)

    assert (finding.severity, finding.evidence) == (
        Severity.ERROR,
        ("1 GPUs are shown", "0000:19:00.0 is not"),
    )
    assert saved.severity is Severity.WARNING  # may have been saved inside of a container


def test_a_gpu_that_fell_off_the_bus_is_told_once() -> None:
    (lost,) = FIRES["gpu-lost"].nodes
    fallen = KernelEvent(KernelEventKind.GPU_LOST, "GPU has fallen off the bus", device="0000:19:00.0")

    assert findings("gpu-lost", msgspec.structs.replace(lost, kernel_events=(fallen,))) == ()


def test_a_reset_that_is_due_is_told_once() -> None:
    both = one(remap_pending=True, ecc_uncorrected_volatile=2).nodes

    (finding,) = findings("gpu-ecc-uncorrected", *both)

    assert "2 uncorrectable, a row or page waits for its replacement" in finding.evidence[0]
    assert findings("gpu-remap-pending", *both) == ()


def test_a_fabric_that_waits_for_its_manager_is_told_by_the_manager_alone() -> None:
    (down,) = FIRES["fabric-manager-down"].nodes
    waiting = msgspec.structs.replace(down, gpu_health=(health(fabric_state="In Progress"),))

    assert findings("fabric-manager-down", waiting)
    assert findings("gpu-fabric-not-ready", waiting) == ()


@pytest.mark.parametrize(
    ("name", "links"), [("NVIDIA A800-SXM4-80GB", 8), ("NVIDIA H800", 8), ("NVIDIA H20", 18)]
)
def test_models_for_china_have_the_links_they_were_sold_with(name: str, links: int) -> None:
    whole = node_of(
        nvlinks=(GpuNvlinks(0, name, None, tuple(NvlinkLink(i, True) for i in range(links))),)
    ).nodes
    broken = node_of(
        nvlinks=(GpuNvlinks(0, name, None, tuple(NvlinkLink(i, i > 0) for i in range(links))),)
    ).nodes

    assert findings("nvlink-inactive", *whole) == ()
    assert findings("nvlink-inactive", *broken)


def test_grace_has_no_use_for_its_gpus_pcie_link() -> None:
    (node,) = FIRES["gpu-link-narrow"].nodes

    assert (
        findings(
            "gpu-link-narrow", msgspec.structs.replace(node, cpu=Cpu("NVIDIA", None, "aarch64", 1, 72, 72))
        )
        == ()
    )


def test_a_gpu_that_could_not_join_the_fabric_says_why() -> None:
    failed = one(fabric_state="Completed", fabric_status="Unrecognized Error").nodes

    (finding,) = findings("gpu-fabric-not-ready", *failed)

    assert finding.evidence == ("GPU 0: state Completed, status Unrecognized Error",)
