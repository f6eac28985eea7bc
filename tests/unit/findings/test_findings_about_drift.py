"""Nodes that should be alike and are not."""

from __future__ import annotations

from typing import Any

import pytest
from scans import gpu, node_scan, scan_of

from topo_tune.findings.drift import RULES
from topo_tune.findings.judge import find
from topo_tune.records.finding import Severity
from topo_tune.records.hardware import GpuHealth, GpuNvlinks, Host, NvlinkLink
from topo_tune.records.matrix import TopologyMatrix
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.scan import Absent, Cpu, NcclFile, NcclFileSetting, NcclLibrary, Nic, NodeScan, Scan


def cpu(vendor: str, model: str = "Xeon") -> Cpu:
    return Cpu(vendor, model, "x86_64", 2, 112, 224)


def matrix(link: str) -> TopologyMatrix:
    return TopologyMatrix(("GPU0", "GPU1"), (), (("X", link), (link, "X")), (None, None), (None, None))


def nvlinks(active: int) -> GpuNvlinks:
    return GpuNvlinks(0, None, None, tuple(NvlinkLink(i, i < active) for i in range(18)))


def nic(name: str, speed: float, *, is_virtual: bool = False, kind: str = "infiniband") -> Nic:
    return Nic(name, kind, True, speed, 0, "mlx5_core", is_virtual=is_virtual)


def system_file(*settings: tuple[str, str]) -> NcclFile:
    return NcclFile(
        "/etc/nccl.conf", True, "0", tuple(NcclFileSetting(i, *pair) for i, pair in enumerate(settings, 1))
    )


# rule -> (what most nodes have, what the odd node has, what differs and may)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "drift-nccl": ({"torch_nccl": "2.28.9"}, {"torch_nccl": "2.27.3"}, {"torch_nccl": None}),
    "drift-torch": ({"torch": "2.11.0"}, {"torch": "2.10.0"}, {"torch": None}),
    "drift-driver": ({"driver": "580.95"}, {"driver": "570.86"}, {"driver": None}),
    "drift-gpus": (
        {"gpus": (gpu(0), gpu(1))},
        {"gpus": (gpu(0),)},
        {"gpus": (gpu(1, uuid="x"), gpu(0, memory_bytes=1))},
    ),
    "drift-vbios": (
        {"gpu_health": (GpuHealth(vbios="96.00"),)},
        {"gpu_health": (GpuHealth(vbios="95.00"),)},
        {"gpu_health": (GpuHealth(vbios=None),)},
    ),
    "drift-topology": ({"matrix": matrix("NV18")}, {"matrix": matrix("SYS")}, {"matrix": None}),
    "drift-nvlinks": ({"nvlinks": (nvlinks(18),)}, {"nvlinks": (nvlinks(17),)}, {"nvlinks": ()}),
    "drift-nics": (
        {"nics": (nic("mlx5_0", 400), nic("mlx5_1", 400))},
        {"nics": (nic("mlx5_0", 400),)},
        # other names, a slow management port, a veth that claims 10 Gbit/s
        {
            "nics": (
                nic("ib0", 400),
                nic("ib1", 400),
                nic("eno1", 1, kind="ethernet"),
                nic("veth0", 10, kind="ethernet", is_virtual=True),
            )
        },
    ),
    "drift-nic-firmware": (
        {"rdma": (RdmaDevice("mlx5_0", (), "MT4129", "28.39"),)},
        {"rdma": (RdmaDevice("mlx5_0", (), "MT4129", "28.35"),)},
        {"rdma": (RdmaDevice("mlx5_7", (), "MT4129", "28.39"),)},
    ),
    "drift-nic-driver": (
        {"host": Host(modules=(("mlx5_core", "24.10"),))},
        {"host": Host(modules=(("mlx5_core", "23.10"),))},
        {"host": Host(modules=(("mlx5_core", None),))},
    ),
    "drift-kernel": ({"kernel": "6.8.0"}, {"kernel": "5.15.0"}, {"kernel": "unknown"}),
    "drift-cpu-vendor": (
        {"cpu": cpu("GenuineIntel")},
        {"cpu": cpu("AuthenticAMD")},
        {"cpu": cpu("GenuineIntel", "E5")},
    ),
    "drift-cpu-model": (
        {"cpu": cpu("GenuineIntel", "8480C")},
        {"cpu": cpu("GenuineIntel", "8462Y")},
        {"cpu": cpu("AuthenticAMD", "8480C")},
    ),
    "drift-memory": (
        {"memory_bytes": 2048 << 30},
        {"memory_bytes": 1984 << 30},
        {"memory_bytes": (2048 << 30) - (5 << 30)},
    ),
    "drift-nccl-conf": (
        {"nccl_files": (system_file(("NCCL_ALGO", "Ring"), ("NCCL_DEBUG", "WARN")),)},
        {"nccl_files": (system_file(("NCCL_ALGO", "Tree"), ("NCCL_DEBUG", "WARN")),)},
        {"nccl_files": (system_file(("NCCL_DEBUG", "WARN"), ("NCCL_ALGO", "Ring")),)},
    ),
    "drift-nccl-environment": (
        {"nccl_environment": (("NCCL_DEBUG", "WARN"),)},
        {"nccl_environment": (("NCCL_DEBUG", "INFO"),)},
        {"nccl_environment": (("NCCL_DEBUG", "WARN"), ("NCCL_VERSION", "2.27"))},
    ),
}


