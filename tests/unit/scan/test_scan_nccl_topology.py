"""NCCL and RCCL topology files: real ones from clouds, servers and workstations, and broken ones."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from broken_texts import broken
from golden_facts import FACTS, SHARED, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topo_tune.errors import InputError
from topo_tune.records.hardware import PcieLink
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.nccl_documents import TopologyFile, XmlGpu
from topo_tune.scan.documents.nccl_topology import KINDS, parse, recognise

FOLDER = FACTS / "topo-xml"
FILES = sorted(FOLDER.glob("*.xml"))
READABLE = [file for file in FILES if not file.name.startswith("flagcx")]
OTHERS = [
    file
    for file in sorted((SHARED if SHARED.is_dir() else FACTS).rglob("*"))
    if file.is_file() and file.parent.name != "topo-xml"
]

TWO_GPUS = """<system version="1">
  <cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:21:00.0" count="6" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" vendor="0x15b3" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="0000ff00" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:21:00.0" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1">
        <nvlink target="0000:11:00.0" count="6" tclass="0x030200"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""


def read(name: str) -> TopologyFile:
    return parse(text_of(FOLDER / name), file=name)[0]


def paths(name: str) -> TopologyMatrix:
    found = read(name).paths
    assert found is not None
    return found


def pairs(matrix: TopologyMatrix) -> set[str]:
    """The words between different GPUs."""
    count = len(matrix.gpus)
    return {matrix.links[i][j] for i in range(count) for j in range(count) if i != j}


def nics(matrix: TopologyMatrix, gpu: str) -> list[str]:
    """The words between a GPU and every net, in the order of nets."""
    return [matrix.link(gpu, nic) for nic in matrix.nics]


def by_numa(body: TopologyFile) -> dict[int | None, list[str]]:
    found: dict[int | None, list[str]] = {}
    for gpu in body.gpus:
        found.setdefault(gpu.numa_id, []).append(gpu.pci_bus_id)
    return found


def shown(body: TopologyFile, problems: tuple[str, ...]) -> dict[str, object]:
    matrix = body.paths
    return {
        "vendor": body.vendor,
        "version": body.version,
        "cpus": [f"NUMA {cpu.numa_id}: {cpu.cpus}, {cpu.pci_devices} PCI devices" for cpu in body.cpus],
        "gpus": [_shown_gpu(gpu) for gpu in body.gpus],
        "nets": [
            f"{net.name} dev {net.dev} at {net.pci_bus_id}: {net.speed_mbit_per_s} Mb/s, gdr {net.gdr},"
            f" NUMA {list(net.numa_ids)}{', virtual' if net.is_virtual else ''}"
            for net in body.nets
        ],
        "bridges, NVSwitches, unclassified": [body.bridges, body.nvswitches, body.unclassified],
        "slowest GPU link": [body.slowest_gpu_link_gt_per_s, body.slowest_gpu_link_width],
        "paths": None
        if matrix is None
        else [
            f"{name}: {' '.join(row)}"
            for name, row in zip(matrix.gpus + matrix.nics, matrix.links, strict=True)
        ],
        "problems": list(problems),
    }


def _shown_gpu(gpu: XmlGpu) -> str:
    links = ", ".join(f"{link.count} to {link.target}" for link in gpu.links)
    return f"{gpu.pci_bus_id} dev {gpu.dev} sm {gpu.compute_capability} NUMA {gpu.numa_id}: {links or 'no links'}"


@pytest.mark.parametrize("file", READABLE, ids=lambda file: file.stem)
def test_a_real_file_is_read_as_its_golden_file_says(file: Path, golden) -> None:  # type: ignore[no-untyped-def]
    text = json.dumps(shown(*parse(text_of(file))), indent=1, ensure_ascii=False) + "\n"

    golden(f"facts/topo-xml/{file.name}.json", text)


def test_c2c_is_told_beside_the_pcie_link() -> None:
    body = read("gb10-c2c-wifi.xml")

    # NCCL itself prints `C2C[345.0]` for these eight links.
    assert [gpu.c2c_gb_per_s for gpu in body.gpus] == [345.0]
    assert body.gpus[0].link == PcieLink(speed_gt_per_s=2.5, width=16)
    assert {gpu.c2c_gb_per_s for gpu in read("azure-ndv5-h100.xml").gpus} == {None}


