"""Lossless Ethernet settings: `mlnx_qos` and `dcb` outputs, and the files of /sys."""

from __future__ import annotations

import pytest
from golden_facts import FACTS, SHARED
from hypothesis import given, settings
from hypothesis import strategies as st
from scans import node_scan

from topo_tune.errors import InputError
from topo_tune.records.network import RdmaDevice, RdmaPort, RoceSettings
from topo_tune.scan.answer import with_facts
from topo_tune.scan.facts.fact import Gathered, RawText
from topo_tune.scan.facts.network import mlnx_qos, roce

QOS = """DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
\tprio:0 dscp:07,06,05,04,03,02,01,00,
\tprio:1 dscp:15,14,13,12,11,10,09,08,
\tprio:3 dscp:31,30,29,28,27,26,25,24,
\tprio:7 dscp:63,62,61,60,59,58,57,56,
default priority:
Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,max_buffer_size=4087072
Cable len: 7
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   0   0   0   \n\tbuffer      0   0   0   1   0   0   0   0
tc: 0 ratelimit: unlimited, tsa: vendor
\t priority:  1
"""
PFC_3 = (False, False, False, True, False, False, False, False)


def test_mlnx_qos_tells_trust_flow_control_and_the_dscp_map() -> None:
    (found,) = mlnx_qos.parse("+ mlnx_qos -i eth4\n" + QOS)

    assert (found.netdev, found.trust, found.pfc) == ("eth4", "dscp", PFC_3)
    assert dict(found.dscp_to_priority)[26] == 3
    assert len(found.dscp_to_priority) == 32


@pytest.mark.parametrize(
    ("file", "netdev"),
    [
        ("n1/mlnx_qos-ens1f0np0.txt", "ens1f0np0"),
        ("gpu001-mlnx_qos-eth0.txt", "eth0"),
        ("qos.txt", mlnx_qos.UNNAMED),
        ("settings.txt", mlnx_qos.UNNAMED),
        (None, mlnx_qos.UNNAMED),
    ],
)
def test_without_the_command_the_name_of_the_file_tells_the_interface(file: str | None, netdev: str) -> None:
    assert mlnx_qos.parse(QOS, file=file)[0].netdev == netdev


def test_outputs_of_several_interfaces_in_one_file_are_told_apart() -> None:
    text = f"$ mlnx_qos -i eth0\n{QOS}$ mlnx_qos -i eth1\n{QOS.replace('dscp', 'pcp')}"

    assert [(one.netdev, one.trust) for one in mlnx_qos.parse(text)] == [("eth0", "dscp"), ("eth1", "pcp")]


def test_dcb_tells_flow_control_too() -> None:
    text = (
        "$ dcb pfc show dev eth0\npfc-cap 8 macsec-bypass off delay 4096\n"
        "prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off \n"
    )

    assert mlnx_qos.parse(text) == (RoceSettings("eth0", pfc=PFC_3),)


def test_a_saved_output_completes_what_the_node_told() -> None:
    scan = node_scan(roce=(RoceSettings("eth0", ecn=(True,) * 8),))

    scan = mlnx_qos.tell(scan, QOS, "mlnx_qos-eth0.txt")

    assert (scan.roce[0].ecn, scan.roce[0].pfc, scan.roce[0].trust) == ((True,) * 8, PFC_3, "dscp")


def test_a_text_without_settings_is_refused() -> None:
    with pytest.raises(InputError, match=r"a\.txt: no settings: .*found `x`"):
        mlnx_qos.parse("x\n", file="a.txt")


# --- a node that can be reached ----------------------------------------------------------------------------


def file(pattern: str, path: str, text: str) -> RawText:
    return RawText(pattern, path, text)


def priorities(side: str, netdev: str, enabled: str) -> list[RawText]:
    folder = f"/sys/class/net/{netdev}/ecn/{side}/enable"
    pattern = f"/sys/class/net/*/ecn/{side}/enable/[0-7]"
    return [file(pattern, f"{folder}/{number}", digit + "\n") for number, digit in enumerate(enabled)]


DEVICES = (RdmaDevice("mlx5_0", (RdmaPort(1, "Active", link_layer="Ethernet", netdev="eth0"),)),)


def test_files_of_sys_tell_congestion_notification_and_traffic_classes() -> None:
    files = (
        *priorities("roce_np", "eth0", "11111111"),
        *priorities("roce_rp", "eth0", "10010000"),
        file("/sys/class/net/*/qos/trust", "/sys/class/net/eth0/qos/trust", "dscp\n"),
        file(
            "/sys/class/infiniband/*/tc/*/traffic_class",
            "/sys/class/infiniband/mlx5_0/tc/1/traffic_class",
            "Global tclass=106\n",
        ),
        file(
            "/sys/kernel/config/rdma_cm/*/ports/*/default_roce_tos",
            "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos",
            "104\n",
        ),
    )

    scan = with_facts(node_scan(rdma=DEVICES), Gathered(files=files), roce.FACTS)

    assert scan.roce == (
        RoceSettings(
            "eth0",
            trust="dscp",
            ecn=(True, False, False, True, False, False, False, False),
            traffic_class=106,
            default_tos=104,
        ),
    )


def test_what_no_file_tells_is_absent_with_what_to_save() -> None:
    scan = with_facts(node_scan(rdma=DEVICES), Gathered(), roce.FACTS)

    assert scan.roce == (RoceSettings("eth0"),)
    assert "mlnx_qos -i IF" in scan.absent[0].reason


def test_a_node_without_roce_says_nothing_about_it() -> None:
    infiniband = (RdmaDevice("mlx5_0", (RdmaPort(1, "Active", link_layer="InfiniBand", netdev="ib0"),)),)

    assert with_facts(node_scan(), Gathered(), roce.FACTS) == node_scan()
    assert with_facts(node_scan(rdma=infiniband), Gathered(), roce.FACTS).roce == ()


# --- anything ----------------------------------------------------------------------------------------------


def test_only_settings_are_taken_for_settings() -> None:
    others = [file for file in SHARED.rglob("*") if file.is_file()] or list(FACTS.rglob("*.*"))
    (kind,) = roce.KINDS

    assert kind.recognise(QOS)
    assert not any(kind.recognise(one.read_bytes().decode("utf-8", "replace")) for one in others)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([QOS]) | st.text(max_size=300), st.integers(0, 800), st.text(max_size=30))
def test_damaged_texts_raise_nothing_but_refusals(text: str, place: int, inserted: str) -> None:
    damaged = text[:place] + inserted + text[place + 3 :]
    try:
        mlnx_qos.parse(damaged, file=damaged)
    except InputError:
        pass


@pytest.mark.parametrize(
    "piece", ["mlnx_qos ", "mlnx_qos -i a\nPriority trust state: pcp\n", "prio:0 dscp:1,", "dcb - "]
)
def test_five_megabytes_are_read_or_refused(piece: str) -> None:
    try:
        assert len(mlnx_qos.parse(piece * ((5 << 20) // len(piece)))) == 1
    except InputError:
        pass