def four(usual: dict[str, Any], last: dict[str, Any]) -> Scan:
    return scan_of(*(node_scan(f"gpu00{i}", **usual) for i in (1, 2, 3)), node_scan("gpu004", **last))


def a_machine(name: str, model: str, **changes: Any) -> NodeScan:
    return node_scan(name, **({"gpus": tuple(gpu(i, name=model) for i in range(8))} | changes))


FIRES = {rule: four(usual, odd) for rule, (usual, odd, _) in CASES.items()} | {
    "drift-machines": scan_of(a_machine("a1", "NVIDIA H100"), a_machine("b1", "NVIDIA A100"))
}
QUIET = {rule: four(usual, harmless) for rule, (usual, _, harmless) in CASES.items()} | {
    # One that has lost a GPU, and one that tells of none.
    "drift-machines": scan_of(
        a_machine("a1", "NVIDIA H100"),
        a_machine("a2", "NVIDIA H100", gpus=(gpu(0, name="NVIDIA H100"),)),
        node_scan("a3"),
    )
}
ODD_ONES = [rule for rule in RULES if rule.id in CASES]


@pytest.mark.parametrize("rule", ODD_ONES, ids=lambda rule: rule.id)
def test_the_odd_node_is_named_and_no_other(rule) -> None:  # type: ignore[no-untyped-def]
    (finding,) = find(FIRES[rule.id], rules=[rule])

    assert finding.nodes == ("gpu004",)
    assert "3 of 4 nodes" in finding.what


@pytest.mark.parametrize("rule", ODD_ONES, ids=lambda rule: rule.id)
def test_one_node_alone_cannot_drift(rule) -> None:  # type: ignore[no-untyped-def]
    assert find(scan_of(node_scan(**CASES[rule.id][1])), rules=[rule]) == ()


def test_where_no_value_is_the_usual_one_every_node_is_named_with_its_value() -> None:
    scan = scan_of(node_scan("a1", driver="580.95"), node_scan("a2", driver="570.86"))

    (finding,) = find(scan, rules=RULES)

    assert finding.rule == "drift-driver"
    assert finding.nodes == ("a1", "a2")
    assert finding.what == "nodes differ in NVIDIA driver: 580.95 on a1; 570.86 on a2"


def test_a_thousand_odd_nodes_are_one_finding() -> None:
    usual = [node_scan(f"n{i}", driver="580.95") for i in range(1001)]
    odd = [node_scan(f"o{i}", driver="570.86") for i in range(1000)]

    (finding,) = find(scan_of(*usual, *odd), rules=RULES)

    assert len(finding.nodes) == 1000
    assert finding.evidence == ()


@pytest.mark.parametrize(
    ("name", "severity"), [("NCCL_ALGO", Severity.ERROR), ("NCCL_SOCKET_IFNAME", Severity.WARNING)]
)
def test_files_are_as_bad_as_the_variable_in_which_they_differ(name: str, severity: Severity) -> None:
    usual = {"nccl_files": (system_file((name, "a")),)}

    (finding,) = find(four(usual, {"nccl_files": (system_file((name, "b")),)}), rules=RULES)

    assert (finding.rule, finding.severity) == ("drift-nccl-conf", severity)


def test_a_very_long_value_is_cut() -> None:
    long = {"nccl_files": (system_file(*(("NCCL_IB_HCA", "mlx5_" * 100),)),)}

    (finding,) = find(four(long, {"nccl_files": (system_file(),)}), rules=RULES)

    assert len(finding.what) < 200
    assert finding.evidence == ("none of it", f"usual: `NCCL_IB_HCA={'mlx5_' * 100}`")


def test_what_torch_brings_on_one_node_is_not_held_against_anothers_system() -> None:
    system = node_scan("a2", nccl_libraries=(NcclLibrary("/usr/lib/libnccl.so.2", "2.21.5", "system"),))

    assert find(scan_of(node_scan("a1", torch_nccl="2.28.9"), system), rules=RULES) == ()


def test_nodes_with_other_gpus_are_told_to_have_those_and_no_more() -> None:
    usual = {"gpus": (gpu(0), gpu(1)), "matrix": matrix("NV18"), "gpu_health": (GpuHealth(vbios="96.00"),)}
    odd = {
        "gpus": (gpu(0, name="NVIDIA L4"),),
        "matrix": matrix("SYS"),
        "gpu_health": (GpuHealth(vbios="95.02"),),
    }

    assert [finding.rule for finding in find(four(usual, odd), rules=RULES)] == ["drift-gpus"]


