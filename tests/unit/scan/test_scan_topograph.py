"""What topograph reads and writes: models, ConfigMaps, Kubernetes nodes with its labels."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from saved_file_trials import beginning, damaged, huge, read_or_refused

from topo_tune.errors import InputError
from topo_tune.records.cluster_documents import FabricMap, FabricSwitch
from topo_tune.scan.documents.topograph import parse, recognise

MODEL = """#    core
#   /    \\
# leaf1  leaf2
switches:
  core:
    metadata:
      region: us-west
    switches: [leaf1, leaf2]
  leaf1:
    nodes: ["n[1-2]"]
  leaf2:
    nodes:
    - n3
nodes:
  n3:
    capacity_block: cb2
    attributes:
      nvlink: nvl2
capacity_blocks:
  cb1:
    nodes: ["n[1-2]"]
    attributes:
      nvlink: nvl1
  cb2: {}
"""

OLD_MODEL = """topology: "topology/tree"
switches:
- name: sw1
  switches: [sw11,sw12]
- name: sw11
  capacity_blocks: [cb11]
- name: sw12
  capacity_blocks: [cb12]
capacity_blocks:
- name: cb11
  nvlink: nv1
  type: H100
  nodes: [n11-1,n11-2]
- name: cb12
  type: H100
  nodes: [n12-1,n12-2]
"""

CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
metadata:
  name: slurm-config
data:
  topology.conf: |
    # switch.1.1=leaf-1-1
    SwitchName=switch.1.1 Nodes=srv[1101-1108]
"""


def node(name: str, **labels: str) -> dict[str, object]:
    return {"kind": "Node", "metadata": {"name": name, "labels": labels, "uid": 7}, "status": {"images": []}}


def listed(*nodes: dict[str, object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}, indent=4)


NEW = "fabric.topograph.run/tier-"
OLD = "network.topology.nvidia.com/"
NODES = listed(
    node("n1", **{f"{NEW}0": "s1", f"{NEW}1": "top", "accelerator.topograph.run/domain": "nvl1"}),
    node("n2", **{f"{NEW}0": "s1", f"{NEW}1": "top", "accelerator.topograph.run/domain": "nvl1"}),
    node("n3", **{f"{NEW}0": "s2", f"{NEW}1": "top"}),
    node("control-plane"),
)
TRIALS = [MODEL, OLD_MODEL, CONFIG_MAP, NODES]


def test_a_model() -> None:
    fabric, problems = parse(MODEL, "model.yaml")

    assert problems == ()
    assert fabric == FabricMap(
        "topograph",
        (
            FabricSwitch("core", switches=("leaf1", "leaf2")),
            FabricSwitch("leaf1", nodes=("n1", "n2")),
            FabricSwitch("leaf2", nodes=("n3",)),
        ),
        3,
        domains=(("nvl1", ("n1", "n2")), ("nvl2", ("n3",))),
    )


def test_an_older_model_hangs_blocks_from_switches() -> None:
    fabric, _ = parse(OLD_MODEL, "model.yaml")

    assert fabric.switches == (
        FabricSwitch("sw1", switches=("sw11", "sw12")),
        FabricSwitch("sw11", nodes=("n11-1", "n11-2")),
        FabricSwitch("sw12", nodes=("n12-1", "n12-2")),
    )
    assert fabric.domains == (("nv1", ("n11-1", "n11-2")), ("cb12", ("n12-1", "n12-2")))


def test_a_model_of_switches_alone() -> None:
    fabric, _ = parse("switches:\n  core:\n    switches: [leaf]\n  leaf:\n    nodes: [n1]\n", "model.yaml")

    assert [switch.name for switch in fabric.switches] == ["core", "leaf"]
    assert fabric.domains == ()


def test_a_config_map_holds_a_slurm_topology() -> None:
    fabric, _ = parse(CONFIG_MAP, "map.yaml")

    assert fabric.form == "slurm tree"
    assert fabric.node_count == 8
    assert fabric.switches[0].description == "leaf-1-1"


