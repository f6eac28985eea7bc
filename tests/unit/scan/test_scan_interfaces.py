"""Network interfaces: `ip addr` in its shapes, `ethtool`, and what /sys says of a reachable node's."""

from __future__ import annotations

import json

import pytest
from golden_facts import FACTS, SHARED
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.network import RdmaDevice
from topo_tune.records.scan import Nic, NodeScan
from topo_tune.scan.answer import with_facts
from topo_tune.scan.facts.fact import Gathered, RawText, SavedKind
from topo_tune.scan.facts.network import ethernet, ethtool, ip_addr

ETHTOOL = (FACTS / "ib/ethtool-ipoib-eth1.txt").read_text()
IP_ADDR = """1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
       valid_lft forever preferred_lft forever
2: eno1: <BROADCAST,MULTICAST,SLAVE,UP,LOWER_UP> mtu 9000 qdisc mq master bond0 state UP group default qlen 1000
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
3: ib0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 2044 qdisc mq state UP group default qlen 256
    link/infiniband 00:00:10:29:fe:80:00:00:00:00:00:00 brd 00:ff:ff:ff:ff:12
    inet 10.1.0.1/16 brd 10.1.255.255 scope global ib0
4: bond0: <BROADCAST,MULTICAST,MASTER,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP group default qlen 1000
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 10.0.0.1/24 brd 10.0.0.255 scope global bond0
    inet6 fe80::1/64 scope link
5: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN group default
    link/ether 02:42:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0
6: veth1a2b@if7: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue master docker0 state UP group default
    link/ether 02:00:00:00:00:03 brd ff:ff:ff:ff:ff:ff link-netnsid 0
7: eno1.100@eno1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP group default
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
"""
JSON = json.dumps(
    [
        {"ifname": "eth0", "flags": ["UP"], "mtu": 9000, "operstate": "UP", "link_type": "ether",
         "addr_info": [{"local": "10.0.0.1", "prefixlen": 24}, {"local": "nonsense", "prefixlen": 1}]},
        {"ifname": "br-1", "mtu": 1500, "operstate": "DOWN", "link_type": "ether", "linkinfo": {"info_kind": "bridge"}},
        {"ifname": "net1", "operstate": "UP", "link_type": "ether", "linkinfo": {"info_kind": "bond"}, "master": "x"},
        {},
        7,
    ]
)  # fmt: skip


def kind_of(text: str) -> SavedKind | None:
    return next((kind for kind in ethernet.KINDS if kind.recognise(text)), None)


def told(text: str, file: str = "file.txt", **changes: object) -> NodeScan:
    kind = kind_of(text)
    assert kind is not None
    assert kind.tell is not None
    return kind.tell(node_scan(**changes), text, file)


def shown(scan: NodeScan) -> list[tuple[str, str, bool | None, int | None, bool | None, str | None]]:
    return [(n.name, n.kind, n.is_up, n.mtu_bytes, n.is_virtual, n.master) for n in scan.nics]


EXPECTED = [
    ("lo", "loopback", None, 65536, True, None),
    ("eno1", "ethernet", True, 9000, None, "bond0"),
    ("ib0", "other", True, 2044, None, None),
    ("bond0", "ethernet", True, 9000, True, None),
    ("docker0", "other", False, 1500, True, None),
    ("veth1a2b", "other", True, 1500, True, "docker0"),
    ("eno1.100", "ethernet", True, 9000, True, None),
]


def test_blocks_of_ip_addr_tell_each_interface() -> None:
    scan = told(IP_ADDR)

    assert shown(scan) == EXPECTED
    assert {nic.name: nic.addresses for nic in scan.nics if nic.addresses} == {
        "lo": ("127.0.0.1/8",),
        "ib0": ("10.1.0.1/16",),
        "bond0": ("10.0.0.1/24", "fe80::1/64"),
        "docker0": ("172.17.0.1/16",),
    }


def test_labels_of_srun_before_numbered_lines_are_taken_off() -> None:
    labelled = "".join(f"0: {line}\n" for line in IP_ADDR.splitlines())

    assert shown(told(labelled)) == EXPECTED


