"""What the tools that list RDMA devices say: real outputs, other layouts, damaged ones, several of one node."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_facts import FACTS, SHARED
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.network import RdmaDevice, RdmaPort
from topo_tune.records.scan import Nic, NodeScan
from topo_tune.scan.facts.fact import SavedKind
from topo_tune.scan.facts.network import ibstat, ibstatus, ibv_devinfo, rdma, rdma_link, show_gids
from topo_tune.scan.facts.network.rdma_devices import Devices, with_devices
from topo_tune.scan.facts.task_lines import LINES_LIMIT, lines_of_one_task

IB = FACTS / "ib"
FILES = sorted(file for file in IB.glob("*.txt"))
PARSERS = (
    ibstat.parse,
    ibstatus.parse,
    ibv_devinfo.parse,
    ibv_devinfo.parse_names,
    show_gids.parse,
    rdma_link.parse,
    rdma_link.parse_pairs,
)
KIND_OF_FILE = {
    "ibstat-": "`ibstat` output",
    "ibstatu": "`ibstatus` output",
    "ibv-dev": "`ibv_devinfo` output",
    "rdma-li": "`rdma link` output",
    "show-gi": "`show_gids` output",
}


def text_of(name: str) -> str:
    return (IB / name).read_text()


def kind_of(text: str) -> SavedKind | None:
    return next((kind for kind in rdma.KINDS if kind.recognise(text)), None)


def told(*texts: str) -> NodeScan:
    """A node of which these files were saved."""
    scan = node_scan()
    for text in texts:
        kind = kind_of(text)
        assert kind is not None
        assert kind.tell is not None
        scan = kind.tell(scan, text, "file.txt")
    return scan


def ports(found: Devices) -> list[tuple[str, RdmaPort]]:
    return [(device.name, port) for device in found.devices for port in device.ports]


def summary(found: Devices) -> list[tuple[str | None, str | None, str | None, float | None]]:
    """(link layer, state, physical state, rate) of every port."""
    return [(p.link_layer, p.state, p.physical_state, p.rate_gbit_per_s) for _, p in ports(found)]


UP_400_ROCE = ("Ethernet", "Active", "LinkUp", 400.0)
UP_100_ROCE = ("Ethernet", "Active", "LinkUp", 100.0)
UP_400_IB = ("InfiniBand", "Active", "LinkUp", 400.0)
DOWN_40 = ("Ethernet", "Down", "Disabled", 40.0)


def test_twelve_roce_adapters_are_all_active() -> None:
    found = ibstat.parse(text_of("ibstat-h100-12ca-roce-all-active.txt"))

    assert len(found.devices) == 12
    assert sorted(summary(found)) == [UP_100_ROCE] * 4 + [UP_400_ROCE] * 8
    assert [device.name for device in found.devices] == [f"mlx5_{i}" for i in range(12)]
    assert {port.sm_lid for _, port in ports(found)} == {0}
    assert found.problems == ()


def test_three_unused_ethernet_ports_are_down_and_disabled() -> None:
    found = ibstat.parse(text_of("ibstat-h100-3-down-disabled.txt"))

    assert len(found.devices) == 12
    assert sorted(summary(found)) == [UP_100_ROCE] + [DOWN_40] * 3 + [UP_400_IB] * 8
    assert found.devices[0].ports[0].sm_lid == 334
    assert found.problems == ()


def test_two_of_eight_compute_ports_are_down() -> None:
    found = ibstat.parse(text_of("ibstat-h100-2-of-8-down.txt"))

    assert len(found.devices) == 12
    assert sorted(summary(found)) == [UP_100_ROCE] * 4 + [UP_400_ROCE] * 6 + [DOWN_40] * 2
    assert [name for name, port in ports(found) if port.state == "Down"] == ["mlx5_5", "mlx5_11"]


def test_one_adapter_differs_by_its_link_layer_alone() -> None:
    found = ibstat.parse(text_of("ibstat-a100-8ib-1eth.txt"))

    assert (
        summary(found)
        == [("Ethernet", "Active", "LinkUp", 200.0)] + [("InfiniBand", "Active", "LinkUp", 200.0)] * 8
    )
    first = found.devices[0]
    assert (first.type, first.firmware, first.system_guid) == ("MT4126", "22.35.2302", "a000:0000:0000:0002")
    assert (found.devices[1].ports[0].lid, found.devices[1].ports[0].sm_lid) == (1369, 83)


def test_a_gap_in_the_names_and_a_bonded_device_are_read_as_they_are() -> None:
    found = ibstat.parse(text_of("ibstat-h100-bond-gap.txt"))

    assert [device.name for device in found.devices] == [
        *("mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"),
        "mlx5_bond_0",
    ]
    assert summary(found) == [UP_400_IB] * 8 + [("Ethernet", "Active", "LinkUp", 200.0)]


def test_ibstatus_has_another_layout_and_hexadecimal_lids() -> None:
    found = ibstatus.parse(text_of("ibstatus-a100.txt"))

    # Eight compute devices, and behind them the virtual function of the VM's Ethernet.
    assert summary(found) == [("InfiniBand", "Active", "LinkUp", 200.0)] * 8 + [
        ("Ethernet", "Active", "LinkUp", 40.0)
    ]
    assert (found.devices[0].ports[0].lid, found.devices[0].ports[0].sm_lid) == (0x33BF, 1)


def test_ibstatus_of_a_vm_with_a_default_gid_that_is_unknown() -> None:
    found = ibstatus.parse(text_of("ibstatus-azure-an0.txt"))

    assert [device.name for device in found.devices] == ["mlx5_an0", "mlx5_ib0"]
    assert summary(found) == [
        ("Ethernet", "Active", "LinkUp", 40.0),
        ("InfiniBand", "Active", "LinkUp", 200.0),
    ]
    assert found.problems == ()


def test_ibv_devinfo_tells_mtus_and_which_ports_share_a_card() -> None:
    found = ibv_devinfo.parse(text_of("ibv-devinfo-4port-roce.txt"))

    assert [device.name for device in found.devices] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert {port.link_layer for _, port in ports(found)} == {"Ethernet"}
    assert {port.state for _, port in ports(found)} == {"Down"}
    assert [port.active_mtu_bytes for _, port in ports(found)] == [1024, 1024, 4096, 4096]
    assert {port.max_mtu_bytes for _, port in ports(found)} == {4096}
    cards = [device.system_guid for device in found.devices]
    assert cards[0] == cards[1] != cards[2] == cards[3]
    assert {(device.type, device.board) for device in found.devices} == {("MT4129", "MT_0000000834")}
    assert found.devices[2].firmware == "28.43.2566"


def test_a_link_whose_interface_is_in_another_namespace_has_none() -> None:
    found = rdma_link.parse(text_of("rdma-link-gke-no-netdev.txt"))

    assert len(found.devices) == 8
    assert {(port.state, port.physical_state) for _, port in ports(found)} == {("Active", "LinkUp")}
    assert [(name, port.netdev) for name, port in ports(found) if port.netdev] == [("mlx5_3", "gpu3rdma0")]


def test_the_routable_gid_is_row_seven_on_every_device() -> None:
    found = show_gids.parse(text_of("show-gids-container-vf.txt"))

    routable = {name: [gid.index for gid in port.gids if gid.is_routable] for name, port in ports(found)}
    assert routable == {"mlx5_0": [7], "mlx5_1": [7], "mlx5_2": [7]}
    assert [port.netdev for _, port in ports(found)] == ["net1", "net2", "net3"]
    assert [gid.index for gid in found.devices[0].ports[0].gids] == [4, 5, 6, 7]
    assert found.devices[0].ports[0].gids[3].ipv4 == "10.156.129.132"
    assert {port.link_layer for _, port in ports(found)} == {"Ethernet"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_real_output_is_taken_for_what_it_is(file: Path) -> None:
    kind = kind_of(file.read_text())

    assert (kind.name if kind else None) == KIND_OF_FILE.get(file.name[:7])


def test_no_other_file_is_taken_for_output_about_rdma_devices() -> None:
    others = [file for file in SHARED.rglob("*") if file.is_file()] or list(FACTS.rglob("*.*"))
    own = {file.name for file in FILES}
    texts = {
        file.name: file.read_bytes().decode("utf-8", "replace") for file in others if file.name not in own
    }

    assert [name for name, text in texts.items() if kind_of(text) and name != "SOURCES.md"] == []


def test_files_of_one_node_add_up_to_one_list_of_devices() -> None:
    scan = told(
        text_of("ibstat-h100-12ca-roce-all-active.txt"),
        text_of("show-gids-container-vf.txt"),
        text_of("ibv-devinfo-4port-roce.txt"),
        "mlx5_3 port 1 ==> eth3 (Up)\n",
    )

    first, fourth = scan.rdma[0], scan.rdma[3]
    assert len(scan.rdma) == 12
    assert (first.ports[0].rate_gbit_per_s, first.ports[0].active_mtu_bytes) == (400.0, 1024)
    assert (first.ports[0].netdev, first.ports[0].gids[-1].index) == ("net1", 7)
    # What the first file said stays.
    assert (first.ports[0].state, first.firmware) == ("Active", "28.39.1002")
    assert first.board == "MT_0000000834"
    assert fourth.ports[0].netdev == "eth3"


def test_devices_of_saved_files_are_nics_for_the_rest_of_the_product() -> None:
    nics = told(text_of("ibstat-h100-3-down-disabled.txt")).nics

    assert (nics[0].name, nics[0].kind, nics[0].is_up, nics[0].speed_gbit_per_s) == (
        *("mlx5_0", "infiniband", True),
        400.0,
    )
    assert [(nic.name, nic.is_up) for nic in nics if nic.kind == "roce"] == [
        ("mlx5_1", True),
        ("mlx5_2", False),
        ("mlx5_7", False),
        ("mlx5_8", False),
    ]


def test_a_nic_that_is_known_already_is_completed_and_keeps_its_place() -> None:
    ethernet = Nic("eth0", "ethernet", True, 25.0, 0, "mlx5_core")
    known = Nic("mlx5_0", "roce", True, 400.0, 1, "mlx5_core")
    scan = node_scan(nics=(known, ethernet))

    found = with_devices(scan, (RdmaDevice("mlx5_0", (RdmaPort(1, "Down"),), pci_bus_id="0000:18:00.0"),))

    assert found.nics[1] == ethernet
    assert (found.nics[0].is_up, found.nics[0].numa_node, found.nics[0].pci_bus_id) == (
        True,
        1,
        "0000:18:00.0",
    )


def test_an_interface_that_is_called_like_a_device_is_another_one() -> None:
    scan = node_scan(nics=(Nic("rdma0", "ethernet", True, 25.0, 0, None),))

    found = with_devices(scan, (RdmaDevice("rdma0", (RdmaPort(1, "Active", link_layer="Ethernet"),)),))

    assert [nic.kind for nic in found.nics] == ["roce", "ethernet"]


# --- other layouts -----------------------------------------------------------------------------------------


def test_ibstat_of_one_port_has_a_colon_and_no_indentation() -> None:
    found = ibstat.parse(
        "CA: 'mlx5_0'\nPort 1:\nState: Initializing\nPhysical state: LinkUp\nRate: 40 (FDR10)\n"
    )

    ((_, port),) = ports(found)
    assert (port.state, port.physical_state, port.rate_gbit_per_s) == ("Init", "LinkUp", 40.0)


def test_labels_of_srun_are_taken_off_and_other_tasks_are_left_out() -> None:
    lines = "CA 'mlx5_0'\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n".splitlines()
    text = "\n".join(f" {task}: {line}" for line in lines for task in (0, 1))

    found = ibstat.parse(text)

    assert [device.name for device in found.devices] == ["mlx5_0"]
    assert found.devices[0].ports[0].state == "Active"
    assert found.problems == ("lines of 1 other tasks are left out",)


def test_labels_of_mpirun_carriage_returns_and_a_prompt_do_no_harm() -> None:
    tagged = "[1,3]<stdout>:link mlx5_0/1 state DOWN physical_state POLLING \r\n"
    prompt = (
        "root@gpu001:~# ibstatus\n\x1b[0mInfiniband device 'mlx5_0' port 1 status:\r\n\tstate:\t\t1: DOWN\r\n"
    )

    assert rdma_link.parse(tagged).devices[0].ports[0] == RdmaPort(1, "Down", "Polling")
    assert ibstatus.parse(prompt).devices[0].ports[0].state == "Down"


def test_a_block_that_is_cut_off_is_read_and_told() -> None:
    text = text_of("ibstat-h100-bond-gap.txt")

    found = ibstat.parse(text[: text.index("mlx5_4") + 60])

    assert [device.name for device in found.devices] == ["mlx5_0", "mlx5_1", "mlx5_4"]
    assert found.problems == ("the block of `mlx5_4` is incomplete: a port is missing",)


def test_a_second_output_in_one_file_is_left_out_and_told() -> None:
    text = text_of("ibstatus-azure-an0.txt").rstrip(" ")

    found = ibstatus.parse(text + "\n" + text)

    assert len(found.devices) == 2
    assert found.problems == (
        "line 19: a second block for `mlx5_an0` is left out",
        "line 28: a second block for `mlx5_ib0` is left out",
    )


VERBOSE = """hca_id:\tmlx5_bond_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t26.38.1002
\tnode_guid:\t\t\t946d:ae03:0000:0001
\tsys_image_guid:\t\t\t946d:ae03:0000:0001
\tvendor_id:\t\t\t0x02c9
\tvendor_part_id:\t\t\t4127
\tboard_id:\t\t\tMT_0000000531
\tphys_port_cnt:\t\t\t1
\tmax_mr_size:\t\t\t0xffffffffffffffff
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t0
\t\t\tlink_layer:\t\tEthernet
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t25.0 Gbps (32)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:ba59:9fff:fe37:8268, RoCE v1
\t\t\tGID[  1]:\t\tfe80::ba59:9fff:fe37:8268, RoCE v2
\t\t\tGID[  2]:\t\t0000:0000:0000:0000:0000:ffff:c0a8:010b, IB/RoCE v1
\t\t\tGID[  3]:\t\t::ffff:192.168.1.11, RoCE v2
"""


def test_verbose_ibv_devinfo_tells_the_rate_and_the_gid_table() -> None:
    ((name, port),) = ports(ibv_devinfo.parse(VERBOSE))

    assert (name, port.rate_gbit_per_s, port.active_mtu_bytes) == ("mlx5_bond_0", 100.0, 1024)
    assert [(gid.index, gid.type, gid.ipv4) for gid in port.gids] == [
        (0, "RoCE v1", None),
        (1, "RoCE v2", None),
        (2, "RoCE v1", "192.168.1.11"),
        (3, "RoCE v2", "192.168.1.11"),
    ]


def test_gids_of_an_old_ibv_devinfo_have_no_type() -> None:
    old = VERBOSE.replace(", IB/RoCE v1", "").replace(", RoCE v1", "").replace(", RoCE v2", "")

    ((_, port),) = ports(ibv_devinfo.parse(old))

    assert [gid.type for gid in port.gids] == [None] * 4
    assert port.gids[3].ipv4 == "192.168.1.11"


def test_an_efa_device_is_told_by_its_vendor() -> None:
    text = "hca_id: rdmap16s27\n\tvendor_id: 0x1d0f\n\tvendor_part_id: 61345\n\t\tport: 1\n"

    scan = told(text)

    assert (scan.rdma[0].driver, scan.rdma[0].type) == ("efa", None)
    assert scan.nics[0].kind == "other"


def test_ibv_devices_tells_names_alone() -> None:
    scan = told(
        "    device          \t   node GUID\n    ------          \t----------------\n"
        "    mlx5_0          \t946dae0300000001\n    mlx5_1          \t946dae0300000002\n"
    )

    assert [(device.name, device.ports) for device in scan.rdma] == [("mlx5_0", ()), ("mlx5_1", ())]
    assert scan.rdma[1].node_guid == "946d:ae03:0000:0002"
    assert scan.nics[0].is_up is None


def test_a_show_gids_that_found_none_is_an_answer_and_a_cut_one_is_none() -> None:
    head = "DEV\tPORT\tINDEX\tGID\t\tIPv4\t\tVER\tDEV\n---\t----\t-----\t---\t\t----\t\t---\t---\n"

    found = show_gids.parse(head + "n_gids_found=0\n")

    assert (found.devices, found.problems) == ((), ("no port of any device has a GID",))
    with pytest.raises(InputError, match="no RDMA device"):
        show_gids.parse(head)


def test_an_ibv_devinfo_of_roce_alone_tells_both_mtus() -> None:
    text = (
        "hca_id:\tmlx5_bond_0\n\tport:\t1\n\t\tstate:\t\tPORT_ACTIVE (4)\n"
        "\t\tmax_mtu:\t\t4096 (5)\n\t\tactive_mtu:\t1024 (3)\n"
    )

    ((port,),) = (device.ports for device in ibv_devinfo.parse(text).devices)

    assert (port.active_mtu_bytes, port.max_mtu_bytes) == (1024, 4096)


def test_show_gids_with_blanks_and_without_interfaces_is_read() -> None:
    text = (
        "DEV     PORT    INDEX   GID                                     IPv4            VER     DEV\n"
        "---     ----    -----   ---                                     ------------    ---     ---\n"
        "mlx5_0  1       0       fe80:0000:0000:0000:0ac0:ebff:feda:1cfb                 v1\n"
        "mlx5_0  1       3       0000:0000:0000:0000:0000:ffff:c800:d106 200.0.209.6     v2      bond0.100\n"
        "n_gids_found=2\n"
    )

    ((_, port),) = ports(show_gids.parse(text))

    assert [(gid.index, gid.is_routable, gid.netdev) for gid in port.gids] == [
        (0, False, None),
        (3, True, "bond0.100"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '[{"ifindex":0,"ifname":"mlx5_0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"eth0","x":1}]',
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0 netdev_index 3 \n",
        "1/1: mlx5_0/1: state ACTIVE physical_state LINK_UP netdev eth0 \n",
        "0: link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0 \n",
    ],
    ids=["json", "details", "old", "srun"],
)
def test_rdma_link_is_read_in_each_of_its_shapes(text: str) -> None:
    assert told(text).rdma == (RdmaDevice("mlx5_0", (RdmaPort(1, "Active", "LinkUp", netdev="eth0"),)),)


def test_rdma_link_of_an_infiniband_port_is_told_by_its_subnet_manager() -> None:
    scan = told(
        "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 13399 sm_lid 49 lmc 0 state ACTIVE "
        "physical_state LINK_UP\n"
    )

    assert scan.rdma[0].ports == (
        RdmaPort(1, "Active", "LinkUp", link_layer="InfiniBand", lid=13399, sm_lid=49),
    )


def test_rdma_dev_tells_firmware_and_is_not_taken_for_labelled_lines() -> None:
    scan = told(
        "0: mlx5_0: node_type ca fw 28.39.1002 node_guid a000:0000:0000:0001 sys_image_guid a000:0000:0000:0001 \n"
        "1: mlx5_1: node_type ca fw 28.39.1002 node_guid a000:0000:0000:0002 sys_image_guid a000:0000:0000:0001 \n"
    )

    assert [device.name for device in scan.rdma] == ["mlx5_0", "mlx5_1"]
    assert scan.rdma[1].firmware == "28.39.1002"


VERBOSE_PAIRS = """\
0000:1a:00.0 mlx5_0 (MT4129 - MCX75310AAS-NEAT) NVIDIA ConnectX-7 HHHL Adapter card, 400GbE / NDR IB (default mode), \
Single-port OSFP, PCIe 5.0 x16, Crypto Disabled, Secure Boot Enabled                     fw 28.39.1002 \
port 1 (ACTIVE) ==> ibp26s0 (Down)
0000:1b:00.0 mlx5_1 (MT4125 - MCX623106AN-CDAT) ConnectX-6 Dx EN adapter card, 100GbE fw 22.39.1002 \
port 1 (DOWN  ) ==> enp27s0f0np0 (Up)
"""
VERBOSE_PAIR_KIND = next(kind for kind in rdma_link.KINDS if kind.name == "`ibdev2netdev` output")


@pytest.mark.parametrize(
    "text", [VERBOSE_PAIRS, VERBOSE_PAIRS.replace(" ", "  ")], ids=["plain", "column -t"]
)
def test_ibdev2netdev_with_long_descriptions_and_blanks_in_a_state_is_read(text: str) -> None:
    found = rdma_link.parse_pairs(text).devices

    assert VERBOSE_PAIR_KIND.recognise(text)
    assert [(device.name, device.type, device.firmware, device.pci_bus_id) for device in found] == [
        ("mlx5_0", "MT4129", "28.39.1002", "0000:1a:00.0"),
        ("mlx5_1", "MT4125", "22.39.1002", "0000:1b:00.0"),
    ]
    assert [(port.state, port.netdev) for device in found for port in device.ports] == [
        ("Active", "ibp26s0"),
        ("Down", "enp27s0f0np0"),
    ]


def test_ibdev2netdev_is_read_with_and_without_details() -> None:
    scan = told(
        "mlx5_0 port 1 ==> ib0 (Up)\n"
        "0000:2a:00.0 mlx5_1 (MT4129 - MCX75310AAS-NEAT) NVIDIA ConnectX-7 HHHL adapter"
        "             fw 28.39.1002 port 1 (DOWN  ) ==> ib1 (Down)\n".replace("DOWN  ", "DOWN")
    )

    assert scan.rdma[0].ports[0].netdev == "ib0"
    second = scan.rdma[1]
    assert (second.pci_bus_id, second.type, second.firmware) == ("0000:2a:00.0", "MT4129", "28.39.1002")
    assert (second.ports[0].state, second.ports[0].netdev) == ("Down", "ib1")


# --- anything ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", PARSERS)
def test_a_text_without_devices_is_refused_with_what_was_found(parse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=r"a\.txt:2: no RDMA device: .*found `command not found`"):
        parse("\ncommand not found\n", file="a.txt")


@pytest.mark.parametrize("parse", PARSERS)
def test_an_empty_text_is_refused(parse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="found nothing"):
        parse("")


@pytest.mark.parametrize("piece", ["a\n", "CA 'mlx5_0'\n", "mlx5_0 port 1 ", "GID[  0]: ", " \n", "1: ", "["])
def test_five_megabytes_are_read_or_refused(piece: str) -> None:
    text = piece * ((5 << 20) // len(piece))
    for parse in PARSERS:
        try:
            found = parse(text)
        except InputError:
            continue
        assert len(found.devices) <= 1


def test_more_lines_than_any_tool_writes_are_told() -> None:
    task = lines_of_one_task("x\n" * (LINES_LIMIT + 5))

    assert len(task.lines) == LINES_LIMIT
    assert task.problems == (f"only the first {LINES_LIMIT} lines were read",)


TEXTS = [file.read_text() for file in FILES] + [VERBOSE]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(TEXTS) | st.text(max_size=300),
    st.integers(0, 4000),
    st.integers(0, 200),
    st.text(max_size=30),
)
def test_damaged_texts_raise_nothing_but_refusals(text: str, place: int, cut: int, inserted: str) -> None:
    damaged = text[:place] + inserted + text[place + cut :]
    for parse in PARSERS:
        try:
            found = parse(damaged)
        except InputError:
            continue
        with_devices(node_scan(), found.devices)
    for kind in rdma.KINDS:
        kind.recognise(damaged)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(TEXTS), st.randoms(use_true_random=False))
def test_shuffled_lines_raise_nothing_but_refusals(text: str, random) -> None:  # type: ignore[no-untyped-def]
    lines = text.split("\n")
    random.shuffle(lines)
    for parse in PARSERS:
        try:
            parse("\n".join(lines))
        except InputError:
            continue