@pytest.mark.parametrize(
    ("name", "gpus", "nets", "numa_ids", "bridges", "nvswitches"),
    [
        ("azure-ndv2-v100.xml", 8, 1, [0, 1], 0, 0),
        ("gb10-c2c-wifi.xml", 1, 2, [None], 0, 0),
        ("azure-ndv4-a100.xml", 8, 8, [0, 1, 2, 3], 4, 0),
        ("azure-ndv5-h100.xml", 8, 8, [0, 1], 8, 0),
        ("azure-ncv4-a100-pcie.xml", 4, 1, [0, 1, 2, 3], 0, 0),
        ("azure-nc48v4-2a100-nvlink.xml", 2, 1, [0, 1], 0, 0),
        ("aws-p4d-a100.xml", 8, 4, [0, 1], 4, 0),
        ("aws-g5-a10g-busid-only.xml", 0, 0, [0, 1], 0, 0),
        ("aws-p5-h100-2023.xml", 0, 0, [0, 1], 8, 0),
        ("oci-bm-gpu4-a100-flattened.xml", 8, 8, [3, 1, 7, 5], 4, 0),
        ("oci-bm-h100-16port.xml", 8, 16, [0, 1], 24, 4),
        ("mlperf-dgxa100-pci-only.xml", 8, 8, [3, 1, 7, 5], 12, 0),
        ("hpe-apollo675d-a100.xml", 8, 4, [1, 0, 3, 2], 12, 6),
        ("alibaba-a100-bond-nics.xml", 8, 5, [0, 1], 20, 6),
        ("4090-calico-netdevs.xml", 4, 16, [3, 2, 0, 7], 0, 0),
        ("3090-pcie-8gpu-1ib.xml", 8, 1, [0, 1], 2, 0),
        ("modal-b200-hand-edited.xml", 8, 13, [0, 1], 0, 0),
        ("rccl-mi300x-8gpu-8nic.xml", 8, 8, [0, 1], 24, 0),
        ("rccl-mi250x-16gcd.xml", 16, 8, [0, 1, 2, 3], 28, 0),
        ("rccl-mi250-veth-docker.xml", 8, 2, [3, 1, 0, 2], 1, 0),
        ("rccl-mi200-bond0.xml", 8, 1, [3, 1, 0], 0, 0),
        ("rccl-rome-nps4-mi50.xml", 8, 1, [1, 2, 3, 5, 6, 7, 4], 8, 0),
        ("rccl-mi210-pcie-3gpu.xml", 3, 1, [0, 1], 3, 0),
        ("rccl-mi100-collnet-4nic.xml", 8, 4, [0, 1, 2, 3], 20, 0),
    ],
)
def test_devices_are_counted(
    name: str, gpus: int, nets: int, numa_ids: list[int], bridges: int, nvswitches: int
) -> None:
    body = read(name)

    assert [len(body.gpus), len(body.nets)] == [gpus, nets]
    assert [cpu.numa_id for cpu in body.cpus] == numa_ids
    assert [body.bridges, body.nvswitches] == [bridges, nvswitches]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("azure-ndv2-v100.xml", {"PHB", "SYS"}),
        ("azure-ndv4-a100.xml", {"PIX", "SYS"}),
        ("azure-ndv5-h100.xml", {"PHB", "SYS"}),
        ("azure-ncv4-a100-pcie.xml", {"SYS"}),
        ("azure-nc48v4-2a100-nvlink.xml", {"NV12"}),
        ("aws-p4d-a100.xml", {"PIX", "PHB", "SYS"}),
        ("oci-bm-gpu4-a100-flattened.xml", {"PIX", "SYS"}),
        ("oci-bm-h100-16port.xml", {"NV18"}),
        ("mlperf-dgxa100-pci-only.xml", {"PXB", "SYS"}),
        ("hpe-apollo675d-a100.xml", {"NV12"}),
        ("alibaba-a100-bond-nics.xml", {"NV12"}),
        ("4090-calico-netdevs.xml", {"SYS"}),
        ("3090-pcie-8gpu-1ib.xml", {"PIX", "SYS"}),
        ("modal-b200-hand-edited.xml", {"NV18"}),
        ("rccl-mi300x-8gpu-8nic.xml", {"XGMI1"}),
        ("rccl-mi250x-16gcd.xml", {"XGMI4", "XGMI2", "XGMI1", "PXB", "SYS"}),
        ("rccl-mi210-pcie-3gpu.xml", {"PHB", "SYS"}),
    ],
)
def test_pairs_of_gpus_are_joined_by_these_words_and_no_others(name: str, words: set[str]) -> None:
    assert pairs(paths(name)) == words