def test_brief_lines_are_read() -> None:
    text = (
        "lo               UNKNOWN        127.0.0.1/8 ::1/128 \n"
        "eth0             UP             10.0.0.1/24 fe80::1/64 \n"
        "eth1             DOWN           \n"
        "cali0@if3        UP             fe80::2/64 \n"
    )

    scan = told(text)

    assert [(nic.name, nic.kind, nic.is_up) for nic in scan.nics] == [
        ("lo", "loopback", None),
        ("eth0", "ethernet", True),
        ("eth1", "ethernet", False),
        ("cali0", "other", True),
    ]
    assert scan.nics[1].addresses == ("10.0.0.1/24", "fe80::1/64")


def test_the_inner_end_of_a_containers_pair_is_virtual() -> None:
    text = "2: eth0@if12: <BROADCAST,UP,LOWER_UP> mtu 1450 qdisc noqueue state UP group default\n"

    assert shown(told(text)) == [("eth0", "other", True, 1450, True, None)]


def test_lines_of_one_address_each_are_read_and_are_not_labels_of_tasks() -> None:
    text = (
        "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n"
        "2: eth0    inet 10.0.0.1/24 brd 10.0.0.255 scope global eth0\\       valid_lft forever\n"
        "2: eth0    inet6 fe80::1/64 scope link \\       valid_lft forever preferred_lft forever\n"
    )

    assert [(nic.name, nic.addresses) for nic in told(text).nics] == [
        ("lo", ("127.0.0.1/8",)),
        ("eth0", ("10.0.0.1/24", "fe80::1/64")),
    ]


def test_json_of_ip_addr_is_read_with_what_the_link_is() -> None:
    scan = told(JSON)

    assert shown(scan) == [
        ("eth0", "ethernet", True, 9000, None, None),
        ("br-1", "other", False, 1500, True, None),
        ("net1", "ethernet", True, None, True, "x"),
    ]
    assert scan.nics[0].addresses == ("10.0.0.1/24",)


def test_ethtool_tells_the_odd_speed_of_an_ipoib_interface() -> None:
    (nic,) = told(ETHTOOL).nics

    assert (nic.name, nic.is_up) == ("eth1", True)
    # 54000Mb/s
    assert nic.speed_gbit_per_s == 54.0


def test_an_unknown_speed_and_a_missing_link_are_told() -> None:
    (nic,) = told(
        "Settings for eth0:\n\tSpeed: Unknown!\n\tDuplex: Unknown! (255)\n\tLink detected: no\n"
    ).nics

    assert (nic.is_up, nic.speed_gbit_per_s) == (False, None)


def test_several_interfaces_in_one_file_and_several_files_add_up() -> None:
    scan = told(IP_ADDR)

    scan = ethtool.tell(
        scan, "Settings for eno1:\n\tSpeed: 100000Mb/s\nSettings for bond0:\n\tSpeed: 200000Mb/s\n", "f"
    )

    assert {nic.name: nic.speed_gbit_per_s for nic in scan.nics if nic.speed_gbit_per_s} == {
        "eno1": 100.0,
        "bond0": 200.0,
    }
    assert [nic.name for nic in scan.nics] == [row[0] for row in EXPECTED]


DRIVER = (
    "driver: mlx5_core\nversion: 24.10-0.7.0\nfirmware-version: 28.39.1002 (MT_0)\nbus-info: 0000:18:00.0\n"
)


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("$ ethtool -i eth0\n" + DRIVER, "x.txt"),
        (DRIVER, "n1/ethtool-i-eth0.txt"),
        (DRIVER, "ethtool_i_eth0.out"),
    ],
)
def test_the_driver_is_of_the_interface_that_the_command_or_the_file_names(text: str, file: str) -> None:
    (nic,) = told(text, file).nics

    assert (nic.name, nic.driver, nic.pci_bus_id) == ("eth0", "mlx5_core", "0000:18:00.0")


def test_a_driver_of_nobody_is_refused_with_what_to_do() -> None:
    with pytest.raises(InputError, match=r"does not say which interface.*\n.*ethtool-i-eth0\.txt"):
        told(DRIVER, "driver.txt")


