"""What the rules about the network find, and what must not alarm them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden_facts import FACTS
from scans import node_scan, scan_of

from topo_tune.findings import network
from topo_tune.findings.in_force import in_force, name_list, number
from topo_tune.findings.judge import find
from topo_tune.findings.network.sockets import taken
from topo_tune.records.finding import Finding, Severity
from topo_tune.records.hardware import Host
from topo_tune.records.network import Gid, RdmaDevice, RdmaPort, RoceSettings
from topo_tune.records.provenance import Layer, Reach, SettingOrigin
from topo_tune.records.scan import NcclFile, NcclFileSetting, NcclPlugin, Nic, NodeScan, Scan
from topo_tune.scan.from_files import scan_from

# --- what healthy hardware looks like ----------------------------------------------------------------------


def port(**changes: Any) -> RdmaPort:
    """An active port of a 400 Gbit/s InfiniBand fabric."""
    given: dict[str, Any] = {
        "port": 1,
        "state": "Active",
        "physical_state": "LinkUp",
        "rate_gbit_per_s": 400.0,
        "link_layer": "InfiniBand",
        "active_mtu_bytes": 4096,
        "max_mtu_bytes": 4096,
        "lid": 7,
        "sm_lid": 1,
    }
    return RdmaPort(**(given | changes))


def device(index: int = 0, *, on_card: int | None = None, **changes: Any) -> RdmaDevice:
    """A ConnectX-7 with one port, a card of its own; `changes` of `port` are those of its port."""
    own = changes.pop("port", {})
    given: dict[str, Any] = {
        "name": f"mlx5_{index}",
        "ports": (port(**own),),
        "type": "MT4129",
        "firmware": "28.39.1002",
        "board": "MT_0000000838",
        "system_guid": f"card-{index if on_card is None else on_card}",
        "driver": "mlx5_core",
        "is_virtual_function": False,
    }
    return RdmaDevice(**(given | changes))


def devices(count: int = 4, **changes: Any) -> tuple[RdmaDevice, ...]:
    return tuple(device(index, **changes) for index in range(count))


def node(
    *rdma: RdmaDevice, name: str = "gpu001", conf: dict[str, str] | None = None, **changes: Any
) -> NodeScan:
    """A node with these devices, and these lines in its /etc/nccl.conf."""
    lines = tuple(NcclFileSetting(i, key, value) for i, (key, value) in enumerate((conf or {}).items(), 1))
    files = (NcclFile("/etc/nccl.conf", True, None, lines),) if conf else ()
    return node_scan(name, rdma=rdma, nccl_files=files, **changes)


DOWN = {"state": "Down", "physical_state": "Disabled", "rate_gbit_per_s": 40.0}
V2 = "RoCE v2"


def gid(index: int, address: str | None, kind: str = V2) -> Gid:
    text = "fe80:0000:0000:0000:0000:0000:0000:0001" if address is None else f"mapped-{address}"
    return Gid(index, text, kind, address, "eth0")


GIDS = (gid(0, None, "RoCE v1"), gid(1, None), gid(2, "10.0.0.1", "RoCE v1"), gid(3, "10.0.0.1"))
GIDS_LATER = tuple(msgspec.structs.replace(row, index=row.index + 4) for row in GIDS)


def roce(index: int = 0, **changes: Any) -> RdmaDevice:
    """A ConnectX-7 of a 400 Gbit/s RoCE fabric."""
    given = {"link_layer": "Ethernet", "lid": 0, "sm_lid": 0, "netdev": f"eth{index}", "gids": GIDS}
    return device(index, port=given | changes)


def settings(index: int = 0, **changes: Any) -> RoceSettings:
    """Lossless on priority 3, as most set-ups have it."""
    on = (False, False, False, True, False, False, False, False)
    given: dict[str, Any] = {"netdev": f"eth{index}", "trust": "dscp", "pfc": on, "ecn": on}
    return RoceSettings(**(given | changes))


NONE_ON = (False,) * 8
PRIORITY_5 = (False, False, False, False, False, True, False, False)


def roce_node(name: str = "gpu001", *qos: RoceSettings, conf: dict[str, str] | None = None) -> NodeScan:
    return node(roce(0), roce(1), name=name, roce=qos, conf={"NCCL_IB_TC": "106"} if conf is None else conf)


def nic(name: str, *addresses: str, **changes: Any) -> Nic:
    given: dict[str, Any] = {
        "kind": "ethernet",
        "is_up": True,
        "speed_gbit_per_s": 25.0,
        "numa_node": None,
        "driver": None,
        "addresses": addresses,
        "mtu_bytes": 9000,
    }
    return Nic(name, **(given | changes))


LO = nic("lo", "127.0.0.1/8", kind="loopback", is_up=None, mtu_bytes=65536, speed_gbit_per_s=None)
DOCKER0 = nic("docker0", "172.17.0.1/16", kind="other", mtu_bytes=1500)
IB0 = nic("ib0", "10.1.0.1/16", kind="other", mtu_bytes=2044)


def nics(name: str, *given: Nic, conf: dict[str, str] | None = None, **changes: Any) -> NodeScan:
    return node(name=name, nics=(LO, DOCKER0, *given), conf=conf, **changes)


def three(first: NodeScan, other: NodeScan) -> Scan:
    """One node, and two that are alike."""
    return scan_of(
        first, *(msgspec.structs.replace(other, node=f"gpu00{i}", hostname=f"gpu00{i}") for i in (2, 3))
    )


def counting(index: int, **counters: int) -> RdmaDevice:
    return device(index, port={"counters": tuple(counters.items())})


# --- one case in which each rule fires, and the nearest in which it must not -------------------------------

SECOND_PORTS_UNUSED = tuple(
    device(2 * card + half, on_card=card, port=DOWN if half else {}) for card in range(4) for half in range(2)
)
STORAGE = RdmaDevice(
    "mlx5_bond_0",
    (port(rate_gbit_per_s=50.0, link_layer="Ethernet", active_mtu_bytes=1024),),
    type="MT4127",
    driver="mlx5_core",
    is_virtual_function=False,
)
FUNCTION = device(9, is_virtual_function=True)
EXACT = {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"}

FIRES: dict[str, Scan] = {
    "rdma-port-down": scan_of(node(*devices(3), device(3, port=DOWN))),
    "rdma-none-active": three(node(*devices(2, port=DOWN)), node(*devices(2))),
    "rdma-port-slow": scan_of(node(*devices(3), device(3, port={"rate_gbit_per_s": 200.0}))),
    "rdma-rate-below-card": scan_of(node(device(type="MT4123", port={"rate_gbit_per_s": 56.0}))),
    "rdma-port-initializing": scan_of(node(device(port={"state": "Init"}))),
    "rdma-no-subnet-manager": scan_of(node(device(port={"sm_lid": 0}))),
    "rdma-mixed-link-layers": scan_of(node(*devices(3), roce(3))),
    "rdma-slow-among-fast": scan_of(node(*devices(4), STORAGE)),
    "rdma-firmware-differs": scan_of(node(*devices(3), device(3, firmware="28.41.1000"))),
    "rdma-virtual-functions": scan_of(node(*devices(2), FUNCTION)),
    "ib-hca-nothing": scan_of(node(*devices(2), conf={"NCCL_IB_HCA": "mlx4"})),
    "ib-hca-missing": scan_of(node(*devices(2), conf={"NCCL_IB_HCA": "=mlx5_0,mlx5_7"})),
    "ib-hca-down": scan_of(node(device(0), device(1, port=DOWN), conf={"NCCL_IB_HCA": "=mlx5_0,mlx5_1"})),
    "ib-hca-prefix": scan_of(node(*devices(12), conf={"NCCL_IB_HCA": "mlx5_0,mlx5_1"})),
    "ib-hca-leaves-out": scan_of(node(*devices(4), conf={"NCCL_IB_HCA": "=mlx5_0,mlx5_1"})),
    "rdma-link-errors": scan_of(node(counting(0, symbol_error=2345))),
    "rdma-link-flapped": scan_of(
        node(*(counting(i, link_downed=2) for i in range(3)), counting(3, link_downed=40))
    ),
    "rdma-retransmissions": scan_of(
        node(*(counting(i, out_of_sequence=900) for i in range(3)), counting(3, out_of_sequence=90_000))
    ),
    "roce-out-of-order": scan_of(
        node(roce(counters=(("out_of_sequence", 5_000), ("port_rcv_packets", 10_000_000))))
    ),
    "roce-damaged-packets": scan_of(node(roce(counters=(("rx_icrc_encapsulated", 300),)))),
    "rdma-mtu-small": scan_of(node(roce(0, active_mtu_bytes=1024), roce(1, active_mtu_bytes=1024))),
    "rdma-mtu-differs": three(node(device(port={"active_mtu_bytes": 2048})), node(device())),
    "roce-interface-mtu": scan_of(
        node(
            *(roce(i, active_mtu_bytes=None) for i in range(2)),
            nics=(nic("eth0", mtu_bytes=1500), nic("eth1", mtu_bytes=1500)),
        )
    ),
    "roce-no-ipv4-gid": scan_of(node(*(roce(i, gids=GIDS[:2]) for i in range(2)))),
    "roce-gid-index-wrong": scan_of(node(roce(gids=GIDS_LATER), conf={"NCCL_IB_GID_INDEX": "3"})),
    "roce-no-common-gid-index": scan_of(node(roce(0), roce(1, gids=GIDS_LATER))),
    "roce-pfc-off": scan_of(roce_node("gpu001", settings(pfc=NONE_ON, ecn=None))),
    "roce-pfc-differs": three(roce_node("gpu001", settings(pfc=PRIORITY_5)), roce_node("gpu002", settings())),
    "roce-ecn-off": scan_of(roce_node("gpu001", settings(ecn=NONE_ON))),
    "roce-ecn-differs": three(roce_node("gpu001", settings(ecn=NONE_ON)), roce_node("gpu002", settings())),
    "roce-trust-differs": three(roce_node("gpu001", settings(trust="pcp")), roce_node("gpu002", settings())),
    "roce-traffic-class-ignored": scan_of(roce_node("gpu001", settings(trust="pcp"))),
    "roce-traffic-class-lossy": scan_of(roce_node("gpu001", settings(pfc=PRIORITY_5))),
    "roce-traffic-class-unset": scan_of(roce_node("gpu001", settings(), conf={})),
    "socket-ifname-missing": scan_of(
        nics("gpu001", nic("eno1", "10.0.0.1/24"), conf={"NCCL_SOCKET_IFNAME": "eth0"})
    ),
    "socket-ifname-down": scan_of(
        nics("gpu001", nic("eth0", "10.0.0.1/24", is_up=False), conf={"NCCL_SOCKET_IFNAME": "eth0"})
    ),
    "socket-ifname-loopback": three(
        nics("gpu001", nic("eth0", "10.0.0.1/24"), conf={"NCCL_SOCKET_IFNAME": "lo"}),
        nics("gpu002", nic("eth0", "10.0.0.2/24")),
    ),
    "socket-host-only": three(
        nics("gpu001", nic("eth0", "10.0.0.1/24"), nic("cali12ab", "fe80::1/64", kind="other")),
        nics("gpu002", nic("eth0", "10.0.0.2/24")),
    ),
    "socket-ipoib": three(
        node(*devices(2), nics=(IB0, nic("eth0", "10.0.0.1/24"))), node(*devices(2), nics=(LO,))
    ),
    "socket-slow-interface": three(
        nics("gpu001", nic("eno1", "10.0.0.1/24", speed_gbit_per_s=1.0), nic("eth0", "10.2.0.1/24")),
        nics("gpu002", nic("eth0", "10.2.0.2/24")),
    ),
    "socket-mtu-small": three(
        nics("gpu001", nic("eth0", "10.0.0.1/24", mtu_bytes=1500)), nics("gpu002", nic("eth0", "10.0.0.2/24"))
    ),
    "interfaces-same-subnet": three(
        nics("gpu001", nic("eth0", "10.0.0.1/24"), nic("eth1", "10.0.0.2/24")), nics("gpu002", nic("eth0"))
    ),
    "interface-no-shared-subnet": three(
        nics("gpu001", nic("eth0", "10.9.0.1/24")), nics("gpu002", nic("eth0", "10.0.0.2/24"))
    ),
    "address-twice": scan_of(
        nics("gpu001", nic("eth0", "10.0.0.1/24")),
        nics("gpu002", nic("eth0", "10.0.0.1/24"), nic("eth1", "10.3.0.2/24")),
        nics("gpu003", nic("eth0", "10.0.0.3/24")),
    ),
    "interface-mtu-differs": three(
        nics("gpu001", nic("eth0", "10.0.0.1/24", mtu_bytes=1500)), nics("gpu002", nic("eth0", "10.0.0.2/24"))
    ),
    "interface-slower": three(
        nics("gpu001", nic("eth0", speed_gbit_per_s=10.0)), nics("gpu002", nic("eth0"))
    ),
    "bond-member-down": scan_of(
        nics("gpu001", nic("eth0", master="bond0"), nic("eth1", master="bond0", is_up=False))
    ),
}

QUIET: dict[str, Scan] = {
    # Second ports without a cable, on every card.
    "rdma-port-down": scan_of(node(*SECOND_PORTS_UNUSED)),
    # A workstation, or a fabric that is not cabled yet.
    "rdma-none-active": three(node(*devices(2, port=DOWN)), node(*devices(2, port=DOWN))),
    # Two storage ports on one card, beside the compute cards of the same type.
    "rdma-port-slow": scan_of(
        node(*devices(4), *(device(i, on_card=8, port={"rate_gbit_per_s": 200.0}) for i in (8, 9)))
    ),
    # HDR100 on an HDR card: sold that way.
    "rdma-rate-below-card": scan_of(node(device(type="MT4123", port={"rate_gbit_per_s": 100.0}))),
    "rdma-port-initializing": scan_of(node(device(port=DOWN))),
    # RoCE has no subnet manager.
    "rdma-no-subnet-manager": scan_of(node(roce())),
    "rdma-mixed-link-layers": scan_of(node(*devices(3), roce(3), conf={"NCCL_IB_HCA": "^=mlx5_3"})),
    "rdma-slow-among-fast": scan_of(node(*devices(4), STORAGE, conf=EXACT)),
    # Another kind of card has another firmware.
    "rdma-firmware-differs": scan_of(node(*devices(3), device(3, type="MT4125", firmware="22.38.1002"))),
    "rdma-virtual-functions": scan_of(node(*devices(2, is_virtual_function=True))),
    "ib-hca-nothing": scan_of(node(*devices(2), conf={"NCCL_IB_HCA": "^mlx5_9"})),
    "ib-hca-missing": scan_of(node(*devices(4), conf={"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1,mlx5_2,mlx5_3"})),
    "ib-hca-down": scan_of(node(device(0), device(1, port=DOWN), conf={"NCCL_IB_HCA": "=mlx5_0"})),
    "ib-hca-prefix": scan_of(node(*devices(12), conf={"NCCL_IB_HCA": "mlx5"})),
    "ib-hca-leaves-out": scan_of(node(*devices(4), STORAGE, conf=EXACT)),
    "rdma-link-errors": scan_of(node(counting(0, symbol_error=3, port_rcv_packets=9_000_000))),
    # The switch was restarted.
    "rdma-link-flapped": scan_of(node(*(counting(i, link_downed=30 + i) for i in range(4)))),
    # All alike: adaptive routing reorders on all.
    "rdma-retransmissions": scan_of(node(*(counting(i, out_of_sequence=90_000 + i) for i in range(4)))),
    "roce-out-of-order": scan_of(
        node(roce(counters=(("out_of_sequence", 5_000), ("port_rcv_packets", 10_000_000_000))))
    ),
    "roce-damaged-packets": scan_of(node(roce(counters=(("rx_icrc_encapsulated", 0),)))),
    # A virtual machine's only function, which carries no jobs.
    "rdma-mtu-small": scan_of(node(msgspec.structs.replace(roce(active_mtu_bytes=1024), type="MT4120"))),
    # Ports that are down show some default.
    "rdma-mtu-differs": three(
        node(device(0), device(1, port={**DOWN, "active_mtu_bytes": 1024})), node(device(0), device(1))
    ),
    "roce-interface-mtu": scan_of(
        node(*(roce(i, active_mtu_bytes=None) for i in range(2)), nics=(nic("eth0"), nic("eth1")))
    ),
    # A pod that sees devices whose interfaces are not in its namespace: tables are empty there.
    "roce-no-ipv4-gid": scan_of(node(roce(0), roce(1, gids=(), netdev=None))),
    "roce-gid-index-wrong": scan_of(node(roce(), conf={"NCCL_IB_GID_INDEX": "3"})),
    "roce-no-common-gid-index": scan_of(node(roce(0), roce(1, gids=(*GIDS, *GIDS_LATER)))),
    "roce-pfc-off": scan_of(roce_node("gpu001", settings(pfc=None))),
    "roce-pfc-differs": three(roce_node("gpu001", settings(pfc=None)), roce_node("gpu002", settings())),
    "roce-ecn-off": scan_of(roce_node("gpu001", settings(ecn=None))),
    "roce-ecn-differs": three(roce_node("gpu001", settings(ecn=None)), roce_node("gpu002", settings())),
    "roce-trust-differs": three(roce_node("gpu001", settings(trust=None)), roce_node("gpu002", settings())),
    # Class 0 is priority 0 by either mark.
    "roce-traffic-class-ignored": scan_of(
        roce_node("gpu001", settings(trust="pcp"), conf={"NCCL_IB_TC": "0"})
    ),
    # The device's own class wins over NCCL's.
    "roce-traffic-class-lossy": scan_of(
        roce_node("gpu001", settings(pfc=PRIORITY_5, traffic_class=(40 << 2) | 2), conf={"NCCL_IB_TC": "106"})
    ),
    "roce-traffic-class-unset": scan_of(roce_node("gpu001", settings(traffic_class=106), conf={})),
    "socket-ifname-missing": scan_of(
        nics("gpu001", nic("eno1", "10.0.0.1/24"), conf={"NCCL_SOCKET_IFNAME": "^docker,lo"})
    ),
    "socket-ifname-down": scan_of(
        nics(
            "gpu001",
            nic("eth0", "10.0.0.1/24", is_up=False),
            nic("eth1", "10.1.0.1/24"),
            conf={"NCCL_SOCKET_IFNAME": "eth"},
        )
    ),
    # On a single machine the loopback interface does.
    "socket-ifname-loopback": scan_of(nics("gpu001", nic("eth0"), conf={"NCCL_SOCKET_IFNAME": "lo"})),
    # A pod: its `eth0` is one end of a pair and the only way out.
    "socket-host-only": three(
        nics("gpu001", nic("eth0", "10.0.0.1/24", kind="other", is_virtual=True)),
        nics("gpu002", nic("eth0", "10.0.0.2/24", kind="other", is_virtual=True)),
    ),
    "socket-ipoib": three(
        node(*devices(2), nics=(IB0, nic("eth0", "10.0.0.1/24")), conf={"NCCL_SOCKET_IFNAME": "=eth0"}),
        node(*devices(2), nics=(LO,)),
    ),
    # Data goes over RDMA; the slow interface serves bootstrap.
    "socket-slow-interface": three(
        node(
            *devices(2),
            nics=(nic("eno1", "10.0.0.1/24", speed_gbit_per_s=1.0), nic("eth0", "10.2.0.1/24")),
        ),
        node(*devices(2)),
    ),
    "socket-mtu-small": three(
        nics("gpu001", nic("eth0", "10.0.0.1/24", mtu_bytes=1500, speed_gbit_per_s=10.0)),
        nics("gpu002", nic("eth0", "10.0.0.2/24")),
    ),
    # The members of a bond, and a laptop's wire beside its radio.
    "interfaces-same-subnet": scan_of(
        nics("gpu001", nic("eth0", "10.0.0.1/24"), nic("wlan0", "10.0.0.2/24"))
    ),
    # A routed fabric: every node has a subnet of its own.
    "interface-no-shared-subnet": scan_of(
        *(nics(f"gpu00{i}", nic("eth0", f"10.{i}.0.1/24")) for i in range(1, 4))
    ),
    # The service processor's network on USB, and containers' networks.
    "address-twice": scan_of(
        nics("gpu001", nic("eth0", "10.0.0.1/24"), nic("usb0", "10.77.0.1/24")),
        nics("gpu002", nic("eth1", "10.0.0.2/31"), nic("usb0", "10.77.0.1/24")),
        # A link inside of each machine, to a card with an operating system of its own.
        nics("gpu003", nic("p0", "192.168.100.1/24")),
        nics("gpu004", nic("p0", "192.168.100.1/24"), nic("eth1", "10.0.0.4/24")),
    ),
    # Separate networks may have their own.
    "interface-mtu-differs": three(
        nics("gpu001", nic("eth0", "10.0.0.1/24"), nic("eno1", "10.5.0.1/24", mtu_bytes=1500)),
        nics("gpu002", nic("eth0", "10.0.0.2/24"), nic("eno1", "10.5.0.2/24", mtu_bytes=1500)),
    ),
    "interface-slower": scan_of(
        nics("gpu001", nic("eth0", speed_gbit_per_s=10.0)), nics("gpu002", nic("eth0", speed_gbit_per_s=25.0))
    ),
    # A bond that is not in use at all.
    "bond-member-down": scan_of(
        nics("gpu001", nic("eth0", master="bond0", is_up=False), nic("eth1", master="bond0", is_up=False))
    ),
}

# --- content -----------------------------------------------------------------------------------------------


def found(scan: Scan, rule: str | None = None) -> tuple[Finding, ...]:
    rules = [one for one in network.RULES if rule in {None, one.id}]
    return find(scan, rules=rules)


def saved(name: str) -> Scan:
    return scan_from(FACTS / "ib" / name)


def test_two_ports_that_are_down_are_named_as_an_error() -> None:
    (finding,) = found(saved("ibstat-h100-2-of-8-down.txt"), "rdma-port-down")

    assert finding.severity is Severity.ERROR
    assert finding.what == "an RDMA port is down while others like it are up"
    assert finding.evidence == (
        "mlx5_5: Down, Disabled, Ethernet, MT4129, 40 Gbit/s",
        "mlx5_11: Down, Disabled, Ethernet, MT4129, 40 Gbit/s",
    )


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("ibstat-h100-12ca-roce-all-active.txt", ["rdma-slow-among-fast"]),
        ("ibstat-h100-2-of-8-down.txt", ["rdma-port-down", "rdma-slow-among-fast"]),
        # Three unused Ethernet ports that are down are no fault; the fourth, which is up, is one NCCL would use.
        ("ibstat-h100-3-down-disabled.txt", ["rdma-slow-among-fast"]),
        ("ibstat-h100-bond-gap.txt", ["rdma-slow-among-fast"]),
        ("ibstat-a100-8ib-1eth.txt", ["rdma-mixed-link-layers"]),
        ("ibstatus-a100.txt", ["rdma-slow-among-fast"]),
        ("ibstatus-azure-an0.txt", []),
        # Four ports, all down.
        ("ibv-devinfo-4port-roce.txt", ["rdma-none-active", "rdma-firmware-differs"]),
        ("rdma-link-gke-no-netdev.txt", []),
        ("show-gids-container-vf.txt", []),
        ("ethtool-ipoib-eth1.txt", []),
    ],
)
def test_real_outputs_alarm_about_what_is_there_and_nothing_else(name: str, rules: list[str]) -> None:
    assert [finding.rule for finding in found(saved(name))] == rules


def test_the_cure_for_slow_ports_names_the_fast_ones() -> None:
    (finding,) = found(saved("ibstat-h100-bond-gap.txt"), "rdma-slow-among-fast")

    assert "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9`" in finding.fix[0]
    assert finding.evidence == ("mlx5_bond_0: Active, LinkUp, Ethernet, MT41692, 200 Gbit/s",)


def test_the_common_advice_of_row_three_is_wrong_where_the_table_begins_at_four(tmp_path: Path) -> None:
    (tmp_path / "gpu001").mkdir()
    (tmp_path / "gpu001/gids.txt").write_text((FACTS / "ib/show-gids-container-vf.txt").read_text())
    (tmp_path / "gpu001/nccl.conf").write_text("NCCL_IB_GID_INDEX=3\n")

    (finding,) = found(scan_from(tmp_path), "roce-gid-index-wrong")

    assert finding.severity is Severity.ERROR
    assert "NCCL_IB_GID_INDEX=3" in finding.what
    assert finding.evidence[0] == "mlx5_0: an empty row; RoCE v2 with IPv4 is row 7"
    assert finding.evidence[-1] == "NCCL_IB_GID_INDEX=3 (gpu001/nccl.conf:1)"
    assert "NCCL_IB_GID_INDEX=7" in finding.fix[1]


def test_the_same_trouble_on_many_nodes_is_one_finding() -> None:
    scan = scan_of(*(node(*devices(3), device(3, port=DOWN), name=f"gpu{i:03}") for i in range(1, 41)))

    (finding,) = found(scan, "rdma-port-down")

    assert len(finding.nodes) == 40
    assert finding.evidence == ("mlx5_3: Down, Disabled, InfiniBand, MT4129, 40 Gbit/s",)


def test_a_node_with_few_ports_is_compared_with_the_others() -> None:
    down = three(node(device(0), device(1, port=DOWN)), node(device(0), device(1)))
    slow = three(node(device(port={"rate_gbit_per_s": 200.0})), node(device()))

    assert [(f.nodes, f.what) for f in found(down, "rdma-port-down")] == [
        (("gpu001",), "an RDMA port is down that is up on most other nodes")
    ]
    assert found(slow, "rdma-port-slow")[0].evidence == (
        "mlx5_0: Active, LinkUp, InfiniBand, MT4129, 200 Gbit/s",
    )


def test_the_second_port_of_one_card_is_missed_where_all_other_cards_use_both() -> None:
    used = [device(2 * card + half, on_card=card) for card in range(4) for half in range(2)]
    used[-1] = device(7, on_card=3, port=DOWN)

    assert [finding.evidence[0][:6] for finding in found(scan_of(node(*used)), "rdma-port-down")] == [
        "mlx5_7"
    ]


def test_virtual_functions_software_devices_and_efa_do_not_alarm() -> None:
    unused = tuple(device(i, is_virtual_function=True, port=DOWN) for i in range(4, 8))
    efa = RdmaDevice(
        "rdmap16s27", (port(state="Active", rate_gbit_per_s=100.0, link_layer="Ethernet"),), driver="efa"
    )
    soft = RdmaDevice("rxe0", (port(rate_gbit_per_s=2.5, link_layer="Ethernet", active_mtu_bytes=1024),))

    assert found(scan_of(node(*devices(4), *unused, efa, soft))) == ()


def test_healthy_clusters_say_nothing() -> None:
    infiniband = [node(*devices(8), name=f"gpu00{i}") for i in range(1, 4)]
    lossless = [roce_node(f"gpu00{i}", settings(0), settings(1)) for i in range(1, 4)]
    ethernet = [nics(f"gpu00{i}", nic("eth0", f"10.0.0.{i}/24")) for i in range(1, 4)]

    assert found(scan_of(*infiniband)) == ()
    assert found(scan_of(*lossless)) == ()
    assert found(scan_of(*ethernet)) == ()


def test_a_single_machine_and_an_empty_scan_say_nothing() -> None:
    single = nics(
        "box",
        nic("eth0", "10.0.0.1/24", speed_gbit_per_s=1.0, mtu_bytes=1500),
        nic("br-1a2b3c", "172.18.0.1/16"),
    )

    assert found(scan_of(single)) == ()
    assert found(scan_of(node_scan())) == ()
    assert found(Scan("empty", ())) == ()


def test_one_machine_under_two_names_has_no_address_twice() -> None:
    first = nics("a", nic("eth0", "10.0.0.1/24"))

    assert found(scan_of(first, msgspec.structs.replace(first, node="b")), "address-twice") == ()


def test_a_prefix_that_takes_a_port_that_is_down_is_a_warning() -> None:
    scan = scan_of(node(device(0), device(1, port=DOWN), conf={"NCCL_IB_HCA": "mlx5"}))

    (finding,) = found(scan, "ib-hca-down")

    assert finding.severity is Severity.WARNING


def test_flow_control_that_is_off_is_a_notice_where_ecn_is_on() -> None:
    (finding,) = found(scan_of(roce_node("gpu001", settings(pfc=NONE_ON))), "roce-pfc-off")

    assert finding.severity is Severity.NOTICE


def test_the_traffic_class_to_set_is_the_one_of_the_lossless_priority() -> None:
    (three_on,) = found(scan_of(roce_node("gpu001", settings(), conf={})), "roce-traffic-class-unset")
    (five_on,) = found(
        scan_of(roce_node("gpu001", settings(pfc=PRIORITY_5), conf={})), "roce-traffic-class-unset"
    )

    assert "`NCCL_IB_TC=106` (DSCP 26" in three_on.fix[0]
    assert "`NCCL_IB_TC=162` (DSCP 40" in five_on.fix[0]


def test_the_interfaces_dscp_map_has_the_word_over_the_default_one() -> None:
    qos = settings(pfc=PRIORITY_5, dscp_to_priority=((26, 5),))

    assert found(scan_of(roce_node("gpu001", qos)), "roce-traffic-class-lossy") == ()


def test_settings_of_an_unnamed_interface_are_judged_as_the_nodes() -> None:
    qos = settings(netdev="(unnamed interface)", pfc=NONE_ON, ecn=None)

    assert [finding.rule for finding in found(scan_of(roce_node("gpu001", qos)))] == ["roce-pfc-off"]


def test_ipv6_fabrics_are_told_how_to_be_used() -> None:
    table = (Gid(0, "fd00:0000:0000:0000:0000:0000:0000:0001", V2),)

    (finding,) = found(scan_of(node(roce(0, gids=table), roce(1, gids=table))), "roce-no-ipv4-gid")

    assert "AF_INET6" in finding.fix[0]


def test_data_over_ip_on_infiniband_is_a_warning() -> None:
    conf = {"NCCL_IB_DISABLE": "1"}
    first = node(*devices(2), nics=(IB0, nic("eth0", "10.0.0.1/24")), conf=conf)

    (finding,) = found(three(first, node(*devices(2))), "socket-ipoib")

    assert finding.severity is Severity.WARNING


def test_interfaces_of_containers_are_a_notice_where_data_goes_over_rdma() -> None:
    given = (nic("eth0", "10.0.0.1/24"), nic("veth0", "fe80::1/64", kind="other"))

    (finding,) = found(three(node(*devices(2), nics=given), node(*devices(2))), "socket-host-only")

    assert finding.severity is Severity.NOTICE
    assert "`NCCL_SOCKET_IFNAME==eth0`" in finding.fix[0]


# --- values in force, and lists of names -------------------------------------------------------------------


def test_the_environment_wins_over_files_and_the_first_line_of_a_name_over_later_ones() -> None:
    lines = (NcclFileSetting(1, "NCCL_IB_TC", "106"), NcclFileSetting(2, "NCCL_IB_TC", "0"))
    files = (
        NcclFile("/etc/nccl/conf.d/a.conf", True, None, (NcclFileSetting(1, "NCCL_IB_TC", "41"),)),
        NcclFile("/etc/nccl.conf", True, None, lines),
    )

    from_file = in_force(node_scan(nccl_files=files), "NCCL_IB_TC")
    from_session = in_force(
        node_scan(nccl_files=files, nccl_environment=(("NCCL_IB_TC", "7"),)), "NCCL_IB_TC"
    )

    assert str(from_file) == "NCCL_IB_TC=106 (/etc/nccl.conf:1)"
    assert number(from_session) == 7
    assert in_force(node_scan(nccl_files=files), "NCCL_IB_SL") is None


def test_what_the_scan_found_out_about_layers_has_the_last_word() -> None:
    hidden = SettingOrigin("NCCL_IB_TC", "106", Layer.SYSTEM_FILE, Reach.HIDDEN)
    wins = SettingOrigin("NCCL_IB_TC", "0x6a", Layer.HOME_FILE, Reach.WINS, "/root/.nccl.conf")

    found_out = in_force(node_scan(settings=(hidden, wins)), "NCCL_IB_TC")

    assert number(found_out) == 106
    assert in_force(node_scan(settings=(hidden,)), "NCCL_IB_TC") is None


@pytest.mark.parametrize(
    ("value", "takes"),
    [
        ("eth1", {"eth1", "eth10"}),
        ("=eth1", {"eth1"}),
        ("^eth1", {"eth0", "lo"}),
        ("^=eth1", {"eth0", "eth10", "lo"}),
        ("=eth0,lo", {"eth0", "lo"}),
        ("", {"eth0", "eth1", "eth10", "lo"}),
    ],
)
def test_names_are_taken_as_nccl_takes_them(value: str, takes: set[str]) -> None:
    names = name_list(value)

    assert {name for name in ("eth0", "eth1", "eth10", "lo") if names.takes(name)} == takes


def test_a_port_in_a_list_of_devices_is_that_port_alone() -> None:
    names = name_list("=mlx5_0:1,mlx5_1")

    assert [names.takes("mlx5_0", 1), names.takes("mlx5_0", 2), names.takes("mlx5_1", 2)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((LO, DOCKER0, nic("eth0", "10.0.0.1/24"), IB0), ["ib0"]),
        ((LO, DOCKER0, nic("eth0", "10.0.0.1/24"), nic("eth1")), ["eth0"]),
        ((LO, DOCKER0), ["docker0"]),
        ((LO,), ["lo"]),
        ((nic("eth0"),), []),
    ],
)
def test_without_a_setting_interfaces_are_taken_in_nccls_order(
    given: tuple[Nic, ...], expected: list[str]
) -> None:
    assert [one.name for one in taken(node_scan(nics=given))] == expected


def test_flow_control_that_some_have_and_others_not_is_told_as_a_difference_alone() -> None:
    scan = three(roce_node("gpu001", settings(pfc=NONE_ON, ecn=NONE_ON)), roce_node("gpu002", settings()))

    assert {finding.rule for finding in found(scan)} == {"roce-pfc-differs", "roce-ecn-differs"}


def test_a_row_that_reaches_neighbours_is_a_warning_and_an_empty_one_an_error() -> None:
    def severity(index: str) -> Severity:
        (finding,) = found(scan_of(node(roce(), conf={"NCCL_IB_GID_INDEX": index})), "roce-gid-index-wrong")
        return finding.severity

    assert severity("1") is Severity.WARNING  # RoCE v1, link-local
    assert severity("9") is Severity.ERROR


def test_nccl_that_finds_its_row_itself_needs_no_common_one() -> None:
    ports = (roce(0), roce(1, gids=GIDS_LATER))

    assert found(scan_of(node(*ports, torch_nccl="2.20.5")), "roce-no-common-gid-index")
    assert found(scan_of(node(*ports, torch_nccl="2.21.5")), "roce-no-common-gid-index") == ()
    chosen_by_hand = scan_of(node(*ports, conf={"NCCL_IB_GID_INDEX": "3"}))
    assert found(chosen_by_hand, "roce-no-common-gid-index") == ()  # told as a wrong row


def test_the_default_mtu_of_infiniband_fabrics_is_a_notice() -> None:
    (finding,) = found(
        scan_of(*(node(device(port={"active_mtu_bytes": 2048}), name=f"gpu00{i}") for i in (1, 2))),
        "rdma-mtu-small",
    )

    assert finding.severity is Severity.NOTICE


def test_the_mtu_of_a_single_port_is_a_notice() -> None:
    alone = node(roce(active_mtu_bytes=1024))

    (finding,) = found(scan_of(alone), "rdma-mtu-small")

    assert (finding.severity, finding.evidence) == (Severity.NOTICE, ("mlx5_0: 1024 bytes of 4096",))
    guest = msgspec.structs.replace(alone, host=Host(hypervisor="kvm"))
    assert found(scan_of(guest), "rdma-mtu-small") == ()


def test_a_single_node_whose_ports_are_all_down_is_a_warning() -> None:
    (finding,) = found(saved("ibv-devinfo-4port-roce.txt"), "rdma-none-active")

    assert finding.severity is Severity.WARNING
    assert finding.what == "every RDMA port is down"
    assert len(finding.evidence) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"conf": {"NCCL_IB_DISABLE": "1"}},
        # Told with the variable.
        {"conf": {"NCCL_IB_HCA": "mlx5"}},
    ],
)
def test_ports_that_are_down_and_not_meant_are_not_missed(changes: dict[str, Any]) -> None:
    assert found(scan_of(node(*devices(2, port=DOWN), **changes)), "rdma-none-active") == ()
    assert found(scan_of(node(*devices(2, port={"state": "Init"}))), "rdma-none-active") == ()
    assert found(scan_of(node(*devices(2, port=DOWN, is_virtual_function=True))), "rdma-none-active") == ()


def test_a_node_without_active_ports_is_an_error_beside_its_like_and_a_warning_beside_others() -> None:
    def severity(*own: RdmaDevice) -> Severity:
        (finding,) = found(three(node(*own), node(*devices(2))), "rdma-none-active")
        return finding.severity

    assert severity(*devices(2, port=DOWN)) is Severity.ERROR
    assert severity(*devices(2, port=DOWN, type="MT4125")) is Severity.WARNING


def test_a_port_is_compared_with_nodes_that_have_the_same_cards_only() -> None:
    down = node(*devices(1), device(1, port=DOWN), device(2, type="MT4125"))
    others = [node(*devices(2), name=f"gpu00{i}") for i in (2, 3, 4)]

    assert found(scan_of(down, *others), "rdma-port-down") == ()


def test_ports_of_one_infiniband_fabric_may_share_a_subnet() -> None:
    def severity(*names: str) -> Severity:
        own = tuple(nic(name, f"10.0.0.{i}/24") for i, name in enumerate(names, 1))
        (finding,) = found(scan_of(nics("gpu001", *own), nics("gpu002")), "interfaces-same-subnet")
        return finding.severity

    assert severity("ib0", "ib1") is Severity.NOTICE
    assert severity("eth0", "eth1") is Severity.WARNING


def test_sockets_are_not_judged_where_a_plugin_carries_the_data() -> None:
    slow = (nic("eth0", "10.0.0.1/24", mtu_bytes=1500), nic("eth1", "10.1.0.1/24", speed_gbit_per_s=1.0))
    plugin = NcclPlugin("net", "/opt/libnccl-net.so", "LD_LIBRARY_PATH")
    plain = scan_of(*(nics(f"gpu00{i}", *slow) for i in (1, 2)))
    helped = scan_of(*(nics(f"gpu00{i}", *slow, plugins=(plugin,)) for i in (1, 2)))

    assert found(plain, "socket-mtu-small")
    assert found(plain, "socket-slow-interface")
    assert found(helped, "socket-mtu-small") == ()
    assert found(helped, "socket-slow-interface") == ()


def test_names_of_devices_mean_nothing_where_rdma_is_off() -> None:
    conf = {"NCCL_IB_HCA": "mlx4", "NCCL_IB_DISABLE": "1"}

    assert found(scan_of(node(device(), conf=conf)), "ib-hca-nothing") == ()


def test_a_port_that_waits_for_a_subnet_manager_is_an_error_where_jobs_need_it() -> None:
    waits = {"state": "Init", "physical_state": "LinkUp"}
    (needed,) = found(scan_of(node(device(0, port=waits), device(1))), "rdma-port-initializing")
    (spare,) = found(
        scan_of(node(device(0, type="MT4099", board="other", port=waits), device(1))),
        "rdma-port-initializing",
    )

    assert (needed.severity, spare.severity) == (Severity.ERROR, Severity.WARNING)


def test_ports_that_are_down_or_slow_on_every_node_are_a_plan_or_a_rail_and_no_error() -> None:
    storage = (device(8, port={"rate_gbit_per_s": 200.0}), device(9, port=DOWN))
    planned = tuple(node(*devices(8), *storage, name=f"gpu00{i}") for i in (1, 2, 3))

    everywhere = found(scan_of(*planned))
    here = found(scan_of(planned[0]))

    assert [finding.rule for finding in everywhere] == ["rdma-port-down", "rdma-port-slow"]
    assert {finding.severity for finding in everywhere} == {Severity.WARNING}
    assert [finding.rule for finding in here] == ["rdma-port-down", "rdma-port-slow"]
    assert {finding.severity for finding in here} == {Severity.ERROR}
