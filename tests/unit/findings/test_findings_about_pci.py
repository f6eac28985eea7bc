from __future__ import annotations

from typing import Any

import pytest
from pci_machines import GEN4, GEN5, device, server
from scans import gpu, node_scan, scan_of

from topo_tune.findings.judge import find
from topo_tune.findings.pci import RULES
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import GpuHealth, Host, PciDevice, PcieLink
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.scan import Cpu, Nic, NodeScan, NumaNode, Scan

BARE = Host(hypervisor="none")
GUEST = Host(hypervisor="kvm")
TWO_SOCKETS = (NumaNode(0, "0-55", None), NumaNode(1, "56-111", None))
REDIRECTING = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")


def machine(name: str = "gpu001", *, host: Host = BARE, **changes: Any) -> NodeScan:
    """A bare server with the devices of `server()`, on which NCCL has an RDMA device of 400 Gbit/s."""
    given: dict[str, Any] = {
        "host": host,
        "pci": server(),
        "rdma": (rdma("mlx5_0", "0000:1a:00.0"),),
        "gpus": (gpu(0, pci_bus_id="0000:19:00.0"),),
        "numa": TWO_SOCKETS,
    }
    return node_scan(name, **(given | changes))


def rdma(name: str, address: str, rate: float = 400.0, ports: int = 1) -> RdmaDevice:
    one = RdmaPort(1, state="Active", rate_gbit_per_s=rate)
    return RdmaDevice(name, (one,) * ports, pci_bus_id=address, driver="mlx5_core")


def matrix(*rows: str, nics: int) -> TopologyMatrix:
    """A matrix from rows of words, GPUs first."""
    links = tuple(tuple(row.split()) for row in rows)
    gpus = tuple(f"GPU{index}" for index in range(len(links) - nics))
    return TopologyMatrix(
        gpus=gpus,
        nics=tuple(f"mlx5_{index}" for index in range(nics)),
        links=links,
        cpu_affinity=(None,) * len(gpus),
        numa_affinity=(None,) * len(gpus),
    )


ALL_FAR = matrix("X NV18 SYS", "NV18 X SYS", "SYS SYS X", nics=1)
ONE_NEAR = matrix("X NV18 PIX", "NV18 X SYS", "PIX SYS X", nics=1)
BOTH_NEAR = matrix("X NV18 PIX", "NV18 X PXB", "PIX PXB X", nics=1)


def two_cards(**changes: Any) -> tuple[PciDevice, ...]:
    """Two cards behind one bridge of four lanes, and no GPU there."""
    return (
        device("0000:16:01.0", "0604", "8086", link=PcieLink(16.0, 16.0, 4, 4)),
        device("0000:17:00.0", "0604", "1000", "0000:16:01.0", link=PcieLink(16.0, 16.0, 4, 4)),
        device("0000:18:00.0", "0604", "1000", "0000:17:00.0", link=GEN4),
        device("0000:19:00.0", "0200", "15b3", "0000:18:00.0", link=GEN4),
        device("0000:18:01.0", "0604", "1000", "0000:17:00.0", link=GEN4),
        device("0000:1a:00.0", **({"class_code": "0200", "vendor": "15b3"} | changes), parent="0000:18:01.0"),
    )


def guest(**changes: Any) -> NodeScan:
    """A virtual machine with a flat PCI bus, as clouds have it: nothing is above anything."""
    flat = (
        device("0001:00:00.0", "0302", "10de", link=None, numa_node=None),
        device("0002:00:00.0", "0302", "10de", link=None, numa_node=None),
        device("0101:00:00.0", "0207", "15b3", link=None, numa_node=None, is_virtual_function=True),
    )
    return machine(**({"host": GUEST, "pci": flat, "gpus": (gpu(0), gpu(1))} | changes))