def test_interfaces_and_rdma_devices_of_one_name_stay_apart() -> None:
    device = Nic("eth0", "other", True, 400.0, 0, "irdma")

    scan = told(ETHTOOL.replace("eth1", "eth0"), nics=(device,), rdma=(RdmaDevice("eth0", ()),))

    assert [(nic.name, nic.speed_gbit_per_s) for nic in scan.nics] == [("eth0", 400.0), ("eth0", 54.0)]


# --- a node that can be reached ----------------------------------------------------------------------------


def sys_file(path: str, text: str) -> RawText:
    parts = path.split("/")
    return RawText("/".join([*parts[:4], "*", *parts[5:]]), path, text)


FILES = (
    sys_file("/sys/class/net/eth0/mtu", "9000\n"),
    sys_file("/sys/class/net/eth0/device", "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0"),
    sys_file("/sys/class/net/eth0/master", "/sys/devices/virtual/net/bond0"),
    sys_file("/sys/class/net/eth1/mtu", "9000\n"),
    sys_file("/sys/class/net/eth1/device", "/sys/devices/pci0000:00/0000:00:03.0/virtio0"),
    sys_file("/sys/class/net/bond0/mtu", "9000\n"),
    sys_file("/sys/class/net/bond0/bonding/slaves", "eth0 eth1\n"),
)


def test_files_of_sys_complete_the_interfaces_of_the_base_scan() -> None:
    nics = tuple(Nic(name, "ethernet", True, 100.0, 0, None) for name in ("eth0", "eth1", "bond0"))
    nics += (Nic("mlx5_0", "roce", True, 100.0, 0, None),)

    scan = with_facts(node_scan(nics=nics), Gathered(files=FILES), ethernet.FACTS)

    assert shown(scan) == [
        ("eth0", "ethernet", True, 9000, False, "bond0"),
        ("eth1", "ethernet", True, 9000, False, "bond0"),
        ("bond0", "ethernet", True, 9000, True, None),
        ("mlx5_0", "roce", True, None, None, None),
    ]
    assert [nic.pci_bus_id for nic in scan.nics] == ["0000:18:00.0", "0000:00:03.0", None, None]


def test_nothing_is_said_of_interfaces_that_were_not_asked_about() -> None:
    nics = (Nic("eth0", "ethernet", True, 100.0, 0, None),)

    assert with_facts(node_scan(nics=nics), Gathered(), ethernet.FACTS).nics == nics


# --- anything ----------------------------------------------------------------------------------------------


def test_no_other_file_is_taken_for_output_about_interfaces() -> None:
    others = [file for file in SHARED.rglob("*") if file.is_file()] or list(FACTS.rglob("*.*"))
    texts = {file.name: file.read_bytes().decode("utf-8", "replace") for file in others}

    assert {name for name, text in texts.items() if kind_of(text)} - {"SOURCES.md"} == {
        "ethtool-ipoib-eth1.txt"
    }


@pytest.mark.parametrize(
    "piece", ["1: a: <> mtu 1\n", "[", "[[", "Settings for a:\n", "driver: x\n", "e UP 1.1.1.1/8 "]
)
def test_five_megabytes_are_read_or_refused(piece: str) -> None:
    text = piece * ((5 << 20) // len(piece))
    for parse in (ip_addr.parse, ethtool.parse, ethtool.parse_drivers):
        try:
            assert len(parse(text)) <= 1
        except InputError:
            continue


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([IP_ADDR, JSON, ETHTOOL, DRIVER]) | st.text(max_size=300),
    st.integers(0, 2500),
    st.text(max_size=30),
)
def test_damaged_texts_raise_nothing_but_refusals(text: str, place: int, inserted: str) -> None:
    damaged = text[:place] + inserted + text[place + 5 :]
    for tell in (ip_addr.tell, ethtool.tell, ethtool.tell_drivers):
        try:
            tell(node_scan(), damaged, "ethtool-eth0.txt")
        except InputError:
            continue
    kind_of(damaged)