def test_a_config_map_in_json() -> None:
    text = json.dumps({"kind": "ConfigMap", "data": {"topology.conf": "SwitchName=s1 Nodes=n1\n"}}, indent=2)

    assert recognise(beginning(text))
    assert parse(text, "map.json")[0].node_count == 1


def test_labels_of_nodes_are_tiers_from_the_node_outwards() -> None:
    fabric, problems = parse(NODES, "nodes.json")

    assert fabric.switches == (
        FabricSwitch("s1", nodes=("n1", "n2")),
        FabricSwitch("top", switches=("s1", "s2")),
        FabricSwitch("s2", nodes=("n3",)),
    )
    assert fabric.domains == (("nvl1", ("n1", "n2")),)
    assert fabric.node_count == 3
    assert problems == ("`control-plane` has none of topograph's labels",)


def test_labels_of_older_versions_in_yaml() -> None:
    text = f"""apiVersion: v1
kind: Node
metadata:
  name: n1
  labels:
    {OLD}accelerator: nvl1
    {OLD}leaf: s1
    {OLD}spine: s2
    {OLD}core: s3
"""
    fabric, _ = parse(text, "node.yaml")

    assert recognise(beginning(text))
    assert [switch.name for switch in fabric.switches] == ["s1", "s2", "s3"]
    assert fabric.domains == (("nvl1", ("n1",)),)


def test_a_domain_alone_is_worth_reading() -> None:
    fabric, _ = parse(listed(node("n1", **{f"{OLD}accelerator": "nvl1"})), "nodes.json")

    assert fabric.switches == ()
    assert fabric.domains == (("nvl1", ("n1",)),)


def test_aliases_and_tags_are_read_without_harm() -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nswitches:\n  s1: !vault\n    nodes: [n1]\n    also: *b\n"

    assert parse(bomb, "model.yaml")[0].switches == (FabricSwitch("s1", nodes=("n1",)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("switches:\ncapacity_blocks:\n", "no switch and no NVLink domain"),
        (NODES[:300], "cannot be read as JSON"),
        ("kind: ConfigMap\ndata:\n  a: 'x SwitchName=b'\n", "without a Slurm topology"),
        ("kind: ConfigMap\ndata: [SwitchName=a]\n", "is no Kubernetes object"),
        ("switches:\n  s1:\n    nodes: [\n", "is not YAML"),
    ],
)
def test_what_is_none_of_them_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text, "x.yaml")


@pytest.mark.parametrize("text", TRIALS)
def test_its_files_are_recognised(text: str) -> None:
    assert recognise(beginning(text))


@pytest.mark.parametrize(
    "text",
    ["switches:\nlights:\n", "kind: Node\nmetadata: {}\n", "kind: ConfigMap\ndata: {}\n", "nodes:\n  - n1\n"],
)
def test_other_yaml_is_not(text: str) -> None:
    assert not recognise(text)


@pytest.mark.parametrize(
    "text",
    [
        *huge("switches:\n  s:\n    nodes: [a]"),
        *huge("switches: {a: "),
        "switches:\n" + huge("  s:\n    nodes: ['n[1-9]']")[0],
        '{"kind": "List", "items": [' + huge('{"metadata": {"name": "a"}},')[1],
        "{" + huge('"a":[')[1],
    ],
    ids=lambda text: f"{text[:20]!r}-{len(text)}",
)
def test_five_megabytes_are_read_or_refused(text: str) -> None:
    read = read_or_refused(parse, text)

    assert read is None or isinstance(read[0], FabricMap)


@settings(max_examples=60, deadline=None)
@given(damaged(TRIALS))
def test_any_text_is_read_or_refused(text: str) -> None:
    recognise(beginning(text))
    read = read_or_refused(parse, text)

    assert read is None or isinstance(read[0], FabricMap)