FIRES: dict[str, Scan] = {
    "pci-card-dead": scan_of(machine(pci=server(nic={"is_dead": True}))),
    "nic-pcie-narrow": scan_of(machine(pci=server(nic={"link": PcieLink(32.0, 32.0, 8, 16)}))),
    "nic-pcie-slow": scan_of(machine(pci=server(nic={"link": PcieLink(8.0, 32.0, 16, 16)}))),
    "nic-pcie-below-port": scan_of(machine(pci=server(nic={"link": GEN4}, down_nic={"link": GEN4}))),
    "nvswitch-pcie-narrow": scan_of(
        machine(
            pci=(
                *server(),
                device("0000:05:01.0", "0604", "8086", link=PcieLink(8.0, 8.0, 1, 2)),
                device("0000:06:00.0", "0680", "10de", "0000:05:01.0", link=PcieLink(8.0, 8.0, 1, 2)),
            )
        )
    ),
    "switch-uplink-narrow": scan_of(machine(pci=server(up={"link": PcieLink(32.0, 32.0, 8, 16)}))),
    "switch-uplink-slow": scan_of(machine(pci=server(up={"link": PcieLink(8.0, 32.0, 16, 16)}))),
    "gpu-path-slower-than-gpu": scan_of(machine(pci=server(up={"link": PcieLink(5.0, 5.0, 16, 16)}))),
    "gpu-sysfs-link-narrow": scan_of(machine(pci=server(gpu={"link": PcieLink(2.5, 32.0, 8, 16)}))),
    "nics-share-narrow-bridge": scan_of(
        machine(
            pci=two_cards(),
            rdma=(rdma("mlx5_0", "0000:19:00.0", 100.0), rdma("mlx5_1", "0000:1a:00.0", 100.0)),
        )
    ),
    "acs-on-switch": scan_of(machine(pci=server(down_gpu={"acs": REDIRECTING}))),
    "acs-on-root-port": scan_of(machine(pci=server(far_root={"acs": REDIRECTING}))),
    "iommu-translated": scan_of(
        machine(host=Host(hypervisor="none", iommu="translated", kernel_options=("intel_iommu=on",)))
    ),
    "relaxed-ordering-off-in-vm": scan_of(guest(nccl_environment=(("NCCL_IB_PCI_RELAXED_ORDERING", "0"),))),
    "nic-far-from-every-gpu": scan_of(machine(matrix=ALL_FAR)),
    "gpu-without-near-nic": scan_of(machine(matrix=ONE_NEAR)),
    "pci-without-numa-node": scan_of(
        machine(pci=server(far_root={"numa_node": None}, far_nic={"numa_node": None}))
    ),
    "vm-without-topology-file": scan_of(guest()),
    "gpu-without-driver": scan_of(
        machine(pci=(*server(), device("0000:91:00.0", "0302", "10de", driver="vfio-pci")))
    ),
}