@pytest.mark.parametrize(
    ("name", "one", "other", "word"),
    [
        ("azure-ndv2-v100.xml", "GPU0", "GPU3", "PHB"),
        ("azure-ndv2-v100.xml", "GPU0", "GPU4", "SYS"),
        ("azure-ndv5-h100.xml", "GPU0", "0101:00:00.0", "PIX"),
        ("azure-ndv5-h100.xml", "GPU0", "0104:00:00.0", "PHB"),
        ("azure-ndv5-h100.xml", "GPU0", "0105:00:00.0", "SYS"),
        ("azure-ncv4-a100-pcie.xml", "GPU0", "eth0", "PHB"),
        ("azure-ncv4-a100-pcie.xml", "GPU1", "eth0", "SYS"),
        ("aws-p4d-a100.xml", "GPU0", "GPU1", "PIX"),
        ("aws-p4d-a100.xml", "GPU0", "GPU2", "PHB"),
        ("aws-p4d-a100.xml", "GPU0", "GPU4", "SYS"),
        ("oci-bm-h100-16port.xml", "GPU0", "mlx5_0", "PXB"),
        ("oci-bm-h100-16port.xml", "GPU0", "mlx5_1", "PXB"),
        ("oci-bm-h100-16port.xml", "GPU0", "mlx5_3", "PHB"),
        ("oci-bm-h100-16port.xml", "GPU0", "mlx5_9", "SYS"),
        ("oci-bm-h100-16port.xml", "mlx5_0", "mlx5_1", "PIX"),
        ("mlperf-dgxa100-pci-only.xml", "GPU0", "0000:12:00.0", "PIX"),
        ("mlperf-dgxa100-pci-only.xml", "GPU0", "0000:0c:00.0", "PXB"),
        ("mlperf-dgxa100-pci-only.xml", "GPU0", "0000:54:00.0", "SYS"),
        ("mlperf-dgxa100-pci-only.xml", "GPU0", "GPU1", "PXB"),
        ("hpe-apollo675d-a100.xml", "GPU0", "mlx5_0", "PXB"),
        ("hpe-apollo675d-a100.xml", "GPU0", "mlx5_1", "SYS"),
        ("alibaba-a100-bond-nics.xml", "GPU1", "mlx5_bond_1", "PXB"),
        ("alibaba-a100-bond-nics.xml", "GPU0", "mlx5_bond_1", "PXB"),
        ("alibaba-a100-bond-nics.xml", "GPU0", "mlx5_bond_0", "PHB"),
        ("alibaba-a100-bond-nics.xml", "GPU4", "mlx5_bond_0", "SYS"),
        ("4090-calico-netdevs.xml", "GPU1", "enp34s0f0", "PHB"),
        ("4090-calico-netdevs.xml", "GPU0", "enp34s0f0", "SYS"),
        ("4090-calico-netdevs.xml", "GPU3", "enp34s0f0", "SYS"),
        ("4090-calico-netdevs.xml", "GPU4", "enp34s0f0", "SYS"),
        ("4090-calico-netdevs.xml", "GPU4", "tunl0", "PHB"),
        ("3090-pcie-8gpu-1ib.xml", "GPU4", "mlx5_0", "PIX"),
        ("3090-pcie-8gpu-1ib.xml", "GPU3", "mlx5_0", "SYS"),
        ("modal-b200-hand-edited.xml", "GPU0", "mlx5_5", "PHB"),
        ("modal-b200-hand-edited.xml", "GPU0", "mlx5_9", "SYS"),
        ("rccl-mi300x-8gpu-8nic.xml", "GPU0", "mlx5_0", "PXB"),
        ("rccl-mi300x-8gpu-8nic.xml", "GPU7", "mlx5_7", "PXB"),
        ("rccl-mi300x-8gpu-8nic.xml", "GPU0", "mlx5_7", "SYS"),
        ("rccl-mi250x-16gcd.xml", "GPU0", "GPU1", "XGMI4"),
        ("rccl-mi210-pcie-3gpu.xml", "GPU1", "GPU2", "PHB"),
        ("rccl-mi210-pcie-3gpu.xml", "GPU0", "GPU1", "SYS"),
        ("rccl-mi210-pcie-3gpu.xml", "GPU0", "mlx5_0", "PHB"),
    ],
)
def test_a_pair_is_joined_as_the_tree_has_it(name: str, one: str, other: str, word: str) -> None:
    assert paths(name).link(one, other) == word
    assert paths(name).link(other, one) == word


def test_ndv2_has_its_nic_and_four_gpus_on_one_numa_node() -> None:
    body = read("azure-ndv2-v100.xml")

    assert [cpu.pci_devices for cpu in body.cpus] == [5, 4]
    assert (body.nets[0].pci_bus_id, body.nets[0].numa_ids) == ("0101:00:00.0", (0,))
    assert by_numa(body)[1] == ["0005:00:00.0", "0006:00:00.0", "0007:00:00.0", "0008:00:00.0"]
    assert (body.vendor, body.version) == ("unknown", "1")


