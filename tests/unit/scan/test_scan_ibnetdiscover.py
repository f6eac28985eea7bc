"""`ibnetdiscover`: its full form and its report of ports."""

from __future__ import annotations

import pytest
from golden_facts import FACTS, text_of
from hypothesis import given, settings
from saved_file_trials import beginning, damaged, huge, read_or_refused

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import FabricLink, FabricMap
from topo_tune.scan.documents.ibnetdiscover import parse, recognise

FULL = text_of(FACTS / "slurm" / "ibnetdiscover-superbench.txt")
PORTS = text_of(FACTS / "slurm" / "ibnetdiscover-p-hdr-odd-names.txt")


def leaf(*lines: str) -> str:
    return 'Switch 41 "S-0000000000000001"\t# "leaf1" enhanced port 0 lid 3 lmc 0\n' + "\n".join(lines) + "\n"


def cable(port: int, name: str, speed: str, kind: str = "H") -> str:
    return f'[{port}]\t"{kind}-{0x100 + port:016x}"[1]({port:x}) \t\t# "{name}" lid 9 {speed} s=4 w=2 v=4 e=4'


def port_line(port: int, speed: str, far: str) -> str:
    return f"SW     9 {port:2} 0x0000000000000001 {speed} {far}"


def test_the_full_form() -> None:
    fabric, problems = parse(FULL, "ibnetdiscover.txt")
    by_name = {switch.name: switch for switch in fabric.switches}

    assert problems == ()
    assert fabric.form == "ibnetdiscover"
    assert len(fabric.switches) == 8
    # every cable is listed by both of its ends, and counts once
    assert fabric.link_speeds == (("4xHDR", 18),)
    assert (fabric.adapters, fabric.aggregation_nodes, fabric.node_count) == (10, 1, 10)
    assert fabric.slow_link_count == 0
    spine = by_name["0xa000000000000002"]
    assert spine.description == "MF0;dc01-0101-0908-01ib1-A:MCS8500/S01/U1"
    assert spine.switches == ("0xa000000000000003", "0xa000000000000004")
    assert spine.nodes == ()
    assert by_name["0xa000000000000006"].nodes == ("RMD701091901003", "RMD701091901019")


def test_the_report_of_ports() -> None:
    fabric, problems = parse(PORTS, "ports.txt")
    by_name = {switch.name: switch for switch in fabric.switches}

    assert problems == ()
    assert fabric.link_speeds == (("4xHDR", 3),)
    # switch ports without a partner have one side only
    assert fabric.idle_ports == (("4xSDR", 2), ("4xQDR", 1))
    # five switches, one of which is only named by its neighbours; what SHARP has inside of them is no node
    assert [switch.description for switch in fabric.switches] == [
        "rackA-leaf-IB01",
        "rackB-spine-IB01",
        "rackB-spine-IB02",
        "rackB-spine-IB03",
        "Infiniscale-IV Mellanox Technologies",
    ]
    assert by_name["0xa000000000000002"].nodes == ("worker20",)
    assert (fabric.adapters, fabric.aggregation_nodes, fabric.node_count) == (1, 1, 1)
    assert fabric.unconnected == ()


def test_two_adapters_of_a_node_are_one_node() -> None:
    fabric, _ = parse(leaf(cable(1, "gpu01 mlx5_0", "4xNDR"), cable(2, "gpu01 mlx5_1", "4xNDR")), "x")

    assert fabric.switches[0].nodes == ("gpu01",)
    assert (fabric.adapters, fabric.node_count) == (2, 1)


@pytest.mark.parametrize("name", ["MT4129 ConnectX7   Mellanox Technologies", "ConnectX-6 HCA", ""])
def test_an_adapter_without_a_node_name_is_called_by_its_guid(name: str) -> None:
    fabric, _ = parse(leaf(cable(1, name, "4xNDR")), "x")

    assert fabric.switches[0].nodes == ("0x0000000000000101",)


def test_links_are_slow_among_their_own_sort() -> None:
    nodes = [cable(port, f"gpu{port:02} mlx5_0", "4xHDR") for port in range(1, 8)]
    spines = [cable(port, "spine", "4xNDR", "S") for port in range(20, 24)]
    fabric, _ = parse(leaf(*nodes, cable(9, "gpu09 mlx5_0", "1xHDR"), *spines), "x")

    # a node's 4xHDR is slower than a spine's 4xNDR, and as fast as it should be
    assert fabric.slow_links == (FabricLink(("gpu09 mlx5_0", "leaf1"), "1xHDR"),)
    assert fabric.link_speeds == (("4xHDR", 7), ("4xNDR", 4), ("1xHDR", 1))