QUIET: dict[str, Scan] = {
    # A GPU has a rule of its own, and a dead controller of a disk is none of NCCL's.
    "pci-card-dead": scan_of(
        machine(
            pci=(
                *server(gpu={"is_dead": True}),
                device("0000:91:00.0", "0108", "144d", is_dead=True),
            )
        )
    ),
    # Eight lanes are enough for a port of 100 Gbit/s.
    "nic-pcie-narrow": scan_of(
        machine(
            pci=server(nic={"link": PcieLink(32.0, 32.0, 8, 16)}),
            rdma=(rdma("mlx5_0", "0000:1a:00.0", 100.0),),
        )
    ),
    # A card of generation 5 in a slot of generation 4 runs as fast as it can.
    "nic-pcie-slow": scan_of(
        machine(pci=server(nic={"link": PcieLink(16.0, 32.0, 16, 16)}, down_nic={"link": GEN4}))
    ),
    "nic-pcie-below-port": scan_of(machine()),
    "nvswitch-pcie-narrow": scan_of(
        machine(pci=(*server(), device("0000:06:00.0", "0680", "10de", link=PcieLink(2.5, 8.0, 2, 2))))
    ),
    # A card with eight lanes leaves half of its port's lanes free: nothing is lost.
    "switch-uplink-narrow": scan_of(
        machine(
            pci=server(
                far_root={"link": PcieLink(32.0, 32.0, 8, 16)}, far_nic={"link": PcieLink(32.0, 32.0, 8, 8)}
            )
        )
    ),
    "switch-uplink-slow": scan_of(machine(pci=server(up={"link": GEN4}, root={"link": GEN4}))),
    # A GPU that idles lowers its own link, which the port above it shows, too.
    "gpu-path-slower-than-gpu": scan_of(
        machine(
            pci=server(
                gpu={"link": PcieLink(2.5, 32.0, 16, 16)}, down_gpu={"link": PcieLink(2.5, 32.0, 16, 16)}
            )
        )
    ),
    # The rules about GPUs have looked at it.
    "gpu-sysfs-link-narrow": scan_of(
        machine(
            pci=server(gpu={"link": PcieLink(2.5, 32.0, 8, 16)}),
            gpu_health=(GpuHealth(pci_bus_id="0000:19:00.0", link=PcieLink(2.5, 32.0, 8, 16)),),
        )
    ),
    "nics-share-narrow-bridge": scan_of(
        machine(
            pci=two_cards(class_code="0302", vendor="10de"),
            rdma=(rdma("mlx5_0", "0000:19:00.0", 100.0),),
        )
    ),
    # Guests need ACS.
    "acs-on-switch": scan_of(machine(pci=server(down_gpu={"acs": REDIRECTING}), host=GUEST)),
    "acs-on-root-port": scan_of(machine(pci=server(far_root={"acs": ("SrcValid",)}))),
    "iommu-translated": scan_of(machine(host=Host(hypervisor="none", iommu="passthrough"))),
    "relaxed-ordering-off-in-vm": scan_of(guest(nccl_environment=(("NCCL_IB_PCI_RELAXED_ORDERING", "1"),))),
    "nic-far-from-every-gpu": scan_of(machine(matrix=ONE_NEAR)),
    "gpu-without-near-nic": scan_of(machine(matrix=BOTH_NEAR)),
    # One socket, one node: -1 is what the kernel says there.
    "pci-without-numa-node": scan_of(machine(pci=server(far_nic={"numa_node": None}), numa=TWO_SOCKETS[:1])),
    "vm-without-topology-file": scan_of(
        guest(nccl_environment=(("NCCL_TOPO_FILE", "/opt/microsoft/ndv5-topo.xml"),))
    ),
    "gpu-without-driver": scan_of(machine(pci=server(gpu={"driver": None}))),
    # A container with one GPU of two sees both on the bus.
}


def found(rule: str, *nodes: NodeScan) -> tuple[Finding, ...]:
    return find(scan_of(*nodes), rules=[one for one in RULES if one.id == rule])


def test_a_healthy_server_has_no_findings() -> None:
    assert find(scan_of(machine(matrix=BOTH_NEAR)), rules=RULES) == ()


def test_a_narrow_card_is_told_with_its_address_and_folds_over_nodes() -> None:
    pci = server(
        nic={"link": PcieLink(32.0, 32.0, 8, 16), "name": "Mellanox Technologies MT2910 Family [ConnectX-7]"}
    )

    (finding,) = found(
        "nic-pcie-narrow", machine("gpu001", pci=pci), machine("gpu002", pci=pci), machine("gpu003")
    )

    assert finding.severity is Severity.WARNING
    assert finding.what == "a network card runs on x8 where x16 is possible"
    assert finding.nodes == ("gpu001", "gpu002")
    assert finding.evidence == (
        "0000:1a:00.0 Mellanox Technologies MT2910 Family [ConnectX-7]: 32 GT/s x8, possible 32 GT/s x16",
    )


def test_a_card_of_sixteen_lanes_in_a_slot_of_eight_is_as_wide_as_it_can_be() -> None:
    narrow = PcieLink(32.0, 32.0, 8, 8)
    pci = server(nic={"link": PcieLink(32.0, 32.0, 8, 16)}, down_nic={"link": narrow})

    assert found("nic-pcie-narrow", machine(pci=pci)) == ()
    (finding,) = found("nic-pcie-below-port", machine(pci=pci))
    assert (
        finding.what == "a network card of 400 Gbit/s sits in a slot of 32 GT/s x8, which carries 252 Gbit/s"
    )


def test_a_management_card_on_one_lane_is_nobodys_bottleneck() -> None:
    igb = device("0000:05:00.0", "0200", "8086", link=PcieLink(2.5, 5.0, 1, 4))

    assert find(scan_of(machine(pci=(*server(), igb), matrix=BOTH_NEAR)), rules=RULES) == ()