def test_ndv4_has_its_gpus_in_another_order_than_its_numa_nodes() -> None:
    body = read("azure-ndv4-a100.xml")

    assert by_numa(body) == {
        0: ["0003:00:00.0", "0004:00:00.0"],
        1: ["0001:00:00.0", "0002:00:00.0"],
        2: ["000d:00:00.0", "000e:00:00.0"],
        3: ["000b:00:00.0", "000c:00:00.0"],
    }
    matrix = paths("azure-ndv4-a100.xml")
    assert [sorted(nics(matrix, gpu)) for gpu in matrix.gpus] == [["PIX"] * 2 + ["SYS"] * 6] * 8
    assert (body.slowest_gpu_link_gt_per_s, body.slowest_gpu_link_width) == (16, 16)


def test_ndv5_writes_its_speeds_with_a_decimal_and_the_word_pcie() -> None:
    body = read("azure-ndv5-h100.xml")

    assert {gpu.link for gpu in body.gpus} == {PcieLink(speed_gt_per_s=32.0, width=16)}
    assert body.unknown_speeds == ()


def test_ncv4_has_nvlinks_that_lead_to_their_own_gpu_and_count_for_nothing() -> None:
    body, problems = parse(text_of(FOLDER / "azure-ncv4-a100-pcie.xml"))

    assert [gpu.links for gpu in body.gpus] == [()] * 4
    assert problems == ("line 5: 4 `<nvlink>` lead to their own GPU and are left out",)
    (eth0,) = body.nets
    assert (eth0.name, eth0.speed_mbit_per_s, eth0.numa_ids) == ("eth0", 100000, (0,))
    assert (eth0.guid, eth0.gdr, eth0.pci_bus_id) == ("0x0", False, None)
    assert body.slowest_gpu_link_gt_per_s is None
    assert body.gpus[0].link is None


def test_nc48v4_has_twelve_nvlinks_between_gpus_of_different_numa_nodes() -> None:
    body = read("azure-nc48v4-2a100-nvlink.xml")

    assert [(link.target, link.count, link.is_switch) for link in body.gpus[0].links] == [
        ("0002:00:00.0", 12, False)
    ]
    assert [gpu.numa_id for gpu in body.gpus] == [0, 1]


def test_p4d_is_read_behind_its_comments() -> None:
    body = read("aws-p4d-a100.xml")

    assert (body.slowest_gpu_link_gt_per_s, body.slowest_gpu_link_width) == (8, 16)
    assert [net.pci_bus_id for net in body.nets] == [
        "0000:10:1b.0",
        "0000:20:1b.0",
        "0000:90:1b.0",
        "0000:a0:1b.0",
    ]


@pytest.mark.parametrize(
    ("name", "pci_devices", "unclassified"),
    [("aws-g5-a10g-busid-only.xml", [4, 5], 9), ("aws-p5-h100-2023.xml", [20, 20], 32)],
)
def test_without_classes_nothing_is_called_a_gpu_or_a_nic(
    name: str, pci_devices: list[int], unclassified: int
) -> None:
    body, problems = parse(text_of(FOLDER / name))

    assert [cpu.pci_devices for cpu in body.cpus] == pci_devices
    assert body.unclassified == unclassified
    assert (body.gpus, body.nets, body.paths, body.vendor) == ((), (), None, "unknown")
    assert [cpu.cpus for cpu in body.cpus] == [None, None]
    assert problems == ()


def test_the_odd_speed_of_p5_is_one_that_nccl_knows() -> None:
    assert read("aws-p5-h100-2023.xml").unknown_speeds == ()


def test_a_mask_of_two_ranges_is_a_list_of_cpus() -> None:
    body = read("oci-bm-gpu4-a100-flattened.xml")

    assert {cpu.numa_id: cpu.cpus for cpu in body.cpus}[3] == "24-31,88-95"
    matrix = paths("oci-bm-gpu4-a100-flattened.xml")
    assert [nics(matrix, gpu).count("PIX") for gpu in matrix.gpus] == [2] * 8


def test_the_h100_of_oci_hang_below_slow_bridges_and_see_four_nvswitches() -> None:
    body = read("oci-bm-h100-16port.xml")

    assert (body.slowest_gpu_link_gt_per_s, body.slowest_gpu_link_width) == (5.0, 16)
    assert {sum(link.count for link in gpu.links) for gpu in body.gpus} == {18}
    assert {link.target for gpu in body.gpus for link in gpu.links} == {f"0000:1{x}:00.0" for x in "abcd"}
    assert sorted(link.count for link in body.gpus[0].links) == [4, 4, 5, 5]
    assert len({net.pci_bus_id for net in body.nets}) == 8
    assert {net.speed_mbit_per_s for net in body.nets} == {180000}
    assert [(net.name, net.dev) for net in body.nets][:3] == [("mlx5_0", 0), ("mlx5_1", 1), ("mlx5_3", 2)]
    assert body.nets[0].guid == body.nets[1].guid
    assert body.cpus[0].cpus == "0-55,112-167"