def test_a_switchs_own_unit_for_reductions_is_on_no_slow_link() -> None:
    nodes = [cable(port, f"gpu{port:02} mlx5_0", "4xNDR") for port in range(1, 8)]
    fabric, _ = parse(leaf(*nodes, cable(41, "Mellanox Technologies Aggregation Node", "4xHDR")), "x")

    assert (fabric.slow_links, fabric.slow_link_count) == ((), 0)
    assert fabric.aggregation_nodes == 1


def test_an_adapter_port_without_a_cable() -> None:
    lines = [
        "CA    78  1 0x0000000000000002 4x HDR - SW    51 81 0x0000000000000001 ( 'gpu01 mlx5_0' - 'leaf1' )",
        "CA     0  2 0x0000000000000003 4x SDR" + " " * 36 + "'gpu01 mlx5_1'",
    ]
    fabric, _ = parse("\n".join(lines), "x")

    assert fabric.unconnected == ("gpu01 mlx5_1",)
    assert fabric.adapters == 2


@pytest.mark.parametrize(
    "names",
    [
        "( 'leaf1' - 'worker20 mlx5_3' )",
        "( leaf1 - worker20 mlx5_3 )",
        "( 'leaf1' - worker20 mlx5_3 )",
        "( leaf1 - 'worker20 mlx5_3' )",
        "( ' leaf1 ' - 'worker20 mlx5_3 ' )",
    ],
)
def test_names_with_and_without_quotes(names: str) -> None:
    fabric, _ = parse(port_line(1, "4x HDR", f"- CA 88  1 0x0000000000000002 {names}"), "x")

    assert fabric.switches[0].description == "leaf1"
    assert fabric.switches[0].nodes == ("worker20",)


def test_a_name_without_quotes_on_a_port_without_partner() -> None:
    fabric, _ = parse(port_line(1, "4x SDR", "          Infiniscale-IV Mellanox Technologies"), "x")

    assert fabric.switches[0].description == "Infiniscale-IV Mellanox Technologies"


def test_words_between_the_blocks_are_passed_over() -> None:
    text = "#\n# Topology file: generated on Mon\n\nChassis 1 (guid 0x1) (3 hops)\n" + FULL + "\n41 nodes\n"

    assert parse(text, "x") == parse(FULL, "x")


def test_a_device_that_cannot_be_read_gets_no_cables_and_gives_none_away() -> None:
    text = (
        leaf(cable(1, "gpu01 mlx5_0", "4xHDR"))
        + 'Switch 41 "S-00000000\n'
        + cable(2, "gpu02 mlx5_0", "4xHDR")
    )
    fabric, problems = parse(text, "x")

    assert fabric.switches[0].nodes == ("gpu01",)
    assert problems == ('`Switch 41 "S-00000000` is not understood',)


def test_a_line_of_the_report_that_is_cut_off_is_a_problem() -> None:
    _, problems = parse(PORTS + "SW    24 1 0xa0000", "x")

    assert problems == ("line 7: `SW    24 1 0xa0000` is not understood",)


def test_a_text_without_a_device_is_refused() -> None:
    with pytest.raises(InputError, match="no switch and no adapter"):
        parse("ibwarn: [1] mad_rpc_open_port: can't open UMAD port\n", "x")


@pytest.mark.parametrize("text", [FULL, PORTS, FULL.replace("\n", "\r\n"), "\n" + PORTS])
def test_its_files_are_recognised(text: str) -> None:
    assert recognise(beginning(text))


@pytest.mark.parametrize(
    "text",
    [*huge(PORTS.split("\n", 1)[0]), *huge(FULL), *huge('Switch 4 "S-1" # "'), *huge("[1] [")],
    ids=str.__len__,
)
def test_five_megabytes_are_read_or_refused(text: str) -> None:
    read = read_or_refused(parse, text)

    assert read is None or isinstance(read[0], FabricMap)


@settings(max_examples=60, deadline=None)
@given(damaged([FULL, PORTS]))
def test_any_text_is_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    read = read_or_refused(parse, text)

    assert read is None or isinstance(read[0], FabricMap)