def test_virtual_functions_and_guests_have_no_links_of_their_own() -> None:
    narrow = {"link": PcieLink(2.5, 32.0, 1, 16)}

    assert found("nic-pcie-narrow", machine(pci=server(nic=narrow), host=GUEST)) == ()
    assert found("nic-pcie-narrow", machine(pci=server(nic=narrow | {"is_virtual_function": True}))) == ()


def test_a_guest_is_known_by_its_devices_where_nobody_names_the_hypervisor() -> None:
    virtio = device("0000:00:03.0", "0200", "1af4", link=None)
    pci = (*server(nic={"link": PcieLink(2.5, 32.0, 1, 16)}, down_gpu={"acs": REDIRECTING}), virtio)

    assert find(scan_of(machine(pci=pci, host=Host(), matrix=BOTH_NEAR)), rules=RULES) == ()


def test_a_switch_that_reports_five_gigatransfers_above_faster_gpus_is_told() -> None:
    """Oracle's BM.GPU.H100.8 reports its switches so, and NCCL takes the number."""
    (finding,) = found(
        "gpu-path-slower-than-gpu", machine(pci=server(up={"link": PcieLink(5.0, 5.0, 16, 16)}))
    )

    assert finding.what == (
        "a bridge between a GPU and its CPU carries less than the GPU's own link: 5 GT/s x16 above 32 GT/s x16"
    )
    assert finding.evidence == ("0000:17:00.0: 5 GT/s x16, possible 5 GT/s x16, above GPU 0000:19:00.0",)


def test_a_degraded_uplink_is_told_once() -> None:
    node = machine(pci=server(up={"link": PcieLink(8.0, 32.0, 16, 16)}), matrix=BOTH_NEAR)

    assert [finding.rule for finding in find(scan_of(node), rules=RULES)] == ["switch-uplink-slow"]


def test_redirection_is_told_with_the_controls_that_are_on() -> None:
    (finding,) = found("acs-on-switch", machine(pci=server(down_gpu={"acs": REDIRECTING})))

    assert finding.evidence == ("0000:18:00.0: ReqRedir+, CmpltRedir+, UpstreamFwd+",)
    assert "PCIe switch ports" in finding.what


def test_redirection_is_told_where_the_saved_list_has_no_tree() -> None:
    flat = tuple(
        device(one.address, one.class_code or "", one.vendor_id or "", acs=one.acs)
        for one in server(up={"acs": REDIRECTING})
    )

    (finding,) = found("acs-on-switch", machine(pci=flat, host=Host(), numa=()))

    assert "PCIe bridges" in finding.what


def test_unknown_acs_is_no_alarm() -> None:
    assert found("acs-on-switch", machine()) == ()
    assert found("acs-on-root-port", machine()) == ()


def test_a_workstation_with_one_gpu_has_nobody_to_talk_to() -> None:
    pci = (
        device("0000:00:01.1", "0604", "1022", acs=REDIRECTING, link=GEN4),
        device("0000:01:00.0", "0300", "10de", "0000:00:01.1", link=GEN4, driver="nvidia"),
        device("0000:05:00.0", "0200", "8086", link=PcieLink(2.5, 5.0, 1, 1)),
    )
    node = node_scan(
        pci=pci,
        gpus=(gpu(0, name="NVIDIA GeForce RTX 4090", pci_bus_id="0000:01:00.0"),),
        host=Host(hypervisor="none", container="none", iommu="translated"),
        nics=(Nic("enp5s0", "ethernet", True, 1.0, None, "igc", pci_bus_id="0000:05:00.0"),),
    )

    assert find(scan_of(node), rules=RULES) == ()


def test_a_workstation_with_two_gpus_hears_of_acs_without_alarm() -> None:
    pci = (
        device("0000:00:01.1", "0604", "1022", acs=REDIRECTING, link=GEN4),
        device("0000:01:00.0", "0300", "10de", "0000:00:01.1", link=GEN4, driver="nvidia"),
        device("0000:20:01.1", "0604", "1022", acs=REDIRECTING, link=GEN4),
        device("0000:21:00.0", "0300", "10de", "0000:20:01.1", link=GEN4, driver="nvidia"),
    )

    findings = find(scan_of(node_scan(pci=pci, host=BARE)), rules=RULES)

    assert [(finding.rule, finding.severity) for finding in findings] == [
        ("acs-on-root-port", Severity.NOTICE)
    ]