def test_hpe_has_sharp_and_twelve_links_to_six_switches() -> None:
    body = read("hpe-apollo675d-a100.xml")

    assert all(net.collnet for net in body.nets)
    assert [(net.name, net.speed_mbit_per_s) for net in body.nets] == [
        ("mlx5_0", 200000),
        ("mlx5_1", 200000),
        ("mlx5_2", 200000),
        ("mlx5_4", 200000),
    ]
    assert {tuple(link.count for link in gpu.links) for gpu in body.gpus} == {(2,) * 6}
    assert {numa: len(gpus) for numa, gpus in by_numa(body).items()} == {0: 2, 1: 2, 2: 2, 3: 2}


def test_bonded_rdma_devices_are_not_virtual() -> None:
    body = read("alibaba-a100-bond-nics.xml")

    assert [net.is_virtual for net in body.nets] == [False] * 5
    assert {(net.speed_mbit_per_s, net.gdr) for net in body.nets} == {(200000, True)}
    assert body.nets[0].pci_bus_id == "0000:06:00.0"


def test_nets_that_are_listed_under_four_cpus_are_counted_once() -> None:
    body = read("4090-calico-netdevs.xml")

    assert [(gpu.dev, gpu.rank) for gpu in body.gpus] == [(0, 0), (1, 1), (3, 2), (4, 3)]
    assert paths("4090-calico-netdevs.xml").gpus == ("GPU0", "GPU1", "GPU3", "GPU4")
    assert [net.name for net in body.nets if not net.is_virtual] == ["enp34s0f0"]
    assert sum(net.is_virtual for net in body.nets) == 15
    assert body.nets[0].numa_ids == (2,)
    assert body.nets[1].numa_ids == (3, 2, 0, 7)
    assert {net.gdr for net in body.nets} == {False}


def test_consumer_gpus_have_the_class_of_a_display() -> None:
    body = read("3090-pcie-8gpu-1ib.xml")

    assert [gpu.compute_capability for gpu in body.gpus] == [86] * 8
    assert {gpu.gdr for gpu in body.gpus} == {False}
    assert (body.nets[0].speed_mbit_per_s, body.nets[0].numa_ids, body.nets[0].gdr) == (56000, (1,), False)


def test_links_to_gpus_of_the_file_lead_to_no_switch_whatever_their_class_says() -> None:
    body = read("modal-b200-hand-edited.xml")

    assert body.nvswitches == 0
    assert {sum(link.count for link in gpu.links) for gpu in body.gpus} == {126}
    assert {gpu.compute_capability for gpu in body.gpus} == {100}
    assert [net.speed_mbit_per_s for net in body.nets] == [100000] * 4 + [200000] + [400000] * 8
    assert body.cpus[0].cpus is not None
    assert body.cpus[0].cpus.startswith("0,2,4,")
    assert body.cpus[1].cpus is not None
    assert body.cpus[1].cpus.endswith(",172,174")


def test_a_map_for_flagcx_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"8 `<gpu dev net>`.*FlagCX.*no NCCL topology file") as refused:
        parse(text_of(FOLDER / "flagcx-gpu-net-map.xml"), file="topo_demo.xml")

    assert "topo_demo.xml:2" in str(refused.value)


def test_mi300x_is_a_full_mesh() -> None:
    body = read("rccl-mi300x-8gpu-8nic.xml")

    assert (body.vendor, body.version) == ("amd", "2")
    assert sum(len(gpu.links) for gpu in body.gpus) == 56
    assert {(gpu.architecture, gpu.compute_capability) for gpu in body.gpus} == {("gfx942", 304)}
    assert {net.speed_mbit_per_s for net in body.nets} == {400000}


def test_mi250x_has_packages_of_two_with_four_links_and_narrow_bridges() -> None:
    body = read("rccl-mi250x-16gcd.xml")
    counts = [link.count for gpu in body.gpus for link in gpu.links]

    assert [counts.count(count) for count in (4, 2, 1)] == [16, 8, 32]
    assert (body.slowest_gpu_link_gt_per_s, body.slowest_gpu_link_width) == (16.0, 8)
    assert body.gpus[0].link == PcieLink(speed_gt_per_s=32.0, width=16)
    assert [net.name for net in body.nets][-2:] == ["mlx5_7", "mlx5_8"]


def test_a_veth_is_virtual_and_the_card_is_not() -> None:
    nets = {net.name: net for net in read("rccl-mi250-veth-docker.xml").nets}

    assert nets["vethe2d5378"].is_virtual
    assert (nets["ens2"].is_virtual, nets["ens2"].speed_mbit_per_s) == (False, 1000)


