"""Slurm's topology.conf and topology.yaml: trees, blocks, ranges, GUIDs, and what scontrol prints."""

from __future__ import annotations

from collections import Counter

import pytest
from golden_facts import FACTS, text_of
from hypothesis import given, settings
from saved_file_trials import beginning, damaged, huge, read_or_refused

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import FabricMap, FabricSwitch
from topo_tune.scan.documents.slurm_topology import parse, recognise

FILES = sorted((FACTS / "slurm").glob("topology-*.conf"))

YAML = """---
- topology: topo-switch
  cluster_default: false
  tree:
    switches:
      - switch: sw_root
        children: s[1-2]
      - switch: s1
        nodes: slurm-node[1-2]
      - switch: s2
        nodes: slurm-node[3-4]
- topology: topo-block
  cluster_default: true
  block:
    block_sizes:
      - 2
      - 4
    blocks:
      - block: b1
        nodes: slurm-node[1-2]
      - block: b2
        nodes: slurm-node[3-4]
- topology: plain
  cluster_default: false
  flat: true
"""

TRIALS = [*(text_of(file) for file in FILES), YAML]


def read_conf(text: str) -> FabricMap:
    return parse(text, "topology.conf")[0]


def golden(name: str) -> FabricMap:
    fabric, problems = parse(text_of(FACTS / "slurm" / name), name)
    assert problems == ()
    return fabric


def test_azures_tree() -> None:
    fabric = golden("topology-tree-azure.conf")

    assert fabric.form == "slurm tree"
    assert [(s.name, len(s.nodes)) for s in fabric.switches] == [
        ("sw00", 3),
        ("sw01", 6),
        ("sw02", 3),
        ("sw03", 2),
        ("sw04", 2),
        ("sw05", 0),
    ]
    assert fabric.switches[-1].switches == ("sw00", "sw01", "sw02", "sw03", "sw04")
    assert fabric.node_count == 16


def test_a_tree_of_guids() -> None:
    fabric = golden("topology-tree-guids.conf")
    by_name = {switch.name: switch for switch in fabric.switches}

    assert len(fabric.switches) == 49
    assert by_name["ibsw14"].switches == ("ibsw3", "ibsw16", "ibsw17", "ibsw28", "ibsw34", "ibsw47")
    assert by_name["ibsw1"].nodes == ("0xa0000000000001", "0xa0000000000002", "0xa0000000000003")
    # the last line has no newline behind it
    assert by_name["ibsw49"].switches[-1] == "ibsw47"


def test_azures_blocks() -> None:
    fabric = golden("topology-block-azure.conf")

    assert fabric.form == "slurm block"
    assert [len(block.nodes) for block in fabric.switches] == [18, 18, 18, 18]
    assert fabric.switches[0].name == "block_5e797fc6-0f46-421a-8724-0e102c0f723c"
    assert fabric.block_sizes == (1,)


def test_topographs_tree_with_ranges_and_real_names() -> None:
    fabric = golden("topology-tree-oci-sim.conf")
    levels = Counter((switch.description or "").split("-")[0] for switch in fabric.switches)

    assert levels == {"core": 1, "spine": 6, "leaf": 12}
    assert fabric.switches[0].switches == tuple(f"switch.2.{index}" for index in range(1, 7))
    assert fabric.switches[7] == FabricSwitch(
        "switch.1.1", description="leaf-1-1", nodes=tuple(f"srv{number}" for number in range(1101, 1109))
    )
    assert {len(switch.nodes) for switch in fabric.switches} == {0, 8}
    assert fabric.node_count == 96


def test_keys_in_any_case_with_blanks_tabs_comments_and_carriage_returns() -> None:
    text = "switchname = s1\tNODES=n[1-2] linkspeed=100 # the first\r\nSWITCHNAME=top switches=s1\r\n"

    assert read_conf(text).switches == (
        FabricSwitch("s1", nodes=("n1", "n2")),
        FabricSwitch("top", switches=("s1",)),
    )


def test_a_line_goes_on_behind_a_backslash() -> None:
    assert read_conf("SwitchName=s1 \\\n  Nodes=n1,\\\nn2\n").switches == (
        FabricSwitch("s1", nodes=("n1", "n2")),
    )


def test_labels_of_srun_are_no_part_of_a_line() -> None:
    assert read_conf(" 0: SwitchName=s1 Nodes=n1\n 0: SwitchName=s2 Nodes=n2\n").node_count == 2


def test_what_scontrol_prints_of_a_tree() -> None:
    text = (
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=dev[0-5]\n"
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=dev-[6-11] Switches=(null)\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=dev[0-5],dev-[6-11] Switches=s[0-1]\n"
    )

    assert [len(switch.nodes) for switch in read_conf(text).switches] == [6, 6, 0]