@pytest.mark.parametrize(
    "told",
    [
        {"gpus": (gpu(0, name="NVIDIA GB200"), gpu(1, name="NVIDIA GB200"))},
        {"cpu": Cpu("ARM", "Neoverse-V2", "aarch64", 2, 144, 144), "gpus": (gpu(0), gpu(1))},
        {"pci": (device("0008:00:00.0", "0604", "10de", acs=REDIRECTING),), "gpus": (gpu(0), gpu(1))},
    ],
)
def test_grace_counts_on_acs_and_on_its_iommu_and_far_cards(told: dict[str, Any]) -> None:
    host = Host(hypervisor="none", iommu="translated")
    pci = server(down_gpu={"acs": REDIRECTING}, far_root={"acs": REDIRECTING})
    node = machine(**({"host": host, "pci": pci, "matrix": ALL_FAR} | told))

    assert find(scan_of(node), rules=RULES) == ()


def test_grace_is_known_by_the_memory_of_its_gpus_in_a_matrix() -> None:
    grace = TopologyMatrix(
        gpus=ALL_FAR.gpus,
        nics=ALL_FAR.nics,
        links=ALL_FAR.links,
        cpu_affinity=("0-71", "72-143"),
        numa_affinity=("0", "1"),
        gpu_numa_ids=(2, 10),
    )

    assert found("nic-far-from-every-gpu", node_scan(matrix=grace)) == ()


def test_a_cloud_guest_with_a_topology_file_has_no_findings() -> None:
    node = guest(
        matrix=ALL_FAR, host=Host(hypervisor="microsoft", has_virtual_topology=True, iommu="translated")
    )

    assert find(scan_of(node), rules=RULES) == ()


def test_a_guest_whose_tree_shows_neighbours_needs_no_topology_file() -> None:
    assert found("vm-without-topology-file", guest(matrix=BOTH_NEAR)) == ()
    assert found("vm-without-topology-file", machine(host=GUEST, gpus=(gpu(0), gpu(1)))) == ()


def test_a_matrix_without_cards_says_nothing_about_them() -> None:
    assert find(scan_of(node_scan(matrix=matrix("X NV18", "NV18 X", nics=0))), rules=RULES) == ()


def test_a_far_gpu_is_named_in_the_evidence() -> None:
    (finding,) = found("gpu-without-near-nic", machine(matrix=ONE_NEAR))

    assert finding.severity is Severity.NOTICE
    assert finding.what == "1 of 2 GPUs have no network card below their PCIe switch, the others do"
    assert finding.evidence == ("without: GPU1",)


def test_devices_without_a_numa_node_are_named() -> None:
    (finding,) = found(
        "pci-without-numa-node",
        machine(pci=server(far_root={"numa_node": None}, far_nic={"numa_node": None})),
    )

    assert finding.what == "network cards without a NUMA node on a machine of several"
    assert finding.evidence == ("0000:81:00.0",)


def test_a_list_that_tells_no_numa_nodes_at_all_is_no_alarm() -> None:
    names = ("root", "up", "down_gpu", "gpu", "down_nic", "nic", "far_root", "far_nic")

    assert (
        found("pci-without-numa-node", machine(pci=server(**{name: {"numa_node": None} for name in names})))
        == ()
    )


def test_links_that_nobody_told_are_no_alarm() -> None:
    silent = tuple(
        device(one.address, one.class_code or "", one.vendor_id or "", one.parent, link=None)
        for one in server()
    )

    assert find(scan_of(machine(pci=silent, matrix=BOTH_NEAR)), rules=RULES) == ()


def test_gen5_is_what_the_fixtures_run_at() -> None:
    assert GEN5.gbit_per_s == pytest.approx(504.1, abs=0.1)
    assert GEN4.gbit_per_s == pytest.approx(252.1, abs=0.1)