def test_gpus_of_an_absent_numa_node_stand_where_the_file_has_them() -> None:
    body = read("rccl-mi200-bond0.xml")

    assert {numa: len(gpus) for numa, gpus in by_numa(body).items()} == {0: 4, 1: 2, 3: 2}
    assert {len(gpu.links) for gpu in body.gpus} == {3}
    assert [(net.name, net.speed_mbit_per_s) for net in body.nets] == [("bond0", 1000)]


def test_rings_of_four_have_two_links_each() -> None:
    body = read("rccl-rome-nps4-mi50.xml")

    assert {len(gpu.links) for gpu in body.gpus} == {2}
    assert (body.nets[0].speed_mbit_per_s, body.nets[0].numa_ids) == (200000, (4,))


def test_collective_nets_may_skip_numbers() -> None:
    body = read("rccl-mi100-collnet-4nic.xml")

    assert [net.name for net in body.nets] == ["mlx5_1", "mlx5_3", "mlx5_5", "mlx5_7"]
    assert {net.collnet for net in body.nets} == {True}
    assert {len(gpu.links) for gpu in body.gpus} == {3}


def test_three_gpus_are_enough() -> None:
    body = read("rccl-mi210-pcie-3gpu.xml")

    assert {numa: len(gpus) for numa, gpus in by_numa(body).items()} == {0: 1, 1: 2}
    assert (body.nets[0].gdr, body.nets[0].numa_ids) == (True, (0,))


@pytest.mark.parametrize("file", READABLE, ids=lambda file: file.stem)
def test_nccl_itself_reads_every_real_file(file: Path) -> None:
    assert parse(text_of(file))[0].refused_by_nccl == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TWO_GPUS.replace('version="1"', 'version="2"'), "line 1: version 2, and NCCL takes version 1 only"),
        (TWO_GPUS.replace(' version="1"', ""), "line 1: no version, and NCCL takes version 1 only"),
        (TWO_GPUS.replace("\n  <cpu", "\n\t<cpu", 1), "line 2: a tab in front of an element"),
        ("\ufeff" + TWO_GPUS, "line 1: it begins with a byte order mark"),
        ('<?xml version="1.0"?>\n' + TWO_GPUS, "line 1: an XML declaration (`<?xml ...?>`)"),
        ("<!DOCTYPE system>\n" + TWO_GPUS, "line 1: a DOCTYPE"),
    ],
)
def test_what_nccls_own_reader_refuses_is_told_and_the_file_is_read_all_the_same(
    text: str, reason: str
) -> None:
    body, _ = parse(text)

    assert body.refused_by_nccl == (reason,)
    assert len(body.gpus) == 2


@pytest.mark.parametrize(
    "text",
    [
        "\n\n" + TWO_GPUS,
        "<!-- made by hand -->\n<!-- <system version='1'> -->\n" + TWO_GPUS,
        TWO_GPUS.replace("\n", "\r\n"),
        "".join(f" 0: {line}\n" for line in TWO_GPUS.splitlines()),
        "".join(f"[1,3]<stdout>:{line}\n" for line in TWO_GPUS.splitlines()),
        "$ cat /tmp/topo.xml\n" + TWO_GPUS + "$ \n",
        TWO_GPUS.replace('link_speed="32.0 GT/s PCIe"', 'link_speed="32 GT/s"'),
        TWO_GPUS.replace("0000:11:00.0", "00000000:11:00.0"),
        TWO_GPUS.replace('"', "'"),
    ],
)
def test_it_makes_no_difference_how_the_file_was_saved(text: str) -> None:
    assert recognise(text)
    assert parse(text)[0] == parse(TWO_GPUS)[0]
    assert parse(text)[1] == ()


def test_a_cut_file_is_read_up_to_its_cut_and_says_where_that_is() -> None:
    cut = TWO_GPUS[: TWO_GPUS.index('<pci busid="0000:21')]
    body, problems = parse(cut)

    assert [gpu.pci_bus_id for gpu in body.gpus] == ["0000:11:00.0"]
    assert [cpu.numa_id for cpu in body.cpus] == [0, 1]
    assert problems == ("line 17: the file ends here, before `</system>`",)


def test_a_file_that_breaks_in_the_middle_is_read_up_to_there() -> None:
    body, problems = parse(TWO_GPUS.replace('<cpu numaid="1"', '<cpu numaid=1"'))

    assert len(body.gpus) == 1
    assert problems == (
        "line 16: the XML breaks here (not well-formed (invalid token)), the rest is left out",
    )


