"""RDMA devices of a node that can be reached: what /sys, `ibv_devinfo -v` and `rdma link` tell together."""

from __future__ import annotations

import fnmatch

from scans import node_scan

from topo_tune.records.network import Gid
from topo_tune.records.scan import Nic, NodeScan
from topo_tune.scan.answer import with_facts
from topo_tune.scan.facts.fact import Gathered, RawCommand, RawText
from topo_tune.scan.facts.network import rdma

ROOT = "/sys/class/infiniband"
PORT = f"{ROOT}/mlx5_0/ports/1"
DEVICE = {
    f"{ROOT}/mlx5_0/fw_ver": "28.39.1002\n",
    f"{ROOT}/mlx5_0/board_id": "MT_0000000838\n",
    f"{ROOT}/mlx5_0/hca_type": "MT4129\n",
    f"{ROOT}/mlx5_0/node_guid": "a000:0000:0000:0001\n",
    f"{ROOT}/mlx5_0/sys_image_guid": "a000:0000:0000:0001\n",
    f"{ROOT}/mlx5_0/device": "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0",
    f"{ROOT}/mlx5_0/device/numa_node": "0\n",
    f"{ROOT}/mlx5_0/device/driver": "/sys/bus/pci/drivers/mlx5_core",
    f"{ROOT}/mlx5_0/device/net/eth0": "",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/phys_state": "5: LinkUp\n",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)\n",
    f"{PORT}/link_layer": "Ethernet\n",
    f"{PORT}/lid": "0x0\n",
    f"{PORT}/sm_lid": "0x0\n",
    f"{PORT}/gids/0": "fe80:0000:0000:0000:0200:00ff:fe00:0001\n",
    f"{PORT}/gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    f"{PORT}/gids/12": "0000:0000:0000:0000:0000:ffff:0a01:0001\n",
    f"{PORT}/gid_attrs/types/0": "IB/RoCE v1\n",
    f"{PORT}/gid_attrs/types/3": "RoCE v2\n",
    f"{PORT}/gid_attrs/types/12": "RoCE v2\n",
    f"{PORT}/gid_attrs/ndevs/0": "eth0\n",
    f"{PORT}/counters/symbol_error": "0\n",
    f"{PORT}/counters/link_downed": "3\n",
    f"{PORT}/hw_counters/out_of_sequence": "17\n",
}


def gathered(files: dict[str, str], *commands: RawCommand) -> Gathered:
    """Files as the collector would bring them: each below the pattern that finds it."""
    patterns = [file.pattern for fact in rdma.FACTS for file in fact.files]
    found = [
        RawText(pattern, path, text)
        for path, text in files.items()
        for pattern in patterns
        if pattern.count("/") == path.count("/") and fnmatch.fnmatchcase(path, pattern)
    ]
    assert {file.path for file in found} == set(files)
    return Gathered(commands, tuple(found))


def scanned(files: dict[str, str], *commands: RawCommand, **changes: object) -> NodeScan:
    return with_facts(node_scan(**changes), gathered(files, *commands), rdma.FACTS)


def test_a_device_is_told_by_its_files() -> None:
    (device,) = scanned(DEVICE).rdma

    assert (device.name, device.type, device.firmware, device.board) == (
        *("mlx5_0", "MT4129"),
        *("28.39.1002", "MT_0000000838"),
    )
    assert (device.pci_bus_id, device.numa_node, device.driver) == ("0000:18:00.0", 0, "mlx5_core")
    assert device.is_virtual_function is False
    (port,) = device.ports
    assert (port.state, port.physical_state, port.rate_gbit_per_s) == ("Active", "LinkUp", 400.0)
    assert (port.link_layer, port.lid, port.netdev) == ("Ethernet", 0, "eth0")
    assert dict(port.counters) == {"symbol_error": 0, "link_downed": 3, "out_of_sequence": 17}


def test_gids_have_type_interface_and_address() -> None:
    (device,) = scanned(DEVICE).rdma

    assert device.ports[0].gids == (
        Gid(0, "fe80:0000:0000:0000:0200:00ff:fe00:0001", "RoCE v1", None, "eth0"),
        Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "10.0.0.1", None),
        Gid(12, "0000:0000:0000:0000:0000:ffff:0a01:0001", "RoCE v2", "10.1.0.1", None),
    )


def test_a_virtual_function_is_told_by_its_physical_one() -> None:
    (device,) = scanned({**DEVICE, f"{ROOT}/mlx5_0/device/physfn": ""}).rdma

    assert device.is_virtual_function is True


def test_the_active_mtu_comes_from_the_verbs_library() -> None:
    output = "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tstate:\t\tPORT_ACTIVE (4)\n\t\t\tactive_mtu:\t\t4096 (5)\n"

    scan = scanned(DEVICE, RawCommand(("ibv_devinfo", "-v"), 0, output))

    assert scan.rdma[0].ports[0].active_mtu_bytes == 4096
    assert scan.absent == ()


def test_without_the_verbs_library_the_active_mtu_is_absent_with_the_reason() -> None:
    scan = scanned(DEVICE, RawCommand(("ibv_devinfo", "-v"), absent="`ibv_devinfo` is not installed here"))

    assert [(absent.what, absent.reason) for absent in scan.absent] == [
        ("active MTU of RDMA ports", "`ibv_devinfo` is not installed here")
    ]


def test_the_interface_of_an_ipoib_port_comes_from_the_function_or_from_rdma_link() -> None:
    infiniband = {path: text for path, text in DEVICE.items() if "gid" not in path and "/net/" not in path}
    infiniband[f"{PORT}/link_layer"] = "InfiniBand\n"

    by_function = scanned({**infiniband, f"{ROOT}/mlx5_0/device/net/ib0": ""})
    output = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ib7 \n"
    by_link = scanned(infiniband, RawCommand(("rdma", "link"), 0, output))

    assert by_function.rdma[0].ports[0].netdev == "ib0"
    assert by_link.rdma[0].ports[0].netdev == "ib7"


def test_nics_of_the_base_scan_are_completed_and_stay_where_they_are() -> None:
    nics = (Nic("mlx5_0", "roce", True, 400.0, 0, "mlx5_core"), Nic("eth0", "ethernet", True, 400.0, 0, None))

    found = scanned(DEVICE, nics=nics).nics

    assert [nic.name for nic in found] == ["mlx5_0", "eth0"]
    assert found[0].pci_bus_id == "0000:18:00.0"
    assert found[1] == nics[1]


def test_a_node_without_rdma_says_nothing_about_it() -> None:
    failed = RawCommand(("rdma", "link"), 1, "", "Failed to open NETLINK_RDMA socket")

    assert scanned({}, failed) == node_scan()


def test_files_that_hold_nonsense_are_unknown_values() -> None:
    nonsense = dict.fromkeys(DEVICE, "\x00?" + "9" * 5000)

    (device,) = scanned(nonsense).rdma

    assert device.ports[0].state is None
    assert device.ports[0].gids == ()
    assert device.ports[0].counters == ()