def test_what_scontrol_prints_of_blocks() -> None:
    text = (
        "BlockName=b1 BlockIndex=0 Nodes=node[01-04] BlockSize=4\n"
        "BlockName=b2 BlockIndex=1 Nodes=node[05-08] BlockSize=4\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=node[01-08] BlockSize=8\n"
    )
    fabric = read_conf(text)

    assert [(block.name, len(block.nodes)) for block in fabric.switches] == [("b1", 4), ("b2", 4)]
    assert fabric.block_sizes == (4, 8)


def test_a_line_of_topographs_blocks() -> None:
    fabric = read_conf("# rack11=nvl-1-1\nBlockName=rack11 Nodes=srv[1101-1108]\nBlockSizes=8,16,32\n")

    assert fabric.switches[0].description == "nvl-1-1"
    assert fabric.block_sizes == (8, 16, 32)


def test_topology_yaml_is_read_by_its_default() -> None:
    fabric, problems = parse(YAML, "topology.yaml")

    assert fabric.form == "slurm block"
    assert [(block.name, block.nodes) for block in fabric.switches] == [
        ("b1", ("slurm-node1", "slurm-node2")),
        ("b2", ("slurm-node3", "slurm-node4")),
    ]
    assert fabric.block_sizes == (2, 4)
    assert problems == ("holds 3 topologies; read is `topo-block`, not topo-switch, plain",)


def test_a_tree_in_topology_yaml() -> None:
    fabric = read_conf(YAML.replace("cluster_default: true", "cluster_default: false"))

    assert fabric.form == "slurm tree"
    assert fabric.switches[0] == FabricSwitch("sw_root", switches=("s1", "s2"))
    assert fabric.node_count == 4


def test_lists_of_names_in_topology_yaml() -> None:
    fabric = read_conf("- topology: t\n  tree:\n    switches:\n      - {switch: s1, nodes: [n1, 'n[2-3]']}\n")

    assert fabric.switches == (FabricSwitch("s1", nodes=("n1", "n2", "n3")),)


def test_a_flat_topology_has_no_switch() -> None:
    assert read_conf("- topology: plain\n  flat: true\n") == FabricMap("slurm flat", (), 0)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("SwitchName=s2 Nodes=n[1-", "line 2: the brackets of `n[1-` do not match"),
        (
            "SwitchName=s2 Nodes=n[1-99999999]",
            "line 2: the node set `n[1-99999999]` names more than 65536 nodes",
        ),
        ("SwitchName=s2 Nodes=n1;rm", "line 2: `n1;rm` is not a node name"),
        ("hello", "line 2: `hello` is not understood"),
        ("BlockSizes=many", "line 2: `many` are not block sizes"),
        ("BlockName=b1 Nodes=n1", "has both switches and blocks; the blocks are left out"),
    ],
)
def test_what_cannot_be_read_is_a_problem_with_its_line(line: str, problem: str) -> None:
    fabric, problems = parse(f"SwitchName=s1 Nodes=n1\n{line}\n", "topology.conf")

    assert fabric.switches[0] == FabricSwitch("s1", nodes=("n1",))
    assert problems == (problem,)


@pytest.mark.parametrize(
    "text", ["", "hello\n", "# SwitchName=s1 Nodes=n1\n", "- topology: a\n  tree: nothing\n"]
)
def test_a_text_without_switches_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no switch and no block") as caught:
        parse(text, "topology.conf")

    assert "scontrol show topology" in str(caught.value)


def test_yaml_that_is_none_names_its_line() -> None:
    with pytest.raises(InputError, match="is not YAML"):
        parse("- topology: a\n  tree:\n  - b: [\n", "topology.yaml")


@pytest.mark.parametrize("text", TRIALS)
def test_its_files_are_recognised(text: str) -> None:
    assert recognise(beginning(text))


@pytest.mark.parametrize(
    "text",
    [
        *huge("SwitchName=s Nodes=n[1-9] "),
        *huge("SwitchName=s Nodes=["),
        *huge("- topology: a\n  tree:\n"),
        "k=" * 10**6,
    ],
    ids=str.__len__,
)
def test_five_megabytes_are_read_or_refused(text: str) -> None:
    read = read_or_refused(parse, text)

    assert read is None or len(read[0].switches) <= 1 << 14
    assert read is None or len(read[1]) <= 22


@settings(max_examples=60, deadline=None)
@given(damaged(TRIALS))
def test_any_text_is_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    read = read_or_refused(parse, text)

    assert read is None or isinstance(read[0], FabricMap)