def test_a_second_dump_behind_the_first_is_left_out() -> None:
    body, problems = parse(TWO_GPUS + TWO_GPUS)

    assert len(body.gpus) == 2
    assert problems == ("line 24: a second `<system>` begins here and is left out",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no `<system>` element: found `nothing`"),
        ("plain words", "found `plain words`"),
        ('<system version="1"/>', "should hold `<cpu>` elements, found nothing"),
        ('<system version="1"><disk/></system>', "found `<disk>`"),
        ('<system version="1', "not followed by anything that can be read"),
        ("<systemd version='1'><cpu/></systemd>", "no `<system>` element"),
    ],
)
def test_what_is_no_topology_is_refused_with_what_was_found(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text, file="t.xml")


def test_a_doctype_and_its_entities_reach_no_parser() -> None:
    laughs = '<!DOCTYPE system [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>\n'
    body, problems = parse(laughs + TWO_GPUS.replace("mlx5_0", "&b;"))

    assert len(body.gpus) == 1
    assert "undefined entity" in problems[0]


def test_hosts_of_one_nvlink_domain_are_kept_apart() -> None:
    host = (
        '<cpu host_hash="{0}" numaid="0" affinity="ff"><pci busid="0000:11:00.0" class="0x030200" vendor="0x10de">'
        '<gpu dev="0" sm="100" rank="{1}" gdr="1"><nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>'
        '<c2c bw="40000" count="10"/></gpu></pci><pci busid="0000:12:00.0" class="0x020700"><nic>'
        '<net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/></nic></pci></cpu>'
    )
    body, problems = parse(f'<system version="1">{host.format("0xa", 0)}{host.format("0xb", 1)}</system>')

    assert problems == ()
    assert body.nvswitches == 1
    assert len(body.nets) == 2
    assert body.paths is not None
    assert body.paths.gpus == ("GPU0", "GPU1")
    assert body.paths.nics == ("mlx5_0", "mlx5_0#2")
    assert body.paths.link("GPU0", "GPU1") == "NV18"
    assert body.paths.link("GPU0", "mlx5_0") == "PHB"
    assert body.paths.link("GPU0", "mlx5_0#2") == "NET"


def system(*pci: str) -> TopologyFile:
    body, problems = parse(f'<system version="1"><cpu numaid="0" affinity="ff">{"".join(pci)}</cpu></system>')
    assert problems == ()
    return body


def switched(address: str, dev: int, *targets: str) -> str:
    links = "".join(f'<nvlink target="{target}" count="4" tclass="0x068000"/>' for target in targets)
    return (
        f'<pci busid="{address}" class="0x030200" vendor="0x10de"><gpu dev="{dev}" sm="90" rank="{dev}" gdr="1">'
        f"{links}</gpu></pci>"
    )


def test_gpus_that_see_different_switches_are_joined_all_the_same() -> None:
    known = switched("0000:11:00.0", 0, "0000:05:00.0", "0000:06:00.0")
    unseen = switched("0000:12:00.0", 1, "fffffff:ffff:ff")
    body = system(known, unseen)

    assert body.paths is not None
    assert body.paths.link("GPU0", "GPU1") == "NV4"
    assert body.nvswitches == 3


def test_two_halves_of_one_device_are_two_gpus_by_their_order() -> None:
    half = (
        '<gpu dev="0" sm="107" mlopart="{0}" rank="{0}" gdr="1"><nvlink target="fffffff:ff:ff.0" count="36"'
        + (' tclass="0x068000"/><c2c bw="56376" count="7"/></gpu>')
    )
    body = system(
        '<pci busid="0002:81:00.0" class="0x030200" link_speed="64.0 GT/s PCIe" link_width="2">'
        f"{half.format(0)}{half.format(1)}</pci>"
    )

    assert body.paths is not None
    assert body.paths.gpus == ("GPU0", "GPU1")
    assert body.paths.link("GPU0", "GPU1") == "NV36"
    assert body.unknown_speeds == ()


def test_nets_without_numbers_and_a_cpu_without_numa_are_read() -> None:
    body, problems = parse(
        '<system version="1"><cpu arch="arm64">'
        '<pci busid="0000:01:00.0" link_speed="32.0 GT/s PCIe" link_width="4">'
        '<nic><net name="rocep1s0f0" speed="200000" gdr="0" net="1" gin="1"/></nic></pci>'
        '<pci busid="000f:01:00.0" link_speed="2.5 GT/s PCIe" link_width="16">'
        '<gpu dev="0" sm="121" rank="0" gdr="0"><c2c bw="43125" count="8"/></gpu></pci></cpu></system>'
    )

    assert problems == ()
    assert (body.vendor, body.cpus[0].architecture, body.cpus[0].numa_id) == ("nvidia", "arm64", None)
    assert [(net.name, net.dev, net.gdr) for net in body.nets] == [("rocep1s0f0", None, False)]
    assert (body.slowest_gpu_link_gt_per_s, body.slowest_gpu_link_width) == (2.5, 16)