def test_a_file_that_ends_before_the_last_gpu_is_not_held_against_its_node() -> None:
    cut = (Absent("gpus.txt", "sections of 1 GPUs only, of 2 that are attached"),)

    assert find(four({"gpus": (gpu(0), gpu(1))}, {"gpus": (gpu(0),), "absent": cut}), rules=RULES) == ()


def test_a_lost_card_is_told_and_a_port_that_is_down_is_not() -> None:
    def cards(count: int, state: str = "Active") -> dict[str, Any]:
        port = RdmaPort(1, state=state)
        return {"rdma": tuple(RdmaDevice(f"mlx5_{i}", (port,), "MT4129") for i in range(count))}

    (finding,) = find(four(cards(8), cards(7)), rules=RULES)

    assert finding.what == "NICs: 7 x MT4129, where 3 of 4 nodes have 8 x MT4129"
    assert find(four(cards(8), cards(8, "Down")), rules=RULES) == ()


def test_different_machines_are_one_notice_whatever_else_differs() -> None:
    one = a_machine("a1", "NVIDIA H100", driver="580.95", kernel="6.8.0", torch_nccl="2.28.9")
    other = a_machine("b1", "NVIDIA A100", driver="570.86", kernel="5.15.0", torch_nccl="2.21.5")

    (finding,) = find(scan_of(one, other), rules=RULES)

    assert (finding.rule, finding.severity) == ("drift-machines", Severity.NOTICE)
    assert finding.what == "these look like different machines: NVIDIA H100 on a1; NVIDIA A100 on b1"


def test_nodes_of_one_kind_among_several_are_compared_with_each_other() -> None:
    old = [a_machine(f"a{i}", "NVIDIA A100", driver="570.86") for i in (1, 2, 3)]
    new = [a_machine(f"b{i}", "NVIDIA H100", driver="580.95") for i in (1, 2)]
    odd = a_machine("b3", "NVIDIA H100", driver="580.65")

    findings = find(scan_of(*old, *new, odd), rules=RULES)

    assert [(finding.rule, len(finding.nodes)) for finding in findings] == [
        ("drift-driver", 1),
        ("drift-machines", 6),
    ]


def test_without_gpus_many_kinds_of_cards_are_different_machines() -> None:
    def cards(*types: str) -> Scan:
        return scan_of(
            *(node_scan(f"n{i}", rdma=(RdmaDevice("mlx5_0", (), t),)) for i, t in enumerate(types))
        )

    def rules(*types: str) -> list[str]:
        return [finding.rule for finding in find(cards(*types), rules=RULES)]

    assert rules("MT4129", "MT4123", "MT4119") == ["drift-machines"]
    assert rules("MT4129", "MT4123") == ["drift-nics"]


def test_sides_are_told_in_short_and_their_values_in_full_line_by_line() -> None:
    def matrices(*links: str) -> Scan:
        def wide(link: str) -> TopologyMatrix:
            rows = tuple(tuple("X" if i == j else link for j in range(8)) for i in range(8))
            return TopologyMatrix(tuple(f"GPU{i}" for i in range(8)), (), rows, (None,) * 8, (None,) * 8)

        return scan_of(*(node_scan(f"n{i}", matrix=wide(link)) for i, link in enumerate(links)))

    (finding,) = find(matrices("NV18", "SYS"), rules=RULES)

    assert len(finding.what) < 220
    assert finding.rule == "drift-topology"
    assert [line.split(":")[0] for line in finding.evidence] == ["n0", "n1"]
    assert finding.evidence[1].endswith("SYS SYS SYS SYS SYS SYS SYS X")


def test_without_gpus_and_cards_machines_are_known_by_how_their_gpus_are_joined() -> None:
    scan = scan_of(*(node_scan(f"n{i}", matrix=matrix(link)) for i, link in enumerate(("NV4", "PHB", "SYS"))))

    (finding,) = find(scan, rules=RULES)

    assert finding.rule == "drift-machines"
    assert "2 GPUs joined by NV4 on n0" in finding.what


def test_a_value_that_less_than_half_have_is_not_the_usual_one() -> None:
    drivers = ("580.95", "580.95", "570.86", "570.87", "570.88")

    (finding,) = find(scan_of(*(node_scan(f"n{i}", driver=d) for i, d in enumerate(drivers))), rules=RULES)

    assert finding.what.startswith("nodes differ in NVIDIA driver: 580.95 on n[0-1]; ")


def test_only_the_settings_that_differ_are_shown() -> None:
    (finding,) = find(FIRES["drift-nccl-conf"], rules=RULES)

    assert finding.what == "`/etc/nccl.conf`: `NCCL_ALGO=Tree`, where 3 of 4 nodes have `NCCL_ALGO=Ring`"


def test_a_thousand_values_are_not_a_thousand_sides() -> None:
    scan = scan_of(*(node_scan(f"n{i}", driver=f"580.{i}") for i in range(1000)))

    (finding,) = find(scan, rules=RULES)

    assert len(finding.what) < 200
    assert finding.what.endswith("; and 996 more")