def test_gpus_of_a_hybrid_mesh_have_links_to_some_of_the_others() -> None:
    gpu = '<pci busid="{0}" class="0x030200"><gpu dev="{1}" sm="70" rank="{1}" gdr="0">{2}</gpu></pci>'
    link = '<nvlink target="{}" count="{}" tclass="0x030200"/>'
    body = system(
        gpu.format("0000:1a:00.0", 0, link.format("0000:1b:00.0", 1) + link.format("0000:3d:00.0", 2)),
        gpu.format("0000:1b:00.0", 1, link.format("0000:1a:00.0", 1)),
        gpu.format("0000:3d:00.0", 2, link.format("0000:1a:00.0", 2)),
    )

    assert body.paths is not None
    assert [body.paths.link(*pair) for pair in (("GPU0", "GPU1"), ("GPU0", "GPU2"), ("GPU1", "GPU2"))] == [
        "NV1",
        "NV2",
        "PHB",
    ]


def test_ports_that_nccl_made_one_device_of_are_not_virtual() -> None:
    merged = '<nic><net name="mlx5_0+mlx5_1" dev="2" speed="800000" port="1" gdr="1"/></nic></cpu>'
    body, _ = parse(TWO_GPUS.replace("</cpu>", merged, 1))

    assert body.nets[-1].name == "mlx5_0+mlx5_1"
    assert not body.nets[-1].is_virtual


def test_devices_below_no_numa_node_and_masks_of_zeros_are_unknown() -> None:
    text = TWO_GPUS.replace('numaid="1" affinity="0000ff00"', 'numaid="-1" affinity="0,00000000"')
    body, _ = parse(text)

    assert (body.cpus[1].numa_id, body.cpus[1].cpus) == (None, "")
    assert body.gpus[1].numa_id is None


def test_speeds_that_nccl_does_not_know_are_named() -> None:
    text = TWO_GPUS.replace('link_speed="32.0 GT/s PCIe"', 'link_speed="32.0 GT/s"', 1)
    body, _ = parse(text.replace('link_speed="32.0 GT/s PCIe"', 'link_speed="Unknown"', 1))

    assert body.unknown_speeds == ("32.0 GT/s",)


def test_a_management_processors_screen_is_no_gpu() -> None:
    screen = '<pci busid="0000:03:00.0" class="0x030000" vendor="0x1a03" device="0x2000"/></cpu>'
    body, _ = parse(TWO_GPUS.replace("</cpu>", screen, 1))

    assert len(body.gpus) == 2


def test_devices_outside_of_any_cpu_are_told() -> None:
    pci, cpu = '<pci busid="0000:11:00.0" class="0x030200"/>', '<cpu numaid="0"><gpu dev="0"/></cpu>'
    body, problems = parse(f'<system version="1">{pci}{cpu}</system>')

    assert len(body.gpus) == 1
    assert len(problems) == 2


@pytest.mark.parametrize("file", OTHERS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_file_of_another_kind_is_taken_for_a_topology(file: Path) -> None:
    assert not recognise(text_of(file)[: 256 << 10])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_topology_is_recognised(file: Path) -> None:
    assert recognise(text_of(file))
    assert KINDS[0].recognise(text_of(file))


MANY = "".join(f'<pci busid="0000:{i % 256:02x}:00.0" class="0x030200"/>' for i in range(90_000))


@pytest.mark.parametrize(
    "text",
    [
        '<system version="1"><cpu numaid="0">' + MANY + "</cpu></system>",
        '<system version="1">' + "<cpu>" * 1_000_000,
        '<system version="1"><cpu numaid="0" affinity="' + "f" * 5_000_000 + '"/></system>',
        "<system " * 600_000,
        "<!--" * 1_200_000 + "<system><cpu/></system>",
        "<system version='1'><cpu/>" + "\t<" * 2_000_000,
        "\t" * 5_000_000 + "<system version='1'><cpu/></system>",
        "<system version='1'><cpu>" + "\n" * 5_000_000 + "</cpu></system>",
        "<system><cpu numaid='" + "9" * 5_000_000 + "'/></system>",
    ],
)
def test_five_megabytes_of_nonsense_take_no_time(text: str) -> None:
    start = time.perf_counter()
    recognise(text)
    try:
        parse(text)
    except InputError:
        pass

    assert time.perf_counter() - start < 2


BROKEN = broken([text_of(file) for file in READABLE])


@settings(max_examples=60, deadline=None)
@given(st.one_of(BROKEN, st.text(max_size=200), st.text(max_size=60).map(lambda t: f"<system>{t}<cpu/>")))
def test_any_text_gives_a_topology_or_a_reason(text: str) -> None:
    recognise(text)
    try:
        body, problems = parse(text)
    except InputError:
        return

    assert body.cpus or body.unclassified or body.gpus or body.nets or body.bridges
    assert all(problems)
